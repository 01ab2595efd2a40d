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
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from ..core import checkpoint, images
from ..core.action import integrate
from ..core.config import CheckpointError, EngineConfig
from ..core.engine import agreement, window_seed
from ..core.prompt import PromptLayout, build_layout
from ..core.reasoning import written
from ..core.sampling import choose, draw_uniforms, next_logits
from ..core.trajectories import draw_noise
from ..core.trajectory_tokens import history_token_ids
from ..core.types import DrivePlan, InputError, WindowState
from ..training.decoding import RowTails
from ..training.forward import (
    Forward,
    Geometry,
    Keys,
    encode,
    forward,
    slid,
    velocity,
)
from .batched_attention import ActionAttention
from .flow import drive_all, explore
from .planners import Planned, PlanRequest


@dataclass
class Stream:
    """One episode: features of its last frames (as `encode` gives them) and its window's keys."""

    seen: deque
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

        They must agree in settings and in exploring (`kind`).  Whole windows and
        streaming ones have only their prompts computed apart.
        """
        order = sorted(range(len(requests)), key=lambda i: _extent(requests[i]))
        made = self._step([requests[i] for i in order], [streams[i] for i in order])
        return [planned for _, planned in sorted(zip(order, made), key=lambda pair: pair[0])]

    def _step(self, requests: Sequence[PlanRequest], streams: Sequence[int]) -> list[Planned]:
        """Plan for requests in the order of their extents."""
        began = time.perf_counter()
        config = _config(requests[0])
        geometry = self._geometry(requests[0])
        generators = [torch.Generator().manual_seed(window_seed(config.seed, r.t0_ns))
                      for r in requests]
        suffixes = [self._suffix(geometry, r) for r in requests]
        if len({len(s) for s in suffixes}) > 1:
            raise ValueError('prompts of different lengths can not be computed together')
        ids = torch.from_numpy(np.stack(suffixes)).to(self.model.device)
        seen, windows = [], []
        for extent, part in groupby(requests, _extent):
            rows = slice(len(seen), len(seen) + len(list(part)))
            seen += self._streams(requests[rows], streams[rows], geometry)
            windows.append(self._window(extent, seen[rows], geometry, ids[rows]))
        k, v = (_joined([getattr(w.keys, name) for w in windows]) for name in 'kv')
        tail = RowTails(geometry, k, v, torch.full((len(ids),), ids.shape[1], device=ids.device),
                        config.max_new_tokens)
        hidden = torch.cat([w.hidden[:, -1] for w in windows])
        texts, stops = self._reason(tail, hidden, config, generators)
        attend = ActionAttention(self.model, tail, texts, stops, config.num_trajectories)

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
        states = [self._state(geometry, _extent(r), ids.shape[1]) for r in requests]
        reasonings = [written(self.tokenizer, *pair) for pair in zip(texts, stops)]
        return [Planned(self._plan(b, requests[b], seen[b].plans, driven, reasonings[b],
                                   states[b], ms, config.num_trajectories), flows[b])
                for b in range(len(requests))]

    def _window(self, extent: tuple[bool, bool], seen: Sequence[Stream], geometry: Geometry,
                ids: Tensor) -> Forward:
        """Prompts of one extent, which their streams remember."""
        whole, _ = extent
        past = None if whole else slid(_stacked(seen), geometry)
        encoded = _encoded(seen, self.frames if whole else 1)
        window = forward(self.model, geometry, None, (ids,), past, encoded)
        for b, stream in enumerate(seen):
            stream.raw = [raw[b] for raw in window.keys.raw]
            stream.v = [v[b, :, :geometry.slots] for v in window.keys.v]
            stream.plans += 1
        return window

    def _streams(self, requests: Sequence[PlanRequest], names: Sequence[int],
                 geometry: Geometry) -> list[Stream]:
        """Streams of the requests with their new frames, which are encoded all at once."""
        for request, name in zip(requests, names):
            if request.fresh:
                if len(request.pictures) != self.frames:
                    raise ValueError(f'a window begins with {self.frames} frame sets, '
                                     f'got {len(request.pictures)}')
                self.streams[name] = Stream(deque(maxlen=self.frames))
        streams = [self.streams[name] for name in names]
        tokens, deepstack = encode(self.model, geometry, self._pictures(requests))
        sets = len(requests[0].pictures), len(requests[0].camera_ids)
        tokens, deepstack = tokens.unflatten(1, (*sets, -1)), deepstack.unflatten(2, (*sets, -1))
        for b, stream in enumerate(streams):
            stream.seen.extend((tokens[b, i], deepstack[:, b, i]) for i in range(sets[0]))
        return streams

    def _size(self, request: PlanRequest) -> tuple[int, int]:
        """Height and width that the model wants the pictures in."""
        config, (height, width) = self.model.config, request.pictures.shape[2:4]
        rows, columns = images.patch_grid(height, width, config.vision, config.prompt)
        return rows * config.vision.patch_size, columns * config.vision.patch_size

    def _pictures(self, requests: Sequence[PlanRequest]) -> Tensor:
        """Pictures uint8 [B, sets, views, 3, h, w] on the device, in the size the model wants."""
        device = self.model.device
        raw = torch.empty(len(requests), *requests[0].pictures.shape, dtype=torch.uint8,
                          pin_memory=device.type == 'cuda')
        np.stack([r.pictures for r in requests], out=raw.numpy())
        there = raw.to(device, non_blocking=True).flatten(0, 2).permute(0, 3, 1, 2)
        return images.resize(there, *self._size(requests[0])).unflatten(0, raw.shape[:3])

    def _geometry(self, request: PlanRequest) -> Geometry:
        key = request.camera_ids, self._size(request)
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

    def _reason(self, tail: RowTails, hidden: Tensor, config: EngineConfig,
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
            tail.begin()
            hidden = model.language_model(model.embed_tokens(tokens)[:, None], tail)[:, 0]
            tail.slot += 1
        return ids, stops

    def _state(self, geometry: Geometry, extent: tuple[bool, bool], suffix: int) -> WindowState:
        layout, (whole, fresh) = geometry.layout, extent
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
            t0_ns=request.t0_ns, plan_id=plan_id, **arrays, scores=scores,
            chosen=int(scores.argmax()), dt_s=config.action.dt, reasoning=reasoning,
            window=state, stage_times_ms={'total': ms}, model=config.name,
            trained=config.trained, all_reasonings=(reasoning,))


def kind(request: PlanRequest) -> tuple:
    """What requests must have in common to be planned for together."""
    settings = tuple(pair for pair in request.settings if pair[0] != 'streaming')
    return (request.model, request.explore, settings, request.camera_ids,
            request.pictures.shape[1:])


def _extent(request: PlanRequest) -> tuple[bool, bool]:
    """Whether the window is computed whole, and whether it begins a stream."""
    whole = request.fresh or not dict(request.settings).get('streaming', True)
    return whole, request.fresh


def _joined(parts: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
    """Tensors by layer of all parts of a batch."""
    return parts[0] if len(parts) == 1 else [torch.cat(layer) for layer in zip(*parts)]


NOT_TOGETHER = ('separate_reasonings', 'nav_guidance_weight', 'recompute_labels',
                'refresh_period_s')
"""Settings that only an engine of one's own follows."""


def _config(request: PlanRequest) -> EngineConfig:
    """Settings of a request; `InputError` for those that are not computed in batches."""
    default, settings = EngineConfig(), dict(request.settings)
    for name in NOT_TOGETHER:
        if settings.get(name, getattr(default, name)) != getattr(default, name):
            raise InputError(f'{name} = {settings[name]!r} is not computed in batches; give every '
                             'process an engine of its own (--lanes 0)')
    return replace(default, **settings)


def _encoded(streams: Sequence[Stream], frames: int) -> tuple[Tensor, Tensor]:
    """Features of the last `frames` sets of each stream, the frames of a view side by side."""
    sets = [seen for s in streams for seen in list(s.seen)[-frames:]]
    tokens, deepstack = (torch.stack(features) for features in zip(*sets))
    batch = (len(streams), frames)
    tokens = tokens.unflatten(0, batch).transpose(1, 2).flatten(1, 3)
    deepstack = deepstack.unflatten(0, batch).permute(2, 0, 3, 1, 4, 5).flatten(2, 4)
    return tokens, deepstack


def _stacked(streams: Sequence[Stream]) -> Keys:
    layers = range(len(streams[0].raw))
    return Keys([torch.stack([s.raw[i] for s in streams]) for i in layers], [],
                [torch.stack([s.v[i] for s in streams]) for i in layers])
