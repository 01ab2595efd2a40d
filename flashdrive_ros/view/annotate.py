"""One plan drawn on the camera image that it was made from: what `~/annotated` shows."""
from __future__ import annotations

import numpy as np

from ..core.types import DrivePlan
from . import draw
from .camera import CameraView
from .overlay import Motion, draw_boxes, draw_image_primitives, draw_paths, draw_plan

BASE_WIDTH = 640
"""Images this wide get lines of one pixel and words of this scale; larger ones thicker, bigger."""
TEXT_SCALE = 0.42
WORDS_LINES = 3


def annotate(image: np.ndarray, plan: DrivePlan, camera_id: int,
             view: CameraView | None) -> np.ndarray:
    """
    A copy of a camera's image [H, W, 3] with everything that the plan says about it.

    `view` places what is in metres; without one only what is in pixels is drawn, and the
    image says so.  The plan of an untrained model is marked.
    """
    image = np.ascontiguousarray(image).copy()
    thickness = max(1, round(image.shape[1] / BASE_WIDTH))
    if view is not None:
        draw_plan(image, view, plan, Motion())
        draw_boxes(image, view, plan.primitives, Motion(), draw.DRAWN, thickness)
        draw_paths(image, view, plan.primitives, Motion(), thickness)
    draw_image_primitives(image, plan.primitives, camera_id, 1.0, thickness=thickness)
    _notice(image, view)
    _words(image, plan.reasoning.text)
    if not plan.trained:
        draw.watermark(image, 'UNTRAINED MODEL')
    return image


def _text_scale(image) -> float:
    return TEXT_SCALE * min(max(image.shape[1] / BASE_WIDTH, 0.75), 3.0)


def _notice(image, view):
    """What is assumed of the camera, or that it is not known."""
    words = 'no calibration' if view is None else view.assumed and f'assumed: {view.assumed}'
    if words:
        scale = 0.8 * _text_scale(image)
        draw.text(image, words, (4, 34 * scale), draw.HISTORY, scale, outline=True)


def _words(image, text: str):
    """The reasoning along the lower edge."""
    scale = _text_scale(image)
    lines = draw.wrap(text, image.shape[1] - 8, scale)[:WORDS_LINES]
    step = round(34 * scale)
    if lines and len(lines) * step < image.shape[0] // 2:
        top = image.shape[0] - len(lines) * step - 3
        draw.darken(image[top:])
        for i, line in enumerate(lines, 1):
            draw.text(image, line, (4, top + i * step - 0.3 * step), scale=scale)
