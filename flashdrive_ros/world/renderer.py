"""
Draws what the cameras see, far things first (painter's algorithm).

The ground is a texture warped by one homography per camera; everything above it
is flat polygons.  All geometry is done for all polygons at once; only those
that cross the near plane are clipped one by one.  With `ids` a second image
tells which thing each pixel shows.
"""
from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from .backdrop import Backdrop, paint_sky
from .cameras import Camera, NEAR_M
from .ground import Ground
from .look import Look
from .meshes import BRAKE, FIXED, GREEN, LEFT, meshes_of, PAINT, RED, RIGHT, YELLOW
from .scenery import Scenery

VIEW_M = 260.0
"""Nothing farther away is drawn."""
SHIFT = 4
LAMPS_ON = {BRAKE: (255, 40, 30), LEFT: (255, 170, 30), RIGHT: (255, 170, 30),
            RED: (255, 36, 30), YELLOW: (255, 196, 30), GREEN: (40, 240, 120)}
_BLOB = np.stack([np.cos(np.arange(9) * 2 * np.pi / 9), np.sin(np.arange(9) * 2 * np.pi / 9)], 1)


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


class Renderer:
    """Renders one episode's world for a rig of cameras."""

    def __init__(self, rig: dict[int, Camera], ground: Ground, scenery: Scenery, look: Look,
                 rng: np.random.Generator):
        self.rig, self.ground, self.look = rig, ground, look
        self.sky = paint_sky(look, rng)
        self._backdrops = {i: Backdrop(camera, look) for i, camera in rig.items()}
        self._static = _Static(scenery)
        self._blob_shapes = (1 + rng.uniform(-0.14, 0.1, (16, 9, 1))) * _BLOB
        self._rng_noise = np.clip(rng.normal(0, look.noise, (2, 64, 1024, 3)), 0, 40)
        self._rng_noise = self._rng_noise.astype(np.uint8)

    def render(self, pose, things=(), ids: bool = False):
        """
        Images {camera id: RGB [H, W, 3]} seen from pose (x, y, yaw) of base_link.

        With `ids` also {camera id: [H, W] uint16} of `Thing.id`, 0 elsewhere.
        """
        textures = self.ground.window(*pose)
        soup = self._gather(pose, things)
        images, id_images = {}, {}
        for i, camera in self.rig.items():
            image = np.empty((camera.height, camera.width, 3), np.uint8)
            self._backdrops[i].draw(image, self.sky, textures, pose)
            id_image = np.zeros(image.shape[:2], np.uint16) if ids else None
            _draw(image, id_image, camera, soup, self._blob_shapes)
            images[i], id_images[i] = image, id_image
        return (images, id_images) if ids else images

    def _gather(self, pose, things) -> _Soup:
        """Everything near the vehicle as one list of polygons in base_link, coloured."""
        x, y, yaw = pose
        c, s = np.cos(yaw), np.sin(yaw)
        to_base = np.array([[c, -s], [s, c]], np.float32)
        static = self._static.near(x, y)
        moving = _Moving(things, x, y, self.look)
        soup = _Soup.join(static, moving)
        soup.quads[..., :2] = (soup.quads[..., :2] - np.float32([x, y])) @ to_base
        soup.normals[:, :2] = soup.normals[:, :2] @ to_base
        soup.blobs[:, :2] = (soup.blobs[:, :2] - np.float32([x, y])) @ to_base
        hazy = self.look.haze_share(soup.distances).astype(np.float32)[:, None]
        haze = self.look.haze.astype(np.float32)
        quad_haze, blob_haze = hazy[soup.quad_things], hazy[soup.blob_things]
        soup.colours = soup.colours * (1 - quad_haze) + haze * quad_haze
        soup.blob_colours = soup.blob_colours * (1 - blob_haze) + haze * blob_haze
        return soup


@dataclass
class _Soup:
    """Polygons of many things; `distances` and `ids` per thing, `*_things` index them."""

    quads: np.ndarray
    normals: np.ndarray
    colours: np.ndarray
    reach: np.ndarray
    quad_things: np.ndarray
    blobs: np.ndarray
    blob_colours: np.ndarray
    blob_things: np.ndarray
    distances: np.ndarray
    ids: np.ndarray

    @classmethod
    def join(cls, a: _Soup, b: _Soup) -> _Soup:
        """Put two together."""
        n = len(a.distances)
        return cls(*(np.concatenate(pair) for pair in (
            (a.quads, b.quads), (a.normals, b.normals), (a.colours, b.colours),
            (a.reach, b.reach), (a.quad_things, b.quad_things + n), (a.blobs, b.blobs),
            (a.blob_colours, b.blob_colours), (a.blob_things, b.blob_things + n),
            (a.distances, b.distances), (a.ids, b.ids))))


class _Static:
    """The scenery, sorted so that what is near a place is found quickly."""

    def __init__(self, scenery: Scenery):
        def stack(name, width):
            parts = [getattr(m, name) for m in scenery.meshes]
            return np.concatenate(parts) if parts else np.zeros((0, *width), np.float32)
        self.quads, self.normals = stack('quads', (4, 3)), stack('normals', (3,))
        self.colours, self.reach = stack('colours', (3,)), stack('reach', ())
        counts = [len(m.quads) for m in scenery.meshes]
        self.quad_things = np.repeat(np.array(scenery.mesh_things, int), counts)
        blobs = np.array(scenery.blobs, np.float32).reshape(-1, 7)
        self.blobs, self.blob_colours = blobs[:, :4], blobs[:, 4:]
        self.blob_things = np.array(scenery.blob_things, int)
        self.middles = np.array(scenery.middles, np.float32).reshape(-1, 2)

    def near(self, x, y) -> _Soup:
        distances = np.hypot(*(self.middles - np.float32([x, y])).T)
        quads = np.flatnonzero(distances[self.quad_things] < np.minimum(self.reach, VIEW_M))
        blobs = np.flatnonzero(distances[self.blob_things] < VIEW_M)
        return _Soup(self.quads[quads], self.normals[quads], self.colours[quads],
                     self.reach[quads], self.quad_things[quads], self.blobs[blobs],
                     self.blob_colours[blobs], self.blob_things[blobs], distances,
                     np.zeros(len(distances), int))


def _Moving(things, x, y, look: Look) -> _Soup:  # noqa: N802 - reads like _Static
    """Place the meshes of things that move."""
    parts = [(thing, mesh) for thing in things
             if np.hypot(thing.x - x, thing.y - y) < VIEW_M
             for mesh in meshes_of(thing.model, thing.phase)]
    n = len(parts)
    empty = np.zeros((0, 3), np.float32)
    if not n:
        return _Soup(np.zeros((0, 4, 3), np.float32), empty, empty, empty[:, 0],
                     np.zeros(0, int), np.zeros((0, 4), np.float32), empty, np.zeros(0, int),
                     empty[:, 0], np.zeros(0, int))
    counts = [len(mesh.quads) for _, mesh in parts]
    index = np.repeat(np.arange(n), counts)
    yaw = np.array([t.yaw for t, _ in parts])
    c, s = np.cos(yaw).astype(np.float32)[index], np.sin(yaw).astype(np.float32)[index]
    place = np.array([(t.x, t.y, t.z) for t, _ in parts], np.float64)
    quads = np.concatenate([mesh.quads for _, mesh in parts])
    normals = np.concatenate([mesh.normals for _, mesh in parts])
    colours = np.concatenate([mesh.colours for _, mesh in parts])
    kinds = np.concatenate([mesh.kinds for _, mesh in parts])
    middles = np.array([mesh.quads[..., 0].mean() for _, mesh in parts])
    qx, qy = quads[..., 0], quads[..., 1]
    placed = np.stack([qx * c[:, None] - qy * s[:, None], qx * s[:, None] + qy * c[:, None],
                       quads[..., 2]], -1) + place[index][:, None].astype(np.float32)
    turned = np.stack([normals[:, 0] * c - normals[:, 1] * s,
                       normals[:, 0] * s + normals[:, 1] * c, normals[:, 2]], -1)
    paints = np.array([t.paint for t, _ in parts], np.float32)
    colours = np.where((kinds == PAINT)[:, None], paints[index], colours)
    lit = look.shade(colours, turned).astype(np.float32)
    for lamp, colour in LAMPS_ON.items():
        on = np.array([lamp in t.lamps for t, _ in parts])
        lit[(kinds == lamp) & on[index]] = colour
    distances = np.hypot(place[:, 0] + middles * np.cos(yaw) - x,
                         place[:, 1] + middles * np.sin(yaw) - y).astype(np.float32)
    reach = np.concatenate([mesh.reach for _, mesh in parts])
    keep = distances[index] < reach
    return _Soup(placed[keep], turned[keep], lit[keep], reach[keep], index[keep],
                 np.zeros((0, 4), np.float32), empty, np.zeros(0, int), distances,
                 np.array([t.id for t, _ in parts]))


def _draw(image, id_image, camera: Camera, soup: _Soup, blob_shapes):
    """Draw the soup into one camera's image."""
    position = np.array(camera.position, np.float32)
    rotation = camera.rotation.astype(np.float32)
    rank = np.empty(len(soup.distances), int)
    rank[np.argsort(-soup.distances, kind='stable')] = np.arange(len(soup.distances))
    toward = np.einsum('ij,ij->i', soup.normals, position - soup.quads[:, 0])
    facing = np.flatnonzero(toward > 0)
    points = (soup.quads[facing] - position) @ rotation
    depth = points[..., 2]
    f, cx, cy = camera.focal_px, (camera.width - 1) / 2, (camera.height - 1) / 2
    whole = depth.min(1) > NEAR_M
    cut = np.flatnonzero(~whole & (depth.max(1) > NEAR_M))
    whole = np.flatnonzero(whole)
    uv = points[whole, :, :2] * (f / depth[whole])[..., None] + np.float32([cx, cy])
    seen = _on_image(uv, camera)
    polygons = list(_fixed_point(uv[seen]))
    index = [facing[whole[seen]]]
    for i in cut:
        clipped = _clip(points[i])
        uv = clipped[:, :2] * (f / clipped[:, 2:]) + [cx, cy]
        if _on_image(uv[None], camera)[0]:
            polygons.append(_fixed_point(np.clip(uv, -20000, 20000)))
            index.append(facing[i:i + 1])
    index = np.concatenate(index)
    colours, things = soup.colours[index], soup.quad_things[index]
    keys = rank[things] * 1000000 + index
    blobs, blob_index = _project_blobs(camera, soup, position, rotation, blob_shapes)
    polygons += blobs
    colours = np.concatenate([colours, soup.blob_colours[blob_index]])
    blob_things = soup.blob_things[blob_index]
    things = np.concatenate([things, blob_things])
    keys = np.concatenate([keys, rank[blob_things] * 1000000 + 900000 + blob_index % 90000])
    colours = np.clip(np.round(colours), 0, 255).tolist()
    order = np.argsort(keys, kind='stable').tolist()
    fill = cv2.fillConvexPoly
    for k in order:
        fill(image, polygons[k], colours[k], cv2.LINE_AA, SHIFT)
    if id_image is not None:
        marks = soup.ids[things].tolist()
        for k in order:
            fill(id_image, polygons[k], marks[k], cv2.LINE_8, SHIFT)


def _on_image(uv, camera, least_px=0.5):
    """Which polygons [n, k, 2] overlap the image and are not too small to see."""
    low, high = uv.min(1), uv.max(1)
    return ((high[:, 0] > -0.5) & (high[:, 1] > -0.5) & (low[:, 0] < camera.width - 0.5)
            & (low[:, 1] < camera.height - 0.5) & ((high - low).max(1) > least_px))


def _fixed_point(uv):
    return np.round(uv * (1 << SHIFT)).astype(np.int32)


def _clip(points):
    """Cut a polygon [k, 3] at the near plane."""
    out = []
    for a, b in zip(points, np.roll(points, -1, 0), strict=True):
        if a[2] > NEAR_M:
            out.append(a)
        if (a[2] > NEAR_M) != (b[2] > NEAR_M):
            out.append(a + (b - a) * ((NEAR_M - a[2]) / (b[2] - a[2])))
    return np.array(out)


def _project_blobs(camera, soup, position, rotation, shapes):
    points = (soup.blobs[:, :3] - position) @ rotation
    radius = soup.blobs[:, 3]
    depth = points[:, 2]
    ahead = np.flatnonzero(depth > radius + NEAR_M)
    scale = camera.focal_px / depth[ahead]
    middle = points[ahead, :2] * scale[:, None] + np.float32(
        [(camera.width - 1) / 2, (camera.height - 1) / 2])
    outline = middle[:, None] + shapes[ahead % len(shapes)] * (radius[ahead] * scale)[:, None,
                                                                                     None]
    seen = _on_image(outline, camera)
    return list(_fixed_point(outline[seen])), ahead[seen]
