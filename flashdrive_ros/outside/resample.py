"""A plan at other times than its own: every benchmark has a grid of its own."""
from __future__ import annotations

import numpy as np

from ..core.types import DrivePlan, InputError


def times_s(rate_hz: float, horizon_s: float) -> np.ndarray:
    """Times [n] s after t0 of a trajectory whose first point is one step after t0."""
    return np.arange(1, round(rate_hz * horizon_s) + 1) / rate_hz


def poses_at(plan: DrivePlan, times, sample: int | None = None) -> np.ndarray:
    """
    Rows x, y, yaw [n, 3] of a plan at `times` [n] s after t0, in the ego frame at t0.

    Linear between waypoints, the ego itself (the origin) being that of t0; yaw goes on past
    pi.  `sample` is a trajectory of the plan, the chosen one by default.  Raises `InputError`
    for times outside the plan and for a plan that is not finite.
    """
    times = np.asarray(times, np.float64)
    k = plan.chosen if sample is None else sample
    own = np.arange(len(plan.xyz[k]) + 1) * plan.dt_s
    if len(times) and not (times.min() >= 0 and times.max() <= own[-1] + 1e-9):
        raise InputError(f'the plan covers 0 to {own[-1]:g} s, asked were '
                         f'{times.min():g} to {times.max():g} s')
    if not plan.is_finite:
        raise InputError(f'plan {plan.plan_id} holds values that are not finite')
    yaw = np.unwrap(np.concatenate(([0.0], plan.yaw[k])))
    rows = np.concatenate((np.zeros((1, 2)), plan.xyz[k][:, :2])).T
    return np.stack([np.interp(times, own, row) for row in (*rows, yaw)], 1)
