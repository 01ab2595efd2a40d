"""Seen from above: trajectories, boxes, where the vehicle came from."""
from __future__ import annotations

import numpy as np

from ..recording.plans import DrawnPrimitive, RecordedPlan
from . import draw
from .overlay import EGO_WIDTH_M, IN_EGO_FRAME, Motion, box_corners, finite_runs, ribbon

BEHIND_M = 12.0
EGO_LENGTH_M = 4.6
REAR_OVERHANG_M = 1.0


class BirdsEye:
    """A picture of `width` x `height` pixels that looks `ahead_m` ahead; forward is up."""

    def __init__(self, width: int, height: int, ahead_m: float = 60.0):
        self.image = np.full((height, width, 3), draw.PANEL, np.uint8)
        self._scale = height / (ahead_m + BEHIND_M)
        self._origin = np.array([width / 2, ahead_m * self._scale])
        self._grid(ahead_m, width)

    def pixels(self, points) -> np.ndarray:
        """Pixels [n, 2] of points [n, 2 or 3] in the vehicle frame."""
        points = np.asarray(points, float)
        return self._origin - points[:, [1, 0]] * self._scale

    def _grid(self, ahead_m, width):
        half = width / 2 / self._scale
        for x in range(0, int(ahead_m), 10):
            draw.line(self.image, self.pixels([[x, -half], [x, half]]), (46, 50, 58))
            if x:
                draw.text(self.image, f'{x} m', self.pixels([[x, half]])[0] + [4, -3], draw.DIM,
                          0.35)
        for y in range(-int(half) // 10 * 10, int(half) + 1, 10):
            draw.line(self.image, self.pixels([[-BEHIND_M, y], [ahead_m, y]]), (40, 44, 51))

    def boxes(self, primitives: tuple[DrawnPrimitive, ...], motion: Motion, colour):
        """Floors of 3D boxes."""
        for p in primitives:
            if p.type == 'box_3d':
                for values in p.values[np.isfinite(p.values).all(1)]:
                    floor = self.pixels(motion(box_corners(values)[:4]))
                    draw.filled(self.image, [floor], colour, 0.25)
                    draw.line(self.image, floor, colour, 1, closed=True)

    def paths(self, primitives: tuple[DrawnPrimitive, ...], motion: Motion):
        """Paths in metres that the model drew: its own and those of others."""
        for p in primitives:
            if p.type == 'trajectory_3d' and p.camera_id in IN_EGO_FRAME:
                colour = draw.label_colour(p.label)
                for run in finite_runs(p.values):
                    pixels = self.pixels(motion(run))
                    draw.line(self.image, pixels, colour, 1)
                    for pixel in pixels:
                        draw.dot(self.image, pixel, colour, 2)

    def plan(self, plan: RecordedPlan, motion: Motion, *, fresh: bool = True):
        """All trajectories; the chosen one as a ribbon with a mark each second."""
        if not plan.is_finite:
            return
        for k in range(len(plan.xyz)):
            if k != plan.chosen:
                draw.line(self.image, self.pixels(motion(plan.xyz[k])), draw.OTHER)
        colour = draw.CHOSEN if fresh else draw.DIM
        quads = [self.pixels(motion(q)) for q in ribbon(plan, plan.chosen)]
        draw.filled(self.image, quads, colour, 0.4)
        chosen = self.pixels(motion(plan.xyz[plan.chosen]))
        draw.line(self.image, chosen, colour, 1)
        for seconds in range(1, 7):
            i = int(np.argmin(np.abs(plan.time_s[plan.chosen] - seconds)))
            draw.line(self.image, [chosen[i] - [4, 0], chosen[i] + [4, 0]], draw.INK, 1)

    def history(self, points):
        """Where the vehicle was [n, 3]."""
        draw.line(self.image, self.pixels(points), draw.HISTORY, 1)

    def vehicle(self):
        """The vehicle itself, its origin at the rear axle."""
        x0, x1, half = -REAR_OVERHANG_M, EGO_LENGTH_M - REAR_OVERHANG_M, EGO_WIDTH_M / 2
        outline = self.pixels([[x1, half], [x0, half], [x0, -half], [x1, -half]])
        draw.filled(self.image, [outline], draw.INK, 0.9)
