"""Ego history: poses at 10 Hz before t0, in the ego frame at t0."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .types import GRID_NS, NANOSECONDS, InputError

HISTORY_POSES = 16
MAX_POSITION_M = 1e8
"""Beyond it double precision is coarse; the Earth is smaller."""
MAX_STEP_SPEED = 100.0
"""Speed in m/s between two poses of the history above which they are no drive but a jump."""
JUMP_M = 1.0
"""Movement between two samples that their speed does not explain: a jump, even a short one."""
JUMP_MPS = 5.0
"""Added for each second between them, for what happens to the speed there."""


@dataclass(frozen=True)
class EgoHistory:
    """
    16 poses at 10 Hz, t0 - 1.5 s to t0, in the ego frame at t0 (spec `alpamayo.md` section 5).

    `xyz` [16, 3] m, `rot` [16, 3, 3] (vehicle at that time -> ego frame at t0);
    the last pose is the origin with identity rotation.  `origin_xyz` [3] m and
    `origin_rot` [3, 3] are the pose at t0 in the odometry's own frame, where known.
    """

    t0_ns: int
    xyz: np.ndarray
    rot: np.ndarray
    origin_xyz: np.ndarray | None = None
    origin_rot: np.ndarray | None = None

    def __post_init__(self):
        """Refuse other shapes and values that are not finite."""
        if np.shape(self.xyz) != (HISTORY_POSES, 3) or np.shape(self.rot) != (HISTORY_POSES, 3, 3):
            raise InputError(f'ego history must be xyz [16, 3] and rot [16, 3, 3], got '
                             f'{list(np.shape(self.xyz))} and {list(np.shape(self.rot))}')
        if not (np.isfinite(self.xyz).all() and np.isfinite(self.rot).all()):
            raise InputError('ego history holds values that are not finite')
        if np.abs(self.xyz).max() > MAX_POSITION_M:
            raise InputError(f'ego history reaches {np.abs(self.xyz).max():.3g} m away')

    @classmethod
    def from_odometry(cls, stamps_ns, positions, quaternions_xyzw, t0_ns, *, speeds=None,
                      max_gap_s: float = 0.5, max_extrapolation_s: float = 0.0,
                      max_jump_m: float = JUMP_M) -> EgoHistory:
        """
        Interpolate odometry of any rate at the 16 history times.

        `stamps_ns` [n] ascending, `positions` [n, 3] m and `quaternions_xyzw`
        [n, 4] in any fixed frame; `speeds` [n] m/s as measured by other means,
        None where there are none.  Positions are interpolated linearly,
        rotations along the shortest arc.  Raises `InputError` when the span
        [t0 - 1.5 s, t0] is not covered (up to `max_extrapolation_s` beyond the
        last sample is extrapolated at constant velocity), has a gap longer
        than `max_gap_s`, or jumps: faster than `MAX_STEP_SPEED` from one
        history time to the next, or by more than `max_jump_m` further than the
        speed explains between two samples.
        """
        stamps = np.asarray(stamps_ns, dtype=np.int64)
        positions = np.asarray(positions, dtype=np.float64)
        quaternions = np.asarray(quaternions_xyzw, dtype=np.float64)
        times = t0_ns + GRID_NS * np.arange(-HISTORY_POSES + 1, 1, dtype=np.int64)
        _check_cover(stamps, times, max_gap_s, max_extrapolation_s)
        if not usable_poses(positions, quaternions).all():
            raise InputError('odometry holds poses that are not finite or quaternions of length 0')
        quaternions = quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)
        right = np.clip(np.searchsorted(stamps, times, side='left'), 1, len(stamps) - 1)
        left = right - 1
        weight = (times - stamps[left]) / (stamps[right] - stamps[left])
        xyz = positions[left] + weight[:, None] * (positions[right] - positions[left])
        _check_steps(xyz)
        used = slice(left[0], right[-1] + 1)
        _check_samples(stamps[used], positions[used],
                       np.zeros(len(stamps[used])) if speeds is None else speeds[used],
                       t0_ns, max_jump_m)
        rot = quaternion_to_matrix(_slerp(quaternions[left], quaternions[right], weight))
        return cls(t0_ns, *in_frame_of(xyz, rot, xyz[-1], rot[-1]), xyz[-1], rot[-1])


def in_frame_of(xyz, rot, origin_xyz, origin_rot) -> tuple[np.ndarray, np.ndarray]:
    """Poses `xyz` [n, 3], `rot` [n, 3, 3] of a fixed frame, seen from the pose at the origin."""
    return (xyz - origin_xyz) @ origin_rot, origin_rot.T @ rot


def usable_poses(positions, quaternions_xyzw) -> np.ndarray:
    """Say for `positions` [n, 3] m and `quaternions_xyzw` [n, 4] which n are usable poses."""
    with np.errstate(over='ignore', invalid='ignore'):
        norms = np.linalg.norm(np.asarray(quaternions_xyzw, np.float64), axis=-1)
        near = np.abs(np.asarray(positions, np.float64)).max(-1) <= MAX_POSITION_M
    return near & np.isfinite(norms) & (norms > 1e-6)


def _check_steps(xyz):
    steps = np.linalg.norm(np.diff(xyz, axis=0), axis=1)
    fastest = int(steps.argmax())
    speed = steps[fastest] * NANOSECONDS / GRID_NS
    if speed > MAX_STEP_SPEED:
        before = (HISTORY_POSES - 1 - fastest) * GRID_NS / NANOSECONDS
        raise InputError(f'odometry jumps by {steps[fastest]:.3g} m, {before:.1f} s before the '
                         f'frames: {speed:.3g} m/s (limit {MAX_STEP_SPEED:g} m/s)')


def _check_samples(stamps, positions, speeds, t0_ns, max_jump_m):
    """
    Refuse a step between two samples that is longer or shorter than the speed explains.

    What all samples have in common is no jump: a speed that is not given (0) or
    in other units.  So the difference from the median difference counts.
    """
    seconds = np.diff(stamps) / NANOSECONDS
    moved = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    difference = moved / seconds - (speeds[:-1] + speeds[1:]) / 2
    unexplained = np.abs(difference - np.median(difference)) * seconds
    worst = int((unexplained - JUMP_MPS * seconds).argmax())
    if unexplained[worst] > max_jump_m + JUMP_MPS * seconds[worst]:
        before = (t0_ns - stamps[worst + 1]) / NANOSECONDS
        raise InputError(f'odometry jumps by {moved[worst]:.3g} m in {seconds[worst]:.3g} s, '
                         f'{before:.1f} s before the frames: {unexplained[worst]:.3g} m more or '
                         f'less than its speed explains')


def _check_cover(stamps, times, max_gap_s, max_extrapolation_s):
    if len(stamps) < 2:
        raise InputError(f'odometry has {len(stamps)} samples, at least 2 are needed')
    steps = np.diff(stamps)
    if (steps <= 0).any():
        raise InputError('odometry stamps are not strictly ascending')
    early = (stamps[0] - times[0]) / NANOSECONDS
    late = (times[-1] - stamps[-1]) / NANOSECONDS
    if early > 0:
        raise InputError(f'odometry begins {early:.3f} s after the start of the 1.5 s history')
    if late > max_extrapolation_s:
        raise InputError(f'odometry ends {late:.3f} s before the frames\' time')
    inside = (stamps[1:] > times[0]) & (stamps[:-1] < times[-1])
    gap = steps[inside].max(initial=0) / NANOSECONDS
    if gap > max_gap_s:
        raise InputError(f'odometry has a gap of {gap:.3f} s (limit {max_gap_s} s)')


def _slerp(a, b, weight):
    """Spherical interpolation of unit quaternions [n, 4] along the shorter arc."""
    dot = (a * b).sum(1)
    b = np.where(dot[:, None] < 0, -b, b)
    angle = np.arccos(np.clip(np.abs(dot), -1, 1))
    small = angle < 1e-6
    sine = np.where(small, 1.0, np.sin(angle))
    wa = np.where(small, 1 - weight, np.sin((1 - weight) * angle) / sine)
    wb = np.where(small, weight, np.sin(weight * angle) / sine)
    mixed = wa[:, None] * a + wb[:, None] * b
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def quaternion_to_matrix(q) -> np.ndarray:
    """Rotation matrices [n, 3, 3] of unit quaternions [n, 4] in x, y, z, w order."""
    x, y, z, w = np.moveaxis(np.asarray(q, dtype=np.float64), -1, 0)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w),
            2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
            2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)]
    return np.stack(rows, -1).reshape(*x.shape, 3, 3)
