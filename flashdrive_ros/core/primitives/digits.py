"""
Dense point motion as a grid of digits (spec `vflash.md` sections 1.3 and 4.6).

A call declares the number P of query points; each future frame then begins with the
separator `;`.  A drafter's block holds one frame, three axes of each point, a coordinate in
millimetres as a sign and five digits.  Unused high digits hold the mask token, and so
does all of a point that is not visible.  The target writes the same as text,
`t id x y z id x y z …`, ids from 1, invisible points left out:

    <tool_call>tracks 2</tool_call>;3.0 1 -20 5 130 2 7 8 9;4.0 …
"""
from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from ..tokenizer import Tokenizer
from .coordinates import MASK
from .layouts import ROBOT_AXES, SLOT_KINDS, Layout, Part, Slot, call_of

DIGITS = 5
LIMIT_MM = 10 ** DIGITS - 1
EMPTY = -1
"""Symbol of a slot that holds the mask token; signs are 0 (+) and 1 (-)."""
SIGNS = ('+', '-', MASK)
FIGURES = (*'0123456789', MASK)
SEPARATOR = ';'
TYPE = 'tracks'


def slots(points: int) -> tuple[Slot, ...]:
    """Slots of one frame: the target's separator, then 18 for each of the `points`."""
    grid = [Slot('digit' if d else 'sign', FIGURES if d else SIGNS, 0, p, axis)
            for p in range(points) for axis in range(3) for d in range(1 + DIGITS)]
    return Slot('start', (SEPARATOR,)), *grid


@dataclass(frozen=True)
class Frame(Layout):
    """A block of one future frame; symbols [18 P] are those of the grid."""

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """All slots of the block in order."""
        return slots(self.parts[0].points)

    @cached_property
    def coordinates(self) -> np.ndarray:
        """Indexes [18 P] of all slots but the first."""
        return np.arange(1, self.size)

    @cached_property
    def kinds(self) -> np.ndarray:
        """Kind [L] of each slot: a place of an axis, above the kinds of other layouts."""
        places = np.arange(self.size - 1) % (3 * (1 + DIGITS))
        return np.append(SLOT_KINDS - 2, SLOT_KINDS + places)

    def read(self, bins) -> tuple[np.ndarray, ...]:
        """Metres [P, 3] from symbols [18 P]; NaN where a point is not visible."""
        values, visible = from_grid(np.asarray(bins).reshape(-1, 3, 1 + DIGITS))
        return (np.where(visible[:, None], values / 1000, np.nan),)


@lru_cache(maxsize=64)
def frame(points: int) -> Frame:
    """Return the block of a frame of so many points: 18 P + 1 tokens."""
    return Frame(TYPE, (Part('point', points, ROBOT_AXES),))


def declared(call: str) -> Frame | None:
    """Layout of the frames that the text of a call declares, such as `tracks 8`; else None."""
    kind, points = call_of(call)
    return frame(points) if kind == TYPE else None


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


class FrameSchema:
    """A frame's block in the ids of one tokenizer, and the target's text that it stands for."""

    def __init__(self, layout: Frame, tokenizer: Tokenizer, device='cpu'):
        self.layout, self.tokenizer, self.stamp = layout, tokenizer, 0
        (self.start,), *ids = (tokenizer.encode(t) for t in (SEPARATOR, *SIGNS, *FIGURES))
        signs, figures = ids[:len(SIGNS)], ids[len(SIGNS):]
        self.text = {i for piece in ('.', ' ', ' -', '-', *FIGURES[:-1])
                     for i in tokenizer.encode(piece)}
        """Ids that the target's text of a frame is made of."""
        self.choices = [torch.tensor(i, device=device).squeeze(1) for i in (signs, figures)]
        self.kinds = torch.from_numpy(layout.kinds).to(device)

    def at(self, stamp: int) -> FrameSchema:
        """Return the same for the frame with this stamp."""
        other = copy.copy(self)
        other.stamp = stamp
        return other

    def accept(self, logits: Tensor) -> tuple[np.ndarray, float] | None:
        """
        Likeliest symbols [18 P] of a draft and the least of their probabilities.

        `logits` [18 P, vocabulary].  None when they break the form: a frame is taken whole or
        not at all.
        """
        chances = logits.float().softmax(-1).unflatten(0, (-1, 1 + DIGITS))
        best = [part[..., ids].max(-1) for part, ids in zip(
            (chances[:, :1], chances[:, 1:]), self.choices)]
        grid = torch.cat([found.indices.where(found.indices < len(ids) - 1, EMPTY)
                          for found, ids in zip(best, self.choices)], 1).cpu().numpy()
        if not logits.isfinite().all() or not valid(grid.reshape(-1, 3, 1 + DIGITS)):
            return None
        return grid.ravel(), float(torch.cat([found.values for found in best], 1).min())

    def token_ids(self, symbols) -> list[int]:
        """Ids of the target's text of a frame, separator included."""
        grid = np.asarray(symbols).reshape(-1, 3, 1 + DIGITS)
        return self.tokenizer.encode(SEPARATOR + to_text(self.stamp, grid))

    def read(self, ids) -> tuple[int, np.ndarray] | None:
        """Return stamp and symbols [18 P] of the text `ids`, separator included."""
        found = from_text(self.tokenizer.decode(ids[1:]), self.layout.parts[0].points)
        return found and (found[0], found[1].ravel())
