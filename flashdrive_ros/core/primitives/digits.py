"""
Dense point motion as a grid of digits (spec `vflash.md` sections 1.3 and 4.6).

One block holds the P query points of one future frame, three axes each, a coordinate
in millimetres as a sign and five digits.  Unused high digits hold the mask token, and
so does all of a point that is not visible.  The target writes the same as text:
`t id x y z id x y z …`, ids from 1, invisible points left out.
"""
from __future__ import annotations

import re

import numpy as np

from .coordinates import MASK
from .layouts import Slot

DIGITS = 5
LIMIT_MM = 10 ** DIGITS - 1
EMPTY = -1
"""Symbol of a slot that holds the mask token; signs are 0 (+) and 1 (-)."""
SIGNS = ('+', '-', MASK)
FIGURES = (*'0123456789', MASK)


def slots(points: int) -> tuple[Slot, ...]:
    """Slots of one frame: the target's separator, then 18 for each of the `points`."""
    grid = [Slot('digit' if d else 'sign', FIGURES if d else SIGNS, 0, p, axis)
            for p in range(points) for axis in range(3) for d in range(1 + DIGITS)]
    return Slot('start', (';',)), *grid


def to_grid(millimetres, visible=None) -> np.ndarray:
    """
    Symbols [..., P, 3, 6] of whole `millimetres` [..., P, 3]; clamped to +-99,999.

    `visible` [..., P]: points without it are empty.
    """
    values = np.clip(np.asarray(millimetres, dtype=np.int64), -LIMIT_MM, LIMIT_MM)
    figures = np.abs(values)[..., None] // 10 ** np.arange(DIGITS - 1, -1, -1) % 10
    figures[(np.cumsum(figures, -1) == 0) & (np.arange(DIGITS) < DIGITS - 1)] = EMPTY
    grid = np.concatenate(((values < 0).astype(np.int64)[..., None], figures), -1)
    if visible is not None:
        grid[~np.asarray(visible, dtype=bool)] = EMPTY
    return grid


def from_grid(grid) -> tuple[np.ndarray, np.ndarray]:
    """Return millimetres [..., P, 3] (0 where empty) and visibility [..., P] of symbols."""
    grid = np.asarray(grid)
    figures = np.maximum(grid[..., 1:], 0)
    size = (figures * 10 ** np.arange(DIGITS - 1, -1, -1)).sum(-1)
    return np.where(grid[..., 0] == 1, -size, size), grid[..., 0, 0] != EMPTY


def valid(grid) -> np.ndarray:
    """
    Say of symbols [..., P, 3, 6] whether each frame follows the form.

    A point is empty throughout or has three numbers; a number has a sign, no mask
    between or after its digits, no leading zero, and no sign before zero.
    """
    grid = np.asarray(grid)
    sign, figures = grid[..., 0], grid[..., 1:]
    empty = figures == EMPTY
    gaps = (empty[..., 1:] & ~empty[..., :-1]).any(-1)
    first = np.take_along_axis(figures, empty.sum(-1, keepdims=True).clip(max=DIGITS - 1), -1)
    padded = (first[..., 0] == 0) & (empty.sum(-1) < DIGITS - 1)
    zero_below = (np.maximum(figures, 0).sum(-1) == 0) & (sign == 1)
    number = (sign != EMPTY) & ~empty[..., -1] & ~gaps & ~padded & ~zero_below
    nothing = (sign == EMPTY) & empty.all(-1)
    inside = (np.isin(sign, (EMPTY, 0, 1)) & (figures >= EMPTY).all(-1) & (figures <= 9).all(-1))
    return (inside.all(-1) & (number.all(-1) | nothing.all(-1))).all(-1)


def tokens(grid) -> list[str]:
    """Texts [18 P] of the tokens of one frame [P, 3, 6]."""
    rows = np.asarray(grid).reshape(-1, 1 + DIGITS)
    return [(FIGURES if i else SIGNS)[symbol] for row in rows for i, symbol in enumerate(row)]


def symbols(texts, points: int) -> np.ndarray:
    """Symbols [P, 3, 6] of the `tokens` of one frame; `ValueError` for any other token."""
    per_number = 1 + DIGITS
    found = [(FIGURES if i % per_number else SIGNS).index(t) for i, t in enumerate(texts)]
    grid = np.array(found, dtype=np.int64).reshape(points, 3, per_number)
    grid[..., 0][grid[..., 0] == SIGNS.index(MASK)] = EMPTY
    grid[..., 1:][grid[..., 1:] == FIGURES.index(MASK)] = EMPTY
    return grid


def to_text(stamp: int, grid) -> str:
    """Write one frame [P, 3, 6] as the target does: `3.0 1 -20 5 130 2 …`."""
    values, visible = from_grid(grid)
    points = [f' {i + 1} {x} {y} {z}' for i, (x, y, z) in enumerate(values.tolist())
              if visible[i]]
    return f'{stamp}.0{"".join(points)}'


_FRAME = re.compile(r'(\d+)\.0((?: \d+(?: -?\d+){3})*)')


def from_text(text: str, points: int) -> tuple[int, np.ndarray] | None:
    """Return stamp and symbols [P, 3, 6] of a frame's text; None when it is not well-formed."""
    match = _FRAME.fullmatch(text.strip())
    if match is None:
        return None
    rows = np.array(match[2].split(), dtype=object).reshape(-1, 4)
    ids = [int(i) for i in rows[:, 0]]
    values = [[int(v) for v in row[1:]] for row in rows]
    in_range = all(abs(v) <= LIMIT_MM for row in values for v in row)
    if sorted(set(ids)) != ids or not set(ids) <= set(range(1, points + 1)) or not in_range:
        return None
    millimetres, visible = np.zeros((points, 3), np.int64), np.zeros(points, bool)
    for i, row in zip(ids, values):
        millimetres[i - 1], visible[i - 1] = row, True
    return int(match[1]), to_grid(millimetres, visible)
