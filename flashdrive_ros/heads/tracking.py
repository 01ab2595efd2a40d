"""
Many plans driven at once: the world's own vehicle and tracker, over arrays of B plans.

The same arithmetic as `world.vehicle`, which drives one vehicle at a time; a test holds the
two together.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..world.vehicle import (
    MAX_ACCELERATION,
    MAX_BRAKING,
    MAX_CURVATURE,
    MAX_CURVATURE_RATE,
    PLAN_STEP_S,
)

SUBSTEP_S = 0.05
PER_STEP = round(PLAN_STEP_S / SUBSTEP_S)


@dataclass(frozen=True)
class Driven:
    """What B vehicles did, a row every 0.1 s from t0 on: pose [B, T, 3], speed, curvature."""

    poses: np.ndarray
    speeds: np.ndarray
    accelerations: np.ndarray
    curvatures: np.ndarray


def drive_plans(plans: np.ndarray, speeds: np.ndarray, curvatures: np.ndarray,
                steps: int) -> Driven:
    """
    Track `plans` [B, n, 3] (x, y, yaw in the ego frame, 0.1 s apart) for `steps` * 0.1 s.

    `speeds` and `curvatures` [B] are those at t0; `steps` may not exceed n.  `ValueError` for
    plans that are not finite or too short.
    """
    plans = np.asarray(plans, np.float64)
    if plans.ndim != 3 or plans.shape[2] != 3 or not 3 <= steps <= plans.shape[1]:
        raise ValueError(f'plans are [B, n, 3] with n >= {max(steps, 3)}, got '
                         f'{list(plans.shape)}')
    if not np.isfinite(plans).all():
        raise ValueError('plans hold values that are not finite')
    batch = len(plans)
    path = np.concatenate((np.zeros((batch, 1, 3)), plans), 1)
    path[..., 2] = np.unwrap(path[..., 2], axis=1)
    wanted_speed, wanted_curvature = _demands(path)
    x, y, yaw = np.zeros((3, batch))
    v, k = np.array(speeds, np.float64), np.array(curvatures, np.float64)
    a = np.zeros(batch)
    rows = [(x, y, yaw, v, a, k)]
    for substep in range(steps * PER_STEP):
        tau = substep * SUBSTEP_S
        reference = _at_time(path, tau)
        speed, after = (_middle(wanted_speed, at) for at in (tau, tau + SUBSTEP_S))
        c, s = np.cos(reference[:, 2]), np.sin(reference[:, 2])
        dx, dy = reference[:, 0] - x, reference[:, 1] - y
        ahead, left = dx * c + dy * s, -dx * s + dy * c
        turn = (reference[:, 2] - yaw + np.pi) % (2 * np.pi) - np.pi
        a = (after - speed) / SUBSTEP_S + 2.0 * ahead + 3.0 * (speed - v)
        reach = np.maximum(3.0, 0.6 * v)
        wanted = (_middle(wanted_curvature, tau + SUBSTEP_S / 2, hold=True)
                  + left / reach ** 2 + 2 * turn / reach)
        x, y, yaw, v, a, k = _advance(x, y, yaw, v, k, a, wanted)
        if (substep + 1) % PER_STEP == 0:
            rows.append((x, y, yaw, v, a, k))
    columns = [np.stack(column, 1) for column in zip(*rows)]
    return Driven(np.stack(columns[:3], -1), *columns[3:])


def _demands(path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Speeds and curvatures [B, n] in the middles of the steps of `path` [B, n + 1, 3]."""
    step = np.diff(path, axis=1)
    heading = (path[:, 1:, 2] + path[:, :-1, 2]) / 2
    along = step[..., 0] * np.cos(heading) + step[..., 1] * np.sin(heading)
    moving = np.abs(along) > 0.02
    curvature = np.where(moving, step[..., 2] / np.where(moving, along, 1), 0.0)
    return along / PLAN_STEP_S, np.clip(curvature, -MAX_CURVATURE, MAX_CURVATURE)


def _at_time(path: np.ndarray, tau: float) -> np.ndarray:
    """Rows [B, 3] of the path at a time since t0."""
    at = min(tau / PLAN_STEP_S, path.shape[1] - 1)
    i = min(int(at), path.shape[1] - 2)
    return path[:, i] + (at - i) * (path[:, i + 1] - path[:, i])


def _middle(values: np.ndarray, tau: float, hold: bool = False) -> np.ndarray:
    """Values [B] between the middles of the steps; beyond them extrapolated, or held."""
    at = tau / PLAN_STEP_S - 0.5
    if hold:
        at = min(max(at, 0.0), values.shape[1] - 1.0)
    i = int(np.clip(at, 0, values.shape[1] - 2))
    return values[:, i] + (at - i) * (values[:, i + 1] - values[:, i])


def _advance(x, y, yaw, v, k, a, curvature):
    """One substep of the kinematic bicycle within its limits."""
    a = np.clip(a, -MAX_BRAKING, MAX_ACCELERATION)
    step = MAX_CURVATURE_RATE * SUBSTEP_S
    k = np.clip(np.clip(curvature, k - step, k + step), -MAX_CURVATURE, MAX_CURVATURE)
    speed = v + a * SUBSTEP_S
    stops = speed <= 0
    braked = np.where(a < 0, v ** 2 / (2 * np.where(a < 0, -a, 1)), 0.0)
    distance = np.where(stops, braked, (v + speed) / 2 * SUBSTEP_S)
    speed = np.where(stops, 0.0, speed)
    turned = k * distance
    chord = distance * np.sinc(turned / (2 * np.pi))
    middle = yaw + turned / 2
    return (x + chord * np.cos(middle), y + chord * np.sin(middle), yaw + turned, speed,
            (speed - v) / SUBSTEP_S, k)
