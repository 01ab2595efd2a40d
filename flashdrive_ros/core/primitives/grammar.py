"""
Points, boxes and trajectories written as text with coordinate tokens; `reading` reads them.

    <|object_ref_start|>car<|object_ref_end|><|box_start|><1><2><3><4><|box_end|>…
    <tool_call>trajectory_2d 8</tool_call><|trajectory_2d_start|><u><v>…<|trajectory_2d_end|>
    <tool_call>trajectory_3d 8</tool_call><|trajectory_3d_start|><x><y>…<|trajectory_3d_end|>
    <tool_call>trajectory_2d_3d 8</tool_call><|trajectory_2d_start|>…<|trajectory_2d_end|>
                                             <|trajectory_3d_start|>…<|trajectory_3d_end|>

(without the line break).  A call declares type and number of waypoints, and with them the
layout of the block after it (`layouts.py`; spec `vflash.md` sections 1.2 to 1.4).  Points and
boxes have a fixed size and no call.

A point out of view is `<|none|>` for each of its coordinates.  A class that is absent has one
box that holds `<|none|>`; an answer without any primitive is `<|none|>` alone.
"""
from __future__ import annotations

import numpy as np

from . import layouts
from .coordinates import MARKERS, NONE


def write_call(kind: str, points: int) -> str:
    """Announce a primitive of `points` waypoints."""
    return f'<tool_call>{kind} {points}</tool_call>'


def write_block(kind: str, values) -> str:
    """
    From the first start token of a primitive to its last end token.

    `values` are its rows [n, d], those of its parts side by side; a point with NaN is out of
    view.  Raises `ValueError` for rows of another width, none at all, or several of a point
    or box.
    """
    rows = np.asarray(values, dtype=np.float64)
    rows = rows[None] if rows.ndim == 1 else rows
    widths = [len(part.axes) for part in layouts.of(kind, 1).parts]
    if rows.ndim != 2 or rows.shape[1] != sum(widths) or not len(rows):
        raise ValueError(f'{kind} takes rows of {sum(widths)} values, got an array '
                         f'{list(rows.shape)}')
    if kind in layouts.FIXED and len(rows) > 1:
        raise ValueError(f'{kind} takes one row, got {len(rows)}')
    if kind == 'box_2d' and np.isnan(rows).any():
        raise ValueError('a box_2d has no corner out of view, got NaN')
    layout = layouts.of(kind, len(rows))
    columns = np.split(rows, np.cumsum(widths)[:-1], axis=1)
    return ''.join(layout.tokens(layout.write(*columns)))


def write(kind: str, values) -> str:
    """One primitive of rows `values` [n, d]: its block, after a call where it takes one."""
    block = write_block(kind, values)
    return block if kind in layouts.FIXED else write_call(kind, len(values)) + block


def write_label(label: str) -> str:
    """Name the class of the primitives that follow."""
    return f'<|object_ref_start|>{label}<|object_ref_end|>'


def write_boxes(label: str, boxes) -> str:
    """All boxes [n, 4] (x1, y1, x2, y2 as shares of the image) of one class."""
    start, end = MARKERS['box_2d']
    found = ''.join(write('box_2d', box) for box in boxes) or f'<|{start}|>{NONE}<|{end}|>'
    return write_label(label) + found
