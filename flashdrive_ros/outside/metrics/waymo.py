"""
Rater feedback score and ADE of Waymo's end-to-end challenge (spec `vflash.md` section 5.2).

Positions are metres in the ego frame at t0: x forward, y left, origin in the middle of the
rear axle; 4 Hz, the first 0.25 s after t0.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RATE_HZ, HORIZON_S = 4, 5
CHECKED_S = (3, 5)
LATERAL_M = (1.0, 1.8)
"""Half widths of the trust region at `CHECKED_S`, at full speed."""
LENGTH_TO_WIDTH = 4.0
SLOW_MPS, FAST_MPS = 1.4, 11.0
DECAY = 0.1
FLOOR = 4.0
"""Score of a trajectory outside every trust region, at least."""
RATED = 3


def rater_feedback_score(predicted, rated: Sequence, scores, speed: float,
                         probabilities=None) -> float:
    """
    Score, 0 to 10, of `predicted` [20, 2] or [I, 20, 2] m against the rated trajectories.

    `rated` are up to three [n, 2] m with `scores` from 0 to 10: cut or held at their last
    point to 20 points; `speed` m/s at t0; `probabilities` [I] of the predictions (1 for one).
    Raises `ValueError` that names the wrong argument.
    """
    predicted = np.asarray(predicted, np.float64)
    predicted = predicted[None] if predicted.ndim == 2 else predicted
    points = RATE_HZ * HORIZON_S
    if predicted.ndim != 3 or predicted.shape[1:] != (points, 2):
        raise ValueError(f'predicted must be [{points}, 2] or [I, {points}, 2], '
                         f'got {list(predicted.shape)}')
    scores = np.asarray(scores, np.float64)[:RATED]
    if not len(rated) or len(rated[:RATED]) != len(scores):
        raise ValueError(f'{len(rated)} rated trajectories with {len(scores)} scores')
    if not ((scores >= 0) & (scores <= 10)).all():
        raise ValueError(f'scores must be from 0 to 10, got {scores.tolist()}')
    if probabilities is None:
        if len(predicted) > 1:
            raise ValueError(f'{len(predicted)} predictions need probabilities')
        probabilities = np.ones(1)
    paths = np.stack([_to_length(path, points) for path in rated[:RATED]])
    distance = _normalised_distance(predicted, paths, speed)          # [P, I, 2]
    by_path = scores[:, None, None] * DECAY ** np.maximum(distance - 1, 0)
    each = by_path.max(0).mean(-1)                                    # [I]
    inside = (distance <= 1).all(-1).any(0)
    each = np.where(inside, each, np.maximum(each, FLOOR))
    return float(each @ np.asarray(probabilities, np.float64))


def thresholds(speed: float) -> tuple[np.ndarray, np.ndarray]:
    """Lateral and longitudinal thresholds [2] m at `CHECKED_S` for a speed at t0, m/s."""
    scale = np.clip(0.5 + 0.5 * (speed - SLOW_MPS) / (FAST_MPS - SLOW_MPS), 0.5, 1.0)
    lateral = scale * np.array(LATERAL_M)
    return lateral, LENGTH_TO_WIDTH * lateral


def average_displacement(predicted, rated: Sequence, scores) -> dict[str, float]:
    """ADE m at 3 s and 5 s of `predicted` [20, 2] against the highest rated trajectory."""
    predicted = np.asarray(predicted, np.float64)
    best = _to_length(rated[int(np.argmax(scores))], RATE_HZ * HORIZON_S)
    error = np.linalg.norm(predicted - best, axis=-1)
    return {f'ade_{s}s': float(error[:s * RATE_HZ].mean()) for s in CHECKED_S}


def _to_length(path, points: int) -> np.ndarray:
    path = np.asarray(path, np.float64)
    if path.ndim != 2 or path.shape[1] != 2 or not len(path):
        raise ValueError(f'a rated trajectory must be [n, 2], got {list(path.shape)}')
    held = np.repeat(path[-1:], max(points - len(path), 0), 0)
    return np.concatenate((path[:points], held))


def _normalised_distance(predicted, paths, speed) -> np.ndarray:
    """Distances [P, I, 2] at `CHECKED_S` in units of the thresholds, the larger of both axes."""
    steps = np.diff(paths, axis=1, prepend=np.zeros((len(paths), 1, 2)))
    for path in steps:                      # a step of no length keeps the direction before it
        for t in np.flatnonzero(~path.any(-1)):
            path[t] = path[t - 1] if t else (1.0, 0.0)
    at = np.array(CHECKED_S) * RATE_HZ - 1
    along = steps[:, at] / np.linalg.norm(steps[:, at], axis=-1, keepdims=True)
    off = predicted[None][:, :, at] - paths[:, None][:, :, at]
    ahead = np.abs((off * along[:, None]).sum(-1))
    aside = np.abs(off[..., 1] * along[:, None, :, 0] - off[..., 0] * along[:, None, :, 1])
    lateral, longitudinal = thresholds(speed)
    return np.maximum(ahead / longitudinal, aside / lateral)
