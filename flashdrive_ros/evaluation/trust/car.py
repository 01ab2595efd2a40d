"""
A car as events: what its cameras and its odometry send, and when; and who sends it.

A fault is mostly a function of a list of events: one that drops some, sends some twice, or
moves their stamps.
"""
from __future__ import annotations

import array
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from nav_msgs.msg import Odometry
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header, String

from ...core.types import CAMERA_NAMES, GRID_NS, NANOSECONDS
from ...nodes import qos
from ...nodes.messages import stamp
from ...nodes.world_messages import raw_image

MS = NANOSECONDS // 1000
SPEED = 10.0
"""Of the car, m/s."""
SIZE = (320, 180)
"""Width and height of its images: those of the shipped model."""
EXPOSURE_NS = 5 * MS
"""From a frame's stamp to its publication."""


@dataclass(frozen=True)
class Event:
    """
    Something that is sent at `due_ns` of the wall clock.

    `source` is a camera id, 'odometry', or 'action', whose `data` is called.  `data` of a camera
    is a JPEG or a finished message; of odometry the position in m, or a message.
    """

    due_ns: int
    source: int | str
    stamp_ns: int = 0
    data: object = None


def picture(seed: int = 0, size: tuple[int, int] = SIZE) -> np.ndarray:
    """RGB uint8 image with some structure, so that its JPEG is of a usual size."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (size[1] // 20, size[0] // 20, 3), np.uint8)
    return cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)


def jpeg(image: np.ndarray) -> bytes:
    """JPEG of an RGB image."""
    return cv2.imencode('.jpg', image[..., ::-1])[1].tobytes()


PICTURE = picture()
PICTURE_JPEG = jpeg(PICTURE)


def next_grid_ns(after_ns: int | None = None) -> int:
    """Next multiple of 100 ms of the wall clock."""
    return -(-(after_ns or time.time_ns()) // GRID_NS) * GRID_NS


def camera_events(begin_ns: int, end_ns: int, camera: int, rate_hz: float = 10.0,
                  phase_ns: int = 0) -> list[Event]:
    """Frames of a camera in [begin, end)."""
    stamps = begin_ns + phase_ns + np.arange(
        0, (end_ns - begin_ns - phase_ns) / NANOSECONDS * rate_hz) * NANOSECONDS / rate_hz
    return [Event(int(s) + EXPOSURE_NS, camera, int(s), PICTURE_JPEG) for s in stamps]


def odometry_events(begin_ns: int, end_ns: int, rate_hz: float = 50.0) -> list[Event]:
    """Poses of a car that goes straight on, in [begin, end)."""
    step = round(NANOSECONDS / rate_hz)
    return [Event(s, 'odometry', s, SPEED * (s % (10 ** 14)) / NANOSECONDS)
            for s in range(begin_ns, end_ns, step)]


def drive_events(begin_ns: int, end_ns: int, cameras: Sequence[int]) -> list[Event]:
    """All that a healthy car sends in [begin, end)."""
    return [event for camera in cameras for event in camera_events(begin_ns, end_ns, camera)] + \
        odometry_events(begin_ns, end_ns)


class Car:
    """Sends events; `transport` as the parameter `image_transport` of the drive node."""

    def __init__(self, node, cameras: Sequence[int], transport: str = 'compressed'):
        self.cameras = tuple(cameras)
        self._raw = transport == 'raw'
        kind = CompressedImage if transport == 'compressed' else Image
        suffix = '/compressed' if transport == 'compressed' else ''
        self.publishers = {
            camera: node.create_publisher(
                kind, f'camera/{CAMERA_NAMES[camera]}/image_raw{suffix}', qos.camera(depth=20))
            for camera in cameras}
        self.publishers['odometry'] = node.create_publisher(Odometry, 'odometry', qos.ODOMETRY)
        self.nav_text = node.create_publisher(String, 'nav_text', qos.TEXT)

    def play(self, events: Iterable[Event]):
        """Send every event when it is due; returns when the last one was sent."""
        for event in sorted(events, key=lambda e: e.due_ns):
            time.sleep(max(0, event.due_ns - time.time_ns()) / NANOSECONDS)
            self.send(event)

    def send(self, event: Event):
        """Send one event now."""
        if event.source == 'action':
            event.data()
        elif event.source == 'odometry':
            self.publishers['odometry'].publish(odometry(event))
        else:
            self.publishers[event.source].publish(image(event, self._raw))

    def prepared(self, event: Event) -> Event:
        """The event with its message serialized, which is sent without delay."""
        message = odometry(event) if event.source == 'odometry' else image(event, self._raw)
        publisher, cdr = self.publishers[event.source], serialize_message(message)
        return Event(event.due_ns, 'action', data=lambda: publisher.publish(cdr))


def image(event: Event, raw: bool = False):
    """Message of a camera's event; a JPEG goes out decoded when `raw`."""
    if raw and isinstance(event.data, bytes):
        return raw_image(Header(stamp=stamp(event.stamp_ns)), PICTURE)
    if not isinstance(event.data, bytes):
        event.data.header.stamp = stamp(event.stamp_ns)
        return event.data
    message = CompressedImage(format='jpeg', data=array.array('B', event.data))
    message.header.stamp = stamp(event.stamp_ns)
    return message


def odometry(event: Event) -> Odometry:
    """Message of odometry's event."""
    message = event.data
    if not isinstance(message, Odometry):
        message = Odometry()
        message.header.frame_id, message.child_frame_id = 'odom', 'base_link'
        message.pose.pose.position.x = float(event.data)
        message.pose.pose.orientation.w = 1.0
        message.twist.twist.linear.x = SPEED
    message.header.stamp = stamp(event.stamp_ns)
    return message


Distortion = Callable[[list[Event], np.random.Generator], list[Event]]
