"""
Layouts of primitives as data: what each token of a block stands for (spec `vflash.md` 1.4).

A block is one part or several, each `start, coordinates, end`; its size follows from
the type and the number of points, so it is known as soon as they are declared.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from .coordinates import BINS, FORWARD_M, IMAGE, LEFT_M, MARKERS, NONE, Range

MAX_POINTS = 256
"""More waypoints than this are not declared by anything but a mistake."""
NUMBERS = f'<0>..<{BINS}>'
ROBOT_M = {'x': Range(-5.0, 5.0), 'y': Range(-5.0, 5.0), 'z': Range(0.0, 10.0)}
"""Camera frame of robot answers: x right, y down, z forward."""


class Axis(NamedTuple):
    """One coordinate of a point: its name and the values that its tokens stand for."""

    name: str
    range: Range


PIXEL_AXES = (Axis('u', IMAGE), Axis('v', IMAGE))
BOX_AXES = tuple(Axis(name, IMAGE) for name in ('x1', 'y1', 'x2', 'y2'))
ROAD_AXES = (Axis('x', FORWARD_M), Axis('y', LEFT_M))
ROBOT_AXES = tuple(Axis(*item) for item in ROBOT_M.items())
AXES = 4


SLOT_KINDS = len(MARKERS) * AXES + 2
"""What a slot can be to a drafter: an axis of a type of primitive, a start or an end token."""


@dataclass(frozen=True)
class Slot:
    """
    One token of a block.

    role      'start', 'coordinate', 'end', or 'sign' and 'digit' in a digit grid
    allowed   texts of the tokens that may stand here, ranges written `<0>..<1000>`
    part      atom of the block that it belongs to
    waypoint  point of that part; -1 for markers
    axis      coordinate of that point; -1 for markers
    """

    role: str
    allowed: tuple[str, ...]
    part: int = 0
    waypoint: int = -1
    axis: int = -1


@dataclass(frozen=True)
class Part:
    """One atom `start, points, end`: its type (a key of `MARKERS`), length and axes."""

    type: str
    points: int
    axes: tuple[Axis, ...]
    label: str = ''

    @property
    def in_image(self) -> bool:
        """Values are shares of an image; else metres."""
        return self.axes[0].range is IMAGE

    def slots(self, number: int) -> list[Slot]:
        """Slots of this atom, the `number`-th of its block."""
        start, end = (f'<|{name}|>' for name in MARKERS[self.type])
        inside = [Slot('coordinate', self._allowed(a), number, p, a)
                  for p in range(self.points) for a in range(len(self.axes))]
        return [Slot('start', (start,), number), *inside, Slot('end', (end,), number)]

    def _allowed(self, axis: int) -> tuple[str, ...]:
        if self.type != 'box_2d':
            return NUMBERS, NONE
        if axis >= 2:
            return (f'<1>..<{BINS}>',)
        return (f'<0>..<{BINS - 1}>', NONE) if axis == 0 else (f'<0>..<{BINS - 1}>',)

    def bins(self, values) -> np.ndarray:
        """Bins [points, axes] of `values` of that shape; a row with NaN is -1 throughout."""
        rows = np.asarray(values, dtype=np.float64).reshape(self.points, len(self.axes))
        bins = np.stack([a.range.bins(column) for a, column in zip(self.axes, rows.T)], 1)
        bins[(bins < 0).any(1)] = -1
        if self.type == 'box_2d' and (bins >= 0).all():
            bins[:, :2] = np.minimum(bins[:, :2], BINS - 1)
            bins[:, 2:] = np.maximum(bins[:, 2:], bins[:, :2] + 1)  # never empty
        return bins

    def values(self, bins) -> np.ndarray:
        """Values [points, axes] of bins; NaN for -1."""
        bins = np.asarray(bins).reshape(self.points, len(self.axes))
        return np.stack([a.range.values(column) for a, column in zip(self.axes, bins.T)], 1)


@dataclass(frozen=True)
class Layout:
    """A block of one or several parts; `type` is what a tool call declares."""

    type: str
    parts: tuple[Part, ...]

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """All slots of the block in order."""
        return tuple(s for number, part in enumerate(self.parts) for s in part.slots(number))

    @property
    def size(self) -> int:
        """Tokens of the block, start token included."""
        return len(self.slots)

    @cached_property
    def coordinates(self) -> np.ndarray:
        """Indexes [M] of the coordinate slots."""
        return np.flatnonzero([s.role == 'coordinate' for s in self.slots])

    @cached_property
    def groups(self) -> np.ndarray:
        """Point [M] that each coordinate belongs to, counted over the block."""
        points = [(s.part, s.waypoint) for s in self.slots if s.role == 'coordinate']
        order = {point: i for i, point in enumerate(dict.fromkeys(points))}
        return np.array([order[point] for point in points])

    @cached_property
    def kinds(self) -> np.ndarray:
        """Kind [L] of each slot, below `SLOT_KINDS`."""
        types, markers = list(MARKERS), {'start': SLOT_KINDS - 2, 'end': SLOT_KINDS - 1}
        return np.array([markers.get(s.role, types.index(self.parts[s.part].type) * AXES + s.axis)
                         for s in self.slots])

    @property
    def is_box(self) -> bool:
        """Boxes: one without coordinates says that its class is absent."""
        return self.type == 'box_2d'

    def write(self, *values) -> np.ndarray:
        """Bins [M] of the values [points, axes] of each part; NaN rows are out of view (-1)."""
        return np.concatenate([part.bins(v).ravel() for part, v in zip(self.parts, values,
                                                                       strict=True)])

    def read(self, bins) -> tuple[np.ndarray, ...]:
        """Values [points, axes] of each part from bins [M]."""
        ends = np.cumsum([part.points * len(part.axes) for part in self.parts])
        return tuple(part.values(own) for part, own in zip(
            self.parts, np.split(np.asarray(bins), ends[:-1])))

    def tokens(self, bins) -> list[str]:
        """Texts of the tokens of a block with bins [M]; an absent box is one `NONE`."""
        numbers = iter(np.asarray(bins).tolist())
        if self.is_box and min(bins) < 0:
            return [self.slots[0].allowed[0], NONE, self.slots[-1].allowed[0]]
        return [s.allowed[0] if s.role != 'coordinate' else _number(next(numbers))
                for s in self.slots]


def _number(bin_: int) -> str:
    return NONE if bin_ < 0 else f'<{bin_}>'


@lru_cache(maxsize=256)
def point() -> Layout:
    """Return a point in an image: 4 tokens."""
    return Layout('point', (Part('point', 1, PIXEL_AXES),))


@lru_cache(maxsize=256)
def box() -> Layout:
    """Return a box in an image: 6 tokens, or 3 when its class is absent."""
    return Layout('box_2d', (Part('box_2d', 1, BOX_AXES),))


@lru_cache(maxsize=256)
def trajectory_2d(points: int) -> Layout:
    """Return a path in an image: 2 N + 2 tokens."""
    return Layout('trajectory_2d', (Part('trajectory_2d', points, PIXEL_AXES),))


@lru_cache(maxsize=256)
def trajectory_3d(points: int, axes: tuple[Axis, ...] = ROAD_AXES) -> Layout:
    """Return a path in metres: 2 N + 2 tokens on the road, 3 N + 2 with `ROBOT_AXES`."""
    return Layout('trajectory_3d', (Part('trajectory_3d', points, axes),))


@lru_cache(maxsize=256)
def trajectory_2d_3d(points: int, axes: tuple[Axis, ...] = ROAD_AXES) -> Layout:
    """
    Return a path in the image, then in metres, as one block.

    4 N + 4 tokens for driving, 5 N + 4 for robots; both are inferred from published sizes
    (36 and 84 for 8 and 20 points; spec section 1.4).
    """
    return Layout('trajectory_2d_3d', (*trajectory_2d(points).parts,
                                       *trajectory_3d(points, axes).parts))


@lru_cache(maxsize=256)
def dual_arm(points: int, axes: tuple[Axis, ...] = ROBOT_AXES) -> Layout:
    """Return the left arm's path in image and metres, then the right arm's."""
    arm = trajectory_2d_3d(points, axes).parts
    return Layout('dual_arm', tuple(
        Part(p.type, p.points, p.axes, side) for side in ('left', 'right') for p in arm))


@lru_cache(maxsize=256)
def arm_3d(points: int) -> Layout:
    """Return a hand's path in the frame of the main camera: 3 N + 2 tokens."""
    return Layout('arm_3d', trajectory_3d(points, ROBOT_AXES).parts)


@lru_cache(maxsize=256)
def arm_2d_3d(points: int) -> Layout:
    """Return a hand's path in the main image, then in its camera's frame: 5 N + 4 tokens."""
    return Layout('arm_2d_3d', trajectory_2d_3d(points, ROBOT_AXES).parts)


DECLARED = {'arm_3d': arm_3d, 'arm_2d_3d': arm_2d_3d, 'trajectory_2d': trajectory_2d,
            'trajectory_3d': trajectory_3d, 'trajectory_2d_3d': trajectory_2d_3d,
            'dual_arm': dual_arm}
"""Types that a tool call declares together with a number of points."""
_CALL = re.compile(r'(\w+) ([1-9]\d{0,5})', re.ASCII)
FIXED = {'point': point, 'box_2d': box}
"""Types of one size, which need no declaration."""


def of(kind: str, points: int) -> Layout:
    """Layout of a type; of one that is not declared the number of points is its own."""
    return FIXED[kind]() if kind in FIXED else DECLARED[kind](points)


def call_of(text: str) -> tuple[str, int]:
    """Type and number of points that the text of a tool call declares; '' when it is none."""
    found = _CALL.fullmatch(text)
    if found is None or int(found[2]) > MAX_POINTS:
        return '', 0
    return found[1], int(found[2])


def declared(call: str) -> Layout | None:
    """Layout that the text of a tool call declares, such as `trajectory_2d_3d 20`; else None."""
    kind, points = call_of(call)
    return DECLARED[kind](points) if kind in DECLARED else None
