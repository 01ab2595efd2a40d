"""Boxes as vision_msgs, for graphs that have it; everything here waits for `INSTALLED`."""
from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from geometry_msgs.msg import Point, Pose, Quaternion, Vector3
from std_msgs.msg import Header

try:
    from vision_msgs import msg as vision
except ImportError:  # not on PyPI
    vision = None

from ..core.types import Primitive

INSTALLED = vision is not None


def image_detections(primitives: Iterable[Primitive], camera_id: int, header: Header):
    """
    Detection2DArray of the boxes in one camera's image; `header` is in its optical frame.

    Boxes are centre and size in pixels; x counts from the image's left edge.
    """
    found = []
    for p in _boxes(primitives, 'box_2d', camera_id):
        for (x1, y1, x2, y2), score in _rows(p):
            detection = vision.Detection2D(header=header, results=[_hypothesis(p.label, score)])
            box = detection.bbox
            box.center.position.x, box.center.position.y = (x1 + x2) / 2, (y1 + y2) / 2
            box.size_x, box.size_y = x2 - x1, y2 - y1
            found.append(detection)
    return vision.Detection2DArray(header=header, detections=found)


def space_detections(primitives: Iterable[Primitive], header: Header):
    """Detection3DArray of the boxes in metres; `header` is in their frame."""
    found = []
    for p in _boxes(primitives, 'box_3d', None):
        for (x, y, z, length, width, height, yaw), score in _rows(p):
            detection = vision.Detection3D(header=header, results=[_hypothesis(p.label, score)])
            detection.bbox.center = Pose(
                position=Point(x=x, y=y, z=z),
                orientation=Quaternion(z=math.sin(yaw / 2), w=math.cos(yaw / 2)))
            detection.bbox.size = Vector3(x=length, y=width, z=height)
            found.append(detection)
    return vision.Detection3DArray(header=header, detections=found)


def _boxes(primitives, kind: str, camera_id: int | None) -> list[Primitive]:
    return [p for p in primitives if p.type == kind and p.camera_id == camera_id]


def _rows(p: Primitive) -> list[tuple[list[float], float]]:
    """Rows in view, each with the lowest confidence of its values; 1 when there is none."""
    values = np.atleast_2d(np.asarray(p.values, np.float64))
    chances = np.asarray(p.confidences, np.float64)
    scores = (chances.reshape(values.shape).min(1) if chances.size == values.size
              else np.ones(len(values)))
    seen = np.isfinite(values).all(1)
    return list(zip(values[seen].tolist(), scores[seen].tolist()))


def _hypothesis(label: str, score: float):
    result = vision.ObjectHypothesisWithPose()
    result.hypothesis.class_id, result.hypothesis.score = label, score
    return result
