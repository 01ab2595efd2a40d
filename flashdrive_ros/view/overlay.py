"""A plan, boxes and drawn primitives on a camera image.  The ground is taken to be flat."""
from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..recording.plans import DrawnPrimitive, RecordedPlan
from . import draw
from .camera import CameraView

EGO_WIDTH_M = 1.9
_EDGES = ((0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4),
          (0, 4), (1, 5), (2, 6), (3, 7))


class Motion:
    """Moves points from the vehicle frame at a plan's time to the one at a picture's time."""

    def __init__(self, rotation=None, translation=None):
        self.rotation = np.eye(3) if rotation is None else rotation
        self.translation = np.zeros(3) if translation is None else translation

    @classmethod
    def between(cls, pose_then, pose_now) -> Motion:
        """From odometry poses (position, rotation); identity when one is unknown."""
        if pose_then is None or pose_now is None:
            return cls()
        (p0, r0), (p1, r1) = pose_then, pose_now
        return cls(r1.T @ r0, r1.T @ (p0 - p1))

    def __call__(self, points) -> np.ndarray:
        """Points [n, 3] moved."""
        return np.asarray(points, float) @ self.rotation.T + self.translation


def box_corners(values) -> np.ndarray:
    """Corners [8, 3] of x y z length width height yaw; the first four are the floor's."""
    x, y, z, length, width, height, yaw = values
    floor = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) / 2 * [length, width]
    c, s = np.cos(yaw), np.sin(yaw)
    floor = floor @ np.array([[c, s], [-s, c]]) + [x, y]
    return np.concatenate([np.column_stack([floor, np.full(4, z + side * height / 2)])
                           for side in (-1, 1)])


def ribbon(plan: RecordedPlan, k: int, width_m: float = EGO_WIDTH_M) -> np.ndarray:
    """Quads [n, 4, 3] that a vehicle of this width sweeps along trajectory k, from the origin."""
    centre = np.concatenate([[[0.0, 0.0, 0.0]], plan.xyz[k]])
    yaw = np.concatenate([[0.0], plan.yaw[k]])
    side = np.stack([-np.sin(yaw), np.cos(yaw), np.zeros_like(yaw)], 1) * (width_m / 2)
    left, right = centre + side, centre - side
    return np.stack([left[:-1], left[1:], right[1:], right[:-1]], 1)


def draw_plan(image, view: CameraView, plan: RecordedPlan, motion: Motion, *, fresh: bool = True):
    """All trajectories as lines, the chosen one as the ribbon that the vehicle will cover."""
    if not plan.is_finite:
        return
    for k in range(len(plan.xyz)):
        if k != plan.chosen:
            for piece in view.polyline(motion(plan.xyz[k])):
                draw.line(image, piece, draw.OTHER)
    quads = [view.polygon(motion(q)) for q in ribbon(plan, plan.chosen)]
    colour = draw.CHOSEN if fresh else draw.DIM
    draw.filled(image, [q for q in quads if q is not None], colour, 0.45 if fresh else 0.3)
    for piece in view.polyline(motion(plan.xyz[plan.chosen])):
        draw.line(image, piece, colour, 1)


def draw_boxes(image, view: CameraView, primitives: Iterable[DrawnPrimitive], motion: Motion,
               colour, thickness: int = 1):
    """Wire frames of 3D boxes, with the label of those that are near."""
    for primitive in primitives:
        if primitive.type != 'box_3d':
            continue
        for values in primitive.values[np.isfinite(primitive.values).all(1)]:
            corners = motion(box_corners(values))
            optical = view.to_optical(corners)
            if (optical[:, 2] < 0).all():
                continue
            for a, b in _EDGES:
                for piece in view.polyline(corners[[a, b]]):
                    draw.line(image, piece, colour, thickness)
            if (optical[:, 2] > 1).all() and primitive.label:
                pixels = view.pixels(optical)
                if image.shape[1] >= 400 and optical[:, 2].mean() < 45:
                    draw.text(image, primitive.label, (pixels[:, 0].min(), pixels[:, 1].min() - 3),
                              colour, 0.35, outline=True)


def draw_image_primitives(image, primitives: Iterable[DrawnPrimitive], camera_id: int | None,
                          scale: float):
    """2D primitives of this camera; `scale` is this image's size over the original's."""
    for p in primitives:
        if p.camera_id != camera_id or camera_id is None or p.camera_id < 0:
            continue
        for values in p.values[np.isfinite(p.values).all(1)] * scale:
            if p.type == 'box_2d':
                x1, y1, x2, y2 = values
                draw.line(image, [(x1, y1), (x2, y1), (x2, y2), (x1, y2)], draw.DRAWN, 1, True)
            elif p.type == 'point':
                x, y = values
                draw.line(image, [(x - 3, y), (x + 3, y)], draw.DRAWN, 1)
                draw.line(image, [(x, y - 3), (x, y + 3)], draw.DRAWN, 1)
        if p.type == 'trajectory_2d':
            draw.line(image, p.values[np.isfinite(p.values).all(1)] * scale, draw.DRAWN, 2)
