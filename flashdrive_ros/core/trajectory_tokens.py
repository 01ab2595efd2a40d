"""
Trajectories as tokens: ego history by clamped differences, futures by binned controls.

The prompt carries the history (spec `alpamayo.md` section 5).  Future tokens
are what the language model was pre-trained on; the action expert replaces them.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .config import PromptConfig
from .geometry import nearest_turn, yaw_rotation

FIT_WINDOW = 10
FIT_DEGREE = 3


def history_token_ids(xyz: np.ndarray, config: PromptConfig,
                      rot: np.ndarray | None = None) -> np.ndarray:
    """Vocabulary ids [48] of a history `xyz` [16, 3] m (`rot` [16, 3, 3] where yaw is told)."""
    return config.history_token_start + history_bins(xyz, config, rot)


def history_bins(xyz: np.ndarray, config: PromptConfig,
                 rot: np.ndarray | None = None) -> np.ndarray:
    """
    Bins [48] of a history `xyz` [16, 3] m, in the order x, y, z (, yaw) per pose.

    The first difference is taken from the origin, so it usually saturates.
    Rounds half to even, then clamps.  Yaw is encoded negated, as released.
    """
    xyz = np.asarray(xyz, dtype=np.float32)
    deltas = np.diff(xyz, axis=0, prepend=np.zeros((1, 3), np.float32))
    low, high = (np.asarray(a, np.float32) for a in (config.history_min, config.history_max))
    if config.history_yaw:
        rot = torch.as_tensor(np.asarray(rot, np.float32))
        yaw = torch.atan2(rot[:, 0, 1], rot[:, 0, 0])
        turns = nearest_turn(torch.diff(yaw, prepend=torch.zeros(1))).numpy()
        deltas = np.concatenate((deltas, turns[:, None]), 1)
        low, high = np.append(low, np.float32(-np.pi)), np.append(high, np.float32(np.pi))
    scaled = (deltas - low) / (high - low) * np.float32(config.history_bins - 1)
    return np.clip(np.round(scaled), 0, config.history_bins - 1).astype(np.int64).reshape(-1)


def history_from_bins(bins: np.ndarray, config: PromptConfig) -> tuple[np.ndarray, np.ndarray]:
    """
    Positions [16, 3] m and rotations [16, 3, 3] that history `bins` [48] stand for.

    Without yaw bins the heading is that of a cubic fitted to the neighbouring
    positions.
    """
    steps = np.asarray(bins).reshape(-1, 4 if config.history_yaw else 3).astype(np.float32)
    scaled = steps / np.float32(config.history_bins - 1)
    low, high = (np.asarray(a, np.float32) for a in (config.history_min, config.history_max))
    xyz = np.cumsum(scaled[:, :3] * (high - low) + low, 0, dtype=np.float32)
    if config.history_yaw:
        pi = np.float32(np.pi)
        yaw = np.cumsum(scaled[:, 3] * (pi + pi) - pi, dtype=np.float32)
    else:
        yaw = fitted_heading(xyz.astype(np.float64)).astype(np.float32)
    return xyz, yaw_rotation(torch.from_numpy(yaw)).numpy()


def fitted_heading(xyz: np.ndarray) -> np.ndarray:
    """Heading [n] rad along `xyz` [n, 3] m: slope of a cubic fitted to ten neighbouring points."""
    n = len(xyz)
    heading = np.empty(n)
    for i in range(n):
        first = max(0, min(i - FIT_WINDOW // 2, n - FIT_WINDOW))
        window = xyz[first:first + FIT_WINDOW, :2]
        powers = np.vander(np.arange(len(window)), FIT_DEGREE + 1, increasing=True)
        slope = np.arange(1, FIT_DEGREE + 1) * float(i - first) ** np.arange(FIT_DEGREE)
        dx, dy = slope @ np.linalg.lstsq(powers, window, rcond=None)[0][1:]
        heading[i] = np.arctan2(dy, dx)
    return heading


def future_bins(actions: Tensor, config: PromptConfig) -> Tensor:
    """Bins [K, 2 N] of normalised `actions` [K, N, 2], acceleration first per waypoint."""
    low, high = actions.new_tensor(config.future_min), actions.new_tensor(config.future_max)
    scaled = (actions - low) / (high - low) * (config.future_bins - 1)
    return scaled.round().long().clamp(0, config.future_bins - 1).flatten(-2)


def actions_from_future_bins(bins: Tensor, config: PromptConfig) -> Tensor:
    """Normalised actions [K, N, 2] in float32 that future `bins` [K, 2 N] stand for."""
    scaled = bins.unflatten(-1, (-1, 2)).float() / (config.future_bins - 1)
    low, high = scaled.new_tensor(config.future_min), scaled.new_tensor(config.future_max)
    return scaled * (high - low) + low


def find_future_bins(token_ids: Tensor, start: int, end: int, count: int, first_id: int,
                     bins: int) -> Tensor:
    """
    Future bins [B, count] written in `token_ids` [B, n].

    What stands between the last `start` and the first `end` marker (or the
    borders), less `first_id`, clamped to the bins; 0 where tokens are missing.
    """
    found = token_ids.new_zeros(len(token_ids), count)
    for row, ids in enumerate(token_ids.tolist()):
        begin = len(ids) - ids[::-1].index(start) if start in ids else 0
        stop = ids.index(end) if end in ids else len(ids)
        written = [min(max(i - first_id, 0), bins - 1) for i in ids[begin:stop][:count]]
        found[row, :len(written)] = token_ids.new_tensor(written)
    return found
