"""A `DrivePlan` as ROS messages: ours, a Path, and markers for RViz."""
from __future__ import annotations

import array
import math
from collections.abc import Iterable

import numpy as np
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from nav_msgs.msg import Path
from std_msgs.msg import ColorRGBA, Header
from visualization_msgs.msg import Marker, MarkerArray

from flashdrive_ros import msg

from ..core import types
from ..core.types import CAMERA_NAMES, NANOSECONDS

STAGES = ('encode', 'prefill', 'reason', 'draw', 'act', 'total')
UNTRAINED = 'UNTRAINED MODEL: this plan means nothing'


def stamp(time_ns: int) -> Time:
    """Time message of nanoseconds."""
    sec, nanosec = divmod(int(time_ns), NANOSECONDS)
    return Time(sec=sec, nanosec=nanosec)


def stamp_ns(time) -> int:
    """Nanoseconds of a time message."""
    return time.sec * NANOSECONDS + time.nanosec


def duration(seconds: float) -> Duration:
    """Duration message of seconds."""
    sec, nanosec = divmod(round(seconds * NANOSECONDS), NANOSECONDS)
    return Duration(sec=sec, nanosec=nanosec)


def optical_frame(camera_id: int) -> str:
    """Frame id of a camera's images (REP 103: z forward, x right, y down)."""
    return f'{CAMERA_NAMES[camera_id]}_optical'


def header_of(plan: types.DrivePlan, frame_id: str) -> Header:
    """Header with the time of the plan's frames."""
    return Header(stamp=stamp(plan.t0_ns), frame_id=frame_id)


def plan_message(plan: types.DrivePlan, frame_id: str, *, image_ms: float = 0.0,
                 now_ns: int | None = None, skew_ns: int = 0) -> msg.DrivePlan:
    """Everything of one plan; `now_ns` is the ROS time of publishing."""
    header = header_of(plan, frame_id)
    times = [duration((i + 1) * plan.dt_s) for i in range(plan.xyz.shape[1])]
    return msg.DrivePlan(
        header=header, plan_id=plan.plan_id, model=plan.model, trained=plan.trained,
        trajectories=[_trajectory(plan, k, header, times) for k in range(len(plan.xyz))],
        chosen_index=plan.chosen,
        reasoning=reasoning_message(plan, header),
        primitives=primitives_message(plan.primitives, plan.plan_id, header),
        latency=_latency(plan, header, image_ms, now_ns),
        window=_window(plan.window, skew_ns))


def _trajectory(plan: types.DrivePlan, k: int, header: Header,
                times: list[Duration]) -> msg.PlannedTrajectory:
    half = np.asarray(plan.yaw[k], dtype=np.float64) / 2
    rows = np.column_stack((
        plan.xyz[k], np.sin(half), np.cos(half), plan.speed[k], plan.acceleration[k],
        plan.curvature[k], np.multiply(plan.speed[k], plan.curvature[k]))).tolist()
    points = []
    for time, row in zip(times, rows):
        x, y, z, qz, qw, speed, acceleration, curvature, heading_rate = row
        points.append(msg.TrajectoryPoint(
            time_from_start=time,
            pose=Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(z=qz, w=qw)),
            speed=speed, acceleration=acceleration, curvature=curvature,
            heading_rate=heading_rate))
    return msg.PlannedTrajectory(header=header, plan_id=plan.plan_id, sample_index=k,
                                 score=float(plan.scores[k]), points=points)


def reasoning_message(plan: types.DrivePlan, header: Header) -> msg.Reasoning:
    """Text of the chosen trajectory with its token counts."""
    r = plan.reasoning
    return msg.Reasoning(
        header=header, plan_id=plan.plan_id, text=r.text,
        token_ids=array.array('I', r.token_ids), tokens=len(r.token_ids), drafted=r.drafted,
        accepted=r.accepted, rounds=r.rounds, stop_reason=r.stop_reason)


def primitives_message(primitives: Iterable[types.Primitive], plan_id: int,
                       header: Header) -> msg.VisualPrimitiveArray:
    """Visual primitives; 2D ones are in their camera's frame, 3D ones in the header's."""
    return msg.VisualPrimitiveArray(
        header=header, plan_id=plan_id,
        primitives=[_primitive(p, plan_id, header) for p in primitives])


def _primitive(p: types.Primitive, plan_id: int, header: Header) -> msg.VisualPrimitive:
    values = np.atleast_2d(np.asarray(p.values, dtype=np.float32))
    metric = p.camera_id is None
    return msg.VisualPrimitive(
        header=header if metric else Header(
            stamp=header.stamp, frame_id=optical_frame(p.camera_id)),
        plan_id=plan_id, type=p.type, label=p.label,
        camera_id=-1 if metric else p.camera_id, units=p.units, dimension=values.shape[1],
        values=_floats(values), confidences=_floats(p.confidences), decode_path=p.decode_path,
        token_ids=array.array('I', p.token_ids))


def _floats(values) -> array.array:
    return array.array('f', np.ascontiguousarray(values, dtype=np.float32).tobytes())


def _latency(plan: types.DrivePlan, header: Header, image_ms: float,
             now_ns: int | None) -> msg.StageLatency:
    times = {f'{stage}_ms': float(plan.stage_times_ms.get(stage, 0.0)) for stage in STAGES}
    late_ms = 0.0 if now_ns is None else (now_ns - plan.t0_ns) / 1e6
    return msg.StageLatency(header=header, plan_id=plan.plan_id, image_ms=float(image_ms),
                            camera_to_plan_ms=late_ms, **times)


def _window(window: types.WindowState, skew_ns: int) -> msg.WindowState:
    return msg.WindowState(
        mode=window.mode, reason=window.reason, frames_known=window.frames_known,
        frames_per_camera=window.frames_per_camera, images_encoded=window.images_encoded,
        prompt_tokens=window.prompt_tokens, computed_tokens=window.computed_tokens,
        camera_skew_ms=skew_ns / 1e6)


def path_message(trajectory: msg.PlannedTrajectory) -> Path:
    """Poses of a trajectory, each stamped with the time at which it is reached."""
    start = stamp_ns(trajectory.header.stamp)
    frame_id = trajectory.header.frame_id
    return Path(header=trajectory.header, poses=[
        PoseStamped(header=Header(stamp=stamp(start + stamp_ns(p.time_from_start)),
                                  frame_id=frame_id), pose=p.pose)
        for p in trajectory.points])


class PlanMarkers:
    """
    Markers of one plan after another.

    Their lifetime is at least twice the period between plans, so that they
    never flicker and vanish when plans stop; what a plan has fewer of than the
    one before is deleted by name.
    """

    def __init__(self, period_s: float = 0.5):
        self._period_s = period_s
        self._last_ns: int | None = None
        self._shown: set[tuple[str, int]] = set()

    def reset(self) -> MarkerArray:
        """Forget everything; the message removes every marker at once."""
        self._last_ns = None
        self._shown = set()
        return MarkerArray(markers=[Marker(action=Marker.DELETEALL)])

    def of(self, plan: types.DrivePlan, message: msg.DrivePlan) -> MarkerArray:
        """Trajectories, boxes and the reasoning text of one plan."""
        if self._last_ns is not None and plan.t0_ns > self._last_ns:
            # slow to shrink, so that one quick pair of plans cannot cut the lifetime
            step_s = min((plan.t0_ns - self._last_ns) / NANOSECONDS, 5.0)
            self._period_s = max(step_s, 0.9 * self._period_s)
        self._last_ns = plan.t0_ns
        markers = [*_trajectory_markers(message), *_primitive_markers(plan.primitives),
                   _text_marker(message)]
        shown = {(m.ns, m.id) for m in markers}
        lifetime = duration(2.5 * max(self._period_s, 0.1))
        for marker in markers:
            marker.header = message.header
            marker.lifetime = lifetime
            marker.frame_locked = True
        for ns, number in sorted(self._shown - shown):
            markers.append(Marker(header=message.header, ns=ns, id=number, action=Marker.DELETE))
        self._shown = shown
        return MarkerArray(markers=markers)


_CHOSEN = ColorRGBA(r=0.1, g=0.9, b=0.3, a=0.95)
_OTHER = ColorRGBA(r=0.3, g=0.6, b=1.0, a=0.4)
_BOX = ColorRGBA(r=1.0, g=0.6, b=0.1, a=0.45)
_DRAWN = ColorRGBA(r=1.0, g=0.3, b=0.7, a=0.8)
_TEXT = ColorRGBA(r=1.0, g=1.0, b=1.0, a=1.0)
_WARNING = ColorRGBA(r=1.0, g=0.2, b=0.2, a=1.0)


def _line(ns: str, number: int, points: list[Point], width: float, color: ColorRGBA) -> Marker:
    marker = Marker(ns=ns, id=number, type=Marker.LINE_STRIP, points=points, color=color)
    marker.scale.x = width
    marker.pose.orientation.w = 1.0
    return marker


def _trajectory_markers(message: msg.DrivePlan) -> list[Marker]:
    markers = []
    for k, trajectory in enumerate(message.trajectories):
        chosen = k == message.chosen_index
        points = [Point()] + [p.pose.position for p in trajectory.points]
        markers.append(_line('trajectories', k, points, 0.35 if chosen else 0.12,
                             _CHOSEN if chosen else _OTHER))
    return markers


def _primitive_markers(primitives: Iterable[types.Primitive]) -> list[Marker]:
    """Metric primitives; those in image coordinates have no place in the scene."""
    boxes, lines = [], []
    for p in primitives:
        rows = np.atleast_2d(np.asarray(p.values, dtype=np.float64))
        rows = rows[np.isfinite(rows).all(1)].tolist()
        if p.type == 'box_3d':
            boxes.extend(rows)
        elif p.type == 'trajectory_3d' and rows:
            lines.append([Point(x=x, y=y, z=z) for x, y, z in rows])
    return ([_box(i, row) for i, row in enumerate(boxes)]
            + [_line('drawn', i, points, 0.2, _DRAWN) for i, points in enumerate(lines)])


def _box(number: int, row: list[float]) -> Marker:
    x, y, z, length, width, height, yaw = row
    marker = Marker(ns='boxes', id=number, type=Marker.CUBE, color=_BOX)
    marker.pose = Pose(position=Point(x=x, y=y, z=z),
                       orientation=Quaternion(z=math.sin(yaw / 2), w=math.cos(yaw / 2)))
    marker.scale.x, marker.scale.y, marker.scale.z = (
        max(side, 0.01) for side in (length, width, height))
    return marker


def _text_marker(message: msg.DrivePlan) -> Marker:
    text = message.reasoning.text
    if not message.trained:
        text = f'{UNTRAINED}\n{text}'
    marker = Marker(ns='reasoning', id=0, type=Marker.TEXT_VIEW_FACING, text=text,
                    color=_TEXT if message.trained else _WARNING)
    marker.pose.position.z = 3.0
    marker.pose.orientation.w = 1.0
    marker.scale.z = 0.8
    return marker
