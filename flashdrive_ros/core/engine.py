"""
The engine: what happens between camera frames and a plan, in the order it happens.

load -> warm up; then every step: choose what is new, encode, prefill, reason,
act, draw.  One thread owns an engine.
"""
from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from . import checkpoint, images, unicycle
from .action import check_reuse, held_constants, integrate
from .config import CheckpointError, EngineConfig
from .drafter import Drafter, Taps, load_companion
from .drafting import DraftingPolicy
from .drawing import Drawing
from .ego import HISTORY_POSES, EgoHistory
from .fast.path import FastPath
from .fast.window import FastStream
from .memory import FrameMemory, plain_encoder
from .model import Alpamayo
from .plan_features import FeatureChoice, FeatureCollector
from .prompt import PromptLayout, build_layout, question_ids
from .quantization.footprint import refuse_too_large
from .quantization.swap import asked_for, check_device
from .reasoning import Reasoned, follow, generate, reason, reason_separately, settle
from .speculative import Draft
from .stream import PromptStream
from .streaming import Window, time_reason
from .text import between
from .tokenizer import Tokenizer
from .trajectories import ActionContext, VelocityField, draw_noise, drive_from, start_of
from .trajectory_tokens import history_token_ids
from .types import (
    GRID_NS,
    NANOSECONDS,
    CameraFrame,
    DrivePlan,
    FrameSet,
    InputError,
    Primitive,
    Reasoning,
    WindowState,
)

log = logging.getLogger(__name__)
DEFAULT_CAMERAS = (0, 1, 2, 6)
MAX_LAYOUTS = 16


class Engine:
    """A streaming VLA: `step` turns the newest frames of every camera into a `DrivePlan`."""

    def __init__(self, model: Alpamayo, tokenizer: Tokenizer, config: EngineConfig,
                 drafter: Drafter | None = None):
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.drafter, self.policy = drafter, DraftingPolicy()
        self.action = held_constants(model.config.action, model.dtype)
        self.generator = torch.Generator(model.device)
        self.plan_id = self.plans_since_reset = 0
        self.memory = FrameMemory(model, self.frames_per_camera)
        self.streams: dict[str, PromptStream] = {}
        self.layouts: dict[tuple, PromptLayout] = {}
        self.measure_acceptance: int | None = None
        """
        When set, that many drafts of every round are accepted and only `max_new_tokens` ends
        a reasoning, so that a model with random weights can be timed.
        """
        self.flow_observer: Callable[[VelocityField, Tensor], None] | None = None
        """Called in every step with the velocity field and its noise, for measurements."""
        self._check(config)
        self.drawing = self._drawing(config)
        self.choice = FeatureChoice.of(config, model.config)
        self.fast = self._fast_path(config)
        if not self.trained:
            log.warning('model %s is UNTRAINED: its plans mean nothing', self.model_name)

    @classmethod
    def from_checkpoint(cls, name: str, config: EngineConfig | None = None) -> Engine:
        """
        Load a shipped model's name, a checkpoint directory or a hub id.

        Raises `CheckpointError` that names what is wrong.
        """
        config = config or EngineConfig()
        device, dtype = checkpoint.resolve_device(config.device, config.dtype)
        if device.type == 'cpu':
            torch.set_num_threads(config.cpu_threads or max(1, (os.cpu_count() or 2) // 2))
        quantization = asked_for(config)
        if quantization is not None:
            check_device(quantization.kind, device)
        if device.type == 'cuda':
            refuse_too_large(str(name), config, dtype, device)
        model, tokenizer = checkpoint.load(str(name), device, dtype, quantization)
        return cls(model, tokenizer, config, load_companion(str(name), model, config.drafting))

    @property
    def model_name(self) -> str:
        """Name of the checkpoint."""
        return self.model.config.name

    @property
    def trained(self) -> bool:
        """False for random weights."""
        return self.model.config.trained

    @property
    def camera_ids(self) -> tuple[int, ...] | None:
        """Cameras that the model insists on; None when any subset will do."""
        return self.model.config.prompt.camera_ids

    @property
    def frames_per_camera(self) -> int:
        """Frames of every camera in a window."""
        return self.model.config.prompt.frames_per_camera

    @property
    def flow_steps(self) -> int:
        """Euler steps of flow matching."""
        return self.config.steps_of(self.model.config.action)

    @property
    def drafting_state(self) -> str:
        """Say whether reasoning is drafted, and why not."""
        if self.drafter is None:
            return 'off: no drafter'
        return self.policy.state(self.config.drafting)

    def configure(self, **changes) -> None:
        """
        Change settings between steps; refuses what needs a reload with `InputError`.

        Settings that change the cache's layout make the next window a prefill.
        """
        config = replace(self.config, **changes)
        for name in ('device', 'dtype', 'cpu_threads', 'quantization', 'quantize_expert'):
            if getattr(config, name) != getattr(self.config, name):
                raise InputError(f'{name} can not change while a model is loaded')
        self._check(config)
        drawing, known = self._drawing(config), self.streams
        choice = FeatureChoice.of(config, self.model.config)
        if (choice and choice.kept) != (self.choice and self.choice.kept):
            self.streams = {}
            self.memory.invalidate('features changed')
        if self._tail_slots(config) != self._tail_slots(self.config) or (
                _sees_window(drawing) != _sees_window(self.drawing)):
            self.streams = {}
            changed = 'max_new_tokens' if config.max_new_tokens != self.config.max_new_tokens \
                else 'primitives'
            self.memory.invalidate(f'{changed} changed')
        changed = [n for n in ('graphs', 'fusion')
                   if getattr(config, n) != getattr(self.config, n)]
        if changed:
            self.streams = {}
            self.memory.invalidate(f'{changed[0]} changed')
            self.fast = self._fast_path(config)
        if self.fast is not None and config.recompute_labels != self.config.recompute_labels:
            self.memory.invalidate('recompute_labels changed')
        layouts = {name: stream.layout for name, stream in known.items()}
        self.config, self.drawing, self.choice = config, drawing, choice
        self._prepare(layouts)

    @torch.inference_mode()
    def _prepare(self, layouts: Mapping[str, PromptLayout]) -> None:
        """Capture now what the next windows of these streams need."""
        if self.fast is None or not self.fast.pool.enabled:
            return
        for name, layout in layouts.items():
            if name not in self.streams:
                self.streams[name] = self._stream(name, layout)
            draft = None
            if self.drafter is not None:
                context = self._taps(layout, always=True).last
                hidden = self.model.config.text.hidden_size
                draft = self._draft(torch.zeros(context, hidden, dtype=self.model.dtype,
                                                device=self.model.device))
            if self.streams[name].prepare(self.config, self.flow_steps, draft,
                                          self.measure_acceptance):
                self.memory.invalidate('its graphs were captured')

    def _fast_path(self, config: EngineConfig) -> FastPath | None:
        """What computes in place of the plain path, if anything."""
        fast = FastPath.wanted(self.model, self.drafter, config)
        self.memory.encoder = plain_encoder(self.model) if fast is None else fast.encode
        return fast

    def _check(self, config: EngineConfig) -> None:
        if config.drafting == 'on' and self.drafter is None:
            raise InputError(f'drafting is on, but {self.model_name} was loaded without a drafter')
        wrong = check_reuse(config.velocity_reuse, config.steps_of(self.model.config.action))
        if wrong:
            raise InputError(wrong)
        if config.nav_guidance_weight != 1 and self.model.config.is_r1:
            raise InputError(f'{self.model_name} (Alpamayo 1) has no guidance on navigation text')

    def _drawing(self, config: EngineConfig) -> Drawing | None:
        """What is drawn besides plans; None when nothing is."""
        if not config.primitives:
            return None
        return Drawing(self.model, self.tokenizer, config, self.drafter)

    def reset(self, reason: str) -> None:
        """Forget all frames; what follows equals a fresh engine's output bit for bit."""
        self.memory.forget(reason)
        self.plans_since_reset = 0
        self.policy.reset()

    def free(self) -> None:
        """Give memory of the device that is not in use back, after it ran out."""
        if self.model.device.type == 'cuda':
            torch.cuda.empty_cache()

    def warm_up(self, camera_ids=None, height: int = 1080, width: int = 1920) -> None:
        """
        Run windows of black frames, so that the first real step is as fast as others.

        With a drafter, this measures what a drafted round costs.  Raises
        `CheckpointError` when not even these give a finite plan.
        """
        cameras = camera_ids or self.camera_ids or DEFAULT_CAMERAS
        black = np.zeros((height, width, 3), np.uint8)
        plan_id, drafting = self.plan_id, self.config.drafting
        pass_ms: dict[str, float] = {}
        measures = self.drafter is not None and drafting != 'off'
        modes = ['on', 'on', 'off', 'off'] if measures else [drafting] * 2
        for tick, mode in enumerate(modes, 1):
            self.configure(drafting=mode)
            t0 = tick * GRID_NS
            ego = EgoHistory(t0, np.zeros((HISTORY_POSES, 3)), np.tile(np.eye(3), (16, 1, 1)))
            plan = self.step(FrameSet(t0, {c: CameraFrame(black, t0) for c in cameras}), ego)
            if not plan.is_finite:
                raise CheckpointError(f'{self.model_name} plans values that are not finite for '
                                      'black frames: its weights are damaged')
            passes = max(text.rounds for text in plan.all_reasonings)
            pass_ms[mode] = plan.stage_times_ms['reason'] / passes
        self.configure(drafting=drafting)
        if measures:
            self.policy.cost = pass_ms['on'] / pass_ms['off']
            log.info('a drafted round takes %.2f plain steps', self.policy.cost)
        self._prepare({name: stream.layout for name, stream in self.streams.items()})
        with torch.inference_mode():
            for count in range(1, len(cameras)):  # those left when others were prepared
                self.memory.encoder([black] * count)
        self.plan_id = plan_id
        self.reset('start')

    @torch.inference_mode()
    def prepare(self, camera_id: int, frame: CameraFrame) -> bool:
        """
        Encode a camera's newest frame while the others of its set are on their way.

        The step that gets this very `frame` needs not encode it again.  Does not wait for
        the device; False when the frame is known.  A failure leaves the state as it was.
        """
        if self.camera_ids is not None and camera_id not in self.camera_ids:
            raise InputError(f'{self.model_name} has no camera {camera_id}, it needs '
                             f'{list(self.camera_ids)}')
        return self.memory.prepare(camera_id, frame)

    @torch.inference_mode()
    def step(self, frames: FrameSet, ego: EgoHistory, nav_text: str = '',
             history: Iterable[FrameSet] = ()) -> DrivePlan | None:
        """
        Plan for the newest frames; None when they are the last ones again (nothing happens).

        `history`: older frame sets that may complete the window after a start or a
        gap; those already known are not encoded again.  `InputError` leaves the
        state as it was; any other failure leaves the engine reset.
        """
        last = self.memory.last_t0_ns
        if frames.t0_ns == last:
            return None
        history = [h for h in history
                   if h.camera_ids == frames.camera_ids and h.t0_ns < frames.t0_ns]
        self._refuse(frames, ego)
        clock = StageClock(self.model.device)
        layout, unguided_layout = self._layouts(frames, nav_text)
        if last is not None and frames.t0_ns < last:
            self.reset(time_reason(last, frames.t0_ns, 0))
        try:
            plan = self._step(frames, ego, history, layout, unguided_layout, clock)
        except BaseException as error:
            self.reset(f'the last step failed: {type(error).__name__}')
            raise
        if plan.window.mode == 'prefill':
            log.info('window %d: prefill (%s)', frames.t0_ns, plan.window.reason)
        return plan

    def _refuse(self, frames: FrameSet, ego: EgoHistory) -> None:
        if ego.t0_ns != frames.t0_ns:
            raise InputError(f'ego history ends at {ego.t0_ns}, the frames are of {frames.t0_ns}')
        if self.camera_ids is not None and frames.camera_ids != self.camera_ids:
            raise InputError(f'{self.model_name} needs the cameras {list(self.camera_ids)}, '
                             f'got {list(frames.camera_ids)}')

    def _layouts(self, frames: FrameSet, nav_text: str):
        """Layout of the prompt, and of the one without navigation text when guidance needs it."""
        model = self.model.config
        merge = model.vision.spatial_merge_size
        grids = tuple(tuple(n // merge for n in images.patch_grid(
            *f.image.shape[:2], model.vision, model.prompt)) for f in frames.frames.values())
        cameras, nav_text = frames.camera_ids, nav_text.strip()
        guided = self._layout(cameras, grids, nav_text)
        needs_unguided = nav_text and self.config.nav_guidance_weight != 1
        return guided, self._layout(cameras, grids, '') if needs_unguided else None

    def _layout(self, cameras, grids, nav_text: str) -> PromptLayout:
        """Build a layout, or take it from the last few."""
        key = (cameras, grids, nav_text)
        layout = self.layouts.pop(key, None) or build_layout(
            self.model.config, self.tokenizer, cameras, grids, nav_text=nav_text)
        self.layouts[key] = layout  # the newest is last
        if len(self.layouts) > MAX_LAYOUTS:
            del self.layouts[next(iter(self.layouts))]
        return layout

    def _step(self, frames, ego, history, layout, unguided_layout, clock) -> DrivePlan:
        self.generator.manual_seed(window_seed(self.config.seed, frames.t0_ns))
        memory = self.memory
        with clock('encode'):
            encoded = memory.encode([*history, frames])
            window, shift, why = self._choose(frames.t0_ns, layout, unguided_layout)
        taps = self._taps(layout)
        with clock('prefill'):
            features = memory.features(window)
            history_ids = history_token_ids(ego.xyz, self.model.config.prompt, ego.rot)
            stream, hidden, computed = self._prefill('guided', layout, features, shift,
                                                     history_ids, taps)
            unguided = None
            if unguided_layout is None:
                self.streams.pop('unguided', None)  # it would fall behind
            else:
                unguided, _, _ = self._prefill('unguided', unguided_layout, features, shift,
                                               history_ids)
        start = start_of(ego, self.action)  # while the device prefills
        with clock('reason'):
            reasoned = self._reason(stream, hidden[-1], taps)
            if self.config.settle_reasoning:
                reasoned = settle(stream, reasoned)
        collector = self._collector(stream, history_ids, reasoned)
        with clock('act'):
            trajectories = self._act(stream, unguided, reasoned, start)
        with clock('draw'):
            primitives = self._draw(stream, memory.encoded[frames.t0_ns].sizes, collector)
        kept = None
        if collector is not None:
            with clock('features'):
                kept = collector.finish()
        state = WindowState('prefill' if shift == layout.frames else 'streaming', why,
                            window.known, layout.frames, encoded, layout.size, computed)
        memory.commit(frames.t0_ns, window, state.mode == 'prefill')
        self.plan_id += 1
        self.plans_since_reset += 1
        return self._plan(frames, trajectories, reasoned, primitives, kept, state, clock)

    def _choose(self, t0_ns, layout, unguided_layout) -> tuple[Window, int, str]:
        """Window for these frames, how many places of it are new, and why if all are."""
        tolerance = int(self.config.grid_tolerance_s * NANOSECONDS)
        window, shift, why = self.memory.choose(t0_ns, tolerance)
        if shift < layout.frames:
            why = self._prefill_due(t0_ns, layout, unguided_layout)
        return window, layout.frames if why else shift, why

    def _prefill_due(self, t0_ns, layout, unguided_layout) -> str:
        """Say why the whole window must be computed although its frames follow; '' if not."""
        for name, new in (('guided', layout), ('unguided', unguided_layout)):
            old = self.streams.get(name)
            if new is not None and old is None:
                return 'guidance on navigation text began'
            if new is not None and old.layout.size != new.size:
                return f'prompt length changed from {old.layout.size} to {new.size}'
        if not self.config.streaming:
            return 'streaming is off'
        period = self.config.refresh_period_s
        if period and t0_ns - self.memory.last_prefill_ns >= period * NANOSECONDS:
            return f'periodic refresh every {period:g} s'
        return ''

    def _taps(self, layout: PromptLayout, always: bool = False) -> Taps | None:
        """Collector of what the drafter reads of the prompt's end; None: this window is plain."""
        if self.drafter is None or not (always or self.policy.due(self.config.drafting)):
            return None
        config = self.drafter.config
        return Taps(config, min(config.context_len, layout.size - layout.suffix))

    def _prefill(self, name: str, layout: PromptLayout, features, shift: int, history_ids,
                 taps: Taps | None = None):
        """Bring the stream `name` up to this window; returns it, hidden states, slots computed."""
        stream = self.streams.get(name)
        if stream is None or stream.layout.size != layout.size or (
                stream.layout.images != layout.images):
            stream = self.streams[name] = self._stream(name, layout)
        stream.layout = layout
        return stream, *stream.prefill(features, shift, history_ids, self.config.recompute_labels,
                                       taps)

    def _stream(self, name: str, layout: PromptLayout) -> PromptStream:
        tail_slots, drafter = self._tail_slots(self.config), self._window_drafter(name)
        choice = self.choice if name == 'guided' else None
        if self.fast is not None:
            return self.fast.stream(layout, tail_slots, drafter, choice)
        return PromptStream(self.model, layout, tail_slots, drafter, choice)

    def _tail_slots(self, config: EngineConfig) -> int:
        """Slots behind the prompt, for what is generated there and for a block of drafts."""
        drawn = config.max_primitive_tokens if config.primitives else 0
        block = self.drafter.config.block_size if self.drafter is not None else 0
        return max(config.max_new_tokens, drawn) + 1 + block

    def _window_drafter(self, name: str) -> Drafter | None:
        """Return the drafter for whom the stream `name` keeps features of the prompt, if any."""
        return self.drafter if name == 'guided' and _sees_window(self.drawing) else None

    def _reason(self, stream: PromptStream, hidden: Tensor, taps: Taps | None) -> Reasoned:
        config, draft = self.config, None
        if taps is not None:
            draft = self._draft(self.drafter.fuse(taps.chosen())[0])
        what = stream, self.tokenizer, hidden, config, self.generator, draft
        if config.separate_reasonings and config.num_trajectories > 1:
            reasoned = reason_separately(*what)
        else:
            reasoned = reason(*what, self.measure_acceptance)
        self.policy.note(reasoned.texts)
        return reasoned

    def _draft(self, context: Tensor) -> Draft:
        """Drafter of a reasoning, given its features [n, hidden] of the prompt's end."""
        return Draft(self.drafter, context, {
            self.tokenizer.id('cot_end'): self.tokenizer.id('traj_future_start')})

    def _act(self, stream, unguided, reasoned, start) -> unicycle.UnicycleTrajectory:
        """Flow matching from noise to controls, and the controls as trajectories."""
        samples = self.config.num_trajectories
        if self._flows(stream, unguided, reasoned):
            return stream.flow.run(reasoned, self._noise(), self.flow_steps,
                                   self.config.velocity_reuse, start)
        context = ActionContext(stream, samples, reasoned)
        other = None
        if unguided is not None:
            other = ActionContext(unguided, samples, follow(unguided, reasoned))
        field = VelocityField(self.model, context, other, self.config.nav_guidance_weight)
        noise = self._noise()
        controls = integrate(field, noise, self.flow_steps, reuse=self.config.velocity_reuse)
        if self.flow_observer is not None:
            self.flow_observer(field, noise)
        return drive_from(start, controls.cpu(), self.action)

    def _noise(self) -> Tensor:
        return draw_noise(self.config.num_trajectories, self.action.n_waypoints,
                          self.config.noise_temperature, self.generator)

    def _flows(self, stream: PromptStream, unguided: PromptStream | None,
               reasoned: Reasoned) -> bool:
        """Say whether `stream` has a stage for the whole flow of these samples."""
        return (isinstance(stream, FastStream) and unguided is None
                and self.flow_observer is None and stream.flow.serves(reasoned))

    @property
    def _draws(self) -> bool:
        """Say whether this plan is asked for primitives."""
        return (self.drawing is not None
                and self.plans_since_reset % self.config.primitives_every == 0)

    def _draw(self, stream, sizes, collector) -> tuple[Primitive, ...] | None:
        """Primitives of this plan; None when it is not asked for any."""
        return self.drawing.draw(stream, sizes, collector) if self._draws else None

    def _collector(self, stream, history_ids, reasoned: Reasoned) -> FeatureCollector | None:
        """Features of prompt and reasoning, when this plan comes with any."""
        if self.choice is None or (self.config.features == 'drawn' and not self._draws):
            return None
        text, = reasoned.texts
        collector = FeatureCollector(self.choice, 'verified' if text.drafted else 'autoregressive')
        collector.prompt(stream, history_ids)
        collector.text(stream, text.token_ids)
        return collector

    def _plan(self, frames, trajectories, reasoned, primitives, features, state,
              clock) -> DrivePlan:
        arrays = {name: getattr(trajectories, name).numpy() for name in (
            'xyz', 'yaw', 'speed', 'acceleration', 'curvature')}
        scores = agreement(arrays['xyz'])
        chosen = int(scores.argmax())
        texts: tuple[Reasoning, ...] = reasoned.texts
        return DrivePlan(
            t0_ns=frames.t0_ns, plan_id=self.plan_id, **arrays, scores=scores, chosen=chosen,
            dt_s=self.model.config.action.dt, reasoning=texts[chosen if len(texts) > 1 else 0],
            window=state, stage_times_ms=clock.finish(), model=self.model_name,
            trained=self.trained, primitives=primitives or (), drawn=primitives is not None,
            features=features, all_reasonings=texts)

    @torch.inference_mode()
    def ask(self, question: str) -> str:
        """
        Answer a question about the window seen last (Alpamayo 1.5); the stream is not touched.

        Raises `InputError` when no frames were seen yet or the model answers no questions.
        """
        if self.memory.window is None or 'guided' not in self.streams:
            raise InputError('no frames were seen yet, there is nothing to ask about')
        stream = self.streams['guided']
        asked = question_ids(self.model.config, self.tokenizer, question)
        if stream.room_behind(stream.layout.suffix) < len(asked) + self.config.max_new_tokens:
            return self._ask_separately(question)
        with stream.branch(stream.layout.suffix):
            hidden = stream.extend(torch.tensor(asked, device=self.model.device))
            return self._answer(stream, hidden[-1])

    def _ask_separately(self, question: str) -> str:
        """Answer a question that does not fit behind the images, in a prompt of its own."""
        seen = self.streams['guided'].layout
        layout = build_layout(self.model.config, self.tokenizer, seen.camera_ids, seen.grids,
                              question=question)
        other = PromptStream(self.model, layout, self.config.max_new_tokens + 1)
        hidden, _ = other.prefill(self.memory.features(self.memory.window), layout.frames, None)
        return self._answer(other, hidden[-1])

    def _answer(self, stream: PromptStream, hidden: Tensor) -> str:
        ids, _ = generate(stream, hidden, self.config, self.generator,
                          self.model.allowed_tokens(trajectory_tokens=True),
                          last=self.tokenizer.id('answer_end'), end=self.tokenizer.id('im_end'))
        return between(self.tokenizer.decode(ids), 'answer')


def _sees_window(drawing: Drawing | None) -> bool:
    """Say whether a drafter draws that sees all of the prompt."""
    drafter = drawing and drawing.decoder.drafter
    return drafter is not None and drafter.config.window_context


def agreement(xyz: np.ndarray) -> np.ndarray:
    """
    Score [K] of K trajectories `xyz` [K, N, 3]: exp(-mean distance to the others in m).

    The models give no score of their own; the sample closest to all others is
    the least surprising one.  1 for a single trajectory.
    """
    samples = len(xyz)
    if samples == 1:
        return np.ones(1, np.float32)
    distance = np.linalg.norm(xyz[:, None] - xyz[None], axis=-1).mean(-1)
    return np.exp(-distance.sum(1) / (samples - 1)).astype(np.float32)


class StageClock:
    """
    Time of each stage in ms, device work included.

    On a CUDA device by events in its stream: nothing waits for the device between
    the stages, and what the host does in the meantime is no stage's.
    """

    def __init__(self, device: torch.device):
        self.device, self.marks = device, {}
        self.began = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str):
        """Time the block as `stage`."""
        start = self._mark()
        yield
        self.marks[stage] = start, self._mark()

    def _mark(self):
        if self.device.type != 'cuda':
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def finish(self) -> dict[str, float]:
        """Times by stage, and the total; waits for the device."""
        if self.device.type == 'cuda':
            torch.cuda.current_stream(self.device).synchronize()
            times = {stage: a.elapsed_time(b) for stage, (a, b) in self.marks.items()}
        else:
            times = {stage: (b - a) * 1e3 for stage, (a, b) in self.marks.items()}
        return times | {'total': (time.perf_counter() - self.began) * 1e3}


def window_seed(seed: int, t0_ns: int) -> int:
    """Mix the user's seed and the window's time into one generator seed."""
    return (seed * 0x9E3779B97F4A7C15 + t0_ns) % (1 << 63)
