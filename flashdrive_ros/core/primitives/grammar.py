"""
Boxes and trajectories as text with coordinate tokens, and back.

    <|object_ref_start|>car<|object_ref_end|><|box_start|><1><2><3><4><|box_end|>…
    <|trajectory_2d_start|><u><v>…<|trajectory_2d_end|>      shares of the image
    <|trajectory_3d_start|><x><y>…<|trajectory_3d_end|>      ego frame, m

A class that is absent has one box that holds `<|none|>`; a point out of view is
a pair of them (spec `vflash.md` sections 1.2 to 1.4).
"""
from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .coordinates import BINS, FORWARD_M, IMAGE, LEFT_M, MARKERS, NONE, Range

WIDTH = {'point': 2, 'box_2d': 4, 'trajectory_2d': 2, 'trajectory_3d': 2}
"""Coordinates of one row of a primitive."""
AXES: dict[str, tuple[Range, ...]] = {
    'point': (IMAGE, IMAGE), 'box_2d': (IMAGE,) * 4, 'trajectory_2d': (IMAGE, IMAGE),
    'trajectory_3d': (FORWARD_M, LEFT_M)}


@dataclass(frozen=True)
class Written:
    """A primitive as it stands in an answer: its rows [n, d] of values, NaN out of view."""

    type: str
    label: str
    values: np.ndarray


def write(kind: str, values) -> str:
    """One primitive of rows `values` [n, d]; rows with NaN are out of view."""
    rows = np.asarray(values, dtype=np.float64).reshape(-1, WIDTH[kind])
    bins = np.stack([axis.bins(column) for axis, column in zip(AXES[kind], rows.T)], 1)
    if kind == 'box_2d':
        bins[:, :2] = np.minimum(bins[:, :2], BINS - 1)
        bins[:, 2:] = np.maximum(bins[:, 2:], bins[:, :2] + 1)  # never empty
    start, end = MARKERS[kind]
    inside = ''.join(NONE * len(row) if min(row) < 0 else ''.join(f'<{k}>' for k in row)
                     for row in bins.tolist())
    return f'<|{start}|>{inside}<|{end}|>'


def write_boxes(label: str, boxes) -> str:
    """All boxes [n, 4] (x1, y1, x2, y2 as shares of the image) of one class."""
    start, end = MARKERS['box_2d']
    found = ''.join(write('box_2d', box) for box in boxes) or f'<|{start}|>{NONE}<|{end}|>'
    return f'<|object_ref_start|>{label}<|object_ref_end|>{found}'


_TOKENS = re.compile(r'<\|object_ref_start\|>(.*?)<\|object_ref_end\|>|<\|(\w+)_start\|>'
                     r'((?:<\d+>|<\|none\|>)*)<\|(\w+)_end\|>')
_KINDS = {pair[0].removesuffix('_start'): kind for kind, pair in MARKERS.items()}


def read(text: str) -> list[Written]:
    """
    Return the well-formed primitives of an answer in their order.

    Broken ones (wrong count, mixed `<|none|>`, boxes without area) are left
    out; an absent class gives a `box_2d` without rows.
    """
    label, found = '', []
    for name, opened, inside, closed in _TOKENS.findall(text):
        if not opened:
            label = name
            continue
        kind = _KINDS.get(opened)
        if kind in WIDTH and opened == closed:
            rows = _rows(kind, inside)
            if rows is not None:
                found.append(Written(kind, label, rows))
    return found


def _rows(kind: str, inside: str) -> np.ndarray | None:
    bins = [-1 if token == 'none' else int(token) for token in re.findall(r'\d+|none', inside)]
    width = WIDTH[kind]
    if kind == 'box_2d' and bins == [-1]:
        return np.zeros((0, width))
    rows = np.array(bins, dtype=np.int64)
    if not len(rows) or len(rows) % width:
        return None
    rows = rows.reshape(-1, width)
    absent = rows < 0
    if (absent.any(1) != absent.all(1)).any():
        return None
    if kind == 'box_2d' and (len(rows) != 1 or (rows[:, :2] >= rows[:, 2:]).any()):
        return None
    return np.stack([axis.values(column) for axis, column in zip(AXES[kind], rows.T)], 1)
