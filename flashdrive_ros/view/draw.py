"""Small drawing vocabulary on RGB arrays: colours, text, blended shapes."""
from __future__ import annotations

import cv2
import numpy as np

BACKGROUND = (22, 24, 28)
PANEL = (32, 35, 41)
INK = (228, 231, 236)
DIM = (140, 147, 158)
CHOSEN = (64, 220, 130)
OTHER = (96, 156, 255)
TRUTH = (110, 200, 235)
DRAWN = (255, 165, 50)
OWN_PATH = (255, 90, 215)
LABELS = {'pedestrian': (255, 120, 150), 'cyclist': (250, 150, 255), 'red light': (255, 60, 50),
          'yellow light': (255, 225, 60), 'green light': (60, 235, 90)}
HISTORY = (235, 235, 120)
ALARM = (240, 80, 70)
STAGE_COLOURS = {
    'image': (120, 126, 138), 'encode': (76, 134, 240), 'prefill': (52, 178, 190),
    'reason': (168, 120, 240), 'draw': (240, 160, 60), 'act': (84, 200, 110)}
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_SHIFT = 3
"""Sub-pixel bits of OpenCV's integer coordinates: lines move smoothly from picture to picture."""


def label_colour(label: str):
    """Colour of what the model draws under a label; its own path has one of its own."""
    return OWN_PATH if label == 'ego' else LABELS.get(label, DRAWN)


def plain(text: str) -> str:
    """Text with what the font lacks replaced."""
    table = {'–': '-', '—': '-', '…': '...', '’': "'", '“': '"', '”': '"', '°': ' deg', '×': 'x'}
    text = ''.join(table.get(c, c) for c in str(text))
    return text.encode('ascii', 'replace').decode()


def text_width(text: str, scale: float, thickness: int = 1) -> int:
    """Width in pixels."""
    return cv2.getTextSize(plain(text), _FONT, scale, thickness)[0][0]


def text(image, words: str, at, colour=INK, scale: float = 0.45, thickness: int = 1,
         outline: bool = False):
    """Write one line; `at` is the left end of its base line."""
    at, words = (int(at[0]), int(at[1])), plain(words)
    if outline:   # a thicker font would be wider, so the same one all around
        for x, y in ((-1, -1), (1, -1), (-1, 1), (1, 1)):
            cv2.putText(image, words, (at[0] + x, at[1] + y), _FONT, scale, (0, 0, 0), thickness,
                        cv2.LINE_AA)
    cv2.putText(image, words, at, _FONT, scale, colour, thickness, cv2.LINE_AA)


def wrap(words: str, width: int, scale: float) -> list[str]:
    """Lines no wider than `width` pixels; a longer word is cut."""
    lines, line = [], ''
    for word in plain(words).split():
        longer = f'{line} {word}'.strip()
        if line and text_width(longer, scale) > width:
            lines.append(line)
            longer = word
        while text_width(longer, scale) > width and len(longer) > 1:
            longer = longer[:-1]
        line = longer
    return [*lines, line] if line else lines


def line(image, points, colour, thickness: int = 1, closed: bool = False):
    """Draw through pixels [n, 2]; far outside points are harmless."""
    fixed = _fixed(points)
    if len(fixed) > 1:
        cv2.polylines(image, [fixed], closed, colour, thickness, cv2.LINE_AA, _SHIFT)


def dot(image, at, colour, radius: float):
    """Draw a disc around a pixel; far outside ones are harmless."""
    centre = _fixed([at])[0]
    cv2.circle(image, (int(centre[0]), int(centre[1])), round(radius * (1 << _SHIFT)), colour, -1,
               cv2.LINE_AA, _SHIFT)


def filled(image, polygons, colour, alpha: float):
    """Blend filled polygons [n, 2] over the image, where they cover it once or more."""
    mask = np.zeros(image.shape[:2], np.uint8)
    for polygon in polygons:
        cv2.fillPoly(mask, [_fixed(polygon)], 255, cv2.LINE_AA, _SHIFT)
    top, bottom = _span(mask.any(1))
    left, right = _span(mask.any(0))
    if top == bottom:
        return
    weight = mask[top:bottom, left:right, None].astype(np.float32) * (alpha / 255)
    part = image[top:bottom, left:right]
    part[:] = (part * (1 - weight) + np.array(colour, np.float32) * weight).astype(np.uint8)


def watermark(image, words: str, colour=ALARM, alpha: float = 0.55):
    """Write across the lower third of the image, as wide as half of it."""
    height, width = image.shape[:2]
    scale = 0.5 * width / max(1, text_width(words, 1.0, 2))
    thickness = max(1, round(scale * 2))
    at = (round(width * 0.25), round(height * 0.9))
    over = image.copy()
    text(over, words, at, colour, scale, thickness, outline=True)
    cv2.addWeighted(over, alpha, image, 1 - alpha, 0, dst=image)


def darken(image, share: float = 0.45):
    """Make a part of an image darker, in place, so that words on it can be read."""
    image[:] = (image * (1 - share)).astype(np.uint8)


def _span(flags):
    where = np.flatnonzero(flags)
    return (where[0], where[-1] + 1) if len(where) else (0, 0)


def _fixed(points):
    """Fixed-point coordinates, kept within what OpenCV draws without overflow."""
    points = np.clip(np.asarray(points, float), -8000, 8000)
    return np.round(points * (1 << _SHIFT)).astype(np.int32)
