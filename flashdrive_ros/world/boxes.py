"""Ground truth boxes: solid ones in base_link and flat ones around visible pixels."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .meshes import GREEN, LABELS, RED, SIZES, YELLOW
from .soup import Thing
from .vehicle import VehicleState, from_map

LEAST_PIXELS = 12
LEAST_SHARE = 0.25
RANGE_M = 260.0
_COLOURS = {RED: 'red', YELLOW: 'yellow', GREEN: 'green'}


@dataclass(frozen=True)
class Box3D:
    """A box in base_link: its centre (m), sizes (m), heading (rad) and speed (m/s)."""

    id: int
    label: str
    x: float
    y: float
    z: float
    length: float
    width: float
    height: float
    yaw: float
    speed: float = 0.0

    @property
    def values(self) -> tuple[float, ...]:
        """Centre x, y, z, length, width, height, yaw."""
        return self.x, self.y, self.z, self.length, self.width, self.height, self.yaw

    def corners(self) -> np.ndarray:
        """Its corners [8, 3], the four at the bottom first."""
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        local = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [self.length / 2, self.width / 2]
        flat = local @ np.array([[c, s], [-s, c]]) + [self.x, self.y]
        return np.concatenate([np.column_stack([flat, np.full(4, self.z + k * self.height / 2)])
                               for k in (-1, 1)])


@dataclass(frozen=True)
class Box2D:
    """Tightest box around the visible pixels of a thing: first and last column and row, + 1."""

    id: int
    label: str
    x1: float
    y1: float
    x2: float
    y2: float
    pixels: int


def label_of(thing: Thing) -> str:
    """Class of a thing; a traffic light's tells its colour."""
    if thing.model == 'traffic_light':
        colour = next((_COLOURS[lamp] for lamp in thing.lamps if lamp in _COLOURS), '')
        return f'traffic_light_{colour}' if colour else 'traffic_light'
    return LABELS.get(thing.model, thing.model)


def boxes_2d(id_image: np.ndarray, things) -> tuple[Box2D, ...]:
    """Boxes of the things that show at least 12 pixels, a quarter of their box."""
    by_id = {thing.id: thing for thing in things}
    flat = id_image.ravel()
    places = np.flatnonzero(flat)
    places = places[np.argsort(flat[places], kind='stable')]
    marks = flat[places]
    if not len(marks):
        return ()
    begins = np.concatenate([[0], np.flatnonzero(np.diff(marks)) + 1])
    rows, columns = np.divmod(places, id_image.shape[1])
    found = []
    for mark, pixels, *corners in zip(
            marks[begins].tolist(), np.diff(np.append(begins, len(marks))).tolist(),
            np.minimum.reduceat(columns, begins).tolist(),
            np.minimum.reduceat(rows, begins).tolist(),
            (np.maximum.reduceat(columns, begins) + 1).tolist(),
            (np.maximum.reduceat(rows, begins) + 1).tolist(), strict=True):
        x1, y1, x2, y2 = corners
        if pixels >= max(LEAST_PIXELS, LEAST_SHARE * (x2 - x1) * (y2 - y1)):
            found.append(Box2D(mark, label_of(by_id[mark]), x1, y1, x2, y2, pixels))
    return tuple(found)


def boxes_3d(things, speeds: dict[int, float], state: VehicleState) -> tuple[Box3D, ...]:
    """Boxes of all things within 260 m."""
    if not things:
        return ()
    poses = from_map(state.pose, [(t.x, t.y, t.yaw) for t in things])
    found = []
    for thing, (x, y, yaw) in zip(things, poses.tolist(), strict=True):
        if x * x + y * y > RANGE_M ** 2:
            continue
        length, width, height = SIZES[thing.model]
        yaw = (yaw + np.pi) % (2 * np.pi) - np.pi
        found.append(Box3D(thing.id, label_of(thing), x, y, thing.z + height / 2, length, width,
                           height, yaw, speeds.get(thing.id, 0.0)))
    return tuple(found)
