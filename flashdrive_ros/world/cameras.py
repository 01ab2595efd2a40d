"""
The four cameras: where they sit, what they see, and how points project into them.

`base_link` is the middle of the rear axle, projected to the ground: x forward,
y left, z up (REP 103).  Optical frames look along z, x right, y down.  Pixel
(0, 0) is the centre of the top left pixel, as in `sensor_msgs/CameraInfo`.
The images are pinhole images without distortion.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, radians, sin, tan

import numpy as np

from ..core.types import CAMERA_NAMES

NEAR_M = 0.3
"""Nothing closer to the camera than this is projected."""


@dataclass(frozen=True)
class Camera:
    """A pinhole camera on the vehicle; angles in radians, positive yaw left, positive pitch up."""

    id: int
    width: int
    height: int
    horizontal_fov: float
    position: tuple[float, float, float]
    yaw: float
    pitch: float = 0.0

    @property
    def name(self) -> str:
        """Name of the camera in topics and frames."""
        return CAMERA_NAMES[self.id]

    @property
    def frame_id(self) -> str:
        """Name of the optical frame."""
        return f'{self.name}_optical'

    @property
    def focal_px(self) -> float:
        """Focal length in pixels, the same for x and y."""
        return self.width / 2 / tan(self.horizontal_fov / 2)

    @property
    def intrinsics(self) -> np.ndarray:
        """K [3, 3]."""
        f = self.focal_px
        return np.array([[f, 0, (self.width - 1) / 2], [0, f, (self.height - 1) / 2], [0, 0, 1.0]])

    @property
    def rotation(self) -> np.ndarray:
        """Rotation [3, 3] from optical to base_link: its columns are right, down and forward."""
        cy, sy, cp, sp = cos(self.yaw), sin(self.yaw), cos(self.pitch), sin(self.pitch)
        right = [sy, -cy, 0.0]
        down = [sp * cy, sp * sy, -cp]
        forward = [cp * cy, cp * sy, sp]
        return np.array([right, down, forward]).T

    def to_optical(self, points_base_link) -> np.ndarray:
        """Points [..., 3] of base_link in the optical frame, m."""
        return (np.asarray(points_base_link, dtype=np.float64) - self.position) @ self.rotation

    def project(self, points_base_link) -> tuple[np.ndarray, np.ndarray]:
        """
        Pixels [..., 2] of points [..., 3] in base_link, and which of them are in the image.

        Points behind the camera have NaN pixels; points beside the image keep
        theirs but are not valid.
        """
        return self.project_optical(self.to_optical(points_base_link))

    def project_optical(self, points) -> tuple[np.ndarray, np.ndarray]:
        """Do the same for points [..., 3] in the optical frame."""
        depth = points[..., 2]
        ahead = depth > NEAR_M
        scale = self.focal_px / np.where(ahead, depth, np.nan)
        uv = points[..., :2] * scale[..., None] + [(self.width - 1) / 2, (self.height - 1) / 2]
        with np.errstate(invalid='ignore'):
            inside = (uv > -0.5).all(-1) & (uv < [self.width - 0.5, self.height - 0.5]).all(-1)
        return uv, ahead & inside

    def rays(self, u, v) -> np.ndarray:
        """Directions [..., 3] in base_link of pixels, scaled to depth 1 along the optical axis."""
        u, v = np.broadcast_arrays(np.asarray(u, float), np.asarray(v, float))
        f = self.focal_px
        optical = np.stack([(u - (self.width - 1) / 2) / f, (v - (self.height - 1) / 2) / f,
                            np.ones_like(u)], -1)
        return optical @ self.rotation.T

    @property
    def horizon_row(self) -> float:
        """Row of points at infinity on the ground (cameras do not roll)."""
        return (self.height - 1) / 2 + self.focal_px * tan(self.pitch)


def default_rig(width: int = 320, height: int = 180) -> dict[int, Camera]:
    """Return the nominal cameras by id: left, front and right 120 degrees wide, front tele 30."""
    wide, tele = radians(120), radians(30)
    return {camera.id: camera for camera in (
        Camera(0, width, height, wide, (1.75, 0.55, 1.5), radians(57)),
        Camera(1, width, height, wide, (1.85, 0.0, 1.5), 0.0),
        Camera(2, width, height, wide, (1.75, -0.55, 1.5), radians(-57)),
        Camera(6, width, height, tele, (1.85, 0.0, 1.5), 0.0),
    )}


def jittered_rig(rig: dict[int, Camera], rng: np.random.Generator) -> dict[int, Camera]:
    """Return the rig of another car: height +-0.1 m in common, yaw +-2 deg, field +-3 % each."""
    lift = rng.uniform(-0.1, 0.1)
    return {i: replace(
        camera,
        horizontal_fov=camera.horizontal_fov * rng.uniform(0.97, 1.03),
        position=(camera.position[0], camera.position[1], camera.position[2] + lift),
        yaw=camera.yaw + radians(rng.uniform(-2, 2)),
    ) for i, camera in rig.items()}
