"""A plan, boxes and drawn primitives on a camera image.  The ground is taken to be flat."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from . import draw
from .camera import NEAR_M, CameraView

if TYPE_CHECKING:
    from ..core.types import DrivePlan
    from ..recording.plans import DrawnPrimitive, RecordedPlan

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


def draw_plan(image, view: CameraView, plan: RecordedPlan | DrivePlan, motion: Motion, *,
              fresh: bool = True):
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


IN_EGO_FRAME = (None, -1)
"""`camera_id` of what is not in the frame of a camera, in a plan and in a message."""


def draw_paths(image, view: CameraView, primitives: Iterable[DrawnPrimitive], motion: Motion,
               thickness: int = 1):
    """Paths in metres that the model draws: its own and those of others."""
    for p in primitives:
        if p.type == 'trajectory_3d' and p.camera_id in IN_EGO_FRAME:
            colour = draw.label_colour(p.label)
            for run in finite_runs(p.values):
                points = motion(run)
                for piece in view.polyline(points):
                    draw.line(image, piece, colour, thickness)
                optical = view.to_optical(points)
                for pixel in view.pixels(optical[optical[:, 2] > NEAR_M]):
                    draw.dot(image, pixel, colour, thickness + 0.5)


def draw_image_primitives(image, primitives: Iterable[DrawnPrimitive], camera_id: int | None,
                          scale: float, *, thickness: int = 1, fresh: bool = True):
    """
    2D primitives of this camera with their labels, dim when they are not `fresh`.

    `scale` is this image's size over the original's, whose pixels the values count.
    """
    size = 0.32 + 0.08 * thickness
    for p in primitives:
        if camera_id is None or p.camera_id != camera_id:
            continue
        colour = draw.label_colour(p.label) if fresh else draw.DIM
        if p.type == 'box_2d':   # edges, which lie between pixels
            for x1, y1, x2, y2 in p.values[np.isfinite(p.values).all(1)] * scale - 0.5:
                draw.line(image, [(x1, y1), (x2, y1), (x2, y2), (x1, y2)], colour, thickness, True)
                draw.text(image, p.label, (x1, y1 - 3 if y1 > 14 else y2 + 12), colour, size,
                          outline=True)
        elif p.type in ('point', 'trajectory_2d'):
            for run in finite_runs(p.values):
                pixels = (run + 0.5) * scale - 0.5
                if p.type == 'trajectory_2d':
                    draw.line(image, pixels, colour, thickness + 1)
                for pixel in pixels:
                    draw.dot(image, pixel, colour, thickness + 1.5)


def finite_runs(values) -> list[np.ndarray]:
    """Rows of `values` [n, d] without those out of view (NaN), cut where one of them was."""
    values = np.asarray(values, float)
    seen = np.isfinite(values).all(1)
    cuts = np.flatnonzero(np.diff(seen)) + 1
    return [run for run, there in zip(np.split(values, cuts), np.split(seen, cuts))
            if there.any()]
