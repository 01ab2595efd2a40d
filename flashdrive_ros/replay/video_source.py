"""
Replay a video file as the front camera.

The other cameras of a vehicle can't be had from one video.  Alpamayo 1.5 (and
our small model) accepts any subset of cameras, so only the front camera is
published and `drive` is run with `camera_ids: [1]`: better than inventing or
repeating images.  A video has no odometry and no calibration either: ego motion
comes from `EgoMotion` and says so; camera_info is not published at all.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from ..errors import UserError
from ..recording.bag import ODOMETRY_TYPE, split_ns, with_header_stamp
from ..recording.definitions import Definitions
from .ego_motion import EgoMotion
from .source import ReplayMessage, TopicSpec

FRONT_CAMERA = 'front_wide_120'
IMAGE_TYPE = 'sensor_msgs/msg/CompressedImage'
TEXT_TYPE = 'std_msgs/msg/String'
ODOMETRY_TOPIC = 'odometry'
SOURCE_TOPIC = 'replay/source'
EPOCH_NS = 10_000_000_000
"""Stamp of the video's first frame when it keeps its own time (a stamp of 0 means none)."""
LEAD_S = 1.6
"""Odometry begins this long before the first frame: the model's history is 1.5 s."""
ODOMETRY_STEP_S = 0.05
ROUNDING_S = 2e-3
"""Containers keep times in coarse units; a frame this little early is on time."""


class VideoError(UserError):
    """A video can't be used; the message names the file."""


@dataclass(frozen=True)
class VideoFrame:
    """One BGR image and its time in the video."""

    time_s: float
    image: np.ndarray


def read_frames(path, rate_hz: float = 10.0) -> Iterator[VideoFrame]:
    """
    The first frame at or after each of the times 0, 1/rate, 2/rate …, with its own time.

    `rate_hz` 0 gives every frame.  Frames that are not chosen are not decoded
    to an image.  Raises `VideoError` when the file is no video or is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise VideoError(f'video {path}: no such file')
    capture = cv2.VideoCapture(str(path))
    try:
        fps = capture.get(cv2.CAP_PROP_FPS)
        if not capture.isOpened() or not fps > 0:
            raise VideoError(f'video {path}: not a video that OpenCV can read')
        wanted, given = 0, 0
        while capture.grab():
            time_s = capture.get(cv2.CAP_PROP_POS_MSEC) / 1e3
            if rate_hz and time_s < wanted / rate_hz - ROUNDING_S:
                continue
            ok, image = capture.retrieve()
            if not ok:
                raise VideoError(f'video {path}: the frame at {time_s:.2f} s is damaged')
            yield VideoFrame(time_s, image)
            given += 1
            wanted = math.floor((time_s + ROUNDING_S) * rate_hz) + 1
        if not given:
            raise VideoError(f'video {path}: holds no frames')
    finally:
        capture.release()


class VideoSource:
    """The front camera and odometry from a video and an ego motion."""

    clock_difference_ns = 0

    def __init__(self, path, ego_motion: EgoMotion, *, rate_hz: float = 10.0,
                 jpeg_quality: int = 90, start_s: float = 0.0, duration_s: float = 0.0):
        self.path = Path(path)
        self._motion, self._rate_hz, self._quality = ego_motion, rate_hz, jpeg_quality
        self._start_s, self._duration_s = start_s, duration_s or math.inf
        first = next(self._frames(), None)
        if first is None:
            raise VideoError(f'video {self.path}: ends before the start at {start_s} s')
        height, width = first.image.shape[:2]
        self.image_topic = f'camera/{FRONT_CAMERA}/image_raw/compressed'
        self.topics = {
            self.image_topic: TopicSpec(IMAGE_TYPE, reliable=False),
            ODOMETRY_TOPIC: TopicSpec(ODOMETRY_TYPE),
            SOURCE_TOPIC: TopicSpec(TEXT_TYPE, latched=True),
        }
        self.description = (
            f'video {self.path.name} ({width}x{height}) as camera {FRONT_CAMERA} alone; '
            f'no calibration; {ego_motion.description}')
        definitions = Definitions()
        for spec in self.topics.values():
            definitions.require(spec.type)
        self._store = definitions.store

    def _frames(self):
        for frame in read_frames(self.path, self._rate_hz):
            if frame.time_s >= self._start_s + self._duration_s:
                return
            if frame.time_s >= self._start_s:
                yield frame

    def messages(self) -> Iterator[ReplayMessage]:
        """Odometry up to each frame, then the frame."""
        yield self._message(0, SOURCE_TOPIC, self._text(self.description))
        next_s = self._start_s - LEAD_S
        for frame in self._frames():
            while next_s < frame.time_s - 1e-3:
                yield self._odometry(next_s)
                next_s += ODOMETRY_STEP_S
            yield self._odometry(frame.time_s)
            next_s = max(next_s, frame.time_s + 1e-3)
            yield self._image(frame)

    def restamp(self, message: ReplayMessage, offset_ns: int) -> bytes:
        """See `Source.restamp`."""
        if message.topic == SOURCE_TOPIC:
            return message.cdr
        return with_header_stamp(message.cdr, message.stamp_ns + offset_ns)

    def _message(self, time_s, topic, content):
        stamp = EPOCH_NS + round(time_s * 1e9)
        cdr = bytes(self._store.serialize_cdr(content, self.topics[topic].type))
        return ReplayMessage(stamp, stamp, topic, cdr)

    def _header(self, time_s, frame_id):
        stamp = self._types('builtin_interfaces/msg/Time')(
            *split_ns(EPOCH_NS + round(time_s * 1e9)))
        return self._types('std_msgs/msg/Header')(stamp, frame_id)

    def _types(self, name):
        return self._store.types[name]

    def _text(self, text):
        return self._types(TEXT_TYPE)(text)

    def _image(self, frame):
        ok, jpeg = cv2.imencode('.jpg', frame.image, [cv2.IMWRITE_JPEG_QUALITY, self._quality])
        if not ok:
            raise VideoError(f'video {self.path}: the frame at {frame.time_s:.2f} s '
                             'can\'t be compressed')
        return self._message(frame.time_s, self.image_topic, self._types(IMAGE_TYPE)(
            self._header(frame.time_s, f'{FRONT_CAMERA}_optical'), 'jpeg', jpeg.reshape(-1)))

    def _odometry(self, time_s):
        position, quaternion, speed = self._motion.at(time_s)
        vector, no_covariance = self._types('geometry_msgs/msg/Vector3'), np.zeros(36)
        pose = self._types('geometry_msgs/msg/Pose')(
            self._types('geometry_msgs/msg/Point')(*position.tolist()),
            self._types('geometry_msgs/msg/Quaternion')(*quaternion.tolist()))
        twist = self._types('geometry_msgs/msg/Twist')(vector(speed, 0., 0.), vector(0., 0., 0.))
        return self._message(time_s, ODOMETRY_TOPIC, self._types(ODOMETRY_TYPE)(
            self._header(time_s, 'odom'), 'base_link',
            self._types('geometry_msgs/msg/PoseWithCovariance')(pose, no_covariance),
            self._types('geometry_msgs/msg/TwistWithCovariance')(twist, no_covariance)))
