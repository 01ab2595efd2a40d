"""DrivePlan messages of a bag as arrays."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .bag import stamp_ns

STAGES = ('encode', 'prefill', 'reason', 'draw', 'act')


@dataclass(frozen=True)
class DrawnPrimitive:
    """
    One visual primitive; `values` [n, dimension], `camera_id` -1 in the ego frame.

    `decode_path` as in VisualPrimitive.msg.
    """

    type: str
    label: str
    camera_id: int
    values: np.ndarray
    decode_path: str = ''


@dataclass(frozen=True)
class RecordedPlan:
    """
    One DrivePlan message as arrays.

    Per trajectory k and point n: `xyz` [K, N, 3], `yaw`, `speed`,
    `acceleration`, `curvature`, `time_s` [K, N]; `stages_ms` by name of
    `STAGES`.  `stamp_ns` is the header's, `received_ns` the log time.
    """

    stamp_ns: int
    received_ns: int
    plan_id: int
    model: str
    trained: bool
    chosen: int
    xyz: np.ndarray
    yaw: np.ndarray
    time_s: np.ndarray
    speed: np.ndarray
    acceleration: np.ndarray
    curvature: np.ndarray
    scores: np.ndarray
    text: str
    tokens: int
    drafted: int
    accepted: int
    rounds: int
    stages_ms: dict[str, float]
    total_ms: float
    image_ms: float
    camera_to_plan_ms: float
    mode: str
    reason: str
    primitives: tuple[DrawnPrimitive, ...] = ()

    @property
    def is_finite(self) -> bool:
        """True when there is a trajectory and every number of all of them is finite."""
        return self.xyz.size > 0 and all(np.isfinite(a).all() for a in (
            self.xyz, self.yaw, self.speed, self.acceleration, self.curvature))


def plan_of(message, received_ns: int) -> RecordedPlan:
    """Turn a deserialised DrivePlan into arrays; trajectories are cut to one length."""
    points = min((len(t.points) for t in message.trajectories), default=0)
    table = np.array([[_row(p) for p in t.points[:points]] for t in message.trajectories],
                     float).reshape(len(message.trajectories), points, 8)
    reasoning, latency = message.reasoning, message.latency
    return RecordedPlan(
        stamp_ns=stamp_ns(message.header.stamp), received_ns=received_ns,
        plan_id=message.plan_id, model=message.model, trained=bool(message.trained),
        chosen=min(message.chosen_index, max(len(table) - 1, 0)),
        xyz=table[..., :3], yaw=table[..., 3], time_s=table[..., 4], speed=table[..., 5],
        acceleration=table[..., 6], curvature=table[..., 7],
        scores=np.array([t.score for t in message.trajectories]),
        text=reasoning.text, tokens=reasoning.tokens, drafted=reasoning.drafted,
        accepted=reasoning.accepted, rounds=reasoning.rounds,
        stages_ms={stage: getattr(latency, f'{stage}_ms') for stage in STAGES},
        total_ms=latency.total_ms, image_ms=latency.image_ms,
        camera_to_plan_ms=latency.camera_to_plan_ms,
        mode=message.window.mode, reason=message.window.reason,
        primitives=primitives_of(message.primitives))


def _row(point):
    p, q, t = point.pose.position, point.pose.orientation, point.time_from_start
    return (p.x, p.y, p.z, 2 * np.arctan2(q.z, q.w), t.sec + t.nanosec * 1e-9,
            point.speed, point.acceleration, point.curvature)


def primitives_of(message) -> tuple[DrawnPrimitive, ...]:
    """Primitives of a VisualPrimitiveArray that hold values of a known size."""
    return tuple(
        DrawnPrimitive(p.type, p.label, p.camera_id,
                       np.array(p.values, float).reshape(-1, p.dimension), p.decode_path)
        for p in message.primitives if p.dimension and len(p.values) % p.dimension == 0)
