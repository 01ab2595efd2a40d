"""
Replay: a recorded bag or a video file, onto the topics that cameras and odometry use.

Paced by the recorded time (`rate` 1.0 or faster), or in lock-step (`rate` 0):
the next 100 ms window is published only after the plan for the one before it
arrived, which makes a run independent of the speed of the machine.
"""
from __future__ import annotations

import sys
import time
from pathlib import Path

import rclpy
from rclpy.exceptions import NameValidationException
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from ..core.types import GRID_NS
from ..errors import UserError
from ..recording.bag import PLAN_TYPE, header_stamp_ns
from ..recording.definitions import UnknownTypeError
from ..replay.bag_source import BagSource
from ..replay.ego_motion import ConstantSpeed, PoseArrays
from ..replay.source import Source
from ..replay.video_source import VideoSource
from ..replay.windows import windows
from .interfaces import message_class
from .parameters import NodeParameters
from .process import run_to_end
from .recording_parameters import REPLAY

VIDEO_SUFFIXES = ('.mp4', '.avi', '.mkv', '.mov', '.webm', '.m4v', '.hevc')
GLOBAL_TOPICS = ('/tf', '/tf_static', '/clock')
"""Never moved into a namespace."""
SETTLE_S = 0.3
"""Publishers know of a subscriber before it knows of them; best-effort data would be lost."""
CLOCK_STEP_NS = 10_000_000
LATE_S = 0.2


class ReplayError(UserError):
    """The parameters of the replay make no sense; the message names them."""


class ReplayNode(Node):
    """Publishes the messages of a source; `run` returns at its end."""

    def __init__(self, **kwargs):
        super().__init__('replay', **kwargs)
        self.values = NodeParameters(self, REPLAY, fixed=lambda: True)
        self.source = self._open_source()
        self._keep_stamps = self.values['stamps'] == 'keep' or (
            self.values['stamps'] == 'auto' and isinstance(self.source, BagSource))
        self._published, self._plans, self._missing_plans, self._late = 0, 0, 0, 0.0
        self._last_clock_ns = None
        self._newest_plan_ns = None
        self._stopped = False
        self._outputs = self._make_publishers()
        self._clock_output = (self.create_publisher(Clock, '/clock', 10)
                              if self.values['publish_clock'] else None)
        if self.values['rate'] == 0:
            self.create_subscription(message_class(PLAN_TYPE), self.values['plan_topic'],
                                     self._on_plan, 10, raw=True)
        self._spinner = rclpy.executors.SingleThreadedExecutor(context=self.context)
        self._spinner.add_node(self)
        self.get_logger().info(self.source.description)
        if 'ASSUMED' in self.source.description:
            self.get_logger().warning(self.source.description.split('; ')[-1]
                                      + ' (assumed_speed_mps): the footage has no odometry')

    def _open_source(self) -> Source:
        path = Path(self.values['source']).expanduser()
        if not self.values['source']:
            raise ReplayError('parameter source is empty: name a video file or a bag')
        cut = {'start_s': self.values['start_s'], 'duration_s': self.values['duration_s']}
        if path.suffix.lower() not in VIDEO_SUFFIXES:
            return BagSource(path, patterns=self.values['topics'], **cut)
        poses = self.values['ego_motion']
        motion = PoseArrays(poses) if poses else ConstantSpeed(self.values['assumed_speed_mps'])
        return VideoSource(path, motion, rate_hz=self.values['video_rate_hz'],
                           jpeg_quality=self.values['jpeg_quality'], **cut)

    def _topic_names(self) -> dict[str, str]:
        """Names to publish under: remapped, then moved into the node's namespace."""
        names = {topic: topic for topic in self.source.topics}
        for rule in self.values['remap']:
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
        reliable = spec.reliable or self.values['rate'] == 0
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
        step = self._lock_step if self.values['rate'] == 0 else self._paced
        while not self._stopped:
            step()
            if not self.values['loop']:
                break
            self.get_logger().info('end of the recording, beginning again')
        for publisher in self._outputs.values():
            publisher.wait_for_all_acked(rclpy.duration.Duration(seconds=1))
        self._report()

    def _report(self):
        text = f'replayed {self._published} messages'
        if self.values['rate'] == 0:
            text += f', {self._plans} windows with a plan, {self._missing_plans} without'
        elif self._late > LATE_S:
            text += f'; up to {self._late:.2f} s late: the machine can\'t keep this rate'
        self.get_logger().info(text)

    def _paced(self):
        """Publish each message when it is due."""
        begin, first_ns, offset_ns, rate = None, 0, 0, self.values['rate']
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
                window.stamp_ns - first_odometry_ns >= self.values['history_s'] * 1e9)
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
        timeout_s = self.values['plan_timeout_s']
        if self._spin_until(lambda: (self._newest_plan_ns or 0) >= oldest, timeout_s):
            self._plans += 1
        elif not self._stopped:
            self._missing_plans += 1
            self.get_logger().warning(
                f'no plan on {self.values["plan_topic"]} for the window at '
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
        wanted = self.values['wait_for_subscribers']
        images = [self._outputs[topic] for topic, spec in self.source.topics.items()
                  if spec.is_image and topic in self._outputs]

        def enough():
            return max((p.get_subscription_count() for p in images), default=wanted) >= wanted

        if not self._spin_until(enough, self.values['wait_s']) and not self._stopped:
            self.get_logger().warning(
                f'beginning without {wanted} subscriber(s): no image topic has them after '
                f'{self.values["wait_s"]:g} s ({", ".join(p.topic_name for p in images)})')
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
    return run_to_end('replay', lambda: ReplayNode(parameter_overrides=list(parameter_overrides)),
                      args, (UserError, ValueError, NameValidationException))


def main(args=None):
    """Entry point of the `replay` executable; returns the exit code."""
    return replay(args=args)


if __name__ == '__main__':
    sys.exit(main())
