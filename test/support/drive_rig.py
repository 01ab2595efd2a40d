"""A drive node, and a second node that plays the car, talking over real DDS."""
import array
import contextlib
import threading
import time

import cv2
import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from nav_msgs.msg import Odometry, Path
from rcl_interfaces.srv import SetParameters
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from flashdrive_ros import msg
from flashdrive_ros.core.types import CAMERA_NAMES
from flashdrive_ros.nodes import messages, qos
from flashdrive_ros.nodes.drive_node import DriveNode

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
LISTEN = {
    'plan': msg.DrivePlan, 'trajectory': msg.PlannedTrajectory, 'path': Path,
    'markers': MarkerArray, 'primitives': msg.VisualPrimitiveArray, 'reasoning': String,
    'reasoning_stamped': msg.Reasoning, 'stage_latency': msg.StageLatency,
}


def jpeg(red=100, size=(32, 24)):
    """JPEG bytes of one colour."""
    image = np.zeros((size[1], size[0], 3), np.uint8)
    image[..., 2] = red
    return cv2.imencode('.jpg', image)[1].tobytes()


class Car:
    """Publishes cameras and odometry with chosen stamps, and keeps what comes back."""

    def __init__(self, context, cameras, transport='compressed'):
        self.node = rclpy.create_node('car', context=context)
        kind = CompressedImage if transport == 'compressed' else Image
        suffix = '/compressed' if transport == 'compressed' else ''
        self.cameras = {
            c: self.node.create_publisher(
                kind, f'camera/{CAMERA_NAMES[c]}/image_raw{suffix}', qos.camera(depth=20))
            for c in cameras}
        self.odometry = self.node.create_publisher(Odometry, 'odometry', qos.ODOMETRY)
        self.nav_text = self.node.create_publisher(String, 'nav_text', qos.TEXT)
        self.route_text = self.node.create_publisher(String, 'route_text', qos.LATCHED)
        self.heard = {name: [] for name in LISTEN}
        for name, kind in LISTEN.items():
            self.node.create_subscription(
                kind, f'drive/{name}', self.heard[name].append, 100)
        self.diagnostics = {}
        self.node.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)

    def _on_diagnostics(self, array_):
        for status in array_.status:
            self.diagnostics[status.name.partition(': ')[2]] = status

    def drive_on(self, from_ms, to_ms, step_ms=50):
        """Publish odometry at 10 m/s from one time to another, both included."""
        for ms in range(from_ms, to_ms + 1, step_ms):
            message = Odometry()
            message.header.stamp = messages.stamp(T0 + ms * MS)
            message.header.frame_id = 'odom'
            message.pose.pose.position.x = 10.0 * ms / 1000
            message.pose.pose.orientation.w = 1.0
            self.odometry.publish(message)
            time.sleep(0.002)  # best effort: a burst would be lost in part

    def see(self, ms, cameras=None, data=None):
        """Publish one compressed frame of each camera with the same stamp."""
        for camera in self.cameras if cameras is None else cameras:
            message = CompressedImage(format='jpeg')
            message.header.stamp = messages.stamp(T0 + round(ms * MS))
            message.data = array.array('B', jpeg() if data is None else data)
            self.cameras[camera].publish(message)

    def see_raw(self, ms, data, cameras=None, encoding='rgb8', size=(32, 24)):
        """Publish one uncompressed frame of each camera."""
        for camera in self.cameras if cameras is None else cameras:
            message = Image(encoding=encoding, width=size[0], height=size[1], step=3 * size[0])
            message.header.stamp = messages.stamp(T0 + round(ms * MS))
            message.data = array.array('B', data)
            self.cameras[camera].publish(message)

    def call(self, kind, name, **request):
        """Call a service of the drive node; returns the response."""
        client = self._client(kind, f'drive/{name}')
        future = client.call_async(kind.Request(**request))
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        assert done.wait(20.0), f'drive/{name} does not answer'
        return future.result()

    def _client(self, kind, service):
        """Client of a service; discovery now and then misses one, and finds the next."""
        for _ in range(4):
            client = self.node.create_client(kind, service)
            if client.wait_for_service(5.0):
                return client
        raise AssertionError(f'no service {service}')

    def set_parameter(self, name, value):
        """Set a parameter of the drive node; returns the result with its reason."""
        parameter = Parameter(name, value=value).to_parameter_msg()
        return self.call(SetParameters, 'set_parameters', parameters=[parameter]).results[0]

    def state(self):
        """Label of the drive node's lifecycle state."""
        return self.call(GetState, 'get_state').current_state.label

    def change_state(self, label):
        """Ask for a transition; returns whether it succeeded."""
        return self.call(ChangeState, 'change_state',
                         transition=Transition(label=label)).success

    def marker_actions(self):
        """Actions in each marker array heard."""
        return [{m.action for m in a.markers} for a in self.heard['markers']]

    def plan_times(self):
        """Stamps of the plans heard, ms after T0."""
        return [(messages.stamp_ns(p.header.stamp) - T0) // MS for p in self.heard['plan']]

    def why(self):
        """Why there is no plan, by the last diagnostics."""
        return self.values('plan').get('why no plan', '')

    def values(self, name):
        """Values of one diagnostic status, as text."""
        status = self.diagnostics.get(name)
        return {} if status is None else {v.key: v.value for v in status.values}

    def level(self, name):
        """Level of one diagnostic status; None before it was heard."""
        status = self.diagnostics.get(name)
        return None if status is None else status.level


class Rig:
    """One drive node and one car, each spinning in its own thread."""

    def __init__(self, engine_factory, cameras=(0, 1), transport='compressed', parameters=None,
                 domain=None):
        self.context = rclpy.Context()
        self.context.init(domain_id=domain)
        # the double's speed is a colour, and not that of the car
        overrides = {'camera_ids': list(cameras), 'image_transport': transport,
                     'gate_max_start_m': 100.0, 'gate_max_speed_step_mps': 100.0,
                     **(parameters or {})}
        self.drive = DriveNode(
            engine_factory, context=self.context,
            parameter_overrides=[Parameter(k, value=v) for k, v in overrides.items()])
        self.car = Car(self.context, cameras, transport)
        self.executors = [MultiThreadedExecutor(4, context=self.context),
                          SingleThreadedExecutor(context=self.context)]
        self.executors[0].add_node(self.drive)
        self.executors[1].add_node(self.car.node)
        self.failures = []
        self.threads = [threading.Thread(target=self._spin, args=(e,), daemon=True)
                        for e in self.executors]
        for thread in self.threads:
            thread.start()

    def _spin(self, executor):
        try:
            executor.spin()
        except rclpy.executors.ExternalShutdownException:
            pass
        except Exception as error:
            if self.context.ok():  # else spin met the end of the context
                self.failures.append(error)

    def until(self, condition, timeout_s=20.0):
        """Wait for a condition; returns whether it came true."""
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end or self.failures:
                return False
            time.sleep(0.01)
        return True

    def connected(self):
        """Wait until the drive node has its topics and both sides see each other."""
        return self.until(lambda: self.drive.health.engine_state == 'ready'
                          and all(p.get_subscription_count() for p in self.car.cameras.values())
                          and self.car.odometry.get_subscription_count()
                          and self.car.node.count_publishers('drive/plan'))

    def started(self):
        """Wait until the drive node is active, and give it the odometry that it needs."""
        assert self.connected() and self.until(lambda: self.drive._active)
        self.car.drive_on(-1600, 0)

    def plan_at(self, ms, **how):
        """Move to a time, see it, and wait for its plan."""
        self.car.drive_on(ms - 50, ms)
        self.car.see(ms, **how)
        assert self.until(lambda: ms in self.car.plan_times()), self.story()

    def story(self):
        """What a failed wait should show."""
        inputs = self.drive._inputs
        if inputs is None:
            return self.car.why()
        newest = inputs.odometry.newest_ns
        return (f'{self.car.why()}; planned {self.car.plan_times()}; odometry until '
                f'{newest and (newest - T0) / MS} {inputs.odometry.counts}; sets '
                f'{inputs.selector.counts}; cameras '
                f'{[t.counts for t in inputs.selector.tracks.values()]}')

    def says(self, text):
        """Wait until diagnostics give a reason with this text."""
        return self.until(lambda: text in self.car.why())

    def close(self):
        """End both nodes."""
        self.drive.close()
        self.context.try_shutdown()
        for thread in self.threads:
            thread.join(5.0)
        for executor in self.executors:
            executor.shutdown(2.0)
        for node in (self.drive, self.car.node):
            node.destroy_node()  # with its last node a context leaves the network
        assert not self.failures, f'spin ended: {self.failures}'


@contextlib.contextmanager
def rig(engine_factory, **arguments):
    """A rig that is closed at the end."""
    r = Rig(engine_factory, **arguments)
    try:
        yield r
    finally:
        r.close()
