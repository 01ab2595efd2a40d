"""
Main and wrist camera: pinhole projection and pictures by ray casting.

MuJoCo's own renderer needs OpenGL, which a headless machine may lack; `mj_multiRay` casts a
ray a pixel on the CPU, exact and the same everywhere.  Optical frames have x right, y down,
z forward (REP 103).
"""
from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

SIZE = 96
MAIN, WRIST = 'main', 'wrist'
_LIGHT = np.array([0.3, -0.4, 0.87])
_SKY = np.array([0.75, 0.82, 0.9])


@dataclass(frozen=True)
class Camera:
    """Place `position` [3] (m) and `rotation` [3, 3], whose columns are the optical axes."""

    position: np.ndarray
    rotation: np.ndarray
    focal: float
    size: int = SIZE

    @classmethod
    def looking(cls, position, at, fov_deg: float, up=(0.0, 0.0, 1.0)) -> Camera:
        """Camera at `position` that looks at a point."""
        position = np.asarray(position, float)
        z = np.asarray(at, float) - position
        z /= np.linalg.norm(z)
        x = np.cross(z, np.asarray(up, float))
        x /= np.linalg.norm(x)
        focal = SIZE / 2 / np.tan(np.radians(fov_deg) / 2)
        return cls(position, np.stack((x, np.cross(z, x), z), 1), focal)

    def to_optical(self, points) -> np.ndarray:
        """Points [n, 3] of the base frame in the optical frame."""
        return (np.asarray(points, float) - self.position) @ self.rotation

    def from_optical(self, points) -> np.ndarray:
        """Points [n, 3] of the optical frame in the base frame."""
        return np.asarray(points, float) @ self.rotation.T + self.position

    def shares(self, points) -> np.ndarray:
        """Shares [n, 2] of the image (0 to 1) of base-frame points; NaN outside of it."""
        seen = self.to_optical(points)
        with np.errstate(divide='ignore', invalid='ignore'):
            uv = seen[:, :2] / seen[:, 2:] * self.focal / self.size + 0.5
        inside = (seen[:, 2] > 0) & (uv >= 0).all(1) & (uv <= 1).all(1)
        return np.where(inside[:, None], uv, np.nan)

    def picture(self, model, data) -> np.ndarray:
        """RGB uint8 [size, size, 3] of what is there."""
        n = self.size
        pixel = (np.arange(n) + 0.5 - n / 2) / self.focal
        rays = np.stack((np.tile(pixel, n), np.repeat(pixel, n), np.ones(n * n)), 1)
        rays = rays / np.linalg.norm(rays, axis=1, keepdims=True) @ self.rotation.T
        ids, far = np.full(n * n, -1, np.int32), np.zeros(n * n)
        normals = np.zeros(3 * n * n)
        mujoco.mj_multiRay(model, data, self.position, rays.ravel(), None, True, -1, ids, far,
                           normals, n * n, 5.0)
        shade = 0.55 + 0.45 * np.clip(normals.reshape(-1, 3) @ _LIGHT, -0.5, 1)
        colours = np.where(ids[:, None] >= 0, model.geom_rgba[ids, :3] * shade[:, None], _SKY)
        return (colours.reshape(n, n, 3) * 255).clip(0, 255).astype(np.uint8)


MAIN_CAMERA = Camera.looking((0.86, 0.0, 0.62), (0.27, 0.0, 0.02), 50)


def wrist_camera(model, data) -> Camera:
    """Camera on the hand that looks along the tool."""
    hand = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, 'hand')
    axes = data.xmat[hand].reshape(3, 3)  # x along the tool, y across, z away from the arm
    position = data.xpos[hand] + axes @ np.array([0.0, 0.0, 0.06])
    return Camera(position, np.stack((-axes[:, 1], -axes[:, 2], axes[:, 0]), 1),
                  SIZE / 2 / np.tan(np.radians(70) / 2))
