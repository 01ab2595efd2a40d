"""
Metrics of visual primitives (spec `vflash.md` section 5.4); pure functions of arrays.

Paths are rows [n, d], NaN where out of view; boxes are x1, y1, x2, y2 [n, 4].
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

THRESHOLDS = tuple(np.arange(50, 100, 5) / 100)
"""IoU from .50 to .95 in steps of .05."""


def distances(a, b) -> np.ndarray:
    """Distance [n, m] of every row of `a` [n, d] to every row of `b` [m, d]."""
    return np.linalg.norm(np.asarray(a, float)[:, None] - np.asarray(b, float)[None], axis=-1)


def hausdorff(a, b) -> float:
    """HD: how far the farthest point of either path lies from the other one."""
    d = distances(a, b)
    return float(max(d.min(1).max(), d.min(0).max()))


def discrete_frechet(a, b) -> float:
    """DFD: the shortest leash with which both paths can be walked point by point, forwards."""
    d = distances(a, b)
    reach = np.maximum.accumulate(d[0])
    for row in d[1:]:
        before, reach = reach, np.empty_like(reach)
        for j, far in enumerate(row):
            ways = (before[j],) if j == 0 else (before[j], before[j - 1], reach[j - 1])
            reach[j] = max(min(ways), far)
    return float(reach[-1])


def path_errors(predicted, truth) -> dict[str, float] | None:
    """
    ADE, FDE and RMSE over the points in view in both; HD and DFD of those in view in each.

    The final point is the last one in view in both.  None when there is no such point.
    Raises `ValueError` for paths of different shapes.
    """
    predicted, truth = np.asarray(predicted, float), np.asarray(truth, float)
    if predicted.shape != truth.shape:
        raise ValueError(f'the predicted path is {list(predicted.shape)}, the true one '
                         f'{list(truth.shape)}')
    ours, theirs = (~np.isnan(path).any(1) for path in (predicted, truth))
    both = ours & theirs
    if not both.any():
        return None
    error = np.linalg.norm(predicted[both] - truth[both], axis=1)
    return {'ade': float(error.mean()), 'fde': float(error[-1]),
            'rmse': float(np.sqrt((error ** 2).mean())),
            'hd': hausdorff(predicted[ours], truth[theirs]),
            'dfd': discrete_frechet(predicted[ours], truth[theirs])}


def iou(a, b) -> np.ndarray:
    """Intersection over union [n, m] of boxes [n, 4] and [m, 4]."""
    a, b = np.asarray(a, float).reshape(-1, 4)[:, None], np.asarray(b, float).reshape(-1, 4)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    shared = np.clip(sides, 0, None).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


Boxes = Sequence[tuple[str, Sequence[float]]]
"""(class, x1, y1, x2, y2) of an image."""


def hits(predicted: Boxes, truth: Boxes, threshold: float) -> int:
    """
    Count true boxes that were found.

    Each takes, in its order, the best prediction of its class that no other took, if their
    IoU is `threshold` or more.
    """
    if not predicted or not truth:
        return 0
    overlap = iou([box for _, box in truth], [box for _, box in predicted])
    same = np.array([[t == p for p, _ in predicted] for t, _ in truth])
    overlap = np.where(same, overlap, -1.0)
    found = 0
    for row in overlap:
        best = int(row.argmax())
        if row[best] >= threshold:
            found += 1
            overlap[:, best] = -1.0
    return found


def f1(found: int, predicted: int, truth: int) -> float:
    """F1 of `found` among counts of predicted and true boxes; 1 when there are neither."""
    return 2 * found / (predicted + truth) if predicted + truth else 1.0


def box_scores(predicted: Boxes, truth: Boxes) -> dict:
    """F1 of an image, mean over `THRESHOLDS`, and the counts behind it, `hits` by threshold."""
    found = [hits(predicted, truth, threshold) for threshold in THRESHOLDS]
    return {'f1': float(np.mean([f1(n, len(predicted), len(truth)) for n in found])),
            'hits': found, 'predicted': len(predicted), 'true': len(truth)}


def pair_paths(predicted, truth) -> list[tuple[int, int]]:
    """
    Pairs (predicted, true) of labelled paths [(label, [n, d])] of the same label and length.

    The pair whose first points in view of both lie closest comes first, each path once.
    """
    found = []
    for i, (ours, a) in enumerate(predicted):
        for j, (theirs, b) in enumerate(truth):
            seen = ~np.isnan(np.asarray(a) - np.asarray(b)).any(1) if (
                ours == theirs and len(a) == len(b)) else np.zeros(0, bool)
            if seen.any():
                k = int(seen.argmax())
                found.append((float(np.linalg.norm(a[k] - b[k])), i, j))
    pairs: list[tuple[int, int]] = []
    for _, i, j in sorted(found):
        if all(i != p and j != t for p, t in pairs):
            pairs.append((i, j))
    return pairs
