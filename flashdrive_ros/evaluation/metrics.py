"""
Open-loop metrics of sampled trajectories, as the released evaluation defines them.

Shapes: predictions [B, N, K, T, 3] m (N groups of K samples), ground truth
[B, T, 3] m.
"""
from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..core.geometry import box_corners

HORIZONS = (5, 10, 30, 50)
"""Steps of 0.1 s."""


def displacement(predicted: Tensor, truth: Tensor, planar: bool = True) -> Tensor:
    """Distances [B, N, K, T] m to the ground truth, in the ground plane or in space."""
    difference = predicted - truth[:, None, None]
    return (difference[..., :2] if planar else difference).norm(dim=-1)


def average_displacement(predicted: Tensor, truth: Tensor, steps: int | None = None,
                         planar: bool = True) -> Tensor:
    """ADE [B, N, K] m over the first `steps` waypoints (all when left out)."""
    distances = displacement(predicted, truth, planar)
    if steps is not None and steps > distances.shape[-1]:
        raise ValueError(f'{steps} steps asked, the trajectories have {distances.shape[-1]}')
    return distances[..., :steps].mean(-1)


def least_average_displacement(predicted: Tensor, truth: Tensor, *,
                               horizons: Sequence[int] = HORIZONS, planar: bool = True,
                               spread: bool = True, dt_s: float = 0.1) -> dict[str, Tensor]:
    """
    MinADE [B] m: 'min_ade', and 'min_ade/by_t=0.5' … for the first steps.

    The sample is chosen over the whole trajectory and kept for the shorter
    horizons.  Means over the N groups, with their standard deviation as
    '…_std' when there are several and `spread`.
    """
    distances = displacement(predicted, truth, planar)
    best = distances.mean(-1).argmin(2)[..., None, None]
    chosen = distances.take_along_dim(best, 2).squeeze(2)  # [B, N, T]
    values = {'min_ade': chosen.mean(-1)}
    for steps in horizons:
        if steps <= chosen.shape[-1]:
            values[f'min_ade/by_t={steps * dt_s:.1f}'] = chosen[..., :steps].mean(-1)
    return over_groups(values, spread)


def corner_distance(predicted: Tensor, predicted_rot: Tensor, truth: Tensor, truth_rot: Tensor,
                    size: Tensor, spread: bool = True) -> dict[str, Tensor]:
    """
    Distance [B] m of the corners of the ego box `size` [3] m, best of K at every waypoint corner.

    `predicted_rot` [B, N, K, T, 3, 3], `truth_rot` [B, T, 3, 3].
    """
    ours = box_corners(predicted, predicted_rot, size)
    theirs = box_corners(truth, truth_rot, size)[:, None, None]
    distances = (ours - theirs).norm(dim=-1)  # [B, N, K, T, 8]
    return over_groups({'corner_distance': distances.amin(2).mean((2, 3))}, spread)


def over_groups(values: dict[str, Tensor], spread: bool = True) -> dict[str, Tensor]:
    """Mean [B] over the groups of `values` [B, N], and '…_std' when there are several."""
    out = {}
    for name, value in values.items():
        out[name] = value.mean(1)
        if spread and value.shape[1] > 1:
            out[f'{name}_std'] = value.std(1, correction=0)
    return out
