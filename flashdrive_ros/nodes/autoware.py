"""
A plan in Autoware's messages, for graphs that have them.

`autoware_planning_msgs/Trajectory` is the chosen trajectory in the vehicle's frame;
`autoware_internal_planning_msgs/CandidateTrajectories` are all of them in the fixed
frame of the odometry, `map` in Autoware; `autoware_internal_debug_msgs/StringStamped`
is the text.  None of these packages is on PyPI; each is used when it is installed.
"""
from __future__ import annotations

import threading
import uuid
from collections import deque
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from nav_msgs.msg import Odometry

from flashdrive_ros import msg

from ..core.ego import quaternion_to_matrix
from ..core.types import GRID_NS
from .messages import stamp_ns


def _package(name: str):
    """The messages of a package; None where it is not installed."""
    try:
        return import_module(f'{name}.msg')
    except ImportError:
        return None


planning = _package('autoware_planning_msgs')
candidate = _package('autoware_internal_planning_msgs')
debug = _package('autoware_internal_debug_msgs')

REACH_NS = 2 * GRID_NS
"""Poses further apart than this are not interpolated."""


def topics() -> dict[str, type]:
    """Topics under the node's name, with their types, as far as these are installed."""
    found = {}
    if planning is not None:
        found['autoware/trajectory'] = planning.Trajectory
    if planning is not None and hasattr(candidate, 'CandidateTrajectories'):
        found['autoware/candidate_trajectories'] = candidate.CandidateTrajectories
    if hasattr(debug, 'StringStamped'):
        found['autoware/reasoning'] = debug.StringStamped
    return found


@dataclass(frozen=True)
class FixedPose:
    """Where the vehicle is in a fixed frame: position [3] m, quaternion [4] (x, y, z, w)."""

    frame_id: str
    position: np.ndarray
    quaternion: np.ndarray


class PoseBuffer:
    """Odometry of the last seconds; thread-safe, bounded."""

    def __init__(self, samples: int = 400):
        self._lock = threading.Lock()
        self._poses: deque = deque(maxlen=samples)

    def add(self, message: Odometry):
        """Store the pose of a message; time that goes back, or another frame, starts anew."""
        p, q = message.pose.pose.position, message.pose.pose.orientation
        pose = FixedPose(message.header.frame_id, np.array([p.x, p.y, p.z]),
                         np.array([q.x, q.y, q.z, q.w]))
        time_ns = stamp_ns(message.header.stamp)
        with self._lock:
            if self._poses and (self._poses[-1][0] >= time_ns
                                or self._poses[-1][1].frame_id != pose.frame_id):
                self._poses.clear()
            self._poses.append((time_ns, pose))

    def at(self, time_ns: int) -> FixedPose | None:
        """Pose at a time, between two of odometry's; None when there are no such near it."""
        with self._lock:
            before = next((s for s in reversed(self._poses) if s[0] <= time_ns), None)
            after = next((s for s in self._poses if s[0] >= time_ns), None)
        if before is None or after is None or after[0] - before[0] > REACH_NS:
            return None
        (t0, a), (t1, b) = before, after
        share = (time_ns - t0) / (t1 - t0) if t1 > t0 else 0.0
        # so near that the chord of the arc is the arc
        other = b.quaternion if a.quaternion @ b.quaternion >= 0 else -b.quaternion
        mixed = a.quaternion + share * (other - a.quaternion)
        length = np.linalg.norm(mixed)
        if not length > 1e-6:
            return None
        return FixedPose(a.frame_id, a.position + share * (b.position - a.position),
                         mixed / length)


def trajectory(planned: msg.PlannedTrajectory):
    """Trajectory of one of ours, in the same frame; its first point is 0.1 s after the stamp."""
    return planning.Trajectory(header=planned.header, points=[_point(p) for p in planned.points])


def candidate_trajectories(plan: msg.DrivePlan, pose: FixedPose):
    """CandidateTrajectories of a plan in the fixed frame of `pose`, the chosen one first."""
    generator = np.frombuffer(uuid.uuid5(uuid.NAMESPACE_URL, plan.model).bytes, np.uint8)
    info = candidate.TrajectoryGeneratorInfo()
    info.generator_id.uuid = generator.copy()
    info.generator_name.data = f'flashdrive {plan.model}'
    order = [plan.chosen_index, *(k for k in range(len(plan.trajectories))
                                  if k != plan.chosen_index)]
    found = []
    for planned in (plan.trajectories[k] for k in order):
        one = candidate.CandidateTrajectory(points=_placed(planned.points, pose))
        one.header.stamp, one.header.frame_id = planned.header.stamp, pose.frame_id
        one.generator_id.uuid = generator.copy()
        found.append(one)
    return candidate.CandidateTrajectories(candidate_trajectories=found, generator_info=[info])


def reasoning(plan: msg.DrivePlan):
    """StringStamped of the plan's text."""
    return debug.StringStamped(stamp=plan.header.stamp, data=plan.reasoning.text)


def _point(ours: msg.TrajectoryPoint):
    return planning.TrajectoryPoint(
        time_from_start=ours.time_from_start, pose=ours.pose,
        longitudinal_velocity_mps=ours.speed, lateral_velocity_mps=0.0,
        acceleration_mps2=ours.acceleration, heading_rate_rps=ours.heading_rate)


def _placed(points, pose: FixedPose) -> list:
    """Points of the vehicle's frame, in the fixed frame."""
    rotation = quaternion_to_matrix(pose.quaternion[None])[0]
    found = []
    for ours in points:
        point = _point(ours)
        p, q = ours.pose.position, ours.pose.orientation
        # a new pose: that of our own message must stay
        placed = type(ours.pose)()
        placed.position.x, placed.position.y, placed.position.z = (
            float(v) for v in pose.position + rotation @ (p.x, p.y, p.z))
        o = placed.orientation
        o.x, o.y, o.z, o.w = _product(pose.quaternion, (q.x, q.y, q.z, q.w))
        point.pose = placed
        found.append(point)
    return found


def _product(a, b) -> tuple[float, float, float, float]:
    """Product of two quaternions (x, y, z, w): first b, then a."""
    ax, ay, az, aw = (float(v) for v in a)
    bx, by, bz, bw = b
    return (aw * bx + ax * bw + ay * bz - az * by, aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw, aw * bw - ax * bx - ay * by - az * bz)
