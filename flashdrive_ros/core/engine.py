"""
The engine: what happens between camera frames and a plan, in the order it happens.

load -> warm up; then every step: choose what is new, encode, prefill, reason,
act.  One thread owns an engine.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from . import checkpoint, images, unicycle
from .config import EngineConfig
from .ego import HISTORY_POSES, EgoHistory
from .model import Alpamayo
from .prompt import PromptLayout, build_layout
from .reasoning import Reasoned, generate, reason, reason_separately
from .stream import PromptStream
from .streaming import Window, fill_window, shift_between, time_reason
from .tokenizer import Tokenizer
from .trajectories import ActionContext, VelocityField, draw_noise, flow
from .trajectory_tokens import history_token_ids
from .types import (
    GRID_NS,
    NANOSECONDS,
    CameraFrame,
    DrivePlan,
    FrameSet,
    InputError,
    Reasoning,
    WindowState,
)
from .vision import ImageFeatures

log = logging.getLogger(__name__)
DEFAULT_CAMERAS = (0, 1, 2, 6)
MAX_LAYOUTS = 16


@dataclass(frozen=True)
class EncodedSet:
    """Features of one frame set, by camera, with the raw image sizes (height, width)."""

    features: dict[int, ImageFeatures]
    sizes: dict[int, tuple[int, int]]


class Engine:
    """A streaming VLA: `step` turns the newest frames of every camera into a `DrivePlan`."""

    def __init__(self, model: Alpamayo, tokenizer: Tokenizer, config: EngineConfig):
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.generator = torch.Generator(model.device)
        self.plan_id = 0
        self.streams: dict[str, PromptStream] = {}
        self.layouts: dict[tuple, PromptLayout] = {}
        self._check(config)
        self.reset('start')
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
        return cls(*checkpoint.load(str(name), device, dtype), config)

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

    def configure(self, **changes) -> None:
        """
        Change settings between steps; refuses what needs a reload with `InputError`.

        Settings that change the cache's layout make the next window a prefill.
        """
        config = replace(self.config, **changes)
        for name in ('device', 'dtype'):
            if getattr(config, name) != getattr(self.config, name):
                raise InputError(f'{name} can not change while a model is loaded')
        self._check(config)
        if config.max_new_tokens != self.config.max_new_tokens:  # the caches' size
            self.streams, self.window = {}, None
            self.prefill_reason = 'max_new_tokens changed'
        self.config = config

    def _check(self, config: EngineConfig) -> None:
        if config.nav_guidance_weight != 1 and self.model.config.is_r1:
            raise InputError(f'{self.model_name} (Alpamayo 1) has no guidance on navigation text')
        if config.nav_guidance_weight != 1 and config.separate_reasonings:
            raise InputError('guidance on navigation text goes with one shared reasoning')

    def reset(self, reason: str) -> None:
        """Forget all frames; what follows equals a fresh engine's output bit for bit."""
        self.encoded: dict[int, EncodedSet] = {}
        self.window: Window | None = None
        self.last_t0_ns: int | None = None
        self.last_prefill_ns = 0
        self.prefill_reason = reason

    def warm_up(self, camera_ids=None, height: int = 1080, width: int = 1920) -> None:
        """Run two windows of black frames, so that the first real step is as fast as others."""
        cameras = camera_ids or self.camera_ids or DEFAULT_CAMERAS
        black = np.zeros((height, width, 3), np.uint8)
        plan_id = self.plan_id
        for t0 in (GRID_NS, 2 * GRID_NS):
            ego = EgoHistory(t0, np.zeros((HISTORY_POSES, 3)), np.tile(np.eye(3), (16, 1, 1)))
            self.step(FrameSet(t0, {c: CameraFrame(black, t0) for c in cameras}), ego)
        self.plan_id = plan_id
        self.reset('start')

    @torch.inference_mode()
    def step(self, frames: FrameSet, ego: EgoHistory, nav_text: str = '',
             history: Iterable[FrameSet] = ()) -> DrivePlan | None:
        """
        Plan for the newest frames; None when they are the last ones again (nothing happens).

        `history`: older frame sets that may complete the window after a start or a
        gap; those already known are not encoded again.  `InputError` leaves the
        state as it was; any other failure leaves the engine reset.
        """
        if frames.t0_ns == self.last_t0_ns:
            return None
        history = [h for h in history if h.camera_ids == frames.camera_ids]
        self._refuse(frames, ego)
        clock = StageClock(self.model.device)
        layout, unguided_layout = self._layouts(frames, nav_text)
        if self.last_t0_ns is not None and frames.t0_ns < self.last_t0_ns:
            self.reset(time_reason(self.last_t0_ns, frames.t0_ns, 0))
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
        self.generator.manual_seed(_seed(self.config.seed, frames.t0_ns))
        with clock('encode'):
            fresh = self._encode([*history, frames])
            window, shift, why = self._choose(frames, layout, unguided_layout)
        with clock('prefill'):
            features = [[self.encoded[t0].features[c] for t0 in window.sources]
                        for c in frames.camera_ids]
            history_ids = history_token_ids(ego.xyz, self.model.config.prompt)
            stream, hidden, computed = self._prefill('guided', layout, features, shift,
                                                     history_ids)
            if unguided_layout is not None:
                unguided, _, _ = self._prefill('unguided', unguided_layout, features, shift,
                                               history_ids)
        with clock('reason'):
            reasoned = self._reason(stream, hidden[-1])
        with clock('act'):
            context = ActionContext(stream, self.config.num_trajectories, reasoned)
            other = None
            if unguided_layout is not None:
                other = self._follow(unguided, reasoned)
            trajectories = self._act(VelocityField(self.model, context, other,
                                                   self.config.nav_guidance_weight), ego)
        state = WindowState(
            'prefill' if shift == layout.frames else 'streaming', why, window.known,
            layout.frames, fresh * len(frames.camera_ids), layout.size, computed)
        self._commit(frames, window, state)
        return self._plan(frames, trajectories, reasoned, state, clock)

    def _encode(self, sets: list[FrameSet]) -> int:
        """Encode the frame sets that are not known yet; returns how many there were."""
        model = self.model.config
        fresh = [s for s in sets if s.t0_ns not in self.encoded]
        by_size: dict[tuple[int, int], list[tuple[FrameSet, int]]] = {}
        for frame_set in fresh:
            for camera, frame in frame_set.frames.items():
                by_size.setdefault(frame.image.shape[:2], []).append((frame_set, camera))
            self.encoded[frame_set.t0_ns] = EncodedSet({}, {})
        for size, members in by_size.items():
            raw = np.stack([s.frames[c].image for s, c in members])
            raw = torch.from_numpy(raw).to(self.model.device).permute(0, 3, 1, 2)
            patches, grid = images.prepare(raw, model.vision, model.prompt)
            encoded = self.model.visual(patches.to(self.model.dtype), grid)
            for (frame_set, camera), features in zip(members, encoded):
                entry = self.encoded[frame_set.t0_ns]
                entry.features[camera], entry.sizes[camera] = features, size
        return len(fresh)

    def _choose(self, frames, layout, unguided_layout) -> tuple[Window, int, str]:
        """Window for these frames, how many places of it are new, and why if all are."""
        sizes = self.encoded[frames.t0_ns].sizes
        usable = [t for t, e in self.encoded.items() if e.sizes == sizes]
        tolerance = int(self.config.grid_tolerance_s * NANOSECONDS)
        window = fill_window(frames.t0_ns, usable, layout.frames, tolerance)
        why = self._prefill_due(frames, sizes, layout, unguided_layout)
        if why:
            return window, layout.frames, why
        shift = shift_between(self.window, window)
        if shift < layout.frames:
            return window, shift, ''
        return window, shift, time_reason(self.last_t0_ns, frames.t0_ns, tolerance) or \
            'the frames before these changed'

    def _prefill_due(self, frames, sizes, layout, unguided_layout) -> str:
        """Say why the whole window must be computed whatever its frames are; '' if it need not."""
        if self.window is None:
            return self.prefill_reason
        last = self.encoded[self.last_t0_ns].sizes
        if sorted(last) != sorted(sizes):
            return f'cameras changed from {sorted(last)} to {sorted(sizes)}'
        for camera, (height, width) in sizes.items():
            if last[camera] != (height, width):
                old = last[camera]
                return (f'image size of camera {camera} changed from {old[1]}x{old[0]} to '
                        f'{width}x{height}')
        for name, new in (('guided', layout), ('unguided', unguided_layout)):
            old = self.streams.get(name)
            if new is not None and old is None:
                return 'guidance on navigation text began'
            if new is not None and old.layout.size != new.size:
                return f'prompt length changed from {old.layout.size} to {new.size}'
        if not self.config.streaming:
            return 'streaming is off'
        period = self.config.refresh_period_s
        if period and frames.t0_ns - self.last_prefill_ns >= period * NANOSECONDS:
            return f'periodic refresh every {period:g} s'
        return ''

    def _prefill(self, name: str, layout: PromptLayout, features, shift: int, history_ids):
        """Bring the stream `name` up to this window; returns it, hidden states, slots computed."""
        stream = self.streams.get(name)
        if stream is None or stream.layout.size != layout.size or (
                stream.layout.images != layout.images):
            tail = self.config.max_new_tokens + 1
            stream = self.streams[name] = PromptStream(self.model, layout, tail)
        stream.layout = layout
        return stream, *stream.prefill(features, shift, history_ids, self.config.recompute_labels)

    def _reason(self, stream: PromptStream, hidden: Tensor) -> Reasoned:
        config = self.config
        separately = config.separate_reasonings and config.num_trajectories > 1
        return (reason_separately if separately else reason)(
            stream, self.tokenizer, hidden, config, self.generator)

    def _follow(self, unguided: PromptStream, reasoned: Reasoned) -> ActionContext:
        """Feed the guided reasoning to the unguided prompt; context of its action tokens."""
        ids = torch.tensor(reasoned.texts[0].token_ids, device=self.model.device)
        forwarded = reasoned.visible[0] - self.streams['guided'].layout.size
        if forwarded:
            unguided.extend(ids[:forwarded])
        size = unguided.layout.size
        return ActionContext(unguided, self.config.num_trajectories, replace(
            reasoned, first_action_slot=(size + len(ids),), visible=(size + forwarded,)))

    def _act(self, field: VelocityField, ego: EgoHistory) -> unicycle.UnicycleTrajectory:
        action, samples = self.model.config.action, self.config.num_trajectories
        noise = draw_noise(samples, action.n_waypoints, self.config.noise_temperature,
                           self.generator)
        controls = flow(field, noise, self.config.flow_steps or action.num_inference_steps)
        xyz = torch.as_tensor(ego.xyz, dtype=torch.float32)
        rot = torch.as_tensor(ego.rot, dtype=torch.float32)
        speed = unicycle.speed_from_history(xyz[None], rot[None], action)
        return unicycle.decode(controls.cpu(), speed.expand(samples),
                               xyz[-1, 2].expand(samples), action)

    def _commit(self, frames: FrameSet, window: Window, state: WindowState) -> None:
        """The step succeeded: remember its window, forget older frames."""
        self.window, self.last_t0_ns = window, frames.t0_ns
        oldest = frames.t0_ns - self.frames_per_camera * GRID_NS
        self.encoded = {t: e for t, e in self.encoded.items()
                        if oldest <= t <= frames.t0_ns or t in window.sources}
        if state.mode == 'prefill':
            self.last_prefill_ns = frames.t0_ns
        self.plan_id += 1

    def _plan(self, frames, trajectories, reasoned, state, clock) -> DrivePlan:
        arrays = {name: getattr(trajectories, name).numpy() for name in (
            'xyz', 'yaw', 'speed', 'acceleration', 'curvature')}
        scores = agreement(arrays['xyz'])
        chosen = int(scores.argmax())
        texts: tuple[Reasoning, ...] = reasoned.texts
        return DrivePlan(
            t0_ns=frames.t0_ns, plan_id=self.plan_id, **arrays, scores=scores, chosen=chosen,
            dt_s=self.model.config.action.dt, reasoning=texts[chosen if len(texts) > 1 else 0],
            window=state, stage_times_ms=clock.finish(), model=self.model_name,
            trained=self.trained, all_reasonings=texts)

    @torch.inference_mode()
    def ask(self, question: str) -> str:
        """
        Answer a question about the window seen last (Alpamayo 1.5); the stream is not touched.

        Raises `InputError` when no frames were seen yet or the model answers no questions.
        """
        if self.window is None or self.last_t0_ns is None:
            raise InputError('no frames were seen yet, there is nothing to ask about')
        seen = self.encoded[self.last_t0_ns].features
        stream = self.streams['guided']
        layout = build_layout(self.model.config, self.tokenizer, tuple(seen), stream.layout.grids,
                              question=question)
        features = [[self.encoded[t].features[c] for t in self.window.sources] for c in seen]
        other = PromptStream(self.model, layout, self.config.max_new_tokens + 1)
        hidden, _ = other.prefill(features, layout.frames, None)
        allowed = self.model.allowed_tokens(trajectory_tokens=True)
        ids, _ = generate(other, hidden[-1], self.config, self.generator, allowed,
                          last=self.tokenizer.id('answer_end'), end=self.tokenizer.id('im_end'))
        return self.tokenizer.between(self.tokenizer.decode(ids), 'answer')


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
    """Wall time of each stage in ms, device work included."""

    def __init__(self, device: torch.device):
        self.device, self.times = device, {}
        self.began = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str):
        """Time the block as `stage`."""
        start = time.perf_counter()
        yield
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)
        self.times[stage] = (time.perf_counter() - start) * 1e3

    def finish(self) -> dict[str, float]:
        """Times by stage, and the total."""
        return self.times | {'draw': 0.0, 'total': (time.perf_counter() - self.began) * 1e3}


def _seed(seed: int, t0_ns: int) -> int:
    """Mix the user's seed and the window's time into one generator seed."""
    return (seed * 0x9E3779B97F4A7C15 + t0_ns) % (1 << 63)
