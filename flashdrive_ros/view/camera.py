"""Where a point of the vehicle frame falls in a camera's image."""
from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians, sin, tan

import cv2
import numpy as np

from ..recording.recording import CameraInfo, Recording

NEAR_M = 0.3
"""Geometry nearer to the camera's plane than this is cut off."""
BASE_FRAME = 'base_link'
NOMINAL = {
    'cross_left_120': (1.75, 0.55, 1.5, 57, 120),
    'front_wide_120': (1.85, 0.0, 1.5, 0, 120),
    'cross_right_120': (1.75, -0.55, 1.5, -57, 120),
    'front_tele_30': (1.85, 0.0, 1.5, 0, 30),
}
"""x, y, z m, yaw and field of view in degrees: for recordings without transforms, camera info."""


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


def mount(x, y, z, yaw_deg) -> tuple[np.ndarray, np.ndarray]:
    """Rotation (optical to vehicle) and position of a level camera."""
    c, s = cos(radians(yaw_deg)), sin(radians(yaw_deg))
    return np.array([[s, 0, c], [-c, 0, s], [0, -1, 0]], float), np.array([x, y, z], float)


def camera_views(recording: Recording, sizes: dict[str, tuple[int, int]]) -> dict[str, CameraView]:
    """
    Views of the recording's cameras by name; `sizes` are their images' (width, height).

    Without camera info a pinhole lens of the nominal field of view is assumed,
    without a transform the nominal mounting; a camera that has neither a
    recorded nor a nominal one is left out.
    """
    views = {}
    for name, track in recording.cameras.items():
        info = recording.infos.get(track.frame_id)
        placed = _placed(recording.transforms, track.frame_id)
        nominal = NOMINAL.get(name)
        if name not in sizes or ((info is None or placed is None) and nominal is None):
            continue
        assumed = []
        if info is None:
            info = _nominal_info(track.frame_id, *sizes[name], nominal[4])
            assumed.append(f'{nominal[4]} degree lens')
        if placed is None:
            placed = mount(*nominal[:4])
            assumed.append('nominal mounting')
        views[name] = _view(info, placed, sizes[name], ', '.join(assumed))
    return views


def _view(info: CameraInfo, placed, size, assumed) -> CameraView:
    """Scale the intrinsics to the image's size, should it differ."""
    scale = np.array([size[0] / info.width, size[1] / info.height, 1.0])
    return CameraView(*size, info.k * scale[:, None], *placed, (info.model, info.d), assumed)


def _nominal_info(frame_id, width, height, fov_deg) -> CameraInfo:
    focal = width / 2 / tan(radians(fov_deg) / 2)
    k = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1.0]])
    return CameraInfo(frame_id, width, height, k, '', np.zeros(0))


def _placed(transforms, frame_id):
    """Chain transforms from a frame up to the vehicle; None when they don't lead there."""
    rotation, position = np.eye(3), np.zeros(3)
    for _ in range(len(transforms) + 1):
        if frame_id == BASE_FRAME:
            return rotation, position
        if frame_id not in transforms:
            return None
        frame_id, r, t = transforms[frame_id]
        rotation, position = r @ rotation, r @ position + t
    return None
