"""From a head's few waypoints to rows 0.1 s apart, which vehicles track."""
from __future__ import annotations

from functools import lru_cache

import numpy as np

from .head import times_of
from .status import STEP_S


@lru_cache(maxsize=8)
def spline_matrix(points: int, rows: int) -> np.ndarray:
    """
    Matrix [rows, points + 1] from (slope at t0, waypoints) to values at 0.1, 0.2, … s.

    The cubic spline from the origin through the waypoints, clamped to the slope at t0 and
    straight (no second derivative) at its end; linear in its data, hence a matrix.
    """
    knots = np.concatenate(([0.0], times_of(points)))
    n, h = len(knots), np.diff(knots)
    data = np.eye(n + 1)  # columns: slope, value at each knot
    slope, values = data[0], data[1:]
    system, right = np.zeros((n, n)), np.zeros((n, n + 1))
    system[0, :2] = 2 * h[0], h[0]
    right[0] = 6 * ((values[1] - values[0]) / h[0] - slope)
    for i in range(1, n - 1):
        system[i, i - 1:i + 2] = h[i - 1], 2 * (h[i - 1] + h[i]), h[i]
        right[i] = 6 * ((values[i + 1] - values[i]) / h[i]
                        - (values[i] - values[i - 1]) / h[i - 1])
    system[-1, -1] = 1.0
    bend = np.linalg.solve(system, right)
    times = np.arange(1, rows + 1) * STEP_S
    i = np.clip(np.searchsorted(knots, times, 'right') - 1, 0, n - 2)
    a, b, w = (knots[i + 1] - times)[:, None], (times - knots[i])[:, None], h[i][:, None]
    matrix = (bend[i] * a ** 3 / (6 * w) + bend[i + 1] * b ** 3 / (6 * w)
              + (values[i] / w - bend[i] * w / 6) * a
              + (values[i + 1] / w - bend[i + 1] * w / 6) * b)
    return np.delete(matrix, 1, axis=1)  # the origin is zero


def dense(waypoints: np.ndarray, speeds: np.ndarray, yaw_rates: np.ndarray) -> np.ndarray:
    """
    Rows x, y, yaw [B, n, 3] 0.1 s apart up to the last of `waypoints` [B, N, 3].

    `speeds` (m/s) and `yaw_rates` (rad/s) [B] are those at t0.
    """
    points = waypoints.shape[1]
    last = times_of(points)[-1]
    matrix = spline_matrix(points, round(last / STEP_S))
    slopes = np.stack((speeds, np.zeros_like(speeds), yaw_rates), -1)[:, None]
    return np.einsum('rk,bkc->brc', matrix, np.concatenate((slopes, waypoints), 1))
