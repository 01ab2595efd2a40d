"""
Comfort of a trajectory by NAVSIM's bounds (C, and HC with the motion before t0), and EC.

Accelerations come from the poses, smoothed as nuPlan smooths them: Savitzky-Golay filters
over 8 values for accelerations, 15 for jerks and 5 for yaw rates.
"""
from __future__ import annotations

import numpy as np

STEP_S = 0.1
BOUNDS = {
    'longitudinal_acceleration': (-4.05, 2.40),   # m/s^2
    'lateral_acceleration': (-4.89, 4.89),        # m/s^2
    'jerk': (-8.37, 8.37),                        # m/s^3
    'longitudinal_jerk': (-4.13, 4.13),           # m/s^3
    'yaw_rate': (-0.95, 0.95),                    # rad/s
    'yaw_acceleration': (-1.93, 1.93),            # rad/s^2
}
CHANGE = {'acceleration': 0.7, 'jerk': 0.5, 'yaw_rate': 0.1, 'yaw_acceleration': 0.1}
"""RMS differences between the plans of two frames that still are comfortable."""


def smooth(values, window: int, order: int, derivative: int = 0, step: float = 1.0) -> np.ndarray:
    """
    Savitzky-Golay filter of `values` [n]: a polynomial in each window, at its middle.

    Towards both ends the polynomial of the outermost window is used.  A window longer than
    the values is cut; of an even one the middle lies half a step later.
    """
    values = np.asarray(values, np.float64)
    n, window = len(values), min(window, len(values))
    if window <= order:
        raise ValueError(f'{n} values are too few for a polynomial of order {order}')
    half = window // 2
    out = np.empty(n)
    for i in range(n):
        first = min(max(i - (window - 1) // 2, 0), n - window)
        inner = half <= i < n - half
        at = (window - 1) / 2 if inner else i - first
        fit = np.polynomial.Polynomial.fit(np.arange(window) - at, values[first:first + window],
                                           order, domain=[-1, 1])
        out[i] = (fit.deriv(derivative) if derivative else fit)(0.0)
    return out / step ** derivative


def motion(poses, speed: float | None = None) -> dict[str, np.ndarray]:
    """
    Accelerations, jerks and turning [n] of `poses` [n, 3] at 10 Hz, the first at t0.

    `speed` m/s at t0, where it is known better than from the first two poses.
    """
    poses = np.asarray(poses, np.float64)
    if poses.ndim != 2 or poses.shape[1] != 3 or len(poses) < 5:
        raise ValueError(f'poses must be [n, 3] with n of 5 at least, got {list(poses.shape)}')
    yaw = np.unwrap(poses[:, 2])
    velocity = np.gradient(poses[:, :2], STEP_S, axis=0, edge_order=2)
    along = velocity[:, 0] * np.cos(yaw) + velocity[:, 1] * np.sin(yaw)
    if speed is not None:
        along[0] = speed
    ahead = smooth(np.gradient(along, STEP_S, edge_order=2), 8, 2)
    turning = smooth(yaw, 5, 2, 1, STEP_S)
    aside = smooth(along * turning, 8, 2)
    total = np.hypot(ahead, aside)
    return {'longitudinal_acceleration': ahead, 'lateral_acceleration': aside,
            'acceleration': total,
            'jerk': smooth(total, 15, 2, 1, STEP_S),
            'longitudinal_jerk': smooth(ahead, 15, 2, 1, STEP_S), 'yaw_rate': turning,
            'yaw_acceleration': smooth(yaw, 5, 3, 2, STEP_S)}


def comfort(poses, speed: float | None = None, before=None) -> float:
    """C: 1 when every bound is kept all the time; HC with the poses `before` [m, 3] t0 too."""
    if before is not None:
        poses, speed = np.concatenate((before, poses)), None
    found = motion(poses, speed)
    return float(all(((found[name] > low) & (found[name] < high)).all()
                     for name, (low, high) in BOUNDS.items()))


def extended_comfort(now, before) -> float:
    """EC: 1 when plans [n, 3] of two frames, at the same times, move alike."""
    one, other = motion(now), motion(before)
    return float(all(np.sqrt(np.mean((one[name] - other[name]) ** 2)) <= limit
                     for name, limit in CHANGE.items()))
