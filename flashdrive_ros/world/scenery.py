"""What stands beside the road: buildings, trees, lamp posts, hedges. None of it moves."""
from __future__ import annotations

from dataclasses import dataclass, field, replace

import cv2
import numpy as np

from .look import FACADES, Look
from .map import Route
from .meshes import BODY, FIXED, PANE, PART, Mesh, block, inset, insets

PIECE_M = 10.0
"""Buildings are cut into pieces of about this length, so that far-to-near order works."""


@dataclass
class Scenery:
    """
    Things as quads and round blobs in the map frame, with the thing that each belongs to.

    `meshes` are already placed and `lit`; `middles` [o, 2] are where the things stand.
    `blobs` rows are (x, y, z, radius, r, g, b) with `blob_things`.  `shadows` are
    polygons [n, 2] on the ground and `footprints` rows (x, y, yaw, length, width)
    of what one can run into.
    """

    meshes: list[Mesh] = field(default_factory=list)
    mesh_things: list[int] = field(default_factory=list)
    middles: list[tuple[float, float]] = field(default_factory=list)
    blobs: list[tuple[float, ...]] = field(default_factory=list)
    blob_things: list[int] = field(default_factory=list)
    shadows: list[np.ndarray] = field(default_factory=list)
    footprints: list[tuple[float, ...]] = field(default_factory=list)

    def thing(self, x: float, y: float) -> int:
        """Begin a thing there; return its number."""
        self.middles.append((x, y))
        return len(self.middles) - 1

    def add_mesh(self, thing: int, parts, x: float, y: float, yaw: float, look: Look):
        """Place the parts of a mesh and light them."""
        mesh = Mesh.of(parts)
        c, s = np.cos(yaw), np.sin(yaw)
        turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]], np.float32)
        quads = mesh.quads @ turn + np.array([x, y, 0], np.float32)
        normals = mesh.normals @ turn
        self.meshes.append(replace(
            mesh, quads=quads, normals=normals,
            colours=look.shade(mesh.colours, normals).astype(np.float32)))
        self.mesh_things.append(thing)

    def add_shadow(self, corners, height: float, look: Look):
        """Shadow of an upright prism: the hull of its footprint and its top along the sun."""
        if look.sun[2] < 0.1:
            return
        shift = -look.sun[:2] / look.sun[2] * height
        self.shadows.append(_hull(np.concatenate([corners, corners + shift])))


def build_scenery(route: Route, look: Look, rng: np.random.Generator, *,
                  buildings: float, trees: float, tall: float) -> Scenery:
    """
    Line the route and its arms with things.

    `buildings` and `trees` are densities from 0 to 1, `tall` the typical number of storeys.
    """
    scenery = Scenery()
    free = _FreeSpace(route)
    for stretch in _stretches(route):
        for side in (-1, 1):
            _line_with_buildings(scenery, stretch, side, free, look, rng, buildings, tall)
            _line_with_trees(scenery, stretch, side, free, look, rng, trees)
        _line_with_lamps(scenery, stretch, free, look, rng, buildings)
    return scenery


class _FreeSpace:
    """Knows how far a point is from the nearest road's edge."""

    def __init__(self, route: Route):
        points = [np.stack([route.x, route.y], 1)[::6]]
        for j in route.junctions:
            for arm in j.arms:
                t = np.arange(-j.half_size, arm.length, 3.0)
                points.append(np.stack([arm.x + t * np.cos(arm.yaw),
                                        arm.y + t * np.sin(arm.yaw)], 1))
        self.points = np.concatenate(points).astype(np.float32)
        self.half = route.shape.kerb + route.shape.sidewalk

    def clearance(self, points) -> np.ndarray:
        """Distance [n] from points [n, 2] to the outer edge of the nearest sidewalk."""
        p = np.asarray(points, np.float32)
        d2 = ((p[:, None] - self.points[None]) ** 2).sum(-1)
        return np.sqrt(d2.min(1)) - self.half


def _stretches(route: Route):
    """Functions (s, d) -> x, y, yaw with the arc lengths that they serve."""
    yield route.pose, 0.0, route.length, route.shape
    for junction in route.junctions:
        for arm in junction.arms:
            def pose(s, d, arm=arm):
                return (arm.x + s * np.cos(arm.yaw) - d * np.sin(arm.yaw),
                        arm.y + s * np.sin(arm.yaw) + d * np.cos(arm.yaw), arm.yaw)
            yield pose, 8.0, arm.length, route.shape


def _corners(x, y, yaw, length, width) -> np.ndarray:
    c, s = np.cos(yaw), np.sin(yaw)
    local = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [length / 2, width / 2]
    return local @ np.array([[c, s], [-s, c]]) + [x, y]


def _line_with_buildings(scenery, stretch, side, free, look, rng, density, tall):
    pose, begin, end, shape = stretch
    s = begin + rng.uniform(0, 15)
    while s < end - 8:
        length = float(rng.uniform(14, 44))
        if rng.random() < density:
            depth = float(rng.uniform(9, 16))
            setback = float(rng.choice([0.6, 1.5, 4.0, 7.0]))
            storeys = max(1, int(rng.poisson(tall)))
            style = _Facade.sample(rng)
            pieces = max(1, round(length / PIECE_M))
            middles = s + (np.arange(pieces) + 0.5) * length / pieces
            d = side * (shape.kerb + shape.sidewalk + setback + depth / 2)
            poses = [tuple(float(v) for v in pose(middle, d)) for middle in middles]
            corners = [_corners(*place, length / pieces, depth) for place in poses]
            built = [free.clearance(c).min() > 0.3 for c in corners]
            beside = [False, *built, False]
            for i in np.flatnonzero(built):
                style.build(scenery, poses[i], (length / pieces, depth), storeys,
                            (not beside[i], not beside[i + 2]), look)
                scenery.add_shadow(corners[i], style.storey * storeys, look)
                scenery.footprints.append((*poses[i], length / pieces, depth))
        s += length + float(rng.choice([0.0, 2.0, 6.0, 14.0]))


@dataclass(frozen=True)
class _Facade:
    """Look of one building: wall, windows (grid or bands), ground floor."""

    wall: np.ndarray
    window: np.ndarray
    storey: float
    bands: bool
    columns: int
    window_width: float
    window_height: float
    ground_floor: np.ndarray

    @classmethod
    def sample(cls, rng):
        wall = np.clip(FACADES[rng.integers(len(FACADES))] + rng.uniform(-16, 16, 3), 30, 240)
        return cls(wall, wall * 0.2 + np.array([30.0, 40, 52]) * rng.uniform(.6, 1.3),
                   float(rng.uniform(2.9, 3.7)), bool(rng.random() < 0.3),
                   int(rng.integers(2, 5)), float(rng.uniform(.45, .7)),
                   float(rng.uniform(.45, .62)),
                   np.clip(wall * rng.uniform(0.55, 1.0), 20, 240))

    def build(self, scenery, pose, size, storeys, ends, look):
        """Put up one piece; only the `ends` of a building (rear, front) have windows there."""
        (x, y, yaw), (length, depth) = pose, size
        height = storeys * self.storey + 0.6
        # no one sees a roof from the road
        walls = block(-length / 2, length / 2, -depth / 2, depth / 2, 0, height)[:4]
        columns = 1 if self.bands else self.columns
        margin = 0.03 if self.bands else (1 - self.window_width) / 2
        floors = np.arange(storeys)[:, None] * self.storey
        v0 = (floors + self.storey * (1 - self.window_height) * 0.6) / height
        u0 = (np.arange(columns)[None] + margin) / columns
        u0, v0 = (g.ravel() for g in np.broadcast_arrays(u0, v0))
        panes = np.stack([u0, u0 + (1 - 2 * margin) / columns, v0,
                          v0 + self.storey * self.window_height / height], 1)
        seen = [wall for wall, bare in zip(walls, (*ends, True, True), strict=True) if bare]
        windows = np.concatenate([insets(wall, panes, lift=.05) for wall in seen])
        shops = [inset(wall, 0, 1, 0, self.storey / height, lift=.02) for wall in seen]
        thing = scenery.thing(x, y)
        scenery.add_mesh(thing, [
            (walls, self.wall, FIXED, BODY), (shops, self.ground_floor, FIXED, PART),
            (windows, self.window, FIXED, PANE),
        ], x, y, yaw, look)


def _line_with_trees(scenery, stretch, side, free, look, rng, density):
    pose, begin, end, shape = stretch
    for s in np.arange(begin + 4, end - 4, 9.0):
        if rng.random() > density:
            continue
        wild = rng.random() < 0.4
        d = shape.kerb + (rng.uniform(4, 30) + shape.sidewalk if wild else 1.5)
        x, y, _ = (float(v) for v in pose(s + rng.uniform(-3, 3), side * d))
        if free.clearance([[x, y]])[0] < (1.0 if wild else -shape.sidewalk + 1.0):
            continue
        if scenery.footprints and _inside_any((x, y), scenery.footprints, 1.0):
            continue
        _plant(scenery, x, y, look, rng)


def _inside_any(point, footprints, margin) -> bool:
    f = np.array(footprints[-400:])
    dx, dy = point[0] - f[:, 0], point[1] - f[:, 1]
    c, s = np.cos(f[:, 2]), np.sin(f[:, 2])
    return bool(((np.abs(dx * c + dy * s) < f[:, 3] / 2 + margin)
                 & (np.abs(-dx * s + dy * c) < f[:, 4] / 2 + margin)).any())


def _plant(scenery, x, y, look, rng):
    size = float(rng.uniform(0.7, 1.35))
    green = np.array([rng.uniform(48, 92), rng.uniform(84, 122), rng.uniform(34, 58)])
    thing = scenery.thing(x, y)
    trunk = block(-.14 * size, .14 * size, -.14 * size, .14 * size, 0, 2.6 * size)[:4]
    scenery.add_mesh(thing, [(trunk, (84, 66, 50), FIXED, BODY)], x, y, 0.0, look)
    conifer = rng.random() < 0.2
    if conifer:
        lobes = [(0, 0, 1.4 + 1.1 * k, 1.5 - 0.34 * k, 0.72 + 0.08 * k) for k in range(4)]
    else:
        spread = rng.normal(0, 0.55, (3, 2))
        lobes = [(0, 0, 3.0, 1.55, .78)] + [
            (dx, dy, 3.5 + 0.55 * k, 1.25 - 0.1 * k, 0.92 + 0.1 * k)
            for k, (dx, dy) in enumerate(spread)]
    lift = look.ambient + 0.1 + look.diffuse * 0.45
    for dx, dy, z, radius, light in lobes:
        colour = np.clip(green * look.tint * lift * light * 1.1, 0, 255)
        toward = look.sun[:2] * (0.25 if light > 0.9 else 0)
        scenery.blobs.append((x + (dx + toward[0]) * size, y + (dy + toward[1]) * size, z * size,
                              radius * size, *colour))
        scenery.blob_things.append(thing)
    angle = np.arange(8) * np.pi / 4
    ring = np.stack([np.cos(angle), np.sin(angle)], 1) * 1.7 * size
    offset = -look.sun[:2] / max(look.sun[2], 0.3) * 3.2 * size
    scenery.shadows.append(ring + (np.array([x, y]) + offset))
    scenery.footprints.append((x, y, 0.0, 0.4, 0.4))


def _line_with_lamps(scenery, stretch, free, look, rng, density):
    pose, begin, end, shape = stretch
    side = int(rng.choice([-1, 1]))
    if density < 0.2:
        return
    for s in np.arange(begin + 10, end - 6, 32.0):
        x, y, yaw = (float(v) for v in pose(s, side * (shape.kerb + 0.5)))
        if free.clearance([[x, y]])[0] < -shape.sidewalk + 0.3:
            continue
        thing = scenery.thing(x, y)
        arm = (-.06, .06, *sorted((0.0, -side * 1.8)))
        scenery.add_mesh(thing, [
            (block(-.08, .08, -.08, .08, 0, 7.0)[:4], (92, 94, 98), FIXED, BODY),
            (block(*arm, 6.9, 7.0), (92, 94, 98), FIXED, PART),
            (block(-.12, .12, *sorted((-side * 1.4, -side * 2.0)), 6.8, 6.92), (212, 212, 200),
             FIXED, PART),
        ], x, y, yaw, look)
        scenery.footprints.append((x, y, yaw, 0.2, 0.2))


def _hull(points: np.ndarray) -> np.ndarray:
    """Convex hull of points [n, 2]."""
    return cv2.convexHull(points.astype(np.float32)).reshape(-1, 2)
