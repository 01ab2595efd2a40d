"""Gathers everything near the vehicle as one list of polygons in base_link, coloured and hazed."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .look import Look
from .meshes import BODY, BRAKE, GREEN, LEFT, PAINT, RED, RIGHT, SIZES, YELLOW, meshes_of
from .scenery import Scenery

VIEW_M = 260.0
"""Nothing farther away is drawn."""
LAMPS_ON = {BRAKE: (255, 40, 30), LEFT: (255, 170, 30), RIGHT: (255, 170, 30),
            RED: (255, 36, 30), YELLOW: (255, 196, 30), GREEN: (40, 240, 120)}


@dataclass(frozen=True)
class Thing:
    """
    Something that moves or changes, at its place in the map; `id` > 0 marks its pixels.

    `lamps` are those that are on (BRAKE, LEFT, RIGHT, RED, YELLOW, GREEN of `meshes`).
    """

    id: int
    model: str
    x: float
    y: float
    yaw: float
    z: float = 0.0
    paint: tuple[float, float, float] = (128, 128, 128)
    lamps: frozenset[int] = frozenset()
    phase: int = 0


@dataclass
class Soup:
    """
    Polygons of many things.

    Per quad: `corners` [3, 4, q] (x, y and z of each corner), `normals` [3, q],
    colours [q, 3], `clearness` (apparent size at focal length 1 over the least
    that is drawn), whether it is part of its thing's outline, and the thing;
    per blob (round): x, y, z, radius, colour and thing; per thing: where it
    is, its radius, distance and id.
    """

    corners: np.ndarray
    normals: np.ndarray
    colours: np.ndarray
    clearness: np.ndarray
    outline: np.ndarray
    quad_things: np.ndarray
    blobs: np.ndarray
    blob_colours: np.ndarray
    blob_things: np.ndarray
    middles: np.ndarray
    radii: np.ndarray
    distances: np.ndarray
    ids: np.ndarray

    @classmethod
    def join(cls, a: Soup, b: Soup) -> Soup:
        """Put two together."""
        n = len(a.distances)
        return cls(*(np.concatenate(pair, axis=-1) for pair in (
            (a.corners, b.corners), (a.normals, b.normals))), *(np.concatenate(pair) for pair in (
                (a.colours, b.colours), (a.clearness, b.clearness), (a.outline, b.outline),
                (a.quad_things, b.quad_things + n), (a.blobs, b.blobs),
                (a.blob_colours, b.blob_colours), (a.blob_things, b.blob_things + n),
                (a.middles, b.middles), (a.radii, b.radii), (a.distances, b.distances),
                (a.ids, b.ids))))

    def into_base_link(self, pose):
        """Move everything from the map into base_link at that pose (x, y, yaw)."""
        x, y, yaw = pose
        c, s = np.float32(np.cos(yaw)), np.float32(np.sin(yaw))
        dx, dy = self.corners[0] - np.float32(x), self.corners[1] - np.float32(y)
        self.corners[0], self.corners[1] = dx * c + dy * s, dy * c - dx * s
        nx, ny, _ = self.normals
        self.normals[0], self.normals[1] = nx * c + ny * s, ny * c - nx * s
        turn, place = np.array([[c, -s], [s, c]]), np.float32([x, y])
        self.blobs[:, :2] = (self.blobs[:, :2] - place) @ turn
        self.middles = (self.middles - place) @ turn

    def add_haze(self, look: Look):
        """Fade the colours of what is far."""
        share = look.haze_share(self.distances).astype(np.float32)[:, None]
        haze = look.haze.astype(np.float32)
        for name, things in (('colours', self.quad_things), ('blob_colours', self.blob_things)):
            colours = getattr(self, name)
            setattr(self, name, colours + (haze - colours) * share[things])


class StaticSoup:
    """The scenery; `near` takes out what can be seen from a place."""

    def __init__(self, scenery: Scenery, focal_px: float):
        def stack(name, width):
            parts = [getattr(m, name) for m in scenery.meshes]
            return np.concatenate(parts) if parts else np.zeros((0, *width), np.float32)
        quads, normals = stack('quads', (4, 3)), stack('normals', (3,))
        self.corners = np.ascontiguousarray(quads.transpose(2, 1, 0))
        self.normals = np.ascontiguousarray(normals.T)
        self.colours, least = stack('colours', (3,)), stack('least', ())
        self.scale, self.outline = stack('sizes', ()) / least, least <= np.float32(BODY)
        self.reach = np.minimum(self.scale * focal_px, VIEW_M)
        counts = [len(m.quads) for m in scenery.meshes]
        self.quad_things = np.repeat(np.array(scenery.mesh_things, int), counts)
        blobs = np.array(scenery.blobs, np.float32).reshape(-1, 7)
        self.blobs, self.blob_colours = blobs[:, :4], blobs[:, 4:]
        self.blob_things = np.array(scenery.blob_things, int)
        self.middles = np.array(scenery.middles, np.float32).reshape(-1, 2)
        self.radii = np.full(len(self.middles), 3.0, np.float32)
        reach = np.abs(quads[..., :2] - self.middles[self.quad_things][:, None]).max((1, 2))
        np.maximum.at(self.radii, self.quad_things, reach * np.float32(1.42))

    def near(self, x: float, y: float) -> Soup:
        """Everything that can be seen from there, as copies."""
        distances = np.hypot(*(self.middles - np.float32([x, y])).T)
        quads = np.flatnonzero(distances[self.quad_things] < self.reach)
        blobs = np.flatnonzero(distances[self.blob_things] < VIEW_M)
        things = self.quad_things[quads]
        return Soup(self.corners[:, :, quads], self.normals[:, quads], self.colours[quads],
                    self.scale[quads] / np.maximum(distances[things], 1), self.outline[quads],
                    things, self.blobs[blobs], self.blob_colours[blobs], self.blob_things[blobs],
                    self.middles, self.radii, distances, np.zeros(len(distances), int))


def soup_of(things, x: float, y: float, look: Look, focal_px: float) -> Soup:
    """
    Place the meshes of the things within sight of (x, y) and light them.

    What would be too small in a camera of that focal length is left out.
    """
    parts = [(thing, mesh) for thing in things
             if (thing.x - x) ** 2 + (thing.y - y) ** 2 < VIEW_M ** 2
             for mesh in meshes_of(thing.model, thing.phase)]
    empty = np.zeros((0, 3), np.float32)
    blobs = np.zeros((0, 4), np.float32), empty, np.zeros(0, int)
    if not parts:
        one = empty[:, 0]
        return Soup(np.zeros((3, 4, 0), np.float32), empty.T, empty, one, one > 0,
                    np.zeros(0, int), *blobs, empty[:, :2], one, one, np.zeros(0, int))
    index = np.repeat(np.arange(len(parts)), [len(mesh.quads) for _, mesh in parts])

    def stack(name):
        return np.concatenate([getattr(mesh, name) for _, mesh in parts])
    place = np.array([(t.x, t.y, t.z, t.yaw) for t, _ in parts])
    middles = np.array([mesh.quads[..., 0].mean() for _, mesh in parts])
    where = place[:, :2] + middles[:, None] * np.stack([np.cos(place[:, 3]),
                                                        np.sin(place[:, 3])], 1)
    distances = np.hypot(where[:, 0] - x, where[:, 1] - y).astype(np.float32)
    least = stack('least')
    clearness = stack('sizes') / (least * np.maximum(distances[index], 1))
    clear = np.flatnonzero(clearness * focal_px > 1)
    index, clearness, least = index[clear], clearness[clear], least[clear]
    quads, normals, kinds = (stack(name)[clear] for name in ('quads', 'normals', 'kinds'))
    c, s = (f(place[:, 3]).astype(np.float32)[index] for f in (np.cos, np.sin))
    qx, qy, qz = quads.transpose(2, 1, 0)
    px, py, pz = place[index, :3].T.astype(np.float32)
    corners = np.stack([qx * c - qy * s + px, qx * s + qy * c + py, qz + pz])
    turned = np.stack([normals[:, 0] * c - normals[:, 1] * s,
                       normals[:, 0] * s + normals[:, 1] * c, normals[:, 2]])
    paints = np.array([t.paint for t, _ in parts], np.float32)
    colours = np.where((kinds == PAINT)[:, None], paints[index], stack('colours')[clear])
    lit = look.shade(colours, turned.T).astype(np.float32)
    for lamp, colour in LAMPS_ON.items():
        on = np.array([lamp in t.lamps for t, _ in parts])
        lit[(kinds == lamp) & on[index]] = colour
    radii = np.array([SIZES[t.model][0] * 0.6 for t, _ in parts], np.float32)
    return Soup(corners, turned, lit, clearness, least <= np.float32(BODY), index, *blobs,
                where.astype(np.float32), radii, distances, np.array([t.id for t, _ in parts]))
