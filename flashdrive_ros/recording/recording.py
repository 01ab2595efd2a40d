"""A recorded drive in memory: plans, camera stamps, ego motion, calibration; images on demand."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..core.ego import quaternion_to_matrix
from ..core.types import CAMERA_NAMES
from .bag import (
    IMAGE_TYPES,
    ODOMETRY_TYPE,
    OUTPUT,
    PLAN_TYPE,
    BagError,
    describe_topics,
    header_stamp_ns,
    open_bag,
    stamp_ns,
    topics_of,
)
from .calibration import CameraInfo, camera_info_of, transforms_of
from .plans import DrawnPrimitive, RecordedPlan, plan_of, primitives_of

BOXES_TYPE = 'flashdrive_ros/msg/VisualPrimitiveArray'
TICK_TOLERANCE_NS = 50_000_000
RECENT_FRAMES = 8


@dataclass
class CameraTrack:
    """The images of one camera: header stamps and log times, in log order."""

    name: str
    topic: str
    frame_id: str = ''
    stamps_ns: list[int] = field(default_factory=list)
    received_ns: list[int] = field(default_factory=list)

    @property
    def camera_id(self) -> int | None:
        """Alpamayo's number of the camera, None for a name it doesn't know."""
        return next((i for i, name in CAMERA_NAMES.items() if name == self.name), None)


@dataclass(frozen=True)
class Alarm:
    """A diagnostic status that is not OK."""

    time_ns: int
    level: int
    name: str
    message: str


class Recording:
    """
    Everything of a bag that summary, pictures and comparison need.

    Topics are found by type, cameras named after the part of their topic that
    is one of `CAMERA_NAMES` (else the whole topic).  Raises `BagError`.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.plans: list[RecordedPlan] = []
        self.cameras: dict[str, CameraTrack] = {}
        self.infos: dict[str, CameraInfo] = {}
        self.transforms: dict[str, tuple[str, np.ndarray, np.ndarray]] = {}
        self.alarms: list[Alarm] = []
        self.boxes: dict[int, tuple[DrawnPrimitive, ...]] = {}
        self.source = ''
        self.control: list[tuple[int, str]] = []
        """Who drives the embedded world from a log time on: 'plan', or 'expert: why'."""
        self._odometry: list[tuple[int, list[float]]] = []
        with open_bag(self.path) as reader:
            self.topics = {c.topic: c.msgtype for c in reader.connections}
            self.counts = {c.topic: c.msgcount for c in reader.connections}
            self.begin_ns, self.end_ns = reader.start_time, reader.end_time
            self._about = describe_topics(reader)
            handlers = self._handlers(reader)
            connections = [c for c in reader.connections if c.topic in handlers]
            for connection, time_ns, cdr in reader.messages(connections):
                handlers[connection.topic](connection, time_ns, cdr, reader)
        self._odometry.sort()
        self.odometry_ns = np.array([stamp for stamp, _ in self._odometry], np.int64)
        self.odometry_pose = np.array([pose for _, pose in self._odometry]).reshape(-1, 7)
        self.size_bytes = sum(f.stat().st_size for f in self._files())

    def _files(self):
        return [f for f in self.path.rglob('*') if f.is_file()] if self.path.is_dir() else [
            self.path]

    def _handlers(self, reader):
        """Topic -> what to do with its messages."""
        by_type = {PLAN_TYPE: self._on_plan, ODOMETRY_TYPE: self._on_odometry,
                   'sensor_msgs/msg/CameraInfo': self._on_camera_info,
                   'tf2_msgs/msg/TFMessage': self._on_transforms,
                   'diagnostic_msgs/msg/DiagnosticArray': self._on_diagnostics}
        handlers = {topic: by_type[kind] for topic, kind in self.topics.items()
                    if kind in by_type and not topic.endswith('/tf')}
        for topic in self._image_topics(reader):
            handlers[topic] = self._on_image
            name = camera_name(topic)
            self.cameras[name] = CameraTrack(name, topic)
        for topic, kind in self.topics.items():
            if kind == BOXES_TYPE and topic.endswith('world/boxes'):
                handlers[topic] = self._on_boxes
            if kind == 'std_msgs/msg/String' and topic.endswith(('replay/source', 'world/source')):
                handlers[topic] = self._on_source
            if kind == 'std_msgs/msg/String' and topic.endswith('world/control'):
                handlers[topic] = self._on_control
        return handlers

    @staticmethod
    def _image_topics(reader):
        """One topic a camera, the compressed one where there are both; none of our outputs."""
        topics = [t for t in topics_of(reader, *IMAGE_TYPES) if not OUTPUT.fullmatch(t)]
        return [t for t in topics if f'{t}/compressed' not in topics]

    def _on_plan(self, connection, time_ns, cdr, reader):
        self.plans.append(plan_of(reader.deserialize(cdr, connection.msgtype), time_ns))

    def _on_image(self, connection, time_ns, cdr, reader):
        track = self.cameras[camera_name(connection.topic)]
        if not track.frame_id:
            track.frame_id = reader.deserialize(cdr, connection.msgtype).header.frame_id
        track.stamps_ns.append(header_stamp_ns(cdr))
        track.received_ns.append(time_ns)

    def _on_odometry(self, connection, time_ns, cdr, reader):
        message = reader.deserialize(cdr, connection.msgtype)
        p, q = message.pose.pose.position, message.pose.pose.orientation
        self._odometry.append((stamp_ns(message.header.stamp),
                               [p.x, p.y, p.z, q.x, q.y, q.z, q.w]))

    def _on_camera_info(self, connection, time_ns, cdr, reader):
        info = camera_info_of(reader.deserialize(cdr, connection.msgtype))
        if info is not None:
            self.infos.setdefault(info.frame_id, info)

    def _on_transforms(self, connection, time_ns, cdr, reader):
        self.transforms.update(transforms_of(reader.deserialize(cdr, connection.msgtype)))

    def _on_diagnostics(self, connection, time_ns, cdr, reader):
        for status in reader.deserialize(cdr, connection.msgtype).status:
            if status.level:
                self.alarms.append(Alarm(time_ns, int(status.level), status.name,
                                         status.message))

    def _on_boxes(self, connection, time_ns, cdr, reader):
        message = reader.deserialize(cdr, connection.msgtype)
        self.boxes[stamp_ns(message.header.stamp)] = primitives_of(message)

    def _on_source(self, connection, time_ns, cdr, reader):
        self.source = reader.deserialize(cdr, connection.msgtype).data

    def _on_control(self, connection, time_ns, cdr, reader):
        self.control.append((time_ns, reader.deserialize(cdr, connection.msgtype).data))

    @property
    def anchor(self) -> CameraTrack:
        """The camera that windows and pictures follow: the front one, else the first."""
        if not self.cameras:
            raise BagError(f'bag {self.path}: no topic with camera images; it has {self._about}')
        names = list(self.cameras)
        return self.cameras[next((n for n in names if 'front_wide' in n), names[0])]

    def pose_at(self, time_ns: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Position [3] and rotation [3, 3] of the vehicle by the odometry next to a time."""
        if not len(self.odometry_ns):
            return None
        i = int(np.argmin(np.abs(self.odometry_ns - time_ns)))
        if abs(int(self.odometry_ns[i]) - time_ns) > TICK_TOLERANCE_NS:
            return None
        pose = self.odometry_pose[i]
        return pose[:3], quaternion_to_matrix(pose[None, 3:])[0]

    def ticks(self) -> Iterator[tuple[int, dict[str, object]]]:
        """
        Stamp of each frame of the anchor camera, with the image messages that belong to it.

        A camera without a frame within 50 ms is missing from the dictionary.
        """
        anchor = self.anchor.name
        names = {track.topic: name for name, track in self.cameras.items()}
        recent = {name: deque(maxlen=RECENT_FRAMES) for name in self.cameras}
        anchor, due = self.anchor.name, None
        with open_bag(self.path) as reader:
            connections = [c for c in reader.connections if c.topic in names]
            for connection, _, cdr in reader.messages(connections):
                name, stamp = names[connection.topic], header_stamp_ns(cdr)
                if name == anchor:
                    # one tick late: the other cameras' frames come before or after this one
                    if due is not None:
                        yield due, _nearest(recent, due, reader)
                    due = stamp
                recent[name].append((stamp, connection.msgtype, cdr))
            if due is not None:
                yield due, _nearest(recent, due, reader)


def _nearest(recent, stamp, reader):
    """The frame of each camera next to a time, if it is near."""
    found = {}
    for name, frames in recent.items():
        if frames:
            nearest = min(frames, key=lambda frame: abs(frame[0] - stamp))
            if abs(nearest[0] - stamp) <= TICK_TOLERANCE_NS:
                found[name] = reader.deserialize(nearest[2], nearest[1])
    return found


def camera_name(topic: str) -> str:
    """Name of a camera from its topic."""
    return next((part for part in topic.split('/') if part in CAMERA_NAMES.values()), topic)
