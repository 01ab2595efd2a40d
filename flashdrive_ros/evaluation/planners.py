"""
How an evaluation asks a checkpoint for plans: an engine of its own, or one that is shared.

Both give the same plans.  With an engine in every process the plans are the
engine's own; a shared one (`batched.py`) computes the windows of many episodes
at once, which a GPU needs to be worth its while.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import Protocol

import numpy as np

from ..core.ego import EgoHistory
from ..core.types import DrivePlan, FrameSet


@dataclass(frozen=True)
class Explored:
    """
    The flow of one plan, tried in other ways (`flow.py`).

    `change` [steps - 1] of the velocity; `xy` [K, 64, 2] by name of the schedule.
    """

    change: list[float]
    xy: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Planned:
    """A plan, and its flow when that was to be explored."""

    plan: DrivePlan
    flow: Explored | None = None


@dataclass(frozen=True)
class PlanRequest:
    """
    One window of one episode, for a shared engine.

    `pictures` uint8 [sets, cameras, H, W, 3] are the newest frames, after older
    ones where the window begins anew (`fresh`).  `settings` are fields of
    `EngineConfig`, `streaming` always among them.
    """

    model: str
    fresh: bool
    t0_ns: int
    camera_ids: tuple[int, ...]
    pictures: np.ndarray
    ego: EgoHistory
    nav_text: str
    settings: tuple[tuple[str, object], ...]
    explore: bool = False


class Planner(Protocol):
    """Plans window after window of one episode; `frames` sets make a window."""

    frames: int

    def reset(self) -> None:
        """Begin another episode."""

    def plan(self, frames: FrameSet, ego: EgoHistory, nav_text: str,
             history: Iterable[FrameSet] = (), explore: bool = False, **settings) -> Planned:
        """Plan for the newest frames; `history` are older ones that the planner has not seen."""


class Planners:
    """Planners with an engine in this process, by checkpoint."""

    def __init__(self, device: str = 'cpu', dtype: str = 'auto'):
        self.device, self.dtype = device, dtype
        self._ready: dict[str, LocalPlanner] = {}

    def __call__(self, model: str) -> Planner:
        """Return the planner of a checkpoint, ready for another episode."""
        if model not in self._ready:
            self._ready[model] = LocalPlanner(model, self.device, self.dtype)
        planner = self._ready[model]
        planner.reset()
        return planner


class LocalPlanner:
    """An engine of this process."""

    def __init__(self, model: str, device: str, dtype: str):
        from ..core.config import EngineConfig
        from ..core.engine import Engine
        self.engine = Engine.from_checkpoint(model, EngineConfig(device=device, dtype=dtype))
        self.frames = self.engine.frames_per_camera
        self._defaults = {f.name: getattr(self.engine.config, f.name) for f in fields(EngineConfig)
                          if f.name not in ('device', 'dtype')}

    def reset(self) -> None:
        """Forget all frames."""
        self.engine.reset('another episode')

    def plan(self, frames, ego, nav_text, history=(), explore=False, **settings) -> Planned:
        """Plan through the engine's own step."""
        engine, seen = self.engine, []
        engine.configure(**(self._defaults | settings))
        engine.flow_observer = (lambda *flow: seen.append(flow)) if explore else None
        plan = engine.step(frames, ego, nav_text, history)
        if not explore:
            return Planned(plan)
        from .flow import explore as explore_flow
        (field, noise), = seen
        return Planned(plan, explore_flow(engine.model, field, noise[None], engine.flow_steps,
                                          [ego])[0])


class RemotePlanners:
    """
    Planners that ask the process at the other end of a pipe, one window at a time.

    They wait for it inside `waiting()`.
    """

    def __init__(self, pipe: Connection, waiting: Callable = nullcontext):
        self.pipe, self.waiting = pipe, waiting

    def __call__(self, model: str) -> Planner:
        """Return a planner for another episode."""
        return RemotePlanner(self.pipe, model, self.waiting)


class RemotePlanner:
    """A share of an engine that another process has (`PlanServer`)."""

    def __init__(self, pipe: Connection, model: str, waiting: Callable):
        self.pipe, self.model, self.waiting = pipe, model, waiting
        self.frames = self._ask(model)
        self.fresh = True

    def _ask(self, question):
        try:
            with self.waiting():
                self.pipe.send(question)
                answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError('the process that plans has ended') from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def reset(self) -> None:
        """Begin anew with the next window."""
        self.fresh = True

    def plan(self, frames, ego, nav_text, history=(), explore=False, **settings) -> Planned:
        """Send the window and wait for its plan."""
        sets = (*history, frames) if self.fresh else (frames,)
        fresh, self.fresh = self.fresh, False
        return self._ask(request_of(self.model, fresh, sets, ego, nav_text, explore, **settings))


def request_of(model: str, fresh: bool, sets: Sequence[FrameSet], ego: EgoHistory, nav_text: str,
               explore: bool = False, **settings) -> PlanRequest:
    """Request for the window that ends with the last of `sets`, in one array of pictures."""
    known = tuple((name, tuple(value) if isinstance(value, list) else value)
                  for name, value in sorted(settings.items()))
    pictures = np.stack([[f.image for f in frames.frames.values()] for frames in sets])
    return PlanRequest(model, fresh, sets[-1].t0_ns, sets[-1].camera_ids, pictures, ego, nav_text,
                       known, explore)
