"""Shows a running drive in rerun: a node that only listens."""
from __future__ import annotations

import signal
from functools import partial

import numpy as np
import rclpy
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CameraInfo, CompressedImage

from flashdrive_ros.msg import DrivePlan, VisualPrimitiveArray

from ..core.ego import quaternion_to_matrix
from ..core.types import CAMERA_NAMES, InputError
from ..recording.bag import stamp_ns
from ..recording.calibration import camera_info_of, transforms_of
from ..recording.plans import plan_of, primitives_of
from ..view import draw
from ..view.camera import camera_view
from ..view.rerun_log import RerunLog
from . import qos
from .images import decode_compressed

try:
    from tf2_msgs.msg import TFMessage
except ImportError:  # not on PyPI
    TFMessage = None


class ViewerNode(Node):
    """Logs what it hears, at the time that it belongs to."""

    def __init__(self, log: RerunLog, namespace: str = ''):
        super().__init__('viewer', namespace=namespace)
        self._log = log
        self._infos, self._transforms, self._placed = {}, {}, set()
        listen = self.create_subscription
        for name in CAMERA_NAMES.values():
            listen(CompressedImage, f'camera/{name}/image_raw/compressed',
                   partial(self._on_image, name), qos.camera())
            listen(CameraInfo, f'camera/{name}/camera_info', self._on_info, qos.camera())
        listen(Odometry, 'odometry', self._on_odometry, qos.ODOMETRY)
        listen(DrivePlan, 'drive/plan', self._on_plan, qos.PLAN)
        listen(VisualPrimitiveArray, 'world/boxes', self._on_boxes, qos.PLAN)
        if TFMessage is not None:
            listen(TFMessage, '/tf_static', self._on_transforms, qos.LATCHED)

    def _at(self, message):
        self._log.at(stamp_ns(message.header.stamp))

    def _on_info(self, message):
        info = camera_info_of(message)
        if info is not None:
            self._infos[info.frame_id] = info

    def _on_transforms(self, message):
        self._transforms.update(transforms_of(message))

    def _on_image(self, name, message):
        self._at(message)
        if name not in self._placed:
            self._place(name, message)
        self._log.image(name, message)

    def _place(self, name, message):
        """Place the camera, as far as its images can be read."""
        try:
            image = decode_compressed(message, name)
        except InputError as error:
            self.get_logger().warning(str(error), throttle_duration_sec=5.0)
            return
        view = camera_view(name, message.header.frame_id, (image.shape[1], image.shape[0]),
                           self._infos, self._transforms)
        if view is not None:
            self._log.camera(name, view)
        self._placed.add(name)

    def _on_odometry(self, message):
        self._at(message)
        p, q = message.pose.pose.position, message.pose.pose.orientation
        rotation = quaternion_to_matrix(np.array([[q.x, q.y, q.z, q.w]]))[0]
        self._log.pose([p.x, p.y, p.z], rotation)

    def _on_plan(self, message):
        self._at(message)
        self._log.plan(plan_of(message, self.get_clock().now().nanoseconds))

    def _on_boxes(self, message):
        self._at(message)
        self._log.boxes('true', primitives_of(message), draw.TRUTH)


def view(namespace: str = '', log: RerunLog | None = None) -> int:
    """Open a viewer and show what is published until Ctrl-C; returns the exit code."""
    if log is None:
        log = RerunLog()
        log.spawn()
    stopped = []
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(True))
    node = ViewerNode(log, namespace)
    executor = rclpy.executors.SingleThreadedExecutor()
    executor.add_node(node)
    try:
        while not stopped:
            executor.spin_once(timeout_sec=0.2)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0
