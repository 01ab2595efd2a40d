"""
The ground as seen from above: a window of texture that moves along with the vehicle.

A window has 8 px/m where the cameras look closely and 2 px/m farther out (the
middle of the coarse one is the fine one, averaged).  It is laid out of tiles
that are painted once; which tiles depends only on where the vehicle is, so the
same place looks the same however one came there.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np

from .look import Look
from .map import CROSSWALK_WIDTH_M, Junction, Route

FINE_PX_PER_M = 8
COARSE = 4
"""One coarse pixel is this many fine ones wide."""
FINE_TILES, COARSE_TILES = 4, 6
"""Tiles along one side of a window."""
FINE_TILE_M, COARSE_TILE_M = 64, 128
AHEAD_M = 64
"""Windows lie around a point this far ahead of the vehicle."""
KEPT_TILES = 220
"""Tiles that are kept, the latest used: all of a minute's drive, about 70 MB."""
LINE_M = 4.0
"""Points of a side road's line are this far apart; those of the route are closer."""
NOISE_M = 64
SHIFT = 4


@dataclass(frozen=True)
class Texture:
    """Image [n, n, 3] of the map; `origin` is the outer corner of its first pixel."""

    image: np.ndarray
    origin: tuple[float, float]
    px_per_m: float

    @property
    def to_pixel(self) -> np.ndarray:
        """Homogeneous matrix [3, 3] from map x, y to pixels of the image."""
        k = self.px_per_m
        return np.array([[k, 0, -self.origin[0] * k - 0.5], [0, k, -self.origin[1] * k - 0.5],
                         [0, 0, 1.0]])


@dataclass
class Markings:
    """Painted polygons of the map: `polygons` ([n, 2] m), their `colours` and `middles`."""

    polygons: list[np.ndarray] = field(default_factory=list)
    colours: list[np.ndarray] = field(default_factory=list)
    middles: np.ndarray | None = None

    def add(self, polygon, colour):
        """Append one polygon."""
        self.polygons.append(np.asarray(polygon))
        self.colours.append(colour)


class Ground:
    """Paints the route, its junctions and the shadows of what stands beside it."""

    def __init__(self, route: Route, look: Look, rng: np.random.Generator, shadows=()):
        self.route, self.look = route, look
        self.shadows = [np.asarray(p) for p in shadows]
        self._shadow_middles = np.array([p.mean(0) for p in self.shadows]).reshape(-1, 2)
        self.markings = _mark(route, look, rng)
        self._noise = _noise_of_scales(_noise(rng))
        self._lines = self._road_lines()
        self._tiles: dict[tuple, np.ndarray] = {}
        self._key = None
        self._window: tuple[Texture, Texture] | None = None

    def window(self, x: float, y: float, yaw: float) -> tuple[Texture, Texture]:
        """Fine and coarse texture for a vehicle there."""
        key = tuple(round(v / FINE_TILE_M) for v in (
            x + AHEAD_M * np.cos(yaw), y + AHEAD_M * np.sin(yaw)))
        if key != self._key:
            self._key = key
            self._window = self._lay_window(*key)
        return self._window

    def _lay_window(self, kx: int, ky: int) -> tuple[Texture, Texture]:
        fine = self._lay(kx, ky, FINE_TILES, FINE_TILE_M, FINE_PX_PER_M)
        k = FINE_TILE_M / COARSE_TILE_M
        coarse = self._lay(int(np.floor(kx * k)), int(np.floor(ky * k)), COARSE_TILES,
                           COARSE_TILE_M, FINE_PX_PER_M // COARSE)
        middle = self._lay(kx, ky, FINE_TILES, FINE_TILE_M, FINE_PX_PER_M // COARSE)
        n = len(middle.image)
        column, row = (round((f - c) * coarse.px_per_m)
                       for f, c in zip(fine.origin, coarse.origin, strict=True))
        coarse.image[row:row + n, column:column + n] = middle.image
        while len(self._tiles) > KEPT_TILES:
            del self._tiles[next(iter(self._tiles))]
        return fine, coarse

    def _lay(self, kx, ky, tiles, tile_m, px_per_m) -> Texture:
        """Lay a window of tiles x tiles around the corner (kx, ky) of the tile grid."""
        n = tile_m * px_per_m
        kx, ky = kx - tiles // 2, ky - tiles // 2
        image = np.empty((tiles * n, tiles * n, 3), np.uint8)
        for row in range(tiles):
            for column in range(tiles):
                image[row * n:(row + 1) * n, column * n:(column + 1) * n] = self._tile(
                    kx + column, ky + row, tile_m, px_per_m)
        return Texture(image, (kx * tile_m, ky * tile_m), px_per_m)

    def _tile(self, kx, ky, tile_m, px_per_m) -> np.ndarray:
        """Tile of the grid of that size; a coarse one of the fine grid is a fine one, averaged."""
        key = tile_m, px_per_m, kx, ky
        tile = self._tiles.pop(key, None)
        if tile is None and tile_m == FINE_TILE_M and px_per_m < FINE_PX_PER_M:
            tile = cv2.resize(self._tile(kx, ky, tile_m, FINE_PX_PER_M), (tile_m * px_per_m,) * 2,
                              interpolation=cv2.INTER_AREA)
        elif tile is None:
            tile = self._paint((kx * tile_m, ky * tile_m), tile_m, px_per_m)
        self._tiles[key] = tile  # behind all others: the first are the longest unused
        return tile

    def _paint(self, origin, size_m, px_per_m) -> np.ndarray:
        n = size_m * px_per_m
        image = np.empty((n, n, 3), np.uint8)
        brush = _Brush(image, origin, px_per_m)
        self._paint_surfaces(brush)
        self._add_noise(image, origin, px_per_m)
        self._paint_markings(brush)
        self._paint_shadows(brush)
        return image

    def _road_lines(self) -> list[np.ndarray]:
        lines = [np.stack([self.route.x, self.route.y], 1)]
        for junction in self.route.junctions:
            for arm in junction.arms:
                t = np.arange(-2.0, arm.length, LINE_M)
                lines.append(np.stack([arm.x + t * np.cos(arm.yaw), arm.y + t * np.sin(arm.yaw)],
                                      1))
        return lines

    def _paint_surfaces(self, brush):
        shape, look, image = self.route.shape, self.look, brush.image
        half = shape.kerb + shape.sidewalk
        lines = [piece for line in self._lines for piece in brush.near(line, half + LINE_M + 1)]
        junctions = [junction for junction in self.route.junctions
                     if brush.sees((junction.x, junction.y), junction.half_size + 20)]
        kerb_colour = np.minimum(look.sidewalk * 1.16, 250)
        # broad lines overlap a lot: they are drawn as numbers, which are coloured afterwards
        numbers = _Brush(np.zeros(image.shape[:2], np.uint8), brush.origin, brush.px_per_m)
        palette = np.zeros((256, 1, 3), np.uint8)
        palette[:4, 0] = [_colour(c) for c in (look.terrain, look.sidewalk, kerb_colour,
                                               look.asphalt)]
        numbers.lines(lines, 2 * half, 1)
        numbers.lines(lines, 2 * (shape.kerb + 0.25), 2)
        if junctions:
            cv2.applyColorMap(numbers.image, palette, dst=image)
            for junction in junctions:
                self._paint_junction(brush, junction, kerb_colour)
            numbers.image[:] = 0
            numbers.lines(lines, 2 * shape.kerb, 3)
            cv2.copyTo(np.full_like(image, palette[3, 0]), numbers.image, image)
        else:
            numbers.lines(lines, 2 * shape.kerb, 3)
            cv2.applyColorMap(numbers.image, palette, dst=image)

    def _paint_junction(self, brush, junction: Junction, kerb_colour):
        look, half = self.look, junction.half_size
        corners = _square(junction.x, junction.y, junction.yaw, half)
        brush.polygons([corners], [look.asphalt])
        radius = half - self.route.shape.kerb
        for corner in corners:
            brush.disc(corner, radius, kerb_colour)
            brush.disc(corner, radius - 0.25, look.sidewalk)

    def _add_noise(self, image, origin, px_per_m):
        for tile, apply in zip(self._noise[px_per_m], (cv2.add, cv2.subtract), strict=True):
            n, period = len(image), len(tile)
            for row in range(0, n, period):
                for column in range(0, n, period):
                    view = image[row:row + period, column:column + period]
                    apply(view, tile, view)

    def _paint_markings(self, brush):
        marks = self.markings
        chosen = np.flatnonzero(brush.sees(marks.middles, 12)).tolist()
        brush.polygons([marks.polygons[i] for i in chosen], [marks.colours[i] for i in chosen])

    def _paint_shadows(self, brush):
        if self.look.overcast or not self.shadows:
            return
        chosen = np.flatnonzero(brush.sees(self._shadow_middles, 25)).tolist()
        if chosen:
            mask = np.zeros(brush.image.shape[:2], np.uint8)
            shade = _Brush(mask, brush.origin, brush.px_per_m)
            shade.polygons([self.shadows[i] for i in chosen], [(255, 255, 255)] * len(chosen))
            cv2.copyTo(cv2.convertScaleAbs(brush.image, alpha=0.62), mask, brush.image)


class _Brush:
    """Draws shapes given in map coordinates into a texture."""

    def __init__(self, image, origin, px_per_m):
        self.image, self.origin, self.px_per_m = image, np.asarray(origin), px_per_m
        self.size_m = image.shape[0] / px_per_m

    def _px(self, points):
        px = (np.asarray(points) - self.origin) * self.px_per_m - 0.5
        return np.round(px * (1 << SHIFT)).astype(np.int32)

    def sees(self, middles, margin):
        """Which points lie in the texture or within the margin around it."""
        p = np.asarray(middles) - self.origin
        return ((p > -margin) & (p < self.size_m + margin)).all(-1)

    def near(self, line, margin) -> list[np.ndarray]:
        """Pieces of a polyline that lie in the texture or within the margin around it."""
        inside = self.sees(line, margin)
        if not inside.any():
            return []
        edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]])))
        return [line[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a > 1]

    def lines(self, lines, width_m, number):
        """Draw broad polylines."""
        thickness = max(round(width_m * self.px_per_m), 1)
        for points in lines:
            cv2.polylines(self.image, [self._px(points)], False, number, thickness, cv2.LINE_8,
                          SHIFT)

    def polygons(self, polygons, colours):
        """Fill polygons one after the other."""
        if not polygons:
            return
        corners, end = self._px(np.concatenate(polygons)), 0
        for polygon, colour in zip(polygons, _colour(colours), strict=True):
            begin, end = end, end + len(polygon)
            cv2.fillPoly(self.image, [corners[begin:end]], colour, cv2.LINE_AA, SHIFT)

    def disc(self, middle, radius_m, colour):
        """Fill a circle."""
        x, y = (int(v) for v in self._px(middle))
        cv2.circle(self.image, (x, y), round(radius_m * self.px_per_m * (1 << SHIFT)),
                   _colour(colour), -1, cv2.LINE_AA, SHIFT)


def _colour(colour) -> list[float]:
    return np.clip(np.round(colour), 0, 255).tolist()


def _square(x, y, yaw, half) -> np.ndarray:
    c, s = np.cos(yaw), np.sin(yaw)
    local = np.array([[-half, -half], [half, -half], [half, half], [-half, half]])
    return local @ np.array([[c, s], [-s, c]]) + [x, y]


def _noise(rng: np.random.Generator):
    """Grain and patches as two tiles (to add, to subtract) that repeat without a seam."""
    n = NOISE_M * FINE_PX_PER_M
    field_ = np.zeros((n, n), np.float32)
    for cells, strength in ((8, 3.0), (32, 2.5), (128, 2.0), (n, 2.5)):
        coarse = rng.normal(0, strength, (cells, cells)).astype(np.float32)
        around = cv2.copyMakeBorder(coarse, 2, 2, 2, 2, cv2.BORDER_WRAP)
        k = n // cells
        large = cv2.resize(around, None, fx=k, fy=k, interpolation=cv2.INTER_CUBIC)
        field_ += large[2 * k:2 * k + n, 2 * k:2 * k + n]
    up, down = np.clip(field_, 0, 40), np.clip(-field_, 0, 40)
    return tuple(cv2.cvtColor(np.round(t).astype(np.uint8), cv2.COLOR_GRAY2BGR)
                 for t in (up, down))


def _noise_of_scales(tiles):
    """The noise for each scale of texture, px/m."""
    n = NOISE_M * FINE_PX_PER_M // COARSE
    return {FINE_PX_PER_M: tiles, FINE_PX_PER_M // COARSE: tuple(
        cv2.resize(t, (n, n), interpolation=cv2.INTER_AREA) for t in tiles)}


def _mark(route: Route, look: Look, rng: np.random.Generator) -> Markings:
    """All paint of the route and of the arms' mouths."""
    marks = Markings()
    shape = route.shape
    dash, gap = (3.0, float(rng.choice([4.5, 6.0, 9.0])))
    centre = rng.choice(['double', 'solid', 'dashed'] if shape.lanes < 3 else ['double', 'solid'])
    for begin, end in _open_stretches(route):
        for side in (-1, 1):
            _solid(marks, route, begin, end, side * (shape.lane_edge - 0.05), 0.15, look.line)
            for lane in range(1, shape.lanes):
                _dashes(marks, route, begin, end, side * lane * shape.lane_width, 0.15, look.line,
                        dash, gap)
        if centre == 'dashed':
            _dashes(marks, route, begin, end, 0.0, 0.16, look.centre_line, dash, gap)
        else:
            for d in (-0.18, 0.18) if centre == 'double' else (0.0,):
                _solid(marks, route, begin, end, d, 0.15, look.centre_line)
    for junction in route.junctions:
        _mouth(marks, shape, look, *route.pose(junction.begin), outward=-1)
        _mouth(marks, shape, look, *route.pose(junction.end), outward=1)
        for arm in junction.arms:
            _mouth(marks, shape, look, arm.x, arm.y, arm.yaw, outward=1)
            _arm_lines(marks, shape, look, arm, centre)
    for crossing in route.crosswalks:
        pose = route.pose(crossing.s)
        _zebra(marks, shape, look, *pose)
        for side in (-1, 1):
            _stop_line(marks, shape, look, *pose, side * (CROSSWALK_WIDTH_M / 2 + 1.2), side)
    marks.middles = np.array([p.mean(0) for p in marks.polygons]).reshape(-1, 2)
    return marks


def _open_stretches(route: Route):
    """Arc lengths between junctions and crossings where lines are painted."""
    cuts = sorted([(j.stop, j.end + (j.begin - j.stop)) for j in route.junctions]
                  + [(c.stop, 2 * c.s - c.stop) for c in route.crosswalks])
    begin = 0.0
    for a, b in cuts:
        if a > begin:
            yield begin, a
        begin = b
    yield begin, route.length


def _strip(route, s0, s1, d, width):
    s = np.linspace(s0, s1, max(int((s1 - s0) / 1.5) + 1, 2))
    sides = [np.stack(route.pose(s, d + o)[:2], 1) for o in (-width / 2, width / 2)]
    return np.concatenate([sides[0], sides[1][::-1]])


def _solid(marks, route, begin, end, d, width, colour):
    pieces = np.linspace(begin, end, max(int((end - begin) / 12), 1) + 1)
    for a, b in zip(pieces[:-1], pieces[1:], strict=True):
        marks.add(_strip(route, a, b, d, width), colour)


def _dashes(marks, route, begin, end, d, width, colour, dash, gap):
    for a in np.arange(begin + 1, end - dash, dash + gap):
        marks.add(_strip(route, a, a + dash, d, width), colour)


def _local(x, y, yaw, points):
    c, s = np.cos(yaw), np.sin(yaw)
    return np.asarray(points) @ np.array([[c, s], [-s, c]]) + [x, y]


def _bar(x, y, yaw, x0, x1, y0, y1):
    return _local(x, y, yaw, [[x0, y0], [x1, y0], [x1, y1], [x0, y1]])


def _zebra(marks, shape, look, x, y, yaw, at=0.0):
    half = CROSSWALK_WIDTH_M / 2
    for y0 in np.arange(-shape.kerb + 0.4, shape.kerb - 0.5, 1.1):
        marks.add(_bar(x, y, yaw, at - half, at + half, y0, y0 + 0.55), look.line)


def _stop_line(marks, shape, look, x, y, yaw, at, outward):
    """Draw a stop line across the lanes that come towards it from the outward side."""
    edge = outward * (shape.lane_edge - 0.1)
    marks.add(_bar(x, y, yaw, at - 0.2, at + 0.2, min(edge, 0), max(edge, 0)), look.line)


def _mouth(marks, shape, look, x, y, yaw, outward):
    """Draw the crosswalk and stop line of one side of a junction; outward is +-1 along yaw."""
    _zebra(marks, shape, look, x, y, yaw, at=outward * 2.3)
    _stop_line(marks, shape, look, x, y, yaw, outward * 5.0, outward)


def _arm_lines(marks, shape, look, arm, centre):
    pieces = np.linspace(5.4, arm.length, max(int(arm.length / 12), 1) + 1)
    lines = [(d, look.centre_line) for d in ((-0.18, 0.18) if centre == 'double' else (0.0,))]
    lines += [(side * (shape.lane_edge - 0.05), look.line) for side in (-1, 1)]
    for y, colour in lines:
        for a, b in zip(pieces[:-1], pieces[1:], strict=True):
            marks.add(_bar(arm.x, arm.y, arm.yaw, a, b, y - .08, y + .08), colour)
    for lane in range(1, shape.lanes):
        for y in (-lane * shape.lane_width, lane * shape.lane_width):
            for a in np.arange(6.5, arm.length - 3, 9.0):
                marks.add(_bar(arm.x, arm.y, arm.yaw, a, a + 3, y - .08, y + .08), look.line)
