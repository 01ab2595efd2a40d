"""
One rollout of the simulator: its frames, motion and route in, a trajectory out.

Stamps come in microseconds.  Poses are those of the rig (x forward, y left, z up, origin below
the middle of the rear axle) in the simulator's `local` frame, as estimated; trajectories go
back in that frame.
"""
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from ...core.ego import EgoHistory
from ...core.types import CAMERA_NAMES, GRID_NS, NANOSECONDS, DrivePlan, InputError
from ...nodes.frames import FrameSelector
from ...nodes.images import decode_compressed
from ...nodes.inputs import StepInputs
from ...nodes.odometry import OdometrySample
from ..resample import poses_at
from .route import route_text

CAMERAS = {f'camera_{name}fov': number for number, name in CAMERA_NAMES.items()}
"""Our camera by AlpaSim's logical id."""
STALE_NS = NANOSECONDS
"""Frames older than this say too little of now."""


class Refused(Exception):
    """A call that can not be answered; `code` is the name of the gRPC status."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Answer:
    """
    Poses [n, 7] (x, y, z, quaternion x, y, z, w) in the local frame at `stamps_us` [n].

    Empty while there is nothing to plan from: `waiting` says what for.  `samples` are those of
    every trajectory of the plan.
    """

    stamps_us: np.ndarray
    poses: np.ndarray
    samples: tuple[np.ndarray, ...] = ()
    plan: DrivePlan | None = None
    waiting: str = ''


def choose_cameras(logical_ids: Sequence[str], needed: Sequence[int] | None,
                   wanted: Sequence[int]) -> tuple[int, ...]:
    """
    Cameras of a session: those `needed` by the model, else those `wanted` that there are.

    Raises `Refused` that names what is missing.
    """
    there = {CAMERAS[name] for name in logical_ids if name in CAMERAS}
    chosen = tuple(needed) if needed is not None else tuple(c for c in wanted if c in there)
    missing = sorted(set(chosen) - there)
    if missing or not chosen:
        names = [name for name, c in CAMERAS.items() if c in (missing or wanted)]
        raise Refused('INVALID_ARGUMENT', f'the vehicle lacks the cameras {", ".join(names)}; '
                      f'it has {", ".join(sorted(logical_ids)) or "none"}')
    return chosen


class Session:
    """State of one rollout; `step` is its engine's, run where the device is owned."""

    def __init__(self, uuid: str, cameras: Sequence[int], step: Callable, frames: int,
                 navigation: bool = True):
        self.uuid, self.cameras, self.step = uuid, tuple(cameras), step
        self.navigation, self.lock = navigation, threading.Lock()
        self.counts: Counter = Counter()
        self.inputs = StepInputs(FrameSelector(self.cameras), self._decode, frames)
        self._last: tuple[DrivePlan, EgoHistory] | None = None

    def _decode(self, camera: int, payload: bytes) -> np.ndarray:
        return decode_compressed(SimpleNamespace(data=payload, format=''),
                                 f'session {self.uuid}, camera {CAMERA_NAMES[camera]}')

    def add_image(self, logical_id: str, stamp_us: int, data: bytes) -> None:
        """Keep an image (JPEG or PNG) that ended at `stamp_us`; cameras not used are left out."""
        if logical_id not in CAMERAS:
            raise Refused('INVALID_ARGUMENT', f'camera {logical_id!r} is unknown; known are '
                          + ', '.join(CAMERAS))
        if not data:
            raise Refused('INVALID_ARGUMENT', f'camera {logical_id} sent an image of 0 bytes')
        camera = CAMERAS[logical_id]
        self.counts['images' if camera in self.cameras else 'images not used'] += 1
        if camera in self.cameras:
            self.inputs.add_camera(camera, stamp_us * 1000, data)

    def add_motion(self, poses: Sequence, states: Sequence) -> None:
        """Keep `PoseAtTime`s, with a `DynamicState` each or none at all."""
        if states and len(states) != len(poses):
            raise Refused('INVALID_ARGUMENT',
                          f'{len(poses)} poses with {len(states)} dynamic states')
        for i, item in enumerate(poses):
            p, q = item.pose.vec, item.pose.quat
            v = states[i].linear_velocity if states else None
            self.inputs.add_odometry(OdometrySample(
                item.timestamp_us * 1000, (p.x, p.y, p.z), (q.x, q.y, q.z, q.w),
                None if v is None else (v.x, v.y, v.z), 'local', 'rig'))

    def set_route(self, waypoints) -> None:
        """Tell the model of a route [n, 2] m in the rig frame."""
        if self.navigation:
            self.inputs.set_route_text(route_text(waypoints))

    def drive(self, now_us: int, query_us: int) -> Answer:
        """
        Trajectory from now on: the pose at the frames' time, then one every 0.1 s.

        Plans when a complete set of frames is new; else the last plan goes on.  Raises
        `Refused` when frames or motion are unusable, stale, or end before `query_us`.
        """
        with self.lock:
            try:
                given = self.inputs.take()
                if given is not None:
                    plan = self.step(given.frames, given.ego, given.nav_text, given.history)
                    if plan is not None:
                        self._last = plan, given.ego
            except InputError as error:
                raise Refused('FAILED_PRECONDITION', str(error)) from None
            if self._last is None:
                return Answer(np.zeros(0, np.int64), np.zeros((0, 7)), waiting=self._waiting())
            plan, ego = self._last
            return self._answer(plan, ego, now_us * 1000, query_us * 1000)

    def _waiting(self) -> str:
        names = {c: name for name, c in CAMERAS.items()}
        return self.inputs.waiting_for(float('inf'), names) or 'no complete set of frames'

    def _answer(self, plan: DrivePlan, ego: EgoHistory, now_ns: int, query_ns: int) -> Answer:
        age, end = now_ns - plan.t0_ns, plan.t0_ns + round(
            plan.xyz.shape[1] * plan.dt_s * NANOSECONDS)
        if age > STALE_NS:
            raise Refused('FAILED_PRECONDITION', f'the newest complete set of frames is '
                          f'{age / NANOSECONDS:.3f} s older than now; {self._waiting()}')
        if query_ns > end:
            raise Refused('OUT_OF_RANGE', f'the plan ends {(end - now_ns) / NANOSECONDS:.3f} s '
                          f'from now, asked was {(query_ns - now_ns) / NANOSECONDS:.3f} s')
        if not plan.is_finite:
            raise Refused('INTERNAL', f'plan {plan.plan_id} is not finite')
        first = max(now_ns, plan.t0_ns)
        stamps = np.arange(first, end + 1, GRID_NS)
        stamps = np.unique(np.concatenate(([plan.t0_ns], stamps)))
        times = (stamps - plan.t0_ns) / NANOSECONDS
        samples = tuple(in_local(poses_at(plan, times, k), ego) for k in range(len(plan.xyz)))
        return Answer(stamps // 1000, samples[plan.chosen], samples, plan)


def in_local(poses, ego: EgoHistory) -> np.ndarray:
    """Rows x, y, yaw [n, 3] of the ego frame at t0 as poses [n, 7] in the frame of the motion."""
    xyz = np.column_stack((poses[:, :2], np.zeros(len(poses)))) @ ego.origin_rot.T
    half = poses[:, 2] / 2
    zero = np.zeros(len(poses))
    turn = _product(matrix_to_quaternion(ego.origin_rot),
                    np.stack([zero, zero, np.sin(half), np.cos(half)], 1))
    return np.concatenate((xyz + ego.origin_xyz, turn), 1)


def matrix_to_quaternion(m) -> np.ndarray:
    """Quaternion x, y, z, w of a rotation matrix [3, 3], by its largest component."""
    trace = np.trace(m)
    squares = np.array([1 + 2 * m[0, 0] - trace, 1 + 2 * m[1, 1] - trace,
                        1 + 2 * m[2, 2] - trace, 1 + trace])
    k = np.array([[squares[0], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0], m[2, 1] - m[1, 2]],
                  [m[0, 1] + m[1, 0], squares[1], m[1, 2] + m[2, 1], m[0, 2] - m[2, 0]],
                  [m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], squares[2], m[1, 0] - m[0, 1]],
                  [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], squares[3]]])
    row = k[int(squares.argmax())]
    return row / np.linalg.norm(row)


def _product(a, b) -> np.ndarray:
    """Quaternion `a` [4] times each of `b` [n, 4], in x, y, z, w order."""
    v, w = a[:3], a[3]
    return np.column_stack((w * b[:, :3] + b[:, 3:] * v + np.cross(v, b[:, :3]),
                            w * b[:, 3] - b[:, :3] @ v))
