"""Camera calibration and mounting as they are published."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.ego import quaternion_to_matrix


@dataclass(frozen=True)
class CameraInfo:
    """Intrinsics of one camera's images: K [3, 3], distortion and size in pixels."""

    frame_id: str
    width: int
    height: int
    k: np.ndarray
    model: str
    d: np.ndarray


def camera_info_of(message) -> CameraInfo | None:
    """
    Intrinsics of the images that a CameraInfo message is about, None when it holds none.

    The message has those of the whole sensor; images are its region of interest
    (`roi`, of size 0 when they are all of it) with `binning` pixels to one.
    """
    if not (message.k[0] > 0 and message.width and message.height):
        return None
    roi, binning = message.roi, np.maximum((message.binning_x, message.binning_y), 1)
    size = np.array((roi.width or message.width, roi.height or message.height)) // binning
    k = np.array(message.k, dtype=float).reshape(3, 3)
    k[:2, 2] -= roi.x_offset, roi.y_offset
    k[:2] /= binning[:, None]
    return CameraInfo(message.header.frame_id, int(size[0]), int(size[1]), k,
                      message.distortion_model, np.array(message.d))


def transforms_of(message) -> dict[str, tuple[str, np.ndarray, np.ndarray]]:
    """Child frame -> (parent frame, rotation, translation) of a TFMessage."""
    found = {}
    for item in message.transforms:
        t, q = item.transform.translation, item.transform.rotation
        rotation = quaternion_to_matrix(np.array([[q.x, q.y, q.z, q.w]]))[0]
        found[item.child_frame_id] = item.header.frame_id, rotation, np.array([t.x, t.y, t.z])
    return found


def chain(transforms, frame_id: str, base_frame: str):
    """
    Chain transforms (`transforms_of`) from a frame up to the one called `base_frame`.

    Returns rotation [3, 3] and position [3] m of the frame in it, None when they don't
    lead there.
    """
    rotation, position = np.eye(3), np.zeros(3)
    for _ in range(len(transforms) + 1):
        if frame_id == base_frame:
            return rotation, position
        if frame_id not in transforms:
            return None
        frame_id, r, t = transforms[frame_id]
        rotation, position = r @ rotation, r @ position + t
    return None
