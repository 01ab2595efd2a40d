"""
A plan in Autoware's messages, for graphs that have them.

`autoware_planning_msgs/Trajectory` is the chosen trajectory in the vehicle's frame;
`autoware_internal_planning_msgs/CandidateTrajectories` are all of them in the fixed
frame of the odometry, `map` in Autoware (or in `output_frame`);
`autoware_internal_debug_msgs/StringStamped` is the text.  None of these packages is
on PyPI; each is used when it is installed.
"""
from __future__ import annotations

import uuid
from importlib import import_module

import numpy as np

from flashdrive_ros import msg

from .fixed_frame import FixedPose


def _package(name: str):
    """The messages of a package; None where it is not installed."""
    try:
        return import_module(f'{name}.msg')
    except ImportError:
        return None


planning = _package('autoware_planning_msgs')
candidate = _package('autoware_internal_planning_msgs')
debug = _package('autoware_internal_debug_msgs')


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
        placed = pose.place(planned)
        one = candidate.CandidateTrajectory(
            header=placed.header, points=[_point(p) for p in placed.points])
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
