"""
Draws what the cameras see, far things first (painter's algorithm).

The ground is a texture warped by one homography per camera; everything above it
is flat polygons.  All geometry is done for all polygons at once; only those
that cross the near plane are clipped one by one.  With `ids` a second image
tells which thing each pixel shows.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from .backdrop import Backdrop, paint_sky
from .cameras import NEAR_M, Camera
from .ground import Ground
from .look import Look
from .scenery import Scenery
from .sensor import Sensor
from .soup import Soup, StaticSoup, Thing, soup_of

SHIFT = 4
"""Binary digits of the fraction of a pixel that OpenCV draws with."""
FAR_PX = 20000
LEAST_AREA_PX = 0.4, 1.2
"""What covers less isn't drawn: parts of a thing's outline, and what is painted on those."""
_ROUND = np.stack([np.cos(np.arange(9) * 2 * np.pi / 9), np.sin(np.arange(9) * 2 * np.pi / 9)], 1)
_QUADS, _BLOBS = 1 << 20, 1 << 19
"""Keys of the drawing order: by thing, then its quads, then its blobs."""


class Renderer:
    """Renders one episode's world for a rig of cameras."""

    def __init__(self, rig: dict[int, Camera], ground: Ground, scenery: Scenery, look: Look,
                 rng: np.random.Generator):
        self.rig, self.ground, self.look = rig, ground, look
        self.sky = paint_sky(look, rng)
        self._backdrops = {i: Backdrop(camera, look) for i, camera in rig.items()}
        self._sensors = {i: Sensor(look, c.width, c.height, rng) for i, c in rig.items()}
        self._focal = max(camera.focal_px for camera in rig.values())
        self._static = StaticSoup(scenery, self._focal)
        self._blob_shapes = ((1 + rng.uniform(-0.14, 0.1, (16, 9, 1))) * _ROUND).astype(np.float32)

    def render(self, pose, things: Sequence[Thing] = (), ids: bool = False):
        """
        Images {camera id: RGB [H, W, 3]} seen from pose (x, y, yaw) of base_link.

        With `ids` also {camera id: [H, W] uint16} of `Thing.id`, 0 elsewhere; each of
        these is painted when it is first asked for.
        """
        x, y, _ = pose
        textures = self.ground.window(*pose)
        soup = Soup.join(self._static.near(x, y), soup_of(things, x, y, self.look, self._focal))
        soup.into_base_link(pose)
        soup.add_haze(self.look)
        images, painters = {}, {}
        for i, camera in self.rig.items():
            image = np.empty((camera.height, camera.width, 3), np.uint8)
            self._backdrops[i].draw(image, self.sky, textures, pose)
            painters[i] = _Painter(camera, soup, self._blob_shapes)
            painters[i].paint(image)
            self._sensors[i].expose(image, pose, i)
            images[i] = image
        return (images, _IdImages(painters)) if ids else images


class _IdImages(Mapping):
    """Id images by camera, painted when asked for."""

    def __init__(self, painters: dict[int, _Painter]):
        self._painters, self._painted = painters, {}

    def __getitem__(self, camera: int) -> np.ndarray:
        """Id image [H, W] of a camera."""
        if camera not in self._painted:
            self._painted[camera] = self._painters[camera].paint_ids()
        return self._painted[camera]

    def __iter__(self):
        """Yield the ids of the cameras."""
        return iter(self._painters)

    def __len__(self) -> int:
        """Return the number of cameras."""
        return len(self._painters)


class _Painter:
    """Projects a soup into one camera and paints it."""

    def __init__(self, camera: Camera, soup: Soup, blob_shapes: np.ndarray):
        self.camera, self.soup = camera, soup
        self.position = np.array(camera.position, np.float32)
        self.rotation = camera.rotation.astype(np.float32)
        self.focal = np.float32(camera.focal_px)
        self.centre = np.float32([(camera.width - 1) / 2, (camera.height - 1) / 2])
        in_view = self._things_in_view()
        quads, quad_index = self._quads(in_view)
        blobs, blob_index = self._blobs(in_view, blob_shapes)
        self.polygons = quads + blobs
        self.things = np.concatenate([soup.quad_things[quad_index], soup.blob_things[blob_index]])
        colours = np.concatenate([soup.colours[quad_index], soup.blob_colours[blob_index]])
        self.colours = np.clip(np.round(colours), 0, 255)
        self.outline = np.concatenate([soup.outline[quad_index], np.ones(len(blobs), bool)])
        rank = np.empty(len(soup.distances), int)
        rank[np.argsort(-soup.distances, kind='stable')] = np.arange(len(soup.distances))
        keys = rank[self.things] * _QUADS + np.concatenate([quad_index, _BLOBS + blob_index])
        self.order = np.argsort(keys, kind='stable')

    def paint(self, image):
        """Paint all polygons in their order."""
        fill, polygons = cv2.fillConvexPoly, self.polygons
        colours = self.colours.tolist()
        for k in self.order.tolist():
            fill(image, polygons[k], colours[k], cv2.LINE_AA, SHIFT)

    def paint_ids(self) -> np.ndarray:
        """Paint the ids of their things into an image of its own."""
        fill, polygons = cv2.fillConvexPoly, self.polygons
        id_image = np.zeros((self.camera.height, self.camera.width), np.uint16)
        marks = self.soup.ids[self.things]
        order = self.order[self.outline[self.order]]
        marked = np.flatnonzero(marks[order])
        if len(marked):
            # what lies behind the farthest marked thing hides none
            for k in order[marked[0]:].tolist():
                fill(id_image, polygons[k], int(marks[k]), cv2.LINE_8, SHIFT)
        return id_image

    def _things_in_view(self) -> np.ndarray:
        """Which things are within the camera's horizontal angle."""
        soup, half = self.soup, self.camera.horizontal_fov / 2
        away = soup.middles - self.position[:2]
        c, s = np.float32(np.cos(self.camera.yaw)), np.float32(np.sin(self.camera.yaw))
        ahead, aside = away[:, 0] * c + away[:, 1] * s, np.abs(away[:, 1] * c - away[:, 0] * s)
        return (ahead > -soup.radii) & (
            aside < np.maximum(ahead, 0) * np.tan(half) + soup.radii / np.cos(half))

    def _quads(self, in_view):
        """Polygons on the image and the soup's quads that they are."""
        soup, focal = self.soup, self.focal
        index = np.flatnonzero(in_view[soup.quad_things] & (soup.clearness * focal > 1))
        corners = soup.corners[:, :, index] - self.position[:, None, None]
        front = (corners[:, 0] * soup.normals[:, index]).sum(0) < 0
        index, corners = index[front], corners[:, :, front]
        points = (self.rotation.T @ corners.reshape(3, -1)).reshape(3, 4, -1)
        nearest, farthest = points[2].min(0), points[2].max(0)
        whole = np.flatnonzero(nearest > NEAR_M)
        x, y, depth = points[:, :, whole]
        u, v = x * (focal / depth) + self.centre[0], y * (focal / depth) + self.centre[1]
        area = np.abs((u[2] - u[0]) * (v[3] - v[1]) - (u[3] - u[1]) * (v[2] - v[0])) / 2
        worth = area > np.where(soup.outline[index[whole]], *LEAST_AREA_PX)
        seen = np.flatnonzero(self._on_image(u, v) & worth)
        polygons = list(_fixed_point(np.stack([u[:, seen].T, v[:, seen].T], 2)))
        indices = [index[whole[seen]]]
        for i in np.flatnonzero((nearest <= NEAR_M) & (farthest > NEAR_M)):
            cut = _clip(points[:, :, i].T)
            uv = cut[:, :2] * (focal / cut[:, 2:]) + self.centre
            if self._on_image(*uv.T):
                polygons.append(_fixed_point(np.clip(uv, -FAR_PX, FAR_PX)))
                indices.append(index[i:i + 1])
        return polygons, np.concatenate(indices)

    def _blobs(self, in_view, shapes):
        """Do the same for the round things."""
        soup = self.soup
        index = np.flatnonzero(in_view[soup.blob_things])
        points = (soup.blobs[index, :3] - self.position) @ self.rotation
        radius, depth = soup.blobs[index, 3], points[:, 2]
        ahead = np.flatnonzero(depth > radius + NEAR_M)
        scale = self.focal / depth[ahead]
        middle = points[ahead, :2] * scale[:, None] + self.centre
        size = (radius[ahead] * scale)[:, None, None]
        shape = shapes[soup.blob_things[index[ahead]] % len(shapes)]
        outline = middle[:, None] + shape * size
        seen = self._on_image(*outline.T)
        return list(_fixed_point(outline[seen])), index[ahead[seen]]

    def _on_image(self, u, v) -> np.ndarray:
        """Which polygons overlap the image; their corners are along the first axis."""
        return ((u.max(0) > -0.5) & (u.min(0) < self.camera.width - 0.5)
                & (v.max(0) > -0.5) & (v.min(0) < self.camera.height - 0.5))


def _fixed_point(uv):
    return np.round(uv * (1 << SHIFT)).astype(np.int32)


def _clip(points):
    """Cut a polygon [k, 3] at the near plane."""
    kept = []
    previous = points[-1]
    for point in points:
        if (point[2] > NEAR_M) != (previous[2] > NEAR_M):
            share = (NEAR_M - previous[2]) / (point[2] - previous[2])
            kept.append(previous + (point - previous) * share)
        if point[2] > NEAR_M:
            kept.append(point)
        previous = point
    return np.array(kept)
