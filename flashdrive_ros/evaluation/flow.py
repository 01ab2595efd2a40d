"""
How the velocity changes along the flow, and what it costs to reuse it.

All schedules are tried from the same noise after the same reasoning, on the
very window that the engine has just planned for.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.action import Velocity, held_constants, integrate
from ..core.ego import EgoHistory
from ..core.engine import Engine
from ..core.trajectories import drive
from .errors import errors


class FlowProbe:
    """Takes the velocity field of an engine's step and integrates it in other ways."""

    def __init__(self, engine: Engine):
        self.engine, self._seen = engine, None

    def begin(self) -> None:
        """Watch the next step."""
        self.engine.flow_observer = self._observe

    def _observe(self, field: Velocity, noise: Tensor) -> None:
        self._seen = field, noise
        self.engine.flow_observer = None

    @torch.inference_mode()
    def examine(self, ego: EgoHistory, truth: np.ndarray) -> dict:
        """
        Change of velocity [steps - 1]; by schedule, ADE and minADE m of the K samples.

        To be called before the engine's next step, whose cache the field reads.
        """
        (field, noise), steps = self._seen, self.engine.flow_steps
        action = held_constants(self.engine.model.config.action, self.engine.model.dtype)
        plain = PlainPath(field, noise, steps)
        found = {}
        for schedule in schedules(steps):
            controls = integrate(plain, noise, steps, reuse=schedule)
            scored = errors(drive(controls, ego, action).xyz[..., :2].numpy(), truth)
            found[name_of(schedule)] = [scored['ade'], scored['min_ade']]
        self._seen = None
        return {'change': plain.change(), 'reuse': found}


class PlainPath:
    """A velocity field that remembers its values along the plain path, where schedules begin."""

    def __init__(self, field: Velocity, noise: Tensor, steps: int):
        self.field = field
        self.trace: list[tuple[Tensor, Tensor, Tensor]] = []
        integrate(field, noise, steps, self.trace)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """Velocity at x and t, asked of the network only off the plain path."""
        for time, place, velocity in self.trace:
            if time == t and torch.equal(place, x):
                return velocity
        return self.field(x, t)

    def change(self) -> list[float]:
        """How far each velocity is from the one before it, as a share of that one's size."""
        velocities = [v for _, _, v in self.trace]
        return [float((after - before).norm() / before.norm())
                for before, after in zip(velocities, velocities[1:])]


def schedules(steps: int) -> list[tuple[int, ...]]:
    """Nothing reused, and every run of steps that leaves at least the first one and one more."""
    return [(), *(tuple(range(begin, begin + n)) for n in range(1, steps - 1)
                  for begin in range(1, steps - n + 1))]


def name_of(schedule: Sequence[int]) -> str:
    """Name of a run of steps: 'none', '3' or '3-6'."""
    if not schedule:
        return 'none'
    return str(schedule[0]) if len(schedule) == 1 else f'{schedule[0]}-{schedule[-1]}'


def calmest(change: Sequence[float], n: int) -> tuple[int, ...]:
    """
    Choose the run of n steps over which the velocity changes least in all.

    `change[i]` is what step i + 1 changes, so that is what is lost by not asking for it.
    """
    steps = len(change) + 1
    begin = min(range(1, steps - n + 1), key=lambda b: sum(change[b - 1:b - 1 + n]))
    return tuple(range(begin, begin + n))
