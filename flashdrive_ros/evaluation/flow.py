"""
How the velocity changes along the flow, and what it costs to reuse it.

All schedules are tried from the same noise after the same reasoning, on the
very window that an engine has just planned for.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import unicycle
from ..core.action import Velocity, held_constants, integrate
from ..core.ego import EgoHistory
from ..core.model import Alpamayo
from .planners import Explored


@torch.inference_mode()
def explore(model: Alpamayo, field: Velocity, noise: Tensor, steps: int,
            egos: Sequence[EgoHistory]) -> list[Explored]:
    """
    Try every schedule on B windows of K samples each, `noise` [B, K, N, 2].

    `field` takes them side by side, with or without the dimension of the one
    window that there is.
    """
    batch, samples = noise.shape[:2]
    start = noise if batch > 1 else noise[0]
    plain = PlainPath(field, start, steps)
    xy = {}
    for schedule in schedules(steps):
        controls = integrate(plain, start, steps, reuse=schedule).view_as(noise)
        xy[name_of(schedule)] = drive_all(controls, egos, model).xyz[..., :2].unflatten(
            0, (batch, samples)).numpy()
    changes = plain.changes(batch)
    return [Explored(changes[b], {name: values[b] for name, values in xy.items()})
            for b in range(batch)]


def drive_all(controls: Tensor, egos: Sequence[EgoHistory],
              model: Alpamayo) -> unicycle.UnicycleTrajectory:
    """Trajectories of normalised `controls` [B, K, N, 2] of windows, B * K rows."""
    action = held_constants(model.config.action, model.dtype)
    samples = controls.shape[1]
    xyz = torch.stack([torch.as_tensor(e.xyz, dtype=torch.float32) for e in egos])
    rot = torch.stack([torch.as_tensor(e.rot, dtype=torch.float32) for e in egos])
    speed = unicycle.speed_from_history(xyz, rot, action)
    return unicycle.decode(controls.flatten(0, 1).cpu(), speed.repeat_interleave(samples),
                           xyz[:, -1, 2].repeat_interleave(samples), action)


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

    def changes(self, batch: int) -> list[list[float]]:
        """How far each velocity is from the one before it, as a share of its size; by window."""
        velocities = [v.reshape(batch, -1) for _, _, v in self.trace]
        shares = [(after - before).norm(dim=1) / before.norm(dim=1)
                  for before, after in zip(velocities, velocities[1:])]
        return torch.stack(shares, 1).tolist() if shares else [[]] * batch


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
