"""
The embedded world as a ROS node: cameras and odometry out, trajectories in.

Every 50 ms of its time it publishes where the car is, every 100 ms what the
cameras see, all of one tick with one stamp (on a machine that is too slow frames
are left out, and that is logged).  The car follows the trajectory
that it is given along that trajectory's own time, or the expert drives it; the
node says on `world/control` which one does.  With `lockstep` its time stands
still until the plan for what it just showed has arrived.  When an episode ends (off the road,
a collision, the end of the route) the next seed begins after a second without
data, so that whoever listens notices; the stamps go on.
"""
from __future__ import annotations

import math
import sys
import time

from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Header, String

from flashdrive_ros import msg

from ..core.types import GRID_NS, NANOSECONDS
from ..world import EVENTS, Trajectory, World, default_rig
from ..world.navigation import navigation_text
from ..world.vehicle import from_map, to_map
from . import qos
from . import world_messages as convert
from .lockstep import LockStep
from .messages import compressed_image, stamp, stamp_ns
from .parameters import NodeParameters, ParameterSpec
from .process import run_to_end

try:
    from tf2_msgs.msg import TFMessage
except ImportError:  # not on PyPI; part of every full ROS installation
    TFMessage = None

TICK_NS = GRID_NS // 2
GAP_NS = 10 * GRID_NS
"""Silence between two episodes: longer than any gap that consumers bridge."""
BLINK_S = 0.25
"""This far behind the wall clock the cameras skip a frame; odometry and the world go on."""
BEHIND_S = 1.0
"""This far behind, stamps skip to the present."""
OFF_ROAD_S = 1.0
WAITS = 'waits for plans'

PARAMETERS = (
    ParameterSpec('seed', 'int', 0, 'first episode; each further one adds 1', 0, 2 ** 31),
    ParameterSpec('scenario', 'string', 'any', 'what episodes are about',
                  choices=('any', *EVENTS)),
    ParameterSpec('control', 'string', 'auto', 'who drives: auto follows plans of trained models '
                  'only, plan follows all, expert none',
                  choices=('auto', 'plan', 'expert'), live=True),
    ParameterSpec('plan_timeout_s', 'float', 1.0, 'the expert takes over from plans this old',
                  0.1, 6.0, live=True),
    ParameterSpec('image_transport', 'string', 'compressed', 'how images are published',
                  choices=('raw', 'compressed', 'both')),
    ParameterSpec('jpeg_quality', 'int', 90, 'of compressed images', 1, 100),
    ParameterSpec('width', 'int', 320, 'of the images', 32, 1920),
    ParameterSpec('height', 'int', 180, 'of the images', 18, 1080),
    ParameterSpec('rate', 'float', 1.0, 'seconds of the world per second', 0.01, 100.0),
    ParameterSpec('lockstep', 'bool', False, 'time goes on only after the plan for what was seen '
                  'last, and no faster than rate'),
    ParameterSpec('lockstep_timeout_s', 'float', 20.0, 'lock-step: go on without a plan after '
                  'this time on the wall clock, until plans come again', 0.01, 1e6),
    ParameterSpec('publish_clock', 'bool', False, 'publish the world\'s time on /clock'),
    ParameterSpec('duration_s', 'float', 0.0, 'end after this much time of the world; 0: never',
                  0.0, 1e9),
    ParameterSpec('wait_for_subscribers', 'int', 0, 'begin when a camera has this many', 0, 100),
    ParameterSpec('wait_s', 'float', 30.0, 'begin without them after this time', 0.0, 1e6),
    ParameterSpec('base_frame', 'string', 'base_link', 'frame of the car and of its plans'),
    ParameterSpec('odom_frame', 'string', 'odom', 'frame of the odometry'),
    ParameterSpec('route_text', 'string', '', 'published once, latched; empty: not at all'),
)


class WorldNode(Node):
    """Runs episode after episode; `run` returns at its end."""

    def __init__(self, **kwargs):
        super().__init__('world', **kwargs)
        # nothing but the live ones has an effect once the node runs
        self._running = False
        self.parameters = NodeParameters(self, PARAMETERS, fixed=lambda: self._running)
        p = dict(self.parameters)
        self._base, self._odom = p['base_frame'], p['odom_frame']
        self.rig = default_rig(p['width'], p['height'])
        self._scenario = None if p['scenario'] == 'any' else p['scenario']
        self._make_publishers(p)
        self._plans = self.create_subscription(
            msg.DrivePlan, 'drive/plan', self._on_plan, qos.PLAN)
        self.create_subscription(msg.PlannedTrajectory, 'drive/trajectory', self._on_trajectory,
                                 qos.PLAN)
        self._lockstep = LockStep() if p['lockstep'] else None
        self._spinner = SingleThreadedExecutor(context=self.context)
        self._spinner.add_node(self)
        self._stopped = False
        self._trained: bool | None = None
        self._plan: Trajectory | None = None
        self._late = False
        self._driver = ''
        self._blink = False
        self._anchor = (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)
        self._now_ns = 0
        self.world = World(p['seed'], self._scenario, rig=self.rig)
        self._anchor = self.world.state.pose, (0.0, 0.0, 0.0)
        self._running = True

    def _make_publishers(self, p):
        make = self.create_publisher
        self._images, self._jpegs, self._infos = {}, {}, {}
        for i, camera in self.rig.items():
            topic = f'camera/{camera.name}/image_raw'
            if p['image_transport'] in ('raw', 'both'):
                self._images[i] = make(Image, topic, qos.camera('reliable'))
            if p['image_transport'] in ('compressed', 'both'):
                self._jpegs[i] = make(CompressedImage, f'{topic}/compressed',
                                      qos.camera('reliable'))
            self._infos[i] = make(CameraInfo, f'camera/{camera.name}/camera_info',
                                  qos.camera('reliable'))
        self._odometry = make(Odometry, 'odometry', 50)
        self._boxes = make(msg.VisualPrimitiveArray, 'world/boxes', qos.PLAN)
        self._cause = make(String, 'world/cause', qos.LATCHED)
        self._control = make(String, 'world/control', qos.LATCHED)
        self._clock_output = make(Clock, '/clock', 10) if p['publish_clock'] else None
        self._source = make(String, 'world/source', qos.LATCHED)
        self._source.publish(String(data=self._about(p)))
        self._nav_text = make(String, 'nav_text', qos.TEXT)
        self._route_text = make(String, 'route_text', qos.LATCHED)
        if p['route_text']:
            self._route_text.publish(String(data=p['route_text']))
        if TFMessage is None:
            self.get_logger().info('tf2_msgs is not installed: no /tf, no /tf_static')
            self._tf = self._tf_static = None
            return
        self._tf = make(TFMessage, '/tf', 100)
        self._tf_static = make(TFMessage, '/tf_static', qos.LATCHED)
        header = Header(frame_id=self._base, stamp=self.get_clock().now().to_msg())
        self._tf_static.publish(TFMessage(transforms=[
            convert.transform(header, c.frame_id, c.position, convert.camera_quaternion(c))
            for c in self.rig.values()]))

    @staticmethod
    def _about(p) -> str:
        """Where images come from, for recordings."""
        return (f'embedded world, from seed {p["seed"]} on, scenario {p["scenario"]}; '
                + (WAITS if p['lockstep'] else f'{p["rate"]:g} times real time'))

    def stop(self):
        """Make `run` return soon; may be called from a signal handler."""
        self._stopped = True

    def run(self):
        """Drive until the duration is over or `stop` is called."""
        self._wait_for_subscribers()
        world, p = self.world, self.parameters
        world.observe()  # builds the renderer and paints the ground before time begins
        self.get_logger().info(
            f'seed {world.seed}, scenario {world.scenario.event}; control: {p["control"]}; '
            f'cameras: {", ".join(c.name for c in self.rig.values())}')
        self._now_ns = -(-time.time_ns() // GRID_NS) * GRID_NS
        self._episode_ns = begin_ns = self._now_ns
        end_ns = begin_ns + p['duration_s'] * NANOSECONDS if p['duration_s'] else math.inf
        due = time.monotonic() + (self._now_ns - time.time_ns()) / NANOSECONDS
        begin_s, self._off_road_since = due, None
        while not self._stopped and self._now_ns < end_ns:
            self._spin_until(due)
            if self._stopped:
                break
            due = self._keep_up(due)
            before_ns = self._now_ns
            self._publish_tick()
            self._await_plan()
            self._advance()
            due += (self._now_ns - before_ns) / NANOSECONDS / p['rate']
        self._report((self._now_ns - begin_ns) / NANOSECONDS, time.monotonic() - begin_s)

    def _report(self, driven_s: float, wall_s: float):
        m, text = self.world.metrics, ''
        if (steps := self._lockstep) is not None:
            text = (f'waited for plans: {driven_s / max(wall_s, 1e-3):.2f} times real time, '
                    f'{steps.answered} windows with a plan, {steps.missed} waited in vain; ')
        self.get_logger().info(
            f'ended after {driven_s:.1f} s; {text}last episode: seed '
            f'{self.world.seed}, collision {m.collided}, off road {m.left_road}')

    def _await_plan(self):
        """In lock-step, stand still until the plan for the window at hand is here."""
        steps, now_ns = self._lockstep, self._now_ns
        if steps is None or now_ns % GRID_NS or not (
                self._plans.get_publisher_count() and steps.expects(now_ns, self._episode_ns)):
            return
        begin, timeout_s = time.monotonic(), self.parameters['lockstep_timeout_s']
        self._spin_until(begin + timeout_s, lambda: steps.is_answered(now_ns))
        steps.note(now_ns, time.monotonic() - begin)
        if not (steps.is_answered(now_ns) or self._stopped):
            self.get_logger().warning(
                f'no plan for the window at {now_ns / NANOSECONDS:.3f} within {timeout_s:g} s: '
                'going on without until plans come again')

    def _keep_up(self, due: float) -> float:
        """Catch up when the machine is too slow; a world with its own clock is just slow."""
        behind, rate = time.monotonic() - due, self.parameters['rate']
        if self._lockstep is not None:
            # the wait for a plan counts as the time until the next window, and not beyond
            return due + max(0.0, behind - GRID_NS / NANOSECONDS / rate)
        self._blink = behind > BLINK_S and self._clock_output is None
        if not self._blink:
            return due
        if behind < BEHIND_S:
            self.get_logger().warning(
                f'{behind:.2f} s behind: the machine is too slow for rate {rate:g}; '
                'frames are left out', throttle_duration_sec=5.0)
            return due
        skipped = math.ceil(behind * rate * NANOSECONDS / GRID_NS) * GRID_NS
        self.get_logger().warning(
            f'{behind:.2f} s behind: the machine is too slow for rate {rate:g}; '
            f'stamps skip {skipped / NANOSECONDS:.1f} s', throttle_duration_sec=5.0)
        self._now_ns += skipped
        self._episode_ns += skipped
        self._plan, self._blink = None, False
        return due + skipped / NANOSECONDS / rate

    def _publish_tick(self):
        """Publish the car's pose; on the 100 ms grid also images and what belongs to them."""
        now = stamp(self._now_ns)
        if self._clock_output is not None:
            self._clock_output.publish(Clock(clock=now))
        state = self.world.state
        pose = self._in_odom(state.pose)
        self._odometry.publish(convert.odometry(
            Header(stamp=now, frame_id=self._odom), self._base, pose, state))
        if self._tf is not None:
            self._tf.publish(TFMessage(transforms=[convert.transform(
                Header(stamp=now, frame_id=self._odom), self._base, (pose[0], pose[1], 0.0),
                convert.yaw_quaternion(pose[2]))]))
        if self._now_ns % GRID_NS == 0 and not self._blink:
            self._publish_images(now)

    def _publish_images(self, now):
        world = self.world
        self._nav_text.publish(String(data=navigation_text(
            world.route, world.s, world.scenario.speed_limit)))
        seen = world.observe()
        for i, image in seen.images.items():
            header = Header(stamp=now, frame_id=self.rig[i].frame_id)
            if i in self._images:
                self._images[i].publish(convert.raw_image(header, image))
            if i in self._jpegs:
                self._jpegs[i].publish(compressed_image(
                    header, image, self.parameters['jpeg_quality']))
            self._infos[i].publish(convert.camera_info(header, self.rig[i]))
        header = Header(stamp=now, frame_id=self._base)
        self._boxes.publish(convert.boxes(header, seen.boxes_3d))
        self._cause.publish(String(data=seen.text))

    def _in_odom(self, pose):
        """Pose in the odometry frame, which goes on smoothly from episode to episode."""
        in_map, in_odom = self._anchor
        return to_map(in_odom, from_map(in_map, [pose]))[0]

    def _advance(self):
        """Move the world to the next tick, into a new episode if this one is over."""
        plan = self._plan_to_follow()
        status = self.world.step(TICK_NS / NANOSECONDS, plan)
        self._now_ns += TICK_NS
        over = self._why_over(status)
        if over:
            self._restart(over, status)

    def _plan_to_follow(self) -> Trajectory | None:
        control, plan, why = self.parameters['control'], self._plan, ''
        if control == 'expert':
            why = 'by the parameter control'
        elif control == 'auto' and self._trained is False:
            why = 'the model is untrained'
        elif plan is None:
            why = 'plans are too old' if self._late else 'no plan yet'
        elif control == 'auto' and self._trained is None:
            why = 'no drive/plan says yet whether the model is trained'
        elif self.world.time - plan.t0_s > self.parameters['plan_timeout_s']:
            why = 'plans are too old'
        driver = f'expert: {why}' if why else 'plan'
        if driver != self._driver:
            self._driver = driver
            self._control.publish(String(data=driver))
            self.get_logger().info(f'driven by {driver}')
        return None if why else plan

    def _why_over(self, status) -> str:
        if not status.off_road:
            self._off_road_since = None
        elif self._off_road_since is None:
            self._off_road_since = status.time
        if status.collision:
            return 'collision'
        if self._off_road_since is not None and status.time - self._off_road_since > OFF_ROAD_S:
            return 'off the road'
        return 'end of the route' if self.world.done else ''

    def _restart(self, why, status):
        old_pose = self._in_odom(self.world.state.pose)
        seed = self.world.seed + 1
        self.get_logger().info(
            f'episode of seed {self.world.seed} ends after {status.time:.1f} s and '
            f'{status.progress:.0f} m: {why} (driven by {self._driver}); '
            f'next: seed {seed}')
        self.world.reset(seed)
        self.world.observe()  # builds the renderer in the gap
        self._anchor = self.world.state.pose, tuple(old_pose)
        self._now_ns = -(-(self._now_ns + GAP_NS) // GRID_NS) * GRID_NS
        self._episode_ns = self._now_ns
        self._plan, self._late, self._off_road_since = None, False, None

    def _on_plan(self, plan: msg.DrivePlan):
        self._trained = bool(plan.trained)
        self._hear('plan', plan.header)

    def _hear(self, kind: str, header: Header):
        if self._lockstep is not None:
            self._lockstep.hear(kind, stamp_ns(header.stamp))

    def _on_trajectory(self, message: msg.PlannedTrajectory):
        self._hear('trajectory', message.header)
        t0_s = (stamp_ns(message.header.stamp) - self._episode_ns) / NANOSECONDS
        if t0_s < 0:
            return  # made from what was seen before this episode
        self._late = self.world.time - t0_s > self.parameters['plan_timeout_s']
        if self._late:
            return
        try:
            points = convert.trajectory_points(message, self._base)
            self.world.pose_at(t0_s)
        except ValueError as error:
            self.get_logger().warning(f'drive/trajectory is not followed: {error}',
                                      throttle_duration_sec=2.0)
            return
        self._plan = Trajectory(t0_s, points)

    def _wait_for_subscribers(self):
        wanted = self.parameters['wait_for_subscribers']
        cameras = [*self._images.values(), *self._jpegs.values()]

        def enough():
            return max(c.get_subscription_count() for c in cameras) >= wanted

        end = time.monotonic() + self.parameters['wait_s']
        while not (self._stopped or enough()) and time.monotonic() < end:
            self._spin_until(time.monotonic() + 0.1)
        if not enough():
            self.get_logger().warning(f'beginning without {wanted} subscriber(s) of a camera')

    def _spin_until(self, due: float, done=lambda: False):
        """Serve callbacks until that monotonic time or until `done()`, at least once."""
        while not self._stopped:
            left = due - time.monotonic()
            self._spinner.spin_once(timeout_sec=min(max(left, 0.0), 0.1))
            if done() or time.monotonic() >= due:
                break


def main(args=None) -> int:
    """Run the world to its end, or until SIGINT or SIGTERM; returns the exit code."""
    return run_to_end('world', WorldNode, args, (ValueError,))


if __name__ == '__main__':
    sys.exit(main())
