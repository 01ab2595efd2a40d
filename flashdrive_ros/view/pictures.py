"""
One picture per 100 ms of a recorded drive.

The front camera large, the others below it (or, with one camera, the frames
before), the bird's-eye view at the right, and at the bottom reasoning, stage
times and planned speed.  A picture shows the plan that was made from its own
frames; where there is none, the last one, moved by odometry and marked as old.  Boxes
and paths in an image are dim when they were drawn from an earlier one.
"""
from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import cv2
import numpy as np

from ..core.types import NANOSECONDS, InputError
from ..nodes.images import decode_compressed, decode_image
from ..recording.plans import DrawnPrimitive, RecordedPlan
from ..recording.recording import TICK_TOLERANCE_NS, Recording
from . import draw, overlay, panel
from .birds_eye import BirdsEye
from .camera import camera_views

WIDTH, HEIGHT = 1280, 720
MAIN = (768, 432)
TILE = (256, 144)
TILE_ORDER = ('cross_left_120', 'front_tele_30', 'cross_right_120')
HISTORY_NS = 3 * NANOSECONDS
STALE_NS = 2 * NANOSECONDS
"""A plan older than this is not shown any more."""
DRAWING_NS = NANOSECONDS // 2
"""Nor what was drawn longer ago: things in an image move on, and nothing moves their boxes."""


@dataclass(frozen=True)
class Drawing:
    """Primitives to show; `motion` brings those in metres to the picture's time."""

    primitives: tuple[DrawnPrimitive, ...] = ()
    fresh: bool = False
    motion: overlay.Motion = field(default_factory=overlay.Motion)


class DrivePictures:
    """Draws the pictures of a recording; iterate over it for (stamp_ns, RGB image)."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self._plans = sorted(recording.plans, key=lambda p: p.stamp_ns)
        self._stamps = [p.stamp_ns for p in self._plans]
        totals = [p.total_ms + p.image_ms for p in self._plans]
        self._bar_ms = max(110.0, float(np.percentile(totals, 95)) * 1.1 if totals else 0)
        self._views: dict = {}
        self._before: deque = deque(maxlen=3)

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        for stamp, messages in self.recording.ticks():
            images = {name: decode(message, self.recording.cameras[name].topic)
                      for name, message in messages.items()}
            yield stamp, self.picture(stamp, {k: v for k, v in images.items() if v is not None})

    def plan_at(self, stamp_ns: int) -> tuple[RecordedPlan | None, bool]:
        """Newest plan from frames up to a time, and whether it is from the frames at that time."""
        i = bisect_right(self._stamps, stamp_ns + TICK_TOLERANCE_NS) - 1
        if i < 0 or stamp_ns - self._stamps[i] > STALE_NS:
            return None, False
        return self._plans[i], stamp_ns - self._stamps[i] <= TICK_TOLERANCE_NS

    def drawing_at(self, stamp_ns: int) -> Drawing:
        """What the newest plan that drew something has drawn, if that is not long ago."""
        end = bisect_right(self._stamps, stamp_ns + TICK_TOLERANCE_NS)
        begin = bisect_right(self._stamps, stamp_ns - DRAWING_NS)
        for plan in reversed(self._plans[begin:end]):
            if plan.primitives:
                fresh = stamp_ns - plan.stamp_ns <= TICK_TOLERANCE_NS
                return Drawing(plan.primitives, fresh, overlay.Motion() if fresh
                               else self._motion(plan.stamp_ns, stamp_ns))
        return Drawing()

    def _motion(self, then_ns: int, now_ns: int) -> overlay.Motion:
        pose = self.recording.pose_at
        return overlay.Motion.between(pose(then_ns), pose(now_ns))

    def picture(self, stamp_ns: int, images: dict[str, np.ndarray]) -> np.ndarray:
        """Draw the picture for one time and the RGB images taken then."""
        if missing := images.keys() - self._views.keys():
            sizes = {n: (i.shape[1], i.shape[0]) for n, i in images.items()}
            views = camera_views(self.recording, sizes)
            self._views.update({name: views.get(name) for name in missing})
        plan, fresh = self.plan_at(stamp_ns)
        motion = (overlay.Motion() if plan is None or fresh
                  else self._motion(plan.stamp_ns, stamp_ns))
        drawing = self.drawing_at(stamp_ns)
        canvas = np.full((HEIGHT, WIDTH, 3), draw.BACKGROUND, np.uint8)
        self._cameras(canvas, stamp_ns, images, plan, fresh, motion, drawing)
        canvas[:MAIN[1] + TILE[1], MAIN[0]:] = self._birds_eye(stamp_ns, plan, fresh, motion,
                                                               drawing)
        panel.draw_panel(canvas[MAIN[1] + TILE[1]:], plan, bar_ms=self._bar_ms, fresh=fresh,
                         seconds=(stamp_ns - self.recording.anchor.stamps_ns[0]) / NANOSECONDS,
                         age_s=(stamp_ns - plan.stamp_ns) / NANOSECONDS if plan else 0.0)
        return canvas

    def _boxes(self, stamp_ns):
        """What is really there (embedded world only)."""
        near = min(self.recording.boxes, key=lambda t: abs(t - stamp_ns), default=None)
        if near is None or abs(near - stamp_ns) > TICK_TOLERANCE_NS:
            return ()
        return self.recording.boxes[near]

    def _cameras(self, canvas, stamp_ns, images, plan, fresh, motion, drawing):
        main = self.recording.anchor.name
        others = sorted(images.keys() - {main}, key=lambda n: (
            TILE_ORDER.index(n) if n in TILE_ORDER else len(TILE_ORDER), n))
        drawn = {name: self._camera(name, image, MAIN if name == main else TILE, stamp_ns, plan,
                                    fresh, motion, drawing) for name, image in images.items()}
        if main in drawn:
            canvas[:MAIN[1], :MAIN[0]] = drawn[main]
        if others:
            tiles = [drawn[name] for name in others[:3]]
        else:
            tiles = [tile for _, tile in self._before]
            if main in images:
                self._before.append((stamp_ns, self._earlier(images[main], stamp_ns)))
        for i, tile in enumerate(tiles):
            canvas[MAIN[1]:MAIN[1] + TILE[1], i * TILE[0]:(i + 1) * TILE[0]] = tile

    def _earlier(self, image, stamp_ns):
        tile = fit(image, *TILE)[0]
        seconds = (stamp_ns - self.recording.anchor.stamps_ns[0]) / NANOSECONDS
        draw.text(tile, f'frame at {seconds:.2f} s', (6, 14), scale=0.36, outline=True)
        return tile

    def _camera(self, name, image, size, stamp_ns, plan, fresh, motion, drawing):
        tile, scale, corner = fit(image, *size)
        view = self._views[name]
        height, width = round(image.shape[0] * scale), round(image.shape[1] * scale)
        inner = tile[corner[1]:corner[1] + height, corner[0]:corner[0] + width]
        if view is not None:
            view = _scaled(view, width, height)
            overlay.draw_boxes(inner, view, self._boxes(stamp_ns), overlay.Motion(), draw.TRUTH)
            if plan is not None:
                overlay.draw_plan(inner, view, plan, motion, fresh=fresh)
            overlay.draw_boxes(inner, view, drawing.primitives, drawing.motion, draw.DRAWN)
            overlay.draw_paths(inner, view, drawing.primitives, drawing.motion)
        overlay.draw_image_primitives(
            inner, drawing.primitives, self.recording.cameras[name].camera_id, scale,
            fresh=drawing.fresh)
        main = size == MAIN
        draw.text(tile, name, (8, 20) if main else (6, 14), scale=0.5 if main else 0.36,
                  outline=True)
        if main:
            self._notices(tile, plan, view)
        return tile

    def _notices(self, tile, plan, view):
        """What the picture does not know, and that an untrained plan means nothing."""
        if view is None:
            draw.text(tile, 'no calibration: the plan is not drawn here', (8, 40), draw.ALARM,
                      outline=True)
        elif view.assumed:
            draw.text(tile, f'assumed: {view.assumed}', (8, 40), draw.HISTORY,
                      0.42, outline=True)
        if self.recording.source and 'ASSUMED' in self.recording.source:
            assumed = self.recording.source.split('; ')[-1]
            draw.text(tile, assumed, (8, 58), draw.HISTORY, 0.42, outline=True)
        if plan is not None and not plan.trained:
            draw.watermark(tile, 'UNTRAINED MODEL')

    def _birds_eye(self, stamp_ns, plan, fresh, motion, drawing):
        eye = BirdsEye(WIDTH - MAIN[0], MAIN[1] + TILE[1])
        eye.boxes(self._boxes(stamp_ns), overlay.Motion(), draw.TRUTH)
        eye.history(self._history(stamp_ns))
        eye.boxes(drawing.primitives, drawing.motion, draw.DRAWN)
        if plan is not None:
            eye.plan(plan, motion, fresh=fresh)
        eye.paths(drawing.primitives, drawing.motion)
        eye.vehicle()
        if plan is not None and not plan.trained:
            draw.watermark(eye.image, 'UNTRAINED')
        return eye.image

    def _history(self, stamp_ns):
        """Positions of the last seconds in the vehicle frame at a time."""
        now = self.recording.pose_at(stamp_ns)
        if now is None:
            return np.zeros((0, 3))
        stamps = self.recording.odometry_ns
        past = self.recording.odometry_pose[(stamps <= stamp_ns)
                                            & (stamps >= stamp_ns - HISTORY_NS)]
        return (past[:, :3] - now[0]) @ now[1]


def fit(image, width: int, height: int):
    """Resize into a tile of this size, keeping the shape: (tile, scale, corner of the image)."""
    scale = min(width / image.shape[1], height / image.shape[0])
    size = round(image.shape[1] * scale), round(image.shape[0] * scale)
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    x, y = (width - size[0]) // 2, (height - size[1]) // 2
    tile = np.zeros((height, width, 3), np.uint8)
    tile[y:y + size[1], x:x + size[0]] = cv2.resize(image, size, interpolation=method)
    return tile, scale, (x, y)


def _scaled(view, width, height):
    """Return the view for a resized image; pixel centres lie at whole numbers."""
    sx, sy = width / view.width, height / view.height
    k = view.k * np.array([[sx], [sy], [1.0]])
    k[:2, 2] += [(sx - 1) / 2, (sy - 1) / 2]
    return replace(view, width=width, height=height, k=k)


def decode(message, topic):
    """RGB image of a message, None when it is damaged (the drive node reports those)."""
    try:
        decode = decode_image if hasattr(message, 'encoding') else decode_compressed
        return decode(message, topic)
    except InputError:
        return None
