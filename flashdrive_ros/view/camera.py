"""Where a point of the vehicle frame falls in a camera's image."""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import degrees
from typing import TYPE_CHECKING

import cv2
import numpy as np

from ..recording.calibration import CameraInfo, chain
from ..world.cameras import default_rig

if TYPE_CHECKING:
    from ..recording.recording import Recording

NEAR_M = 0.3
"""Geometry nearer to the camera's plane than this is cut off."""
BASE_FRAME = 'base_link'
BODY_Z = 0.7
"""A frame of which z points up this much (cosine) is a body: no camera looks at the sky."""
BODY_OF_OPTICAL = np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]])
"""Optical axes (x right, y down, z forward) in a body frame (x forward, y left, z up)."""
NOMINAL = {camera.name: camera for camera in default_rig().values()}
"""Where cameras sit and how wide they see, for recordings that do not say: the world's rig."""


@dataclass(frozen=True)
class CameraView:
    """
    One camera on the vehicle.

    `k` [3, 3] for an image of `width` x `height`; `rotation` [3, 3] and
    `position` [3] take the optical frame (x right, y down, z forward) to the
    vehicle frame.  `assumed` says what of it was not in the recording.
    """

    width: int
    height: int
    k: np.ndarray
    rotation: np.ndarray
    position: np.ndarray
    distortion: tuple[str, np.ndarray] = ('', np.zeros(0))
    assumed: str = ''

    def to_optical(self, points) -> np.ndarray:
        """Points [n, 3] of the vehicle frame in the optical frame."""
        return (np.asarray(points, float) - self.position) @ self.rotation

    def pixels(self, optical) -> np.ndarray:
        """Pixels [n, 2] of points [n, 3] in the optical frame, all in front of the camera."""
        model, d = self.distortion
        if np.any(d):
            project = cv2.fisheye.projectPoints if model == 'equidistant' else cv2.projectPoints
            points = np.ascontiguousarray(optical, float).reshape(-1, 1, 3)
            return project(points, np.zeros(3), np.zeros(3), self.k, d)[0].reshape(-1, 2)
        scaled = optical[:, :2] / optical[:, 2:]
        return scaled * np.diag(self.k)[:2] + self.k[:2, 2]

    def polyline(self, points) -> list[np.ndarray]:
        """Draw a line through [n, 3]: the pieces [m, 2] that are in front of the camera."""
        optical, pieces, piece = self.to_optical(points), [], []
        for a, b in zip(optical[:-1], optical[1:]):
            if a[2] < NEAR_M and b[2] < NEAR_M:
                continue
            if a[2] < NEAR_M:
                piece = [_cut(a, b)]
            elif not piece:
                piece = [a]
            piece.append(b if b[2] >= NEAR_M else _cut(a, b))
            if b[2] < NEAR_M:
                pieces.append(piece)
                piece = []
        if piece:
            pieces.append(piece)
        return [self.pixels(np.array(p)) for p in pieces]

    def polygon(self, points) -> np.ndarray | None:
        """Corners [m, 2] of the part of a flat polygon [n, 3] in front of the camera."""
        optical, kept = self.to_optical(points), []
        for a, b in zip(optical, np.roll(optical, -1, axis=0)):
            if a[2] >= NEAR_M:
                kept.append(a)
            if (a[2] < NEAR_M) != (b[2] < NEAR_M):
                kept.append(_cut(a, b))
        return self.pixels(np.array(kept)) if len(kept) > 2 else None


def _cut(a, b):
    """The point of the segment a-b on the near plane."""
    return a + (b - a) * ((NEAR_M - a[2]) / (b[2] - a[2]))


def camera_view(name: str, frame_id: str, size: tuple[int, int], infos, transforms,
                base_frame: str = BASE_FRAME) -> CameraView | None:
    """
    View of the camera with this name, for images of `size` (width, height).

    `infos` (by optical frame) and `transforms` (by child frame) are what was
    published.  Without camera info a pinhole lens of the nominal field of view
    is assumed, without a transform the nominal mounting; None when those are
    needed and the name has none.
    """
    info, placed = infos.get(frame_id), chain(transforms, frame_id, base_frame)
    nominal = NOMINAL.get(name)
    if (info is None or placed is None) and nominal is None:
        return None
    assumed = []
    if info is None:
        info = _nominal_info(nominal, *size)
        assumed.append(f'a {degrees(nominal.horizontal_fov):.0f} degree lens (no camera_info)')
    if placed is None:
        placed = nominal.rotation, np.array(nominal.position)
        assumed.append('nominal mounting (no tf_static)')
    else:
        rotation, said = _optical(placed[0], frame_id)
        placed = rotation, placed[1]
        assumed += [said] * bool(said)
    return _view(info, placed, size, ', '.join(assumed))


def camera_views(recording: Recording, sizes: dict[str, tuple[int, int]]) -> dict[str, CameraView]:
    """Views of the recording's cameras by name; `sizes` are their images' (width, height)."""
    views = {name: camera_view(name, track.frame_id, sizes[name], recording.infos,
                               recording.transforms)
             for name, track in recording.cameras.items() if name in sizes}
    return {name: view for name, view in views.items() if view is not None}


def _view(info: CameraInfo, placed, size, assumed) -> CameraView:
    """Scale the intrinsics to the image's size, should it differ."""
    scale = np.array([size[0] / info.width, size[1] / info.height, 1.0])
    return CameraView(*size, info.k * scale[:, None], *placed, (info.model, info.d), assumed)


def _nominal_info(camera, width, height) -> CameraInfo:
    camera = replace(camera, width=width, height=height)
    return CameraInfo(camera.frame_id, width, height, camera.intrinsics, '', np.zeros(0))


def _optical(rotation, frame_id: str) -> tuple[np.ndarray, str]:
    """
    Rotation of an optical frame, and what was assumed for it.

    A frame whose z axis points up looks along x: it is the camera's body, not its
    optical frame (REP 103: z forward, x right, y down).
    """
    if rotation[2, 2] < BODY_Z:
        return rotation, ''
    return rotation @ BODY_OF_OPTICAL, f'{frame_id} is not optical (its z points up)'
