"""
Closed-loop metrics, defined as AlpaSim defines them (which FlashDrive reports).

Paths are rows x, y [n, 2] (or more columns) m in one frame, a row a tick.
"""
from __future__ import annotations

import numpy as np

from .windows import TICK_S

DECAY_PER_S = 1.0
"""A waypoint one second ahead counts 1 / e of the next one in the deviation of plans."""
STANDING_M = 1.0


def distance_to_path(point, path) -> float:
    """Distance of a point to a polyline, m."""
    point, path = np.asarray(point, float)[:2], np.asarray(path, float)[:, :2]
    if len(path) == 1:
        return float(np.linalg.norm(point - path[0]))
    begin, step = path[:-1], np.diff(path, axis=0)
    length2 = (step ** 2).sum(1)
    along = ((point - begin) * step).sum(1) / np.where(length2 > 0, length2, 1)
    nearest = begin + np.clip(along, 0, 1)[:, None] * step
    return float(np.linalg.norm(point - nearest, axis=1).min())


def distances(driven, reference) -> tuple[np.ndarray, np.ndarray]:
    """
    Distances [n] of each driven position to the reference path, and to where it was then.

    `reference` may go on longer than `driven`; its path counts whole.
    """
    driven, reference = np.asarray(driven, float), np.asarray(reference, float)
    to_path = np.array([distance_to_path(p, reference) for p in driven])
    to_place = np.linalg.norm(driven[:, :2] - reference[:len(driven), :2], axis=1)
    return to_path, to_place


def relative_progress(driven_m: float, reference_m: float) -> float:
    """Share of the way that the reference made in the same time; farther counts as all of it."""
    if reference_m < STANDING_M:
        return 1.0
    return float(np.clip(driven_m / reference_m, 0, 1))


def plan_deviation(before, after, ticks: int = 1) -> float:
    """
    Mean distance m of two plans where both say something, near waypoints weighing more.

    Rows x, y of both in one frame; `after` was made `ticks` after `before`, so
    its first waypoint belongs to row `ticks` of `before`.
    """
    common = min(len(before) - ticks, len(after))
    if common < 1:
        return float('nan')
    gap = np.asarray(after)[:common, :2] - np.asarray(before)[ticks:ticks + common, :2]
    weights = np.exp(-DECAY_PER_S * TICK_S * np.arange(common))
    return float(np.average(np.linalg.norm(gap, axis=1), weights=weights))
