"""
The engine's step for many episodes at once.

The same windows, tokens and trajectories as `Engine.step` gives (the tests
compare them), for prompts of one length whose frames follow each other without
a gap.  Random numbers are drawn per window on the CPU, as an engine there draws
them.
"""
from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import checkpoint, images
from ..core.action import integrate
from ..core.config import CheckpointError, EngineConfig
from ..core.engine import agreement, window_seed
from ..core.model import Alpamayo
from ..core.prompt import PromptLayout, build_layout
from ..core.reasoning import written
from ..core.rotary import decoder_rotary, rotate
from ..core.sampling import choose, draw_uniforms, next_logits
from ..core.trajectories import draw_noise
from ..core.trajectory_tokens import history_token_ids
from ..core.types import DrivePlan, FrameSet, WindowState
from ..training.forward import Geometry, Keys, attention, forward, slid, velocity
from .flow import drive_all, explore
from .planners import Planned, PlanRequest


@dataclass
class Stream:
    """One episode: its last frames on the device (by camera, uint8) and the keys of its window."""

    pictures: deque
    raw: Sequence[Tensor] = ()
    v: Sequence[Tensor] = ()
    plans: int = 0


class BatchedEngine:
    """Windows of many streams through one model."""

    def __init__(self, name: str, device: str, dtype: str = 'auto'):
        place, kind = checkpoint.resolve_device(device, dtype)
        self.model, self.tokenizer = checkpoint.load(name, place, kind)
        if not self.model.config.expert_non_causal_attention:
            raise CheckpointError(f'{name}: causal action experts are not computed in batches')
        self.frames = self.model.config.prompt.frames_per_camera
        self.streams: dict[int, Stream] = {}
        self.geometries: dict[tuple, Geometry] = {}
        self.layouts: dict[tuple, PromptLayout] = {}

    @torch.inference_mode()
    def step(self, requests: Sequence[PlanRequest], streams: Sequence[int]) -> list[Planned]:
        """
        Plan for requests of different streams.

        They must agree in settings, in being fresh and in exploring (`kind`).
        """
        began = time.perf_counter()
        config = replace(EngineConfig(), **dict(requests[0].settings))
        whole = requests[0].fresh or not config.streaming
        seen = [self._stream(*pair) for pair in zip(requests, streams)]
        geometry = self._geometry(requests[0].frames[-1])
        generators = [torch.Generator().manual_seed(window_seed(config.seed, r.frames[-1].t0_ns))
                      for r in requests]
        suffixes = [self._suffix(geometry, r) for r in requests]
        if len({len(s) for s in suffixes}) > 1:
            raise ValueError('prompts of different lengths can not be computed together')
        ids = torch.from_numpy(np.stack(suffixes))
        past = None if whole else slid(_stacked(seen), geometry)
        newest = self.frames if whole else 1
        pictures = torch.stack([torch.stack(list(s.pictures)[-newest:], 1) for s in seen])
        window = forward(self.model, geometry, pictures, (ids.to(self.model.device),), past)
        for b, stream in enumerate(seen):
            stream.raw = [raw[b] for raw in window.keys.raw]
            stream.v = [v[b, :, :geometry.slots] for v in window.keys.v]
            stream.plans += 1
        tail = Tail(self.model, geometry, window.keys, ids.shape[1], config.max_new_tokens)
        texts, stops = self._reason(tail, window.hidden[:, -1], config, generators)
        attend = ActionAttention(tail, texts, stops, config.num_trajectories)

        def field(x, t):
            rows = x.view(len(requests), config.num_trajectories, *x.shape[-2:])
            return velocity(self.model, attend, rows, t.expand(rows.shape[:2])).view_as(x)
        noise = torch.stack([draw_noise(
            config.num_trajectories, self.model.config.action.n_waypoints,
            config.noise_temperature, g) for g in generators]).to(self.model.device)
        steps = config.steps_of(self.model.config.action)
        controls = integrate(field, noise, steps, reuse=config.velocity_reuse)
        egos = [r.ego for r in requests]
        driven = drive_all(controls, egos, self.model)
        flows = explore(self.model, field, noise, steps, egos) if requests[0].explore else [
            None] * len(requests)
        ms = (time.perf_counter() - began) * 1e3
        state = self._state(geometry, whole, requests[0].fresh, ids.shape[1])
        return [Planned(self._plan(b, requests[b], seen[b].plans, driven, written(
            self.tokenizer, texts[b], stops[b]), state, ms, config.num_trajectories), flows[b])
            for b in range(len(requests))]

    def _stream(self, request: PlanRequest, name: int) -> Stream:
        """Stream of a request with its new frames."""
        if request.fresh:
            if len(request.frames) != self.frames:
                raise ValueError(f'a window begins with {self.frames} frame sets, '
                                 f'got {len(request.frames)}')
            self.streams[name] = Stream(deque(maxlen=self.frames))
        stream = self.streams[name]
        for frames in request.frames:
            stream.pictures.append(self._resized(frames))
        return stream

    def _size(self, frames: FrameSet) -> tuple[int, int]:
        """Height and width that the model wants the pictures in."""
        config, (height, width) = self.model.config, next(
            iter(frames.frames.values())).image.shape[:2]
        rows, columns = images.patch_grid(height, width, config.vision, config.prompt)
        return rows * config.vision.patch_size, columns * config.vision.patch_size

    def _resized(self, frames: FrameSet) -> Tensor:
        """Pictures uint8 [views, 3, h, w] on the device, as large as the model wants them."""
        raw = torch.from_numpy(np.stack([f.image for f in frames.frames.values()]))
        raw = raw.to(self.model.device).permute(0, 3, 1, 2)
        return images.resize(raw, *self._size(frames))

    def _geometry(self, frames: FrameSet) -> Geometry:
        key = frames.camera_ids, self._size(frames)
        if key not in self.geometries:
            self.geometries[key] = Geometry(self.model, self.tokenizer, *key)
        return self.geometries[key]

    def _suffix(self, geometry: Geometry, request: PlanRequest) -> np.ndarray:
        """Token ids of the prompt behind the last image."""
        key = geometry.layout.grids, request.nav_text
        if key not in self.layouts:
            self.layouts[key] = build_layout(
                self.model.config, self.tokenizer, geometry.layout.camera_ids,
                geometry.layout.grids, nav_text=request.nav_text)
        layout = self.layouts[key]
        ids = layout.token_ids.copy()
        ids[slice(*layout.history)] = history_token_ids(
            request.ego.xyz, self.model.config.prompt, request.ego.rot)
        return ids[layout.suffix:]

    def _reason(self, tail: Tail, hidden: Tensor, config: EngineConfig,
                generators) -> tuple[list[list[int]], list[str]]:
        """Tokens of every row and why it stopped, as `core.reasoning.generate` has them."""
        model = self.model
        ends = {self.tokenizer.id('traj_future_start'): 'end_token',
                self.tokenizer.id('im_end'): 'im_end'}
        allowed = model.allowed_tokens(trajectory_tokens=False)
        ids: list[list[int]] = [[] for _ in generators]
        stops = [''] * len(ids)
        draws = torch.stack([draw_uniforms(config.max_new_tokens, generator=g)
                             for g in generators]).to(model.device)
        while not all(stops):
            step = max(map(len, ids))
            tokens = choose(next_logits(model, hidden, allowed), config, draws[:, step])
            for b, token in enumerate(tokens.tolist()):
                if not stops[b]:
                    ids[b].append(token)
                    at_limit = 'length' if len(ids[b]) == config.max_new_tokens else ''
                    stops[b] = ends.get(token, at_limit)
            hidden = model.language_model(model.embed_tokens(tokens)[:, None], tail)[:, 0]
            tail.length += 1
        return ids, stops

    def _state(self, geometry: Geometry, whole: bool, fresh: bool, suffix: int) -> WindowState:
        layout = geometry.layout
        frames, size = self.frames if whole else 1, layout.suffix + suffix
        newest = sum(end - begin for *_, (begin, end) in layout.images)
        why = '' if not whole else 'another episode' if fresh else 'streaming is off'
        return WindowState('prefill' if whole else 'streaming', why, self.frames, self.frames,
                           frames * len(layout.images), size, size if whole else newest + suffix)

    def _plan(self, b, request, plan_id, driven, reasoning, state, ms, samples) -> DrivePlan:
        arrays = {name: getattr(driven, name)[b * samples:(b + 1) * samples].numpy()
                  for name in ('xyz', 'yaw', 'speed', 'acceleration', 'curvature')}
        scores, config = agreement(arrays['xyz']), self.model.config
        return DrivePlan(
            t0_ns=request.frames[-1].t0_ns, plan_id=plan_id, **arrays, scores=scores,
            chosen=int(scores.argmax()), dt_s=config.action.dt, reasoning=reasoning,
            window=state, stage_times_ms={'total': ms}, model=config.name,
            trained=config.trained, all_reasonings=(reasoning,))


def kind(request: PlanRequest) -> tuple:
    """What requests must have in common to be planned for together."""
    settings = dict(request.settings)
    return (request.model, request.fresh or not settings.get('streaming', True),
            request.fresh, request.explore, request.settings)


def _stacked(streams: Sequence[Stream]) -> Keys:
    layers = range(len(streams[0].raw))
    return Keys([torch.stack([s.raw[i] for s in streams]) for i in layers], [],
                [torch.stack([s.v[i] for s in streams]) for i in layers])


class Tail:
    """Keys of B prompts with room for generated tokens; attends one token a row at a time."""

    def __init__(self, model: Alpamayo, geometry: Geometry, keys: Keys, suffix: int, room: int):
        self.geometry, self.model = geometry, model
        self.size = self.length = geometry.slots + suffix
        self.k, self.v = ([torch.cat((t, t.new_zeros(*t.shape[:2], room, t.shape[3])), 2)
                           for t in tensors] for tensors in (keys.k, keys.v))
        position = geometry.start + suffix + torch.arange(room, device=model.device)
        self.cos, self.sin = decoder_rotary(position.expand(3, -1), model.config.text)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend` with one token a row."""
        at = self.length - self.size
        cos, sin = self.cos[at:at + 1], self.sin[at:at + 1]
        self.k[layer][:, :, self.length:self.length + 1] = rotate(k, cos, sin).to(v.dtype)
        self.v[layer][:, :, self.length:self.length + 1] = v
        end = self.length + 1
        grouped = rotate(q, cos, sin).to(v.dtype).reshape(len(q), k.shape[1], -1, k.shape[3])
        return F.scaled_dot_product_attention(
            grouped, self.k[layer][:, :, :end], self.v[layer][:, :, :end]).reshape(q.shape)


class ActionAttention:
    """
    Action tokens of K samples a row see their row's prompt and reasoning, and their own sample.

    As in `core.trajectories.ActionContext`: a last token that was never
    forwarded is not seen, but counts for the positions.
    """

    def __init__(self, tail: Tail, texts: Sequence[Sequence[int]], stops: Sequence[str],
                 samples: int):
        model, device = tail.model, tail.model.device
        self.tail, n = tail, model.config.action.n_waypoints
        counts = torch.tensor([len(ids) for ids in texts], device=device)
        forwarded = torch.tensor([stop == 'end_token' for stop in stops], device=device)
        first = tail.geometry.start + tail.size - tail.geometry.slots + counts
        position = (first[:, None] + torch.arange(n, device=device)).repeat(1, samples)
        cos, sin = decoder_rotary(position.flatten().expand(3, -1), model.config.expert)
        self.cos, self.sin = (a.view(len(texts), 1, samples * n, -1) for a in (cos, sin))
        seen = torch.arange(tail.length, device=device) < (
            tail.size + counts - 1 + forwarded.long())[:, None]
        own = torch.block_diag(*[torch.ones(n, n, device=device)] * samples).bool()
        mask = torch.cat((seen[:, None, None].expand(-1, 1, samples * n, -1),
                          own.expand(len(texts), 1, -1, -1)), -1)
        self.mask = torch.zeros(mask.shape, dtype=model.dtype, device=device)
        self.mask.masked_fill_(~mask, -torch.inf)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend`."""
        q, k = (rotate(x, self.cos, self.sin).to(v.dtype) for x in (q, k))
        end = self.tail.length
        return attention(q, torch.cat((self.tail.k[layer][:, :, :end], k), 2),
                         torch.cat((self.tail.v[layer][:, :, :end], v), 2), self.mask)
