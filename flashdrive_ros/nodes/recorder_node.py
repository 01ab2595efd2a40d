"""
Recorder: writes topics to a rosbag2 (mcap or sqlite3), as they are on the wire.

Topics are found in the ROS graph and subscribed raw, with the QoS that their
publishers offer; nothing is deserialised.  SIGINT and SIGTERM finish the bag.
"""
from __future__ import annotations

import re
import signal
import sys
from functools import partial

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from ..errors import UserError
from ..recording.bag import BagError
from ..recording.definitions import UnknownTypeError
from ..recording.writer import BagWriter, offered_qos
from . import qos
from .interfaces import message_class
from .parameters import NodeParameters
from .recording_parameters import RECORDER

DISCOVERY_S = 0.2
REPORT_S = 2.0
DRAWN = '.*/annotated/.*'
"""Images that are drawn only for those who subscribe: not for a recorder that is not asked to."""
DEPTH = 100
"""Messages per topic that wait for the executor; the bag's own queue is bounded in bytes."""


class RecorderNode(Node):
    """Subscribes to every topic that is wanted and hands the bytes to a `BagWriter`."""

    def __init__(self, **kwargs):
        super().__init__('recorder', **kwargs)
        values = NodeParameters(self, RECORDER, fixed=lambda: True)
        self._wanted = _patterns(values['topics'] or ['.*'])
        self._unwanted = _patterns([*values['exclude'], *([] if values['topics'] else [DRAWN])])
        self._prefer_compressed = values['prefer_compressed']
        self._refused: set[str] = set()
        self._reported_drops = 0
        self.bag = BagWriter(values['bag'], storage=values['storage'],
                             queue_bytes=values['queue_mb'] << 20)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        self._steady = rclpy.clock.Clock(clock_type=rclpy.clock.ClockType.STEADY_TIME)
        self.create_timer(DISCOVERY_S, self.discover, clock=self._steady)
        self.create_timer(REPORT_S, self._report, clock=self._steady)
        self.discover()

    def discover(self):
        """Subscribe to the wanted topics that are new in the graph."""
        graph = dict(self.get_topic_names_and_types())
        for topic, types in sorted(graph.items()):
            if topic in self.bag.topics or topic in self._refused or not self._is_wanted(
                    topic, graph):
                continue
            publishers = self.get_publishers_info_by_topic(topic)
            if publishers:
                self._add(topic, types, publishers)

    def _is_wanted(self, topic, graph) -> bool:
        if any(p.fullmatch(topic) for p in self._unwanted):
            return False
        if (self._prefer_compressed and 'sensor_msgs/msg/Image' in graph[topic]
                and f'{topic}/compressed' in graph):
            return False
        return any(p.fullmatch(topic) for p in self._wanted)

    def _add(self, topic, types, publishers):
        """Subscribe with the QoS on offer: the strictest that all publishers meet."""
        reliable = all(p.qos_profile.reliability == ReliabilityPolicy.RELIABLE
                       for p in publishers)
        latched = all(p.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
                      for p in publishers)
        profile = QoSProfile(
            history=HistoryPolicy.KEEP_LAST, depth=DEPTH,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE)
        try:
            if len(types) > 1:
                raise UnknownTypeError(f'it has several types: {", ".join(types)}')
            kind = message_class(types[0])
            self.bag.add_topic(topic, types[0], offered_qos(
                reliable=reliable, latched=latched, depth=10))
        except UnknownTypeError as error:
            self._refused.add(topic)
            self.get_logger().warning(f'{topic} is not recorded: {error}')
            return
        self.create_subscription(kind, topic, partial(self._on_message, topic), profile, raw=True)
        self.get_logger().info(f'recording {topic} ({types[0]})')

    def _on_message(self, topic, cdr):
        self.bag.put(topic, self.get_clock().now().nanoseconds, cdr)

    def _report(self):
        """Publish counts and warn of drops since the last report."""
        dropped, written = self.bag.dropped.total(), self.bag.written.total()
        level, message = DiagnosticStatus.OK, f'{written} messages written'
        if self.bag.error:
            level, message = DiagnosticStatus.ERROR, f'writing failed: {self.bag.error}'
        elif dropped > self._reported_drops:
            level, message = DiagnosticStatus.WARN, f'{dropped} messages dropped: disk too slow'
        if level != DiagnosticStatus.OK:
            self.get_logger().warning(message)
        self._reported_drops = dropped
        status = DiagnosticStatus(
            level=level, name=f'{self.get_name()}: bag', message=message,
            hardware_id=str(self.bag.path),
            values=[KeyValue(key=topic, value=f'{self.bag.written[topic]} written, '
                                              f'{self.bag.dropped[topic]} dropped')
                    for topic in sorted(self.bag.topics)])
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)


def _patterns(texts):
    try:
        return [re.compile(t) for t in texts]
    except re.error as error:
        raise BagError(f'topic pattern {error.pattern!r}: {error}') from error


def record(parameter_overrides=(), args=None) -> int:
    """Record until SIGINT or SIGTERM; returns the exit code."""
    stopped = []
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(True))
    node = None
    try:
        node = RecorderNode(parameter_overrides=list(parameter_overrides))
        executor = rclpy.executors.SingleThreadedExecutor()
        executor.add_node(node)
        while not stopped and node.bag.error is None:
            executor.spin_once(timeout_sec=0.2)
        node.bag.close()
        _print_counts(node.bag)
    except (UserError, ValueError) as error:
        print(f'recorder: {error}', file=sys.stderr)
        return 1
    finally:
        if node is not None:
            if node.bag.error is None:
                node.bag.close()
            node.destroy_node()
        rclpy.try_shutdown()
    return 0


def _print_counts(bag):
    print(f'recorder: {bag.path}: {bag.written.total()} messages of {len(bag.topics)} topics, '
          f'{bag.dropped.total()} dropped')
    for topic in sorted(bag.topics):
        print(f'  {topic}: {bag.written[topic]}'
              + (f', {bag.dropped[topic]} dropped' if bag.dropped[topic] else ''))


def main(args=None):
    """Entry point of the `recorder` executable; returns the exit code."""
    return record(args=args)


if __name__ == '__main__':
    sys.exit(main())
