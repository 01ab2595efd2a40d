"""What lies behind everything: the sky with clouds and hills, and the ground with its haze."""
from __future__ import annotations

from math import pi

import cv2
import numpy as np

from .cameras import Camera
from .ground import Texture
from .look import Look

SKY_WIDTH = 2048
SKY_PX_PER_RAD = SKY_WIDTH / (2 * pi)
SKY_BELOW_RAD = 0.05
SKY_ABOVE_RAD = 1.1
COARSE_M_PER_PX = 0.35
"""Where a pixel is broader than this on the ground, the coarse texture is used."""
FINE_LIMIT_M = 150.0
ROWS_PER_ROW = ((0.3, 1), (3.0, 3), (np.inf, 6))
"""Rows sampled for each row of pixels, by the length of ground (m) that it shows."""
MANY = 4
"""Where more rows are averaged, each sample may be the nearest texel."""


def paint_sky(look: Look, rng: np.random.Generator) -> np.ndarray:
    """Panorama [h, 2 w, 3], repeated once to the right so that any heading can be cut out."""
    height = int((SKY_BELOW_RAD + SKY_ABOVE_RAD) * SKY_PX_PER_RAD)
    elevation = SKY_ABOVE_RAD - (np.arange(height) + 0.5) / SKY_PX_PER_RAD
    share = np.clip(elevation / 0.9, 0, 1)[:, None] ** 0.6
    column = look.haze * (1 - share) + look.zenith * share
    sky = np.repeat(column[:, None], SKY_WIDTH, 1).astype(np.float32)
    if look.clouds > 0.05:
        cover = _clouds(height, look.clouds, rng)[..., None]
        cover = cover * np.clip(elevation / 0.25, 0, 1)[:, None, None]
        white = np.minimum(look.haze * 1.12, 252).astype(np.float32)
        sky = sky * (1 - cover) + white * cover
    azimuth = np.arange(SKY_WIDTH) / SKY_WIDTH * 2 * pi
    for distance, tallest in ((0.75, 0.07), (0.5, 0.035)):
        ridge = sum(rng.normal(0, 1 / k) * np.sin(k * azimuth + rng.uniform(0, 6.28))
                    for k in (1, 2, 3, 5, 8, 13, 21, 34))
        ridge = tallest * rng.uniform(0.2, 1) * np.clip(0.5 + 0.4 * ridge, 0.05, 1.5)
        colour = look.haze * distance + look.terrain * 0.75 * (1 - distance)
        sky[elevation[:, None] < ridge[None]] = colour
    sky = np.clip(sky, 0, 255).astype(np.uint8)
    return np.concatenate([sky, sky], 1)


def _clouds(height, amount, rng):
    total = np.zeros((height, SKY_WIDTH), np.float32)
    for cells, strength in ((16, 1.0), (64, 0.6), (256, 0.3)):
        rows = max(2, cells * height // SKY_WIDTH * 4)
        grid = rng.random((rows, cells)).astype(np.float32)
        grid = np.concatenate([grid, grid[:, :1]], 1)
        fx = np.arange(SKY_WIDTH, dtype=np.float32) * cells / SKY_WIDTH
        fy = np.linspace(0, rows - 1.01, height, dtype=np.float32)
        total += strength * cv2.remap(grid, *np.meshgrid(fx, fy), cv2.INTER_LINEAR)
    return np.clip((total / 1.9 - (1 - amount) * 0.62 - 0.14) * 3.2, 0, 1) * 0.9


class Backdrop:
    """Sky and ground of one camera; everything that depends on neither place nor time is kept."""

    def __init__(self, camera: Camera, look: Look):
        self.camera = camera
        self.horizon = int(np.clip(np.ceil(camera.horizon_row), 1, camera.height - 2))
        self._sky_x, self._sky_y = self._sky_map()
        distance = self._ground_distance()
        haze = look.haze_share(distance).astype(np.float32)
        self._haze, self._clear = haze, 1 - haze
        self._haze_image = np.full((*haze.shape, 3), np.clip(look.haze, 0, 255), np.uint8)
        self._terrain = [float(c) for c in np.clip(look.terrain, 0, 255)]
        self._bands = list(self._ground_bands())
        rays = camera.rotation @ np.linalg.inv(camera.intrinsics)
        px, py, height = camera.position
        self._to_ground = np.array([height * rays[0] - px * rays[2],
                                    height * rays[1] - py * rays[2], -rays[2]])

    def _ground_bands(self):
        """Yield runs of rows (first, last, rows sampled for each, whether fine or coarse)."""
        camera = self.camera
        below = np.arange(self.horizon, camera.height) - camera.horizon_row
        distance = camera.focal_px * camera.position[2] / np.maximum(below, 1e-3)
        length = distance / np.maximum(below, 1e-3)
        fine = distance < min(COARSE_M_PER_PX * camera.focal_px, FINE_LIMIT_M)
        rows = np.array([next(k for most, k in ROWS_PER_ROW if v <= most) for v in length])
        cuts = np.flatnonzero(np.diff(rows * 2 + fine)) + 1
        for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            yield self.horizon + int(a), self.horizon + int(b), int(rows[a]), bool(fine[a])

    def _sky_map(self):
        """Columns and rows of the panorama for every other pixel; the sky has no finer detail."""
        u, v = np.meshgrid(np.arange(0.5, self.camera.width, 2),
                           np.arange(0.5, self.horizon + 1, 2))
        rays = self.camera.rays(u, v)
        azimuth = np.arctan2(rays[..., 1], rays[..., 0])
        elevation = np.arctan2(rays[..., 2], np.hypot(rays[..., 0], rays[..., 1]))
        # half a panorama more: no column is negative, none beyond the second copy
        return ((azimuth * SKY_PX_PER_RAD + SKY_WIDTH / 2).astype(np.float32),
                ((SKY_ABOVE_RAD - elevation) * SKY_PX_PER_RAD).astype(np.float32))

    def _ground_distance(self):
        u, v = np.meshgrid(np.arange(self.camera.width),
                           np.arange(self.horizon, self.camera.height))
        rays = self.camera.rays(u, v)
        depth = self.camera.position[2] / np.maximum(-rays[..., 2], 1e-4)
        return np.minimum(np.hypot(rays[..., 0], rays[..., 1]) * depth, 5000)

    def draw(self, image, sky, textures: tuple[Texture, Texture], pose):
        """Fill the image with sky and ground as seen from pose (x, y, yaw)."""
        x, y, yaw = pose
        shift = ((yaw + pi) % (2 * pi)) * SKY_PX_PER_RAD
        columns = self._sky_x + np.float32(shift)
        half = cv2.remap(sky, columns, self._sky_y, cv2.INTER_LINEAR)
        cv2.resize(half, (self.camera.width, self.horizon + 1), dst=image[:self.horizon + 1],
                   interpolation=cv2.INTER_LINEAR)
        to_map = np.array([[np.cos(yaw), -np.sin(yaw), x], [np.sin(yaw), np.cos(yaw), y],
                           [0, 0, 1.0]])
        fine, coarse = textures
        for first, last, rows_per_row, is_fine in self._bands:
            self._warp(image, fine if is_fine else coarse, to_map, first, last, rows_per_row)
        ground = image[self.horizon:]
        cv2.blendLinear(ground, self._haze_image, self._clear, self._haze, dst=ground)

    def _warp(self, image, texture, to_map, first, last, rows_per_row):
        k = rows_per_row
        sub_rows = np.array([[1, 0, 0], [0, 1 / k, first + 0.5 / k - 0.5], [0, 0, 1]])
        matrix = texture.to_pixel @ to_map @ self._to_ground @ sub_rows
        size = (self.camera.width, (last - first) * k)
        warped = cv2.warpPerspective(
            texture.image, matrix, size, dst=image[first:last] if k == 1 else None,
            flags=cv2.WARP_INVERSE_MAP | (cv2.INTER_NEAREST if k > MANY else cv2.INTER_LINEAR),
            borderMode=cv2.BORDER_CONSTANT, borderValue=self._terrain)
        if k > 1:
            cv2.resize(warped, (self.camera.width, last - first), dst=image[first:last],
                       interpolation=cv2.INTER_AREA)
