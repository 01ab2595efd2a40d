"""
Replay: a recorded bag or a video file, onto the topics that cameras and odometry use.

Paced by the recorded time (`rate` 1.0 or faster), or in lock-step (`rate` 0):
the next 100 ms window is published only after the plan for the one before it
arrived, which makes a run independent of the speed of the machine.
"""
from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock

from ..core.types import GRID_NS
from ..recording.bag import PLAN_TYPE, BagError, header_stamp_ns
from ..recording.definitions import UnknownTypeError
from ..replay.bag_source import BagSource
from ..replay.ego_motion import ConstantSpeed, PoseArrays
from ..replay.source import Source
from ..replay.video_source import VideoError, VideoSource
from ..replay.windows import windows
from .interfaces import describe, message_class, number

VIDEO_SUFFIXES = ('.mp4', '.avi', '.mkv', '.mov', '.webm', '.m4v', '.hevc')
GLOBAL_TOPICS = ('/tf', '/tf_static', '/clock')
"""Never moved into a namespace."""
SETTLE_S = 0.3
"""Publishers know of a subscriber before it knows of them; best-effort data would be lost."""
CLOCK_STEP_NS = 10_000_000
LATE_S = 0.2

_K = Parameter.Type
PARAMETERS = (
    ('source', _K.STRING, '', 'Video file, or rosbag2 (folder, .mcap or .db3)'),
    ('rate', _K.DOUBLE, 1.0, 'Speed; 0: lock-step, as fast as plans come'),
    ('loop', _K.BOOL, False, 'Begin again at the end'),
    ('start_s', _K.DOUBLE, 0.0, 'Begin this far into the recording (s)'),
    ('duration_s', _K.DOUBLE, 0.0, 'End after this much of the recording (s); 0: all of it'),
    ('topics', _K.STRING_ARRAY, [''], 'Regular expressions of the bag\'s topics to publish; '
     'empty: all inputs (images, camera info, odometry, tf, texts, clock), no outputs'),
    ('remap', _K.STRING_ARRAY, [''], 'Topic names to change, each as from:=to'),
    ('stamps', _K.STRING, 'auto', 'keep: header stamps as recorded; now: moved to the present; '
     'auto: keep for a bag, now for a video'),
    ('publish_clock', _K.BOOL, False, 'Publish the recorded time on /clock'),
    ('wait_for_subscribers', _K.INTEGER, 1, 'Begin when an image topic has this many'),
    ('wait_s', _K.DOUBLE, 30.0, 'Begin without them after this time (s)'),
    ('plan_topic', _K.STRING, 'drive/plan', 'Lock-step: where plans come'),
    ('plan_timeout_s', _K.DOUBLE, 10.0, 'Lock-step: go on without a plan after this time (s)'),
    ('history_s', _K.DOUBLE, 1.5, 'Lock-step: no plan is awaited for windows with less odometry '
     'before them (s)'),
    ('assumed_speed_mps', _K.DOUBLE, 25.0, 'Video: constant speed that odometry reports (m/s)'),
    ('ego_motion', _K.STRING, '', 'Video: folder of pose arrays (comma2k19 layout) to take '
     'odometry from'),
    ('video_rate_hz', _K.DOUBLE, 10.0, 'Video: frames per second to publish; 0: all'),
    ('jpeg_quality', _K.INTEGER, 90, 'Video: quality of the published JPEG images'),
)
RANGES = {'rate': (0, 100), 'start_s': (0, 1e9), 'duration_s': (0, 1e9),
          'wait_for_subscribers': (0, 100), 'wait_s': (0, 1e9), 'plan_timeout_s': (0.01, 1e9),
          'history_s': (0, 100), 'assumed_speed_mps': (-100, 100), 'video_rate_hz': (0, 1000),
          'jpeg_quality': (1, 100)}
FRACTIONS = tuple(name for name, kind, *_ in PARAMETERS if kind == _K.DOUBLE)


class ReplayError(Exception):
    """The parameters of the replay make no sense; the message names them."""


class ReplayNode(Node):
    """Publishes the messages of a source; `run` returns at its end."""

    def __init__(self, **kwargs):
        super().__init__('replay', **kwargs)
        for name, kind, default, description in PARAMETERS:
            low, high = RANGES.get(name, (None, None))
            self.declare_parameter(name, default, describe(
                kind, description, read_only=True, low=low, high=high))
        self.source = self._open_source()
        self._keep_stamps = self._stamp_policy()
        self._published, self._plans, self._missing_plans, self._late = 0, 0, 0, 0.0
        self._last_clock_ns = None
        self._newest_plan_ns = None
        self._stopped = False
        self._outputs = self._make_publishers()
        self._clock_output = (self.create_publisher(Clock, '/clock', 10)
                              if self._value('publish_clock') else None)
        if self._value('rate') == 0:
            self.create_subscription(message_class(PLAN_TYPE), self._value('plan_topic'),
                                     self._on_plan, 10, raw=True)
        self._spinner = rclpy.executors.SingleThreadedExecutor(context=self.context)
        self._spinner.add_node(self)
        self.get_logger().info(self.source.description)
        if 'ASSUMED' in self.source.description:
            self.get_logger().warning(self.source.description.split('; ')[-1]
                                      + ' (assumed_speed_mps): the footage has no odometry')

    def _value(self, name):
        """Value of a parameter; lists without empty items."""
        value = self.get_parameter(name).value
        if isinstance(value, list):
            return [v for v in value if v]
        return number(name, value, *RANGES[name]) if name in FRACTIONS else value

    def _open_source(self) -> Source:
        path = Path(self._value('source')).expanduser()
        if not self._value('source'):
            raise ReplayError('parameter source is empty: name a video file or a bag')
        cut = {'start_s': self._value('start_s'), 'duration_s': self._value('duration_s')}
        if path.suffix.lower() not in VIDEO_SUFFIXES:
            return BagSource(path, patterns=self._value('topics'), **cut)
        poses = self._value('ego_motion')
        motion = PoseArrays(poses) if poses else ConstantSpeed(self._value('assumed_speed_mps'))
        return VideoSource(path, motion, rate_hz=self._value('video_rate_hz'),
                           jpeg_quality=self._value('jpeg_quality'), **cut)

    def _stamp_policy(self) -> bool:
        policy = self._value('stamps')
        if policy not in ('auto', 'keep', 'now'):
            raise ReplayError(f'parameter stamps must be auto, keep or now, got {policy!r}')
        return policy == 'keep' or (policy == 'auto' and isinstance(self.source, BagSource))

    def _topic_names(self) -> dict[str, str]:
        """Names to publish under: remapped, then moved into the node's namespace."""
        names = {topic: topic for topic in self.source.topics}
        for rule in self._value('remap'):
            old, found, new = rule.partition(':=')
            if not found or not new or old not in names:
                raise ReplayError(f'parameter remap: {rule!r} must be from:=to with a topic of '
                                  f'the recording: {", ".join(sorted(names))}')
            names[old] = new
        namespace = self.get_namespace().rstrip('/')
        return {topic: name if name in GLOBAL_TOPICS or name.startswith(f'{namespace}/')
                else f'{namespace}/{name.lstrip("/")}' for topic, name in names.items()}

    def _make_publishers(self):
        """One for each topic of a type that is installed (PyPI lacks tf2_msgs, for one)."""
        names, outputs = self._topic_names(), {}
        for topic, spec in self.source.topics.items():
            try:
                outputs[topic] = self.create_publisher(
                    message_class(spec.type), names[topic], self._qos(spec))
            except UnknownTypeError as error:
                self.get_logger().warning(f'{topic} is not replayed: {error}')
        return outputs

    def _qos(self, spec):
        """As recorded; in lock-step nothing may be lost, so everything is reliable."""
        reliable = spec.reliable or self._value('rate') == 0
        return QoSProfile(
            depth=100,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=(DurabilityPolicy.TRANSIENT_LOCAL if spec.latched
                        else DurabilityPolicy.VOLATILE))

    def stop(self):
        """Make `run` return soon; may be called from a signal handler."""
        self._stopped = True

    def run(self):
        """Publish the whole source, again and again with `loop`."""
        self._wait_for_subscribers()
        step = self._lock_step if self._value('rate') == 0 else self._paced
        while not self._stopped:
            step()
            if not self._value('loop'):
                break
            self.get_logger().info('end of the recording, beginning again')
        for publisher in self._outputs.values():
            publisher.wait_for_all_acked(rclpy.duration.Duration(seconds=1))
        self._report()

    def _report(self):
        text = f'replayed {self._published} messages'
        if self._value('rate') == 0:
            text += f', {self._plans} windows with a plan, {self._missing_plans} without'
        elif self._late > LATE_S:
            text += f'; up to {self._late:.2f} s late: the machine can\'t keep this rate'
        self.get_logger().info(text)

    def _paced(self):
        """Publish each message when it is due."""
        begin, first_ns, offset_ns, rate = None, 0, 0, self._value('rate')
        for message in self.source.messages():
            if begin is None:
                begin, first_ns = time.monotonic(), message.time_ns
                offset_ns = self._offset_ns(first_ns)
            due = begin + (message.time_ns - first_ns) / 1e9 / rate
            self._spin_until(lambda due=due: time.monotonic() >= due, due - time.monotonic())
            if self._stopped:
                return
            self._late = max(self._late, time.monotonic() - due)
            self._tick(message.time_ns + self.source.clock_difference_ns + offset_ns)
            self._publish(message, offset_ns)

    def _lock_step(self):
        """Publish window after window, each after the plan for the one before."""
        offset_ns, first_odometry_ns = None, None
        self._newest_plan_ns = None
        for window in windows(self.source.messages(), self.source.topics):
            if offset_ns is None:
                offset_ns = self._offset_ns(window.stamp_ns - self.source.clock_difference_ns)
            self._tick(window.stamp_ns + offset_ns)
            for message in window.messages:
                if first_odometry_ns is None and self._is_odometry(message):
                    first_odometry_ns = message.stamp_ns
                self._publish(message, offset_ns)
            covered = first_odometry_ns is not None and (
                window.stamp_ns - first_odometry_ns >= self._value('history_s') * 1e9)
            self._await_plan(window.stamp_ns + offset_ns, covered)
            if self._stopped:
                return

    def _is_odometry(self, message):
        return self.source.topics[message.topic].type == 'nav_msgs/msg/Odometry'

    def _await_plan(self, stamp_ns, expected):
        if not expected:   # nobody answers, so let subscribers take it in as they would live
            self._spin_until(lambda: False, GRID_NS / 1e9)
            return
        oldest = stamp_ns - GRID_NS // 2   # plans bear the time of the grid, not of a frame
        timeout_s = self._value('plan_timeout_s')
        if self._spin_until(lambda: (self._newest_plan_ns or 0) >= oldest, timeout_s):
            self._plans += 1
        elif not self._stopped:
            self._missing_plans += 1
            self.get_logger().warning(
                f'no plan on {self._value("plan_topic")} for the window at '
                f'{stamp_ns / 1e9:.3f} within {timeout_s:g} s', throttle_duration_sec=5.0)

    def _on_plan(self, cdr):
        self._newest_plan_ns = header_stamp_ns(cdr)

    def _offset_ns(self, time_ns) -> int:
        """What to add to recorded stamps."""
        if self._keep_stamps:
            return 0
        return time.time_ns() - time_ns - self.source.clock_difference_ns

    def _publish(self, message, offset_ns):
        output = self._outputs.get(message.topic)
        if output is not None:
            output.publish(self.source.restamp(message, offset_ns) if offset_ns else message.cdr)
            self._published += 1

    def _tick(self, now_ns):
        """Publish /clock, at most every 10 ms of recorded time; a jump back goes out at once."""
        if self._clock_output is None:
            return
        last = self._last_clock_ns
        if last is None or not last <= now_ns < last + CLOCK_STEP_NS:
            self._last_clock_ns = now_ns
            self._clock_output.publish(Clock(clock=rclpy.time.Time(nanoseconds=now_ns).to_msg()))

    def _wait_for_subscribers(self):
        wanted = self._value('wait_for_subscribers')
        images = [self._outputs[topic] for topic, spec in self.source.topics.items()
                  if spec.is_image and topic in self._outputs]

        def enough():
            return max((p.get_subscription_count() for p in images), default=wanted) >= wanted

        if not self._spin_until(enough, self._value('wait_s')) and not self._stopped:
            self.get_logger().warning(
                f'beginning without {wanted} subscriber(s): no image topic has them after '
                f'{self._value("wait_s"):g} s ({", ".join(p.topic_name for p in images)})')
        self._spin_until(lambda: False, SETTLE_S)

    def _spin_until(self, done, timeout_s) -> bool:
        """Serve callbacks until `done()` or the time is over; True when done."""
        end = time.monotonic() + timeout_s
        while not (finished := done()) and not self._stopped:
            left = end - time.monotonic()
            if left <= 0:
                break
            self._spinner.spin_once(timeout_sec=min(left, 0.1))
        return finished


def replay(parameter_overrides=(), args=None) -> int:
    """Replay to the end, or until SIGINT or SIGTERM; returns the exit code."""
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    node = None
    try:
        node = ReplayNode(parameter_overrides=list(parameter_overrides))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: node.stop())
        node.run()
    except (BagError, VideoError, ReplayError, UnknownTypeError, ValueError) as error:
        print(f'replay: {error}', file=sys.stderr)
        return 1
    finally:
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()
    return 0


def main(args=None):
    """Entry point of the `replay` executable; returns the exit code."""
    return replay(args=args)


if __name__ == '__main__':
    sys.exit(main())
