"""The world node over real DDS: topics, stamps, closed loop, episodes, a clean end."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip('rclpy')
msg = pytest.importorskip('flashdrive_ros.msg')

import cv2  # noqa: E402
from geometry_msgs.msg import Point, Pose  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.qos import QoSProfile  # noqa: E402
from sensor_msgs.msg import CameraInfo, CompressedImage, Image  # noqa: E402
from std_msgs.msg import Header, String  # noqa: E402

from flashdrive_ros.nodes import qos  # noqa: E402
from flashdrive_ros.nodes.messages import duration, stamp, stamp_ns  # noqa: E402
from flashdrive_ros.nodes.world_messages import (  # noqa: E402
    camera_quaternion,
    trajectory_points,
    yaw_quaternion,
)
from flashdrive_ros.nodes.world_node import WorldNode  # noqa: E402
from flashdrive_ros.world import World, default_rig  # noqa: E402

CAMERAS = ('cross_left_120', 'front_wide_120', 'cross_right_120', 'front_tele_30')
MS = 1_000_000


class Listener:
    """A world node in a thread of its own, and everything that it says."""

    def __init__(self, rclpy, **parameters):
        self.node = rclpy.create_node('listener')
        self.heard = {}
        keep = QoSProfile(depth=200)
        for name in CAMERAS:
            self._listen(Image, f'camera/{name}/image_raw', keep)
            self._listen(CompressedImage, f'camera/{name}/image_raw/compressed', keep)
            self._listen(CameraInfo, f'camera/{name}/camera_info', keep)
        self._listen(Odometry, 'odometry', keep)
        self._listen(msg.VisualPrimitiveArray, 'world/boxes', keep)
        for topic in ('world/cause', 'world/control', 'route_text'):
            self._listen(String, topic, qos.LATCHED)
        self._listen(String, 'nav_text', keep)
        self.plans = self.node.create_publisher(msg.DrivePlan, 'drive/plan', qos.PLAN)
        self.trajectories = self.node.create_publisher(
            msg.PlannedTrajectory, 'drive/trajectory', qos.PLAN)
        # with a clock of its own the world never skips time on a busy machine
        defaults = {'wait_for_subscribers': 1, 'image_transport': 'raw', 'publish_clock': True}
        self.world = WorldNode(parameter_overrides=[
            Parameter(k, value=v) for k, v in {**defaults, **parameters}.items()])
        self.failure = None
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.threads = [threading.Thread(target=self._spin), threading.Thread(target=self._run)]
        for thread in self.threads:
            thread.start()

    def _listen(self, kind, topic, profile):
        self.heard[topic] = []
        self.node.create_subscription(kind, topic, self.heard[topic].append, profile)

    def _spin(self):
        with contextlib.suppress(ExternalShutdownException):
            self.executor.spin()

    def _run(self):
        try:
            self.world.run()
        except Exception as error:
            self.failure = error

    def until(self, condition, timeout_s=60.0):
        end = time.monotonic() + timeout_s
        while not condition():
            assert self.failure is None, self.failure
            assert time.monotonic() < end, {k: len(v) for k, v in self.heard.items()}
            time.sleep(0.01)

    def finished(self):
        self.threads[1].join(60)
        assert not self.threads[1].is_alive() and self.failure is None
        time.sleep(0.3)   # what is still on its way

    def close(self):
        self.world.stop()
        self.threads[1].join(10)
        self.executor.shutdown(2.0)
        self.threads[0].join(10)
        assert self.failure is None, self.failure

    def stamps(self, topic):
        return [stamp_ns(m.header.stamp) for m in self.heard[topic]]

    def poses(self):
        """Odometry by stamp: x, y, yaw."""
        return {stamp_ns(m.header.stamp): (
            m.pose.pose.position.x, m.pose.pose.position.y,
            2 * np.arctan2(m.pose.pose.orientation.z, m.pose.pose.orientation.w))
            for m in self.heard['odometry']}

    def send(self, points, trained=None, frame='base_link', age_s=0.0):
        """Publish a trajectory that begins at the newest odometry, or before; returns t0 (ns)."""
        t0 = self.stamps('odometry')[-1] - round(age_s * 1000) * MS
        header = Header(stamp=stamp(t0), frame_id=frame)
        if trained is not None:
            self.plans.publish(msg.DrivePlan(header=header, trained=trained))
        self.trajectories.publish(msg.PlannedTrajectory(header=header, points=[
            msg.TrajectoryPoint(
                time_from_start=duration(0.1 * (i + 1)),
                pose=Pose(position=Point(x=float(x), y=float(y)), orientation=yaw_quaternion(yaw)))
            for i, (x, y, yaw) in enumerate(points)]))
        return t0


@pytest.fixture
def listen(ros):
    started = []

    def start(**parameters):
        started.append(Listener(ros, **parameters))
        return started[-1]
    yield start
    for listener in started:
        listener.close()
        listener.world.destroy_node()
        listener.node.destroy_node()


def arc(speed, curvature, acceleration=0.0, n=64):
    """Points 0.1 s apart on a circle."""
    t = 0.1 * np.arange(1, n + 1)
    turned = (speed * t + acceleration * t * t / 2) * curvature
    return np.stack([np.sin(turned) / curvature, (1 - np.cos(turned)) / curvature, turned], 1)


def test_topics_rates_and_content(listen):
    run = listen(seed=4, scenario='follow', duration_s=2.0, route_text='Continue straight')
    run.finished()
    images = [run.stamps(f'camera/{name}/image_raw') for name in CAMERAS]
    assert len(images[0]) == 20 and set(np.diff(images[0])) == {100 * MS}
    assert all(stamps == images[0] for stamps in images)
    odometry = run.stamps('odometry')
    assert set(np.diff(odometry)) == {50 * MS} and set(images[0]) <= set(odometry)
    assert run.stamps('world/boxes') == images[0]
    assert all(run.heard['world/boxes'][k].header.frame_id == 'base_link' for k in (0, -1))
    assert run.heard['route_text'][0].data == 'Continue straight'
    assert len(run.heard['nav_text']) == 20 and run.heard['nav_text'][0].data.startswith('Limit ')
    assert run.heard['world/control'][-1].data == 'expert: no plan yet'
    assert ' because ' in run.heard['world/cause'][-1].data
    for camera in default_rig().values():
        info = run.heard[f'camera/{camera.name}/camera_info'][0]
        assert np.allclose(info.k.reshape(3, 3), camera.intrinsics) and not any(info.d)
        assert (info.width, info.height, info.header.frame_id) == (
            320, 180, f'{camera.name}_optical')


def test_images_are_those_of_the_world(listen):
    run = listen(seed=4, scenario='follow', duration_s=1.0, image_transport='both')
    run.finished()
    world = World(4, 'follow')
    for k in range(10):
        seen = world.observe()
        for camera in world.rig.values():
            raw = run.heard[f'camera/{camera.name}/image_raw'][k]
            assert (raw.encoding, raw.step) == ('rgb8', 960)
            image = np.frombuffer(raw.data, np.uint8).reshape(180, 320, 3)
            assert np.array_equal(image, seen.images[camera.id])
            jpeg = run.heard[f'camera/{camera.name}/image_raw/compressed'][k]
            decoded = cv2.imdecode(np.frombuffer(jpeg.data, np.uint8), cv2.IMREAD_COLOR)
            assert np.abs(decoded[..., ::-1].astype(int) - image).mean() < 6
        boxes = run.heard['world/boxes'][k].primitives
        assert sum(len(p.values) for p in boxes) == 7 * len(seen.boxes_3d)
        world.step(0.05), world.step(0.05)


def test_twist_is_the_derivative_of_the_pose(listen):
    run = listen(seed=2, scenario='curve', duration_s=2.0)
    run.finished()
    messages = run.heard['odometry']
    poses = np.array(list(run.poses().values()))
    speed = np.hypot(*np.diff(poses[:, :2], axis=0).T) / 0.05
    turn = np.diff(np.unwrap(poses[:, 2])) / 0.05
    twist = np.array([(m.twist.twist.linear.x, m.twist.twist.angular.z) for m in messages])
    middle = (twist[1:] + twist[:-1]) / 2
    assert np.abs(middle[:, 0] - speed).max() < 0.02
    assert np.abs(middle[:, 1] - turn).max() < 0.03
    assert {m.child_frame_id for m in messages} == {'base_link'}
    assert {m.header.frame_id for m in messages} == {'odom'}


def test_follows_a_given_trajectory_along_its_own_time(listen):
    run = listen(seed=5, scenario='free', control='plan', plan_timeout_s=5.0)
    run.until(lambda: len(run.heard['odometry']) > 10)
    speed = run.heard['odometry'][-1].twist.twist.linear.x
    plan = arc(speed, -0.006, -1.0)
    t0 = run.send(plan)
    run.until(lambda: run.stamps('odometry')[-1] >= t0 + 2600 * MS)
    assert run.heard['world/control'][-1].data == 'plan'
    poses = run.poses()
    x0, y0, yaw0 = poses[t0]
    for k in (9, 14, 19, 24):
        x, y, _ = poses[t0 + (k + 1) * 100 * MS]
        c, s = np.cos(yaw0), np.sin(yaw0)
        along = (x - x0) * c + (y - y0) * s, -(x - x0) * s + (y - y0) * c
        assert np.hypot(along[0] - plan[k, 0], along[1] - plan[k, 1]) < 0.15


def test_auto_follows_only_plans_of_trained_models(listen):
    run = listen(seed=1, scenario='free', control='auto')
    run.until(lambda: len(run.heard['odometry']) > 4)
    run.send(arc(10.0, 0.01), trained=False)
    run.until(lambda: run.heard['world/control'][-1].data == 'expert: the model is untrained')
    run.send(arc(10.0, 0.01), trained=True)
    run.until(lambda: run.heard['world/control'][-1].data == 'plan')
    run.until(lambda: run.heard['world/control'][-1].data == 'expert: plans are too old')


def test_a_plan_off_the_road_ends_the_episode_and_time_goes_on(listen):
    run = listen(seed=3, scenario='free', control='plan', plan_timeout_s=6.0, rate=2.0)
    run.until(lambda: len(run.heard['odometry']) > 4)
    t = 0.1 * np.arange(1, 65)
    run.send(np.stack([8 * t, -3 * t, np.full(64, np.arctan2(-3, 8))], 1))
    run.until(lambda: max(np.diff(run.stamps('odometry')), default=0) > 100 * MS)
    n = int(np.argmax(np.diff(run.stamps('odometry')))) + 1
    run.until(lambda: len(run.heard['odometry']) > n + 12)
    stamps, poses = run.stamps('odometry'), list(run.poses().values())
    assert stamps[n] - stamps[n - 1] >= 1000 * MS and stamps[n] % (100 * MS) == 0
    assert np.hypot(poses[n][0] - poses[n - 1][0], poses[n][1] - poses[n - 1][1]) < 1.5
    assert run.world.world.seed == 4
    assert run.heard['world/control'][-1].data.startswith('expert')


def test_a_trajectory_that_makes_no_sense_is_not_followed(listen):
    run = listen(seed=1, scenario='free', control='plan')
    run.until(lambda: len(run.heard['odometry']) > 4)
    run.send(arc(10.0, 0.01), frame='map')
    run.send(np.full((64, 3), np.nan))
    run.send(arc(10.0, 0.01)[:2])
    run.until(lambda: len(run.heard['odometry']) > 20)
    assert [m.data for m in run.heard['world/control']] == ['expert: no plan yet']


def test_late_plans_are_left_alone_and_it_says_so(listen):
    run = listen(seed=1, scenario='free', control='plan', plan_timeout_s=0.5)
    run.until(lambda: len(run.heard['odometry']) > 30)
    run.send(arc(10.0, 0.01), age_s=1.2)
    run.until(lambda: run.heard['world/control'][-1].data == 'expert: plans are too old')


def test_in_lockstep_time_stands_still_until_the_plan_for_the_window_is_here(listen):
    run = listen(seed=1, scenario='free', lockstep=True, lockstep_timeout_s=3.0, rate=5.0)
    front = 'camera/front_wide_120/image_raw'
    for number in (16, 17, 18):   # the first has 1.5 s of odometry before it
        run.until(lambda number=number: len(run.heard[front]) >= number)
        time.sleep(0.3)
        assert len(run.heard[front]) == number
        assert run.stamps('odometry')[-1] == run.stamps(front)[-1]
        run.send(arc(8.0, 0.001), trained=True)
    run.until(lambda: len(run.heard[front]) > 22)   # nobody answers, so it goes on
    assert [m.data for m in run.heard['world/control']][:2] == ['expert: no plan yet', 'plan']
    assert set(np.diff(run.stamps(front))) == {100 * MS}
    steps = run.world._lockstep
    assert (steps.answered, steps.missed) == (3, 1)


def test_in_lockstep_nobody_is_waited_for_where_nobody_plans(listen):
    run = listen(seed=1, scenario='free', lockstep=True, lockstep_timeout_s=600.0, rate=5.0)
    run.node.destroy_publisher(run.plans)
    run.until(lambda: len(run.heard['odometry']) > 40)


def test_trajectories_of_other_steps_are_resampled():
    message = msg.PlannedTrajectory(header=Header(frame_id='base_link'), points=[
        msg.TrajectoryPoint(time_from_start=duration(0.25 * (i + 1)),
                            pose=Pose(position=Point(x=2.5 * (i + 1)),
                                      orientation=yaw_quaternion(0.0))) for i in range(8)])
    points = trajectory_points(message, 'base_link')
    assert points.shape == (20, 3) and np.allclose(points[:, 0], np.arange(1, 21))
    with pytest.raises(ValueError, match="frame_id is 'base_link', expected 'car'"):
        trajectory_points(message, 'car')


def test_camera_quaternions_are_the_rotations():
    for camera in default_rig().values():
        q = camera_quaternion(camera)
        x, y, z, w = q.x, q.y, q.z, q.w
        matrix = np.array([
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)]])
        assert np.allclose(matrix, camera.rotation)


def test_wrong_parameters_are_named(ros):
    with pytest.raises(ValueError, match=r'scenario must be one of any, .* got .snow.'):
        WorldNode(parameter_overrides=[Parameter('scenario', value='snow')])


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_ends_cleanly_on_a_signal(ros, number):
    process = subprocess.Popen(
        [sys.executable, '-c', 'import sys; from flashdrive_ros.nodes.world_node import main; '
         'sys.exit(main())'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if 'driven by' in line:
            break
    process.send_signal(number)
    rest = process.communicate(timeout=30)[0]
    assert process.returncode == 0, ''.join(lines) + rest
    assert 'ended after' in rest and 'Traceback' not in rest
