"""A synthetic recording and small ROS helpers for the tests of recording, replay and pictures."""
from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np

from flashdrive_ros.recording.bag import open_bag, split_ns
from flashdrive_ros.recording.definitions import Definitions
from flashdrive_ros.recording.writer import BagWriter, offered_qos

START_NS = 1_700_000_000_000_000_000
TICK_NS = 100_000_000
CAMERAS = ('cross_left_120', 'front_wide_120', 'cross_right_120', 'front_tele_30')
VIDEO = Path(__file__).parents[1] / 'data' / 'dashcam_highway.mp4'


class Messages:
    """Serialised messages of every topic, made without ROS."""

    def __init__(self):
        self._definitions = Definitions()

    def make(self, type_name, **values):
        """An instance with zeros for what is not given."""
        store = self._definitions.require(type_name)
        return store.types[type_name](**{
            name: values.pop(name) if name in values else self._zero(detail)
            for name, detail in store.fielddefs[type_name][1]})

    def _zero(self, detail):
        kind, what = detail
        if kind.name == 'BASE':
            return {'string': '', 'bool': False, 'float32': 0.0, 'float64': 0.0}.get(what[0], 0)
        if kind.name == 'NAME':
            return self.make(what)
        (item, name), *length = what
        if item.name == 'NAME':
            return []
        if name[0] == 'string':
            return []
        return np.zeros(length[0] if kind.name == 'ARRAY' else 0, np.dtype(name[0]))

    def cdr(self, message) -> bytes:
        """Serialised."""
        name = message.__msgtype__
        return bytes(self._definitions.require(name).serialize_cdr(message, name))

    def header(self, stamp_ns, frame_id='base_link'):
        """A std_msgs/Header."""
        stamp = self.make('builtin_interfaces/msg/Time')
        stamp.sec, stamp.nanosec = split_ns(stamp_ns)
        return self.make('std_msgs/msg/Header', stamp=stamp, frame_id=frame_id)

    def pose(self, x, y, z=0.0, yaw=0.0):
        """A geometry_msgs/Pose."""
        return self.make(
            'geometry_msgs/msg/Pose',
            position=self.make('geometry_msgs/msg/Point', x=float(x), y=float(y), z=float(z)),
            orientation=self.make('geometry_msgs/msg/Quaternion', x=0.0, y=0.0,
                                  z=math.sin(yaw / 2), w=math.cos(yaw / 2)))

    def odometry(self, stamp_ns, x, y=0.0, yaw=0.0, speed=10.0):
        """A nav_msgs/Odometry."""
        message = self.make('nav_msgs/msg/Odometry', header=self.header(stamp_ns, 'odom'),
                            child_frame_id='base_link')
        message.pose.pose = self.pose(x, y, 0.0, yaw)
        message.twist.twist.linear.x = speed
        return message

    def image(self, stamp_ns, camera, pixels):
        """A sensor_msgs/CompressedImage of BGR pixels."""
        _, jpeg = cv2.imencode('.jpg', pixels)
        return self.make('sensor_msgs/msg/CompressedImage', format='jpeg',
                         header=self.header(stamp_ns, f'{camera}_optical'), data=jpeg.reshape(-1))

    def plan(self, stamp_ns, plan_id=1, *, curvature=0.0, speed=10.0, samples=3, trained=True,
             text='keep the lane', mode='streaming', reason='', total_ms=40.0, primitives=()):
        """
        A DrivePlan of `samples` arcs beside each other.

        `primitives` are rows (type, label, camera id or -1, values [n, d]).
        """
        header = self.header(stamp_ns)
        trajectories = [self._arc(header, plan_id, k, curvature + 0.002 * k, speed)
                        for k in range(samples)]
        return self.make(
            'flashdrive_ros/msg/DrivePlan', header=header, plan_id=plan_id, model='small',
            trained=trained, trajectories=trajectories, chosen_index=0,
            primitives=self.make(
                'flashdrive_ros/msg/VisualPrimitiveArray', header=header, plan_id=plan_id,
                primitives=[self.make(
                    'flashdrive_ros/msg/VisualPrimitive', header=header, type=kind, label=label,
                    camera_id=camera, dimension=len(values[0]), decode_path='direct',
                    values=np.array(values, np.float32).ravel())
                    for kind, label, camera, values in primitives]),
            reasoning=self.make('flashdrive_ros/msg/Reasoning', header=header, plan_id=plan_id,
                                text=text, tokens=12, drafted=8, accepted=6, rounds=4),
            latency=self.make('flashdrive_ros/msg/StageLatency', header=header, plan_id=plan_id,
                              encode_ms=8.0, prefill_ms=10.0, reason_ms=12.0, act_ms=9.0,
                              total_ms=total_ms, image_ms=1.5, camera_to_plan_ms=total_ms + 5),
            window=self.make('flashdrive_ros/msg/WindowState', mode=mode, reason=reason,
                             frames_known=4, frames_per_camera=4))

    def _arc(self, header, plan_id, index, curvature, speed):
        points, x, y, yaw = [], 0.0, 0.0, 0.0
        for i in range(64):
            yaw += curvature * speed * 0.1
            x += math.cos(yaw) * speed * 0.1
            y += math.sin(yaw) * speed * 0.1
            sec, nanosec = split_ns((i + 1) * TICK_NS)
            points.append(self.make(
                'flashdrive_ros/msg/TrajectoryPoint', pose=self.pose(x, y, 0.0, yaw),
                time_from_start=self.make('builtin_interfaces/msg/Duration', sec=sec,
                                          nanosec=nanosec),
                speed=speed, curvature=curvature, heading_rate=speed * curvature))
        return self.make('flashdrive_ros/msg/PlannedTrajectory', header=header, plan_id=plan_id,
                         sample_index=index, score=1.0 / (1 + index), points=points)

    def camera_info(self, stamp_ns, camera, width, height, focal):
        """A sensor_msgs/CameraInfo without distortion."""
        k = np.array([focal, 0, width / 2, 0, focal, height / 2, 0, 0, 1.0])
        return self.make('sensor_msgs/msg/CameraInfo', width=width, height=height, k=k,
                         header=self.header(stamp_ns, f'{camera}_optical'),
                         distortion_model='plumb_bob', d=np.zeros(5), r=np.eye(3).reshape(-1),
                         p=np.zeros(12))

    def static_transform(self, camera, x, y, z, yaw):
        """The tf2 transform base_link -> optical frame of a level camera turned by `yaw`."""
        # optical axes: z forward, x right, y down
        rot = np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0]], float)
        turn = np.array([[math.cos(yaw), -math.sin(yaw), 0],
                         [math.sin(yaw), math.cos(yaw), 0], [0, 0, 1]])
        qx, qy, qz, qw = _quaternion(turn @ rot)
        transform = self.make('geometry_msgs/msg/TransformStamped', header=self.header(0),
                              child_frame_id=f'{camera}_optical')
        transform.transform.translation = self.make('geometry_msgs/msg/Vector3', x=x, y=y, z=z)
        transform.transform.rotation = self.make('geometry_msgs/msg/Quaternion', x=qx, y=qy, z=qz,
                                                 w=qw)
        return transform


def _quaternion(m):
    w = math.sqrt(max(0.0, 1 + m[0, 0] + m[1, 1] + m[2, 2])) / 2
    if w > 1e-6:
        return ((m[2, 1] - m[1, 2]) / (4 * w), (m[0, 2] - m[2, 0]) / (4 * w),
                (m[1, 0] - m[0, 1]) / (4 * w), w)
    raise ValueError('rotation by 180 degrees is not supported here')


MESSAGES = Messages()
MOUNTS = {'cross_left_120': (1.5, 0.5, 1.5, math.radians(55)),
          'front_wide_120': (1.8, 0.0, 1.5, 0.0),
          'cross_right_120': (1.5, -0.5, 1.5, math.radians(-55)),
          'front_tele_30': (1.8, 0.0, 1.5, 0.0)}
FOCAL = {name: 160 / math.tan(math.radians(15 if '30' in name else 60)) for name in MOUNTS}


def write_recording(path, *, ticks=30, cameras=CAMERAS, plans=True, every=1, odometry=True,
                    trained=True, storage='mcap', first_plan=0, last_plan=None,
                    alarm_at=None, offset_m=0.0, text='keep the lane', size=(320, 180),
                    latency_ns=50_000_000, total_ms=40.0, primitives=()):
    """
    A bag as `flashdrive drive` records it: `ticks` windows of 100 ms, 10 m/s ahead.

    `last_plan` is the tick of it; at tick `alarm_at` diagnostics hold an ERROR.
    """
    messages = MESSAGES
    bag = BagWriter(path, storage=storage)
    width, height = size
    images = {c: f'/camera/{c}/image_raw/compressed' for c in cameras}
    infos = {c: f'/camera/{c}/camera_info' for c in cameras}
    best_effort = offered_qos(reliable=False, latched=False, depth=1)
    latched = offered_qos(reliable=True, latched=True, depth=1)
    for topic in images.values():
        bag.add_topic(topic, 'sensor_msgs/msg/CompressedImage', best_effort)
    for topic in infos.values():
        bag.add_topic(topic, 'sensor_msgs/msg/CameraInfo', best_effort)
    bag.add_topic('/tf_static', 'tf2_msgs/msg/TFMessage', latched)
    bag.add_topic('/route_text', 'std_msgs/msg/String', latched)
    if odometry:
        bag.add_topic('/odometry', 'nav_msgs/msg/Odometry')
    if alarm_at is not None:
        bag.add_topic('/diagnostics', 'diagnostic_msgs/msg/DiagnosticArray')
    if plans:
        bag.add_topic('/drive/plan', 'flashdrive_ros/msg/DrivePlan')

    def put(topic, time_ns, message):
        assert bag.put(topic, time_ns, messages.cdr(message))

    put('/tf_static', START_NS - 2, messages.make('tf2_msgs/msg/TFMessage', transforms=[
        messages.static_transform(c, *MOUNTS[c]) for c in cameras]))
    put('/route_text', START_NS - 1, messages.make('std_msgs/msg/String', data='go straight'))
    for tick in range(ticks):
        stamp = START_NS + tick * TICK_NS
        if odometry:
            for half in (0, 1):
                when = stamp - half * TICK_NS // 2
                put('/odometry', when if half else stamp,
                    messages.odometry(when, (when - START_NS) / 1e9 * 10))
        for number, camera in enumerate(cameras):
            pixels = np.full((height, width, 3), 60 + 20 * number, np.uint8)
            cv2.putText(pixels, str(tick), (20, 60), cv2.FONT_HERSHEY_SIMPLEX, 1, (255,) * 3, 2)
            put(infos[camera], stamp + 1_000_000, messages.camera_info(
                stamp, camera, width, height, FOCAL[camera] * width / 320))
            put(images[camera], stamp + 2_000_000 + number * 100_000,
                messages.image(stamp, camera, pixels))
        if tick == alarm_at:
            put('/diagnostics', stamp, messages.make(
                'diagnostic_msgs/msg/DiagnosticArray', header=messages.header(stamp),
                status=[messages.make('diagnostic_msgs/msg/DiagnosticStatus', level=2,
                                      name='drive: plan', message='no plan for 3 s')]))
        if plans and first_plan <= tick <= (ticks if last_plan is None else last_plan) and (
                tick - first_plan) % every == 0:
            plan = messages.plan(stamp, tick + 1, trained=trained, text=text, total_ms=total_ms,
                                 primitives=primitives,
                                 mode='prefill' if tick == first_plan else 'streaming',
                                 reason='first window' if tick == first_plan else '')
            for trajectory in plan.trajectories:
                for point in trajectory.points:
                    point.pose.position.y += offset_m
            put('/drive/plan', stamp + latency_ns, plan)
    bag.close()
    return Path(path)


def renamed(bag, path, names):
    """A copy of a bag in which parts of topic names are others (`names`: old -> new)."""
    def new(topic):
        for old, other in names.items():
            topic = topic.replace(old, other)
        return topic

    copy = BagWriter(path)
    with open_bag(bag) as reader:
        for connection in reader.connections:
            copy.add_topic(new(connection.topic), connection.msgtype)
        for connection, time_ns, cdr in reader.messages():
            copy.put(new(connection.topic), time_ns, bytes(cdr))
    copy.close()
    return Path(path)


def own_domain() -> dict[str, str]:
    """Environment of a ROS graph that nobody else is in, not even this process."""
    ours = int(os.environ.get('ROS_DOMAIN_ID') or 0)
    domain = random.choice([d for d in range(1, 101) if d != ours])
    return {**os.environ, 'ROS_DOMAIN_ID': str(domain),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}


@contextlib.contextmanager
def node_process(module, env, ros=(), **parameters):
    """A node of ours as a process; ended by SIGINT, or killed after 10 s."""
    command = [sys.executable, '-m', f'flashdrive_ros.nodes.{module}', '--ros-args', *ros]
    for name, value in parameters.items():
        command += ['-p', f'{name}:={value}']
    process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
