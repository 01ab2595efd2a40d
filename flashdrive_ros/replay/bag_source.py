"""Replay a rosbag2: the recorded bytes, unchanged."""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from rosbags.interfaces import QosDurability, QosReliability

from ..recording.bag import (
    IMAGE_TYPES,
    ODOMETRY_TYPE,
    OUTPUT,
    BagError,
    describe_topics,
    header_stamp_ns,
    open_bag,
    split_ns,
    stamp_ns,
    starts_with_header,
    with_header_stamp,
)
from .source import ReplayMessage, TopicSpec

INPUT_TYPES = (*IMAGE_TYPES, ODOMETRY_TYPE, 'sensor_msgs/msg/CameraInfo', 'sensor_msgs/msg/Imu',
               'tf2_msgs/msg/TFMessage', 'rosgraph_msgs/msg/Clock')
INPUT_NAMES = re.compile(r'.*/(nav_text|route_text|world/.*|replay/source)')
"""Inputs of types that outputs have as well."""
"""Published by the drive node itself, whatever the type."""
OTHER_CLOCK_NS = 60_000_000_000
"""Header stamps further than this from the log time are of another clock."""


class BagSource:
    """
    The input topics of a bag, or those that match `patterns`.

    Log times are bag times; `start_s` and `duration_s` cut the bag.  Raises
    `BagError` for an unreadable bag, a pattern without a topic and, without
    patterns, a bag without images or odometry.
    """

    def __init__(self, path, *, patterns=(), start_s: float = 0.0, duration_s: float = 0.0):
        self.path = Path(path)
        self._start_s, self._duration_s = start_s, duration_s
        with open_bag(self.path) as reader:
            self._names = self._choose(reader, list(patterns))
            self.topics = {c.topic: _spec(c) for c in reader.connections
                           if c.topic in self._names}
            self._store = reader.typestore
            self._headed = {topic: starts_with_header(self._store, spec.type)
                            for topic, spec in self.topics.items()}
            self.clock_difference_ns = self._clock_difference(reader)
            length_s = reader.duration / 1e9
        if start_s >= length_s:
            raise BagError(f'bag {self.path}: start at {start_s} s is beyond its {length_s:.1f} s')
        self.description = f'bag {self.path} ({length_s:.1f} s, {len(self.topics)} topics)'

    def _choose(self, reader, patterns) -> set[str]:
        have = {c.topic: c.msgtype for c in reader.connections if c.msgcount}
        if patterns:
            for pattern in patterns:
                try:
                    found = any(re.fullmatch(pattern, topic) for topic in have)
                except re.error as error:
                    raise BagError(f'topic pattern {pattern!r}: {error}') from error
                if not found:
                    raise BagError(f'bag {self.path}: no topic matches {pattern!r}; '
                                   f'it has {describe_topics(reader)}')
            return {t for t in have if any(re.fullmatch(p, t) for p in patterns)}
        chosen = {topic for topic, kind in have.items() if not OUTPUT.fullmatch(topic)
                  and (kind in INPUT_TYPES or INPUT_NAMES.fullmatch(topic))}
        for what, types in (('camera images', IMAGE_TYPES), ('odometry', (ODOMETRY_TYPE,))):
            if not any(have[topic] in types for topic in chosen):
                raise BagError(f'bag {self.path}: no topic with {what} ({" or ".join(types)}); '
                               f'it has {describe_topics(reader)}')
        return chosen

    def _clock_difference(self, reader) -> int:
        """Header stamp minus log time of the first image, if they are not of one clock."""
        images = [c for c in reader.connections if c.topic in self._names
                  and self.topics[c.topic].is_image]
        if not images:
            return 0
        _, time_ns, cdr = next(reader.messages(images))
        difference = header_stamp_ns(cdr) - time_ns
        return difference if abs(difference) > OTHER_CLOCK_NS else 0

    def messages(self) -> Iterator[ReplayMessage]:
        """Messages in log order; `BagError` when the bag turns out to be damaged."""
        with open_bag(self.path) as reader:
            start = reader.start_time + round(self._start_s * 1e9)
            stop = start + round(self._duration_s * 1e9) if self._duration_s else None
            connections = [c for c in reader.connections if c.topic in self._names]
            yield from self._latched_before(reader, connections, start)
            for connection, time_ns, cdr in reader.messages(connections, start=start, stop=stop):
                yield self._message(connection, time_ns, cdr)

    def _latched_before(self, reader, connections, start):
        """The last latched messages before the start: what a late subscriber would get."""
        latched = [c for c in connections if self.topics[c.topic].latched]
        if self._start_s and latched:
            last = {c.topic: (c, cdr) for c, _, cdr in reader.messages(latched, stop=start)}
            for connection, cdr in last.values():
                yield self._message(connection, start, cdr)

    def _message(self, connection, time_ns, cdr):
        stamp = header_stamp_ns(cdr) if self._headed[connection.topic] else None
        return ReplayMessage(time_ns, stamp, connection.topic, cdr)

    def restamp(self, message: ReplayMessage, offset_ns: int) -> bytes:
        """The message with `offset_ns` added to every header stamp that is set."""
        if self.topics[message.topic].is_image:   # big, and its header is the only one
            return with_header_stamp(message.cdr, message.stamp_ns + offset_ns)
        kind = self.topics[message.topic].type
        content = self._store.deserialize_cdr(message.cdr, kind)
        _shift(content, offset_ns)
        return bytes(self._store.serialize_cdr(content, kind))


def _spec(connection) -> TopicSpec:
    """QoS as it was offered; without a record of it, what such topics have by custom."""
    offered = connection.ext.offered_qos_profiles
    if offered:
        return TopicSpec(
            connection.msgtype,
            reliable=offered[0].reliability != QosReliability.BEST_EFFORT,
            latched=offered[0].durability == QosDurability.TRANSIENT_LOCAL)
    latched = re.fullmatch(r'.*/(tf_static|route_text|replay/source)', connection.topic)
    return TopicSpec(connection.msgtype, reliable=connection.msgtype not in IMAGE_TYPES,
                     latched=bool(latched))


def _shift(value, offset_ns):
    """Add to the header stamps (and /clock times) anywhere in a message; 0 means unset."""
    if isinstance(value, list):
        for item in value:
            _shift(item, offset_ns)
    elif is_dataclass(value):
        name = type(value).__name__
        time = {'std_msgs__msg__Header': 'stamp', 'rosgraph_msgs__msg__Clock': 'clock'}.get(name)
        if time:
            stamp = getattr(value, time)
            if stamp_ns(stamp):
                stamp.sec, stamp.nanosec = split_ns(stamp_ns(stamp) + offset_ns)
        else:
            for item in fields(value):
                _shift(getattr(value, item.name), offset_ns)
