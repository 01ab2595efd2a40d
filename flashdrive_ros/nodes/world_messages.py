"""The embedded world as ROS messages: cameras, odometry, transforms, boxes; plans read back."""
from __future__ import annotations

import array
from collections import defaultdict

import numpy as np
from geometry_msgs.msg import Quaternion, Transform, TransformStamped, Vector3
from nav_msgs.msg import Odometry
from sensor_msgs.msg import CameraInfo, Image
from std_msgs.msg import Header

from flashdrive_ros import msg

from ..world.boxes import Box3D
from ..world.cameras import Camera
from ..world.vehicle import PLAN_STEP_S, VehicleState

POSE_VARIANCE, TWIST_VARIANCE = 1e-4, 1e-4


def raw_image(header: Header, image: np.ndarray) -> Image:
    """Image message of RGB uint8 [H, W, 3]."""
    height, width = image.shape[:2]
    return Image(header=header, height=height, width=width, encoding='rgb8', is_bigendian=0,
                 step=3 * width, data=array.array('B', image.tobytes()))


def camera_info(header: Header, camera: Camera) -> CameraInfo:
    """Calibration of a pinhole camera without distortion."""
    k = camera.intrinsics
    projection = np.column_stack([k, np.zeros(3)])
    return CameraInfo(header=header, height=camera.height, width=camera.width,
                      distortion_model='plumb_bob', d=[0.0] * 5, k=k.ravel(),
                      r=np.eye(3).ravel(), p=projection.ravel())


def odometry(header: Header, child_frame: str, pose, state: VehicleState) -> Odometry:
    """Pose (x, y, yaw) in the odometry frame, and the twist of base_link in its own frame."""
    message = Odometry(header=header, child_frame_id=child_frame)
    message.pose.pose.position.x, message.pose.pose.position.y = float(pose[0]), float(pose[1])
    message.pose.pose.orientation = yaw_quaternion(pose[2])
    message.twist.twist.linear.x = state.speed
    message.twist.twist.angular.z = state.yaw_rate
    diagonal = np.arange(0, 36, 7)
    message.pose.covariance[diagonal] = POSE_VARIANCE
    message.twist.covariance[diagonal] = TWIST_VARIANCE
    return message


def transform(header: Header, child_frame: str, translation, rotation: Quaternion):
    """Transform from header.frame_id to a child frame."""
    x, y, z = (float(v) for v in translation)
    return TransformStamped(header=header, child_frame_id=child_frame, transform=Transform(
        translation=Vector3(x=x, y=y, z=z), rotation=rotation))


def yaw_quaternion(yaw: float) -> Quaternion:
    """Rotation about z."""
    return Quaternion(z=float(np.sin(yaw / 2)), w=float(np.cos(yaw / 2)))


def camera_quaternion(camera: Camera) -> Quaternion:
    """Rotation from base_link to the optical frame (the cameras do not roll)."""
    r = camera.rotation
    # the eigenvector of the rotation matrix's quaternion form is exact for every angle
    k = np.array([
        [r[0, 0] - r[1, 1] - r[2, 2], r[0, 1] + r[1, 0], r[0, 2] + r[2, 0], r[2, 1] - r[1, 2]],
        [r[0, 1] + r[1, 0], r[1, 1] - r[0, 0] - r[2, 2], r[1, 2] + r[2, 1], r[0, 2] - r[2, 0]],
        [r[0, 2] + r[2, 0], r[1, 2] + r[2, 1], r[2, 2] - r[0, 0] - r[1, 1], r[1, 0] - r[0, 1]],
        [r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1], np.trace(r)]])
    x, y, z, w = np.linalg.eigh(k)[1][:, -1].tolist()
    return Quaternion(x=x, y=y, z=z, w=w)


def boxes(header: Header, found: tuple[Box3D, ...]) -> msg.VisualPrimitiveArray:
    """Ground truth boxes, one primitive for each class."""
    by_label = defaultdict(list)
    for box in found:
        by_label[box.label].append(box.values)
    return msg.VisualPrimitiveArray(header=header, primitives=[
        msg.VisualPrimitive(
            header=header, type=msg.VisualPrimitive.BOX_3D, label=label, camera_id=-1,
            units='metre', dimension=7, decode_path='direct',
            values=array.array('f', np.ravel(values).tolist()))
        for label, values in sorted(by_label.items())])


def trajectory_points(message: msg.PlannedTrajectory, frame: str) -> np.ndarray:
    """
    Rows x, y, yaw [n, 3], 0.1 s apart from 0.1 s on, of a planned trajectory.

    Raises ValueError when it is in another frame, is too short, or has times or
    values that make no sense.
    """
    if message.header.frame_id != frame:
        raise ValueError(f'frame_id is {message.header.frame_id!r}, expected {frame!r}')
    if len(message.points) < 3:
        raise ValueError(f'{len(message.points)} points, expected at least 3')
    times = np.array([p.time_from_start.sec + p.time_from_start.nanosec * 1e-9
                      for p in message.points])
    poses = np.array([(p.pose.position.x, p.pose.position.y,
                       2 * np.arctan2(p.pose.orientation.z, p.pose.orientation.w))
                      for p in message.points])
    if not np.isfinite(poses).all():
        raise ValueError('poses that are not finite')
    if (np.diff(times) <= 0).any() or times[0] <= 0:
        raise ValueError('time_from_start must grow from above 0 on')
    count = round(times[-1] / PLAN_STEP_S)
    if count < 3:
        raise ValueError(f'it ends after {times[-1]:.2f} s, expected at least 0.3 s')
    grid = PLAN_STEP_S * np.arange(1, count + 1)
    times = np.concatenate([[0], times])
    poses = np.concatenate([np.zeros((1, 3)), poses])
    poses[:, 2] = np.unwrap(poses[:, 2])
    return np.column_stack([np.interp(grid, times, poses[:, i]) for i in range(3)])
