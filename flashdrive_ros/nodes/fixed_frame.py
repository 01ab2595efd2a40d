"""
Plans in a frame that does not move with the vehicle, such as odom or map (REP 105).

Odometry says where the vehicle is in its own frame at the time of a plan, so a plan in
that frame needs no transform.  For another one the newest transforms of /tf and /tf_static
are used; nothing waits for any.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from geometry_msgs.msg import Point, Pose, Quaternion
from std_msgs.msg import Header

try:
    from tf2_msgs.msg import TFMessage
except ImportError:  # not on PyPI
    TFMessage = None

from flashdrive_ros import msg

from ..core.ego import EgoHistory, quaternion_to_matrix
from ..core.types import InputError
from ..recording.calibration import chain, transforms_of
from . import qos


@dataclass(frozen=True)
class FixedPose:
    """Where the vehicle is in a fixed frame: position `xyz` [3] m and rotation `rot` [3, 3]."""

    frame_id: str
    xyz: np.ndarray
    rot: np.ndarray

    def place(self, trajectory: msg.PlannedTrajectory) -> msg.PlannedTrajectory:
        """Return a trajectory of the vehicle's frame in this frame."""
        points = []
        for point in trajectory.points:
            p, q = point.pose.position, point.pose.orientation
            position = self.rot @ (p.x, p.y, p.z) + self.xyz
            turned = self.rot @ quaternion_to_matrix((q.x, q.y, q.z, q.w))
            points.append(msg.TrajectoryPoint(
                time_from_start=point.time_from_start, speed=point.speed,
                acceleration=point.acceleration, curvature=point.curvature,
                heading_rate=point.heading_rate,
                pose=Pose(position=Point(**dict(zip('xyz', position.tolist()))),
                          orientation=quaternion(turned))))
        return msg.PlannedTrajectory(
            header=Header(stamp=trajectory.header.stamp, frame_id=self.frame_id),
            plan_id=trajectory.plan_id, sample_index=trajectory.sample_index,
            score=trajectory.score, points=points)


class FixedFrame:
    """The frame called `name`, '' for that of the odometry, whatever it is called."""

    def __init__(self, name: str = ''):
        self.name = name
        self._transforms: dict[str, tuple] = {}

    def subscribe(self, subscribe: Callable):
        """Hear all transforms, of which only the newest is kept."""
        if self.name and TFMessage is not None:
            subscribe(TFMessage, '/tf', self.on_transforms, qos.TRANSFORMS)
            subscribe(TFMessage, '/tf_static', self.on_transforms, qos.LATCHED)

    def on_transforms(self, message):
        """Keep what a TFMessage says."""
        self._transforms.update(transforms_of(message))

    def pose(self, ego: EgoHistory, odometry_frame: str) -> FixedPose:
        """
        Where the vehicle is at t0.

        Raises `InputError` when nothing leads from the odometry's frame to this one.
        """
        if self.name in ('', odometry_frame):
            return FixedPose(odometry_frame, ego.origin_xyz, ego.origin_rot)
        # a copy: /tf is heard on another thread
        placed = chain(dict(self._transforms), odometry_frame, self.name)
        if placed is None:
            hint = '' if TFMessage is not None else ' (tf2_msgs is not installed)'
            raise InputError(f'no transform from {odometry_frame!r}, the frame of the odometry, '
                             f'to output_frame {self.name!r}{hint}: nothing is published in it')
        rotation, position = placed
        return FixedPose(self.name, rotation @ ego.origin_xyz + position,
                         rotation @ ego.origin_rot)


def quaternion(rot: np.ndarray) -> Quaternion:
    """Quaternion message, w >= 0, of a rotation matrix."""
    # the largest of the four is divided by: exact for every angle
    trace = np.append(np.diag(rot), np.trace(rot))
    i = int(trace.argmax())
    if i == 3:
        q = np.array([rot[2, 1] - rot[1, 2], rot[0, 2] - rot[2, 0], rot[1, 0] - rot[0, 1],
                      1 + trace[3]])
    else:
        j, k = (i + 1) % 3, (i + 2) % 3
        q = np.empty(4)
        q[i] = 1 + 2 * rot[i, i] - trace[3]
        q[j], q[k] = rot[j, i] + rot[i, j], rot[k, i] + rot[i, k]
        q[3] = rot[k, j] - rot[j, k]
    q *= (1 if q[3] >= 0 else -1) / np.linalg.norm(q)
    return Quaternion(**dict(zip('xyzw', q.tolist())))
