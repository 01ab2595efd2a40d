"""Camera topics: their names, their message types, and reading a serialized message late."""
from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image

from ..core.types import CAMERA_NAMES, NANOSECONDS, InputError
from ..view.camera import BODY_OF_OPTICAL
from .images import ImageError, decode_compressed, decode_image

MIN_SIDE = 16
"""Pixels: one patch of the vision tower; less shows nothing of a road."""


@dataclass(frozen=True)
class Transport:
    """How images come: message type, topic suffix, decoder to RGB."""

    message_type: type
    suffix: str
    decode: Callable[[object, str], np.ndarray]

    def read(self, topic: str, cdr: bytes) -> np.ndarray:
        """RGB uint8 [H, W, 3] of a serialized message; raises `ImageError` naming the topic."""
        try:
            message = deserialize_message(cdr, self.message_type)
        except Exception as error:
            raise ImageError(
                f'{topic}: not a {self.message_type.__name__}: {error}') from error
        image = self.decode(message, topic)
        if min(image.shape[:2]) < MIN_SIDE:
            raise ImageError(f'{topic}: image of {image.shape[1]} x {image.shape[0]} pixels, '
                             f'at least {MIN_SIDE} x {MIN_SIDE} are needed')
        return image


def transport(kind: str, decoder: str = 'own') -> Transport:
    """
    Return the transport 'raw' or 'compressed', read by our own decoder or by 'cv_bridge'.

    Raises `InputError` when cv_bridge is asked for and can't be had.
    """
    image, compressed = decode_image, decode_compressed
    if decoder == 'cv_bridge':
        from . import cv_bridge_images
        image, compressed = cv_bridge_images.decoders()
    return {'raw': Transport(Image, '', image),
            'compressed': Transport(CompressedImage, '/compressed', compressed)}[kind]


def camera_topics(ids: Sequence[int], topics: Sequence[str], suffix: str) -> dict[int, str]:
    """Topic of each camera; without topics camera/<name>/image_raw."""
    if not ids or not set(ids) <= set(CAMERA_NAMES) or len(set(ids)) < len(ids):
        raise InputError(f'camera_ids must be different ones of {sorted(CAMERA_NAMES)}, '
                         f'got {list(ids)}')
    topics = topics or [f'camera/{CAMERA_NAMES[i]}/image_raw' for i in ids]
    if len(topics) != len(ids):
        raise InputError(f'{len(topics)} camera_topics for {len(ids)} camera_ids')
    if len(set(topics)) < len(topics):
        raise InputError(f'camera_topics must differ, got {list(topics)}')
    return {i: topic.removesuffix(suffix) + suffix for i, topic in zip(ids, topics)}


def camera_mounts(entries: Sequence[str]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """
    Rotation [3, 3] and position [3] m of optical frames in the vehicle's, by camera id.

    An entry is `ID X Y Z ROLL PITCH YAW` of the camera's body (x along the view, y
    left, z up), in m and rad; raises `InputError` naming one that is not.
    """
    mounts = {}
    for entry in entries:
        try:
            camera, (x, y, z, *angles) = int(entry.split()[0]), map(float, entry.split()[1:])
            roll, pitch, yaw = angles
        except (ValueError, IndexError):
            camera = None
        if camera not in CAMERA_NAMES or not np.isfinite((x, y, z, roll, pitch, yaw)).all():
            raise InputError(f'camera_mounts: {entry!r} must be ID X Y Z ROLL PITCH YAW, with one '
                             f'of the ids {sorted(CAMERA_NAMES)}, metres and radians')
        turns = [cv2.Rodrigues(np.array(axis))[0] for axis in
                 ((0, 0, yaw), (0, pitch, 0), (roll, 0, 0))]
        mounts[camera] = turns[0] @ turns[1] @ turns[2] @ BODY_OF_OPTICAL, np.array((x, y, z))
    return mounts


def header_stamp_ns(cdr: bytes) -> int:
    """Stamp of a serialized message that begins with a header, without reading the rest."""
    if len(cdr) < 12:
        raise ImageError(f'a message of {len(cdr)} bytes has no header')
    sec, nanosec = struct.unpack_from('<iI' if cdr[1] & 1 else '>iI', cdr, 4)
    return sec * NANOSECONDS + nanosec
