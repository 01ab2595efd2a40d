"""Camera calibration and mounting as they are published."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.ego import quaternion_to_matrix


@dataclass(frozen=True)
class CameraInfo:
    """Intrinsics of one camera as published: K [3, 3], distortion and size in pixels."""

    frame_id: str
    width: int
    height: int
    k: np.ndarray
    model: str
    d: np.ndarray


def camera_info_of(message) -> CameraInfo | None:
    """Intrinsics of a CameraInfo message, None when it holds none."""
    if not message.k[0] > 0:
        return None
    return CameraInfo(message.header.frame_id, message.width, message.height,
                      np.array(message.k).reshape(3, 3), message.distortion_model,
                      np.array(message.d))


def transforms_of(message) -> dict[str, tuple[str, np.ndarray, np.ndarray]]:
    """Child frame -> (parent frame, rotation, translation) of a TFMessage."""
    found = {}
    for item in message.transforms:
        t, q = item.transform.translation, item.transform.rotation
        rotation = quaternion_to_matrix(np.array([[q.x, q.y, q.z, q.w]]))[0]
        found[item.child_frame_id] = item.header.frame_id, rotation, np.array([t.x, t.y, t.z])
    return found
