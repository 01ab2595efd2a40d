"""The ego vehicle: a kinematic bicycle on its rear axle, and a tracker of planned trajectories."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WHEELBASE_M = 2.8
LENGTH_M, WIDTH_M, HEIGHT_M = 4.6, 1.9, 1.55
MIDDLE_M = 1.4
"""The middle of the body lies this far ahead of the rear axle (base_link)."""
FRONT_M = MIDDLE_M + LENGTH_M / 2

MAX_ACCELERATION, MAX_BRAKING = 3.0, 8.0
MAX_CURVATURE = 0.19
MAX_CURVATURE_RATE = 0.25

PLAN_STEP_S = 0.1


def clip(value: float, low: float, high: float) -> float:
    """Keep one number between two; `np.clip` takes twenty times as long for that."""
    return min(max(value, low), high)


@dataclass(frozen=True)
class VehicleState:
    """Pose of base_link in the map, speed (m/s), acceleration (m/s^2) and curvature (1/m)."""

    x: float
    y: float
    yaw: float
    speed: float
    acceleration: float = 0.0
    curvature: float = 0.0

    @property
    def pose(self) -> tuple[float, float, float]:
        """Position and heading in the map."""
        return self.x, self.y, self.yaw

    @property
    def yaw_rate(self) -> float:
        """Turn rate, rad/s."""
        return self.speed * self.curvature

    def advance(self, acceleration: float, curvature: float, dt: float) -> VehicleState:
        """Move for `dt` seconds as near to the commands as the vehicle's limits allow."""
        a = float(clip(acceleration, -MAX_BRAKING, MAX_ACCELERATION))
        step = MAX_CURVATURE_RATE * dt
        k = float(clip(curvature, self.curvature - step, self.curvature + step))
        k = clip(k, -MAX_CURVATURE, MAX_CURVATURE)
        speed = self.speed + a * dt
        if speed <= 0:
            distance = self.speed ** 2 / (2 * -a) if a < 0 else 0.0
            speed = 0.0
        else:
            distance = (self.speed + speed) / 2 * dt
        turned = k * distance
        chord = distance * float(np.sinc(turned / (2 * np.pi)))
        middle = self.yaw + turned / 2
        return VehicleState(self.x + chord * float(np.cos(middle)),
                            self.y + chord * float(np.sin(middle)), self.yaw + turned, speed,
                            (speed - self.speed) / dt, k)


def to_map(pose, points) -> np.ndarray:
    """Rows (x, y, yaw) given in the frame of a pose (x, y, yaw) as rows in the map."""
    points = np.asarray(points, dtype=np.float64)
    x, y, yaw = pose
    c, s = np.cos(yaw), np.sin(yaw)
    return np.stack([x + points[:, 0] * c - points[:, 1] * s,
                     y + points[:, 0] * s + points[:, 1] * c, points[:, 2] + yaw], 1)


def from_map(pose, points) -> np.ndarray:
    """Do the inverse of `to_map`."""
    points = np.asarray(points, dtype=np.float64)
    x, y, yaw = pose
    c, s = np.cos(yaw), np.sin(yaw)
    dx, dy = points[:, 0] - x, points[:, 1] - y
    return np.stack([dx * c + dy * s, -dx * s + dy * c, points[:, 2] - yaw], 1)


class Tracker:
    """
    Follows a planned trajectory along its own time.

    `points` [n, 3] are x, y, yaw in the ego frame at `t0` (where the ego was at
    `pose`), 0.1 s apart, the first at t0 + 0.1 s.  Speed and curvature come
    from the points; the feedback on top removes what error there is.
    """

    def __init__(self, t0: float, pose, points):
        points = np.asarray(points, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != 3 or len(points) < 3:
            raise ValueError(f'a trajectory must be [n, 3] (x, y, yaw) with n >= 3, '
                             f'got {list(points.shape)}')
        if not np.isfinite(points).all():
            raise ValueError('a trajectory holds values that are not finite')
        self.t0 = t0
        path = np.concatenate([np.zeros((1, 3)), points])
        path[:, 2] = np.unwrap(path[:, 2])
        self.times = np.arange(len(path)) * PLAN_STEP_S
        self.middles = self.times[:-1] + PLAN_STEP_S / 2
        step = np.diff(path, axis=0)
        heading = (path[1:, 2] + path[:-1, 2]) / 2
        along = step[:, 0] * np.cos(heading) + step[:, 1] * np.sin(heading)
        self.speeds = along / PLAN_STEP_S
        moving = np.abs(along) > 0.02
        curvature = np.where(moving, step[:, 2] / np.where(moving, along, 1), 0.0)
        self.curvatures = np.clip(curvature, -MAX_CURVATURE, MAX_CURVATURE)
        self.path = to_map(pose, path)

    @property
    def end(self) -> float:
        """Time of the last point, s."""
        return self.t0 + float(self.times[-1])

    def _speed(self, tau):
        """Speed at a time: between the middles of the steps linear, outside extrapolated."""
        k = int(np.clip((tau - self.middles[0]) / PLAN_STEP_S, 0, len(self.middles) - 2))
        share = (tau - self.middles[k]) / PLAN_STEP_S
        return self.speeds[k] + share * (self.speeds[k + 1] - self.speeds[k])

    def control(self, state: VehicleState, t: float, dt: float) -> tuple[float, float]:
        """Acceleration and curvature for the next `dt` seconds."""
        tau = t - self.t0
        if tau >= self.times[-1]:
            return -3.0, state.curvature
        rx, ry, ryaw = (float(np.interp(tau, self.times, self.path[:, i])) for i in range(3))
        c, s = np.cos(ryaw), np.sin(ryaw)
        ahead = (rx - state.x) * c + (ry - state.y) * s
        left = -(rx - state.x) * s + (ry - state.y) * c
        turn = (ryaw - state.yaw + np.pi) % (2 * np.pi) - np.pi
        speed, after = self._speed(tau), self._speed(tau + dt)
        acceleration = (after - speed) / dt + 2.0 * ahead + 3.0 * (speed - state.speed)
        reach = max(3.0, 0.6 * state.speed)
        curvature = (float(np.interp(tau + dt / 2, self.middles, self.curvatures))
                     + left / reach ** 2 + 2 * turn / reach)
        return acceleration, curvature
