"""What lens and sensor add to an image: a little blur and grain, by the episode's look."""
from __future__ import annotations

import zlib

import cv2
import numpy as np

from .look import Look

_SLACK = 64
"""Grain is cut out of a field this much larger than the image, each time elsewhere."""


class Sensor:
    """
    Adds blur and grain in place.

    The grain depends on the pose and the camera, so it flickers while driving
    and the same pose still gives the same image.
    """

    def __init__(self, look: Look, width: int, height: int, rng: np.random.Generator):
        self.blur = look.blur
        grain = rng.normal(0, look.noise, (height + _SLACK, width + _SLACK, 3))
        self._up, self._down = (np.clip(np.round(g), 0, 60).astype(np.uint8)
                                for g in (grain, -grain))

    def expose(self, image: np.ndarray, pose, camera_id: int):
        """Blur and grain an image taken at pose (x, y, yaw)."""
        if self.blur > 0.05:
            cv2.GaussianBlur(image, (3, 3), self.blur, dst=image)
        key = zlib.crc32(np.array([*pose, camera_id], np.float64).tobytes())
        row, column = key % _SLACK, key // _SLACK % _SLACK
        height, width = image.shape[:2]
        cut = slice(row, row + height), slice(column, column + width)
        cv2.add(image, self._up[cut], dst=image)
        cv2.subtract(image, self._down[cut], dst=image)
