"""
Coordinates as tokens: 1,001 numbers `<0>` to `<1000>` over a stated range (spec `vflash.md` 1.2).

Rounding is half up: bin k stands for low + k (high - low) / 1000.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 1000

MARKERS = {
    'point': ('point_start', 'point_end'),
    'box_2d': ('box_start', 'box_end'),
    'box_3d': ('box_3d_start', 'box_3d_end'),
    'trajectory_2d': ('trajectory_2d_start', 'trajectory_2d_end'),
    'trajectory_3d': ('trajectory_3d_start', 'trajectory_3d_end'),
    'trajectory_2d_3d': ('trajectory_2d_3d_start', 'trajectory_2d_3d_end'),
}
"""Type of a primitive -> names of its start and end token."""

NONE = '<|none|>'
"""Stands for an absent category and, in pairs, for a point out of view."""
MASK = '<|mask|>'
"""Stands for what a drafter has yet to fill."""

EXTRA_TOKENS = (
    f'<0>..<{BINS}>',
    *(f'<|{name}|>' for kind, pair in MARKERS.items() if kind != 'box_2d' for name in pair),
    NONE, MASK)
"""What a vocabulary without coordinates lacks; Qwen's has the markers of 2D boxes."""


@dataclass(frozen=True)
class Range:
    """Values that the bins 0 to 1000 stand for."""

    low: float
    high: float

    def bins(self, values) -> np.ndarray:
        """Nearest bins, half up, clamped to the range; -1 for NaN."""
        values = np.asarray(values, dtype=np.float64)
        scaled = np.floor((values - self.low) / (self.high - self.low) * BINS + 0.5)
        return np.where(np.isnan(values), -1, np.clip(scaled, 0, BINS)).astype(np.int64)

    def values(self, bins) -> np.ndarray:
        """Values of bins; NaN for -1."""
        bins = np.asarray(bins, dtype=np.float64)
        return np.where(bins < 0, np.nan, self.low + bins * (self.high - self.low) / BINS)


IMAGE = Range(0.0, 1.0)
"""Share of the image's width or height."""
FORWARD_M = Range(-10.0, 250.0)
LEFT_M = Range(-65.0, 65.0)
"""Ego frame of driving answers."""
