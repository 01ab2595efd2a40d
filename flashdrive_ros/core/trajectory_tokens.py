"""Ego history as tokens: clamped differences of positions (spec `alpamayo.md` section 5)."""
from __future__ import annotations

import numpy as np

from .config import PromptConfig


def history_bins(xyz: np.ndarray, config: PromptConfig) -> np.ndarray:
    """
    Bins [48] of a history `xyz` [16, 3] m, in the order x, y, z per pose.

    The first difference is taken from the origin, so it usually saturates.
    Rounds half to even, then clamps.
    """
    xyz = np.asarray(xyz, dtype=np.float32)
    low = np.asarray(config.history_min, np.float32)
    high = np.asarray(config.history_max, np.float32)
    deltas = np.diff(xyz, axis=0, prepend=np.zeros((1, 3), np.float32))
    scaled = (deltas - low) / (high - low) * np.float32(config.history_bins - 1)
    return np.clip(np.round(scaled), 0, config.history_bins - 1).astype(np.int64).reshape(-1)


def history_token_ids(xyz: np.ndarray, config: PromptConfig) -> np.ndarray:
    """Vocabulary ids [48] of a history `xyz` [16, 3] m."""
    return config.history_token_start + history_bins(xyz, config)
