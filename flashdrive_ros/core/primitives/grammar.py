"""
Points, boxes and trajectories as text with coordinate tokens, and back.

    <|object_ref_start|>car<|object_ref_end|><|box_start|><1><2><3><4><|box_end|>…
    <tool_call>trajectory_2d 8</tool_call><|trajectory_2d_start|><u><v>…<|trajectory_2d_end|>
    <tool_call>trajectory_3d 8</tool_call><|trajectory_3d_start|><x><y>…<|trajectory_3d_end|>
    <tool_call>trajectory_2d_3d 8</tool_call><|trajectory_2d_start|>…<|trajectory_2d_end|>
                                             <|trajectory_3d_start|>…<|trajectory_3d_end|>

(without the line break).  u and v are shares of the image, x and y metres in the ego frame.
A call declares type and number of waypoints N; the block after it has 2N + 2 tokens, with
both parts 4N + 4 (spec `vflash.md` sections 1.2 to 1.4).  Points and boxes have a fixed size
and no call.

A point out of view is a pair of `<|none|>`.  A class that is absent has one box that holds
`<|none|>`; an answer without any primitive is `<|none|>` alone.
"""
from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .coordinates import BINS, FORWARD_M, IMAGE, LEFT_M, MARKERS, NONE, Range


@dataclass(frozen=True)
class Part:
    """What stands between a start token and its end token: rows of values along `axes`."""

    marker: str
    axes: tuple[Range, ...]


_2D, _3D = (Part('trajectory_2d', (IMAGE, IMAGE)), Part('trajectory_3d', (FORWARD_M, LEFT_M)))
PARTS: dict[str, tuple[Part, ...]] = {
    'point': (Part('point', (IMAGE, IMAGE)),),
    'box_2d': (Part('box_2d', (IMAGE,) * 4),),
    'trajectory_2d': (_2D,), 'trajectory_3d': (_3D,), 'trajectory_2d_3d': (_2D, _3D)}
"""Type of a primitive -> its parts, in the order in which they are written."""
CALLED = ('trajectory_2d', 'trajectory_3d', 'trajectory_2d_3d')
"""Types that a tool call announces, since their length is free."""


@dataclass(frozen=True)
class Written:
    """
    A primitive as it stands in an answer: its rows [n, d] of values, NaN out of view.

    Columns are those of its parts side by side: u, v, x, y of a trajectory_2d_3d.
    """

    type: str
    label: str
    values: np.ndarray


@dataclass(frozen=True)
class Reading:
    """The well-formed primitives of an answer in their order, and what was wrong with others."""

    primitives: tuple[Written, ...]
    problems: tuple[str, ...]


def write_call(kind: str, points: int) -> str:
    """Announce a trajectory of `points` waypoints."""
    return f'<tool_call>{kind} {points}</tool_call>'


def write_block(kind: str, values) -> str:
    """
    From the first start token of a primitive to its last end token.

    `values` are its rows [n, d]; a pair with NaN is out of view.  Raises `ValueError` for rows
    of another width, none at all, or several of a point or box.
    """
    parts = PARTS[kind]
    width = sum(len(part.axes) for part in parts)
    rows = np.asarray(values, dtype=np.float64)
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
        raise ValueError(f'{kind} takes rows of {width} values, got an array {list(rows.shape)}')
    if kind not in CALLED and len(rows) > 1:
        raise ValueError(f'{kind} takes one row, got {len(rows)}')
    if kind == 'box_2d' and np.isnan(rows).any():
        raise ValueError('a box_2d has no corner out of view, got NaN')
    text, column = '', 0
    for part in parts:
        end = column + len(part.axes)
        text += _write_part(part, rows[:, column:end])
        column = end
    return text


def write(kind: str, values) -> str:
    """One primitive of rows `values` [n, d]: its block, after a call where it takes one."""
    block = write_block(kind, values)
    return (write_call(kind, len(values)) if kind in CALLED else '') + block


def write_label(label: str) -> str:
    """Name the class of the primitives that follow."""
    return f'<|object_ref_start|>{label}<|object_ref_end|>'


def write_boxes(label: str, boxes) -> str:
    """All boxes [n, 4] (x1, y1, x2, y2 as shares of the image) of one class."""
    start, end = MARKERS['box_2d']
    found = ''.join(write('box_2d', box) for box in boxes) or f'<|{start}|>{NONE}<|{end}|>'
    return write_label(label) + found


def _write_part(part: Part, rows: np.ndarray) -> str:
    bins = np.stack([axis.bins(column) for axis, column in zip(part.axes, rows.T)], 1)
    if part.marker == 'box_2d':
        bins[:, :2] = np.minimum(bins[:, :2], BINS - 1)
        bins[:, 2:] = np.maximum(bins[:, 2:], bins[:, :2] + 1)  # never empty
    start, end = MARKERS[part.marker]
    inside = ''.join(NONE * len(row) if min(row) < 0 else ''.join(f'<{k}>' for k in row)
                     for row in bins.tolist())
    return f'<|{start}|>{inside}<|{end}|>'


_OPENING = '|'.join(start for start, _ in MARKERS.values())
_CLOSING = '|'.join(end for _, end in MARKERS.values())
_BLOCK = re.compile(rf'<\|(?P<start>{_OPENING})\|>(?P<inside>(?:<\d+>|<\|none\|>)*)'
                    rf'(?:<\|(?P<end>{_CLOSING})\|>)?', re.ASCII)
_CALL = re.compile(rf'({"|".join(CALLED)}) ([1-9]\d{{0,5}})', re.ASCII)
_PIECE = re.compile(r'<\|object_ref_start\|>(?P<label>[^<>]*)(?P<labelled><\|object_ref_end\|>)?'
                    r'|<tool_call>(?P<call>[^<>]*)(?P<called></tool_call>)?'
                    rf'|{_BLOCK.pattern}', re.ASCII)
_KINDS = {start: kind for kind, (start, _) in MARKERS.items()}


def read(text: str) -> list[Written]:
    """Return the well-formed primitives of an answer in their order."""
    return list(parse(text).primitives)


def parse(text: str) -> Reading:
    """
    Read an answer, broken primitives as well.

    Those are left out and told as problems: a wrong or missing call, a block that is not the
    declared one or not closed, half a pair of `<|none|>`, a box without area, a class that is
    not closed (what follows has no label then).  An absent class gives a `box_2d` without rows.
    """
    label, found, problems, at = '', [], [], 0
    while piece := _PIECE.search(text, at):
        at = piece.end()
        try:
            if piece['label'] is not None:
                label = _read_label(piece)
            elif piece['call'] is None:
                found.append(_read_uncalled(label, piece))
            else:
                kind, points = _read_call(piece)
                columns = []
                for part in PARTS[kind]:
                    block = _BLOCK.match(text, at)
                    if block is None or _KINDS[block['start']] != part.marker:
                        raise ValueError(f'{kind} {points} lacks its {part.marker} block')
                    at = block.end()
                    columns.append(_read_part(part, points, block))
                found.append(Written(kind, label, np.concatenate(columns, 1)))
        except ValueError as error:
            problems.append(str(error))
            label = '' if piece['label'] is not None else label
    return Reading(tuple(found), tuple(problems))


def _read_label(piece: re.Match) -> str:
    if piece['labelled'] is None:
        raise ValueError(f'the class {piece["label"]!r} is not closed')
    return piece['label']


def _read_call(piece: re.Match) -> tuple[str, int]:
    """Type and number of waypoints that a call declares."""
    declared = _CALL.fullmatch(piece['call'])
    if declared is None or piece['called'] is None:
        raise ValueError(f'not the call of a trajectory: {piece.group()!r}')
    return declared[1], int(declared[2])


def _read_uncalled(label: str, block: re.Match) -> Written:
    """Read a primitive of fixed size."""
    kind = _KINDS[block['start']]
    if kind not in PARTS or kind in CALLED:
        raise ValueError(f'a {kind} block without a call')
    if kind == 'box_2d' and block['inside'] == NONE and block['end'] == MARKERS[kind][1]:
        return Written(kind, label, np.zeros((0, 4)))
    return Written(kind, label, _read_part(PARTS[kind][0], 1, block))


def _read_part(part: Part, points: int, block: re.Match) -> np.ndarray:
    name, width = part.marker, len(part.axes)
    if block['end'] != MARKERS[name][1]:
        raise ValueError(f'{name} is not closed by <|{MARKERS[name][1]}|>')
    bins = [-1 if token == 'none' else int(token)
            for token in re.findall(r'\d+|none', block['inside'])]
    if len(bins) != points * width:
        raise ValueError(f'{name} has {len(bins)} coordinates, expected {points * width}')
    if max(bins) > BINS:
        raise ValueError(f'{name} has the coordinate {max(bins)}, above {BINS}')
    rows = np.array(bins).reshape(points, width)
    if name == 'box_2d':
        if rows.min() < 0 or (rows[:, :2] >= rows[:, 2:]).any():
            raise ValueError(f'box_2d has no area: {bins}')
    elif ((rows < 0).any(1) != (rows < 0).all(1)).any():
        raise ValueError(f'{name} has half a pair of {NONE}')
    return np.stack([axis.values(column) for axis, column in zip(part.axes, rows.T)], 1)
