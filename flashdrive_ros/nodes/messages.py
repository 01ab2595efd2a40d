"""A `DrivePlan` as ROS messages: ours and a Path."""
from __future__ import annotations

import array
import math
from collections.abc import Callable, Iterable

import cv2
import numpy as np
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from nav_msgs.msg import Odometry, Path
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Header

from flashdrive_ros import msg

from ..core import types
from ..core.types import CAMERA_NAMES, NANOSECONDS
from .odometry import OdometrySample

STAGES = ('encode', 'prefill', 'reason', 'draw', 'act', 'total')


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


def odometry_sample(message: Odometry) -> OdometrySample:
    """Pose, velocity and frames of an odometry message."""
    p, q = message.pose.pose.position, message.pose.pose.orientation
    v = message.twist.twist.linear
    finite = math.isfinite(v.x) and math.isfinite(v.y) and math.isfinite(v.z)
    return OdometrySample(
        stamp_ns(message.header.stamp), (p.x, p.y, p.z), (q.x, q.y, q.z, q.w),
        (v.x, v.y, v.z) if finite else None, message.header.frame_id, message.child_frame_id)


def optical_frame(camera_id: int) -> str:
    """Frame id of a camera's images (REP 103: z forward, x right, y down)."""
    return f'{CAMERA_NAMES[camera_id]}_optical'


def header_of(plan: types.DrivePlan, frame_id: str) -> Header:
    """Header with the time of the plan's frames."""
    return Header(stamp=stamp(plan.t0_ns), frame_id=frame_id)


def compressed_image(header: Header, image: np.ndarray, quality: int) -> CompressedImage:
    """JPEG message of RGB uint8 [H, W, 3]."""
    _, jpeg = cv2.imencode('.jpg', cv2.cvtColor(image, cv2.COLOR_RGB2BGR),
                           [cv2.IMWRITE_JPEG_QUALITY, quality])
    return CompressedImage(header=header, format='rgb8; jpeg compressed bgr8',
                           data=array.array('B', jpeg.tobytes()))


def plan_message(plan: types.DrivePlan, frame_id: str, *, image_ms: float = 0.0,
                 now_ns: int | None = None, skew_ns: int = 0,
                 image_frame: Callable[[int], str] = optical_frame) -> msg.DrivePlan:
    """
    Everything of one plan.

    `now_ns` is the ROS time of publishing, `image_frame` gives the frame id of a camera's images.
    """
    header = header_of(plan, frame_id)
    times = [duration((i + 1) * plan.dt_s) for i in range(plan.xyz.shape[1])]
    return msg.DrivePlan(
        header=header, plan_id=plan.plan_id, model=plan.model, trained=plan.trained,
        trajectories=[_trajectory(plan, k, header, times) for k in range(len(plan.xyz))],
        chosen_index=plan.chosen,
        reasoning=reasoning_message(plan, header),
        primitives=primitives_message(plan.primitives, plan.plan_id, header, image_frame),
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
                       header: Header, image_frame: Callable[[int], str] = optical_frame,
                       ) -> msg.VisualPrimitiveArray:
    """Visual primitives; 2D ones are in their camera's frame, 3D ones in the header's."""
    return msg.VisualPrimitiveArray(
        header=header, plan_id=plan_id,
        primitives=[_primitive(p, plan_id, header, image_frame) for p in primitives])


def _primitive(p: types.Primitive, plan_id: int, header: Header,
               image_frame: Callable[[int], str]) -> msg.VisualPrimitive:
    values = np.atleast_2d(np.asarray(p.values, dtype=np.float32))
    metric = p.camera_id is None
    return msg.VisualPrimitive(
        header=header if metric else Header(
            stamp=header.stamp, frame_id=image_frame(p.camera_id)),
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
