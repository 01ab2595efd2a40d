"""
Odometry of the last seconds, and what is wrong with it.

Poses are those of the vehicle (`child_frame_id`: x forward, y left, z up, REP 103)
in a fixed frame (`header.frame_id`); the twist's velocity is in the vehicle's frame
(nav_msgs/Odometry).  No ROS here.
"""
from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np

from ..core.ego import JUMP_M, EgoHistory, quaternion_to_matrix, usable_poses
from ..core.types import NANOSECONDS, InputError
from .stamps import StampGate

ODOMETRY_SPAN_NS = 4 * NANOSECONDS
LOOK_BACK_NS = NANOSECONDS
"""Poses and twist are compared over this time."""
MOVING_MPS = 2.0
"""Slower than this, directions say nothing."""


@dataclass(frozen=True)
class OdometrySample:
    """One pose (m, quaternion x, y, z, w), the velocity (m/s; None: not known) and the frames."""

    stamp_ns: int
    position: tuple
    quaternion_xyzw: tuple
    velocity: tuple | None = None
    frame_id: str = ''
    child_frame_id: str = ''


class OdometryBuffer:
    """Samples by stamp; refuses late ones, starts again when time or the fixed frame changes."""

    def __init__(self, span_ns: int = ODOMETRY_SPAN_NS, max_jump_m: float = JUMP_M):
        self.span_ns, self.max_jump_m = span_ns, max_jump_m
        self.counts: Counter = Counter()
        self._last_frames: deque = deque(maxlen=8)
        self.clear()

    def clear(self):
        """Forget the samples; counters stay."""
        self._gate = StampGate()
        self._samples: deque[OdometrySample] = deque()

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest sample; None without one."""
        return self._samples[-1].stamp_ns if self._samples else None

    @property
    def frame_id(self) -> str:
        """Fixed frame of the newest sample; '' without one."""
        return self._samples[-1].frame_id if self._samples else ''

    def add(self, sample: OdometrySample):
        """Store one sample; unusable, late or foreign ones are counted and dropped."""
        self.counts['received'] += 1
        if not usable_poses(sample.position, sample.quaternion_xyzw):
            self.counts['unusable'] += 1
            return
        self._last_frames.append(sample.frame_id)
        if self._samples and sample.frame_id != self.frame_id:
            self.counts['frame changes'] += 1
            self.clear()
        verdict = self._gate.judge(sample.stamp_ns)
        if verdict == 'jump':
            self._samples.clear()
            self.counts['jumps'] += 1
        elif verdict != 'new':
            self.counts[verdict] += 1
            return
        self._samples.append(sample)
        while self._samples[0].stamp_ns < sample.stamp_ns - self.span_ns:
            self._samples.popleft()

    def history(self, t0_ns: int, max_extrapolation_s: float = 0.0) -> EgoHistory:
        """Ego history at t0; raises `InputError` when the samples do not give it."""
        if mixed := self._mixed_frames():
            raise InputError(f'odometry {mixed}')
        samples = list(self._samples)
        return EgoHistory.from_odometry(
            [s.stamp_ns for s in samples], [s.position for s in samples],
            [s.quaternion_xyzw for s in samples], t0_ns, speeds=_speeds(samples),
            max_extrapolation_s=max_extrapolation_s, max_jump_m=self.max_jump_m)

    def trouble(self, base_frame: str = '') -> str:
        """What is doubtful about the samples; '' when nothing is."""
        if not self._samples:
            return ''
        child = self._samples[-1].child_frame_id
        if child and base_frame and child != base_frame:
            return (f'child_frame_id is {child!r}, expected {base_frame!r}: '
                    'these are poses of something else')
        return self._mixed_frames() or self._motion_trouble()

    def _mixed_frames(self) -> str:
        """Two publishers on one topic, say."""
        frames = list(self._last_frames)
        changes = sum(a != b for a, b in zip(frames, frames[1:]))
        return f'comes in several frames by turns: {", ".join(sorted(set(frames)))}' \
            if changes > 1 else ''

    def _motion_trouble(self) -> str:
        """Compare how the poses move with where they point and with the twist."""
        newest = self._samples[-1]
        recent = [s for s in self._samples if s.stamp_ns >= newest.stamp_ns - LOOK_BACK_NS]
        span_s = (newest.stamp_ns - recent[0].stamp_ns) / NANOSECONDS
        if span_s < 0.5 * LOOK_BACK_NS / NANOSECONDS:
            return ''
        moved = np.diff([s.position for s in recent], axis=0)
        speed = np.linalg.norm(moved, axis=1).sum() / span_s
        velocity = np.array([s.velocity or (0, 0, 0) for s in recent[1:]], float)
        told = float(np.mean([math.hypot(*v) for v in velocity]))
        if told > 0 and abs(speed - told) > 1 + 0.2 * max(speed, told):
            return f'poses move at {speed:.1f} m/s, the twist says {told:.1f} m/s'
        if speed < MOVING_MPS:
            return ''
        turned = quaternion_to_matrix(_unit([s.quaternion_xyzw for s in recent[1:]]))
        forward = np.einsum('nji,nj->ni', turned, _unit(moved))
        along, fixed = _agreement(forward, velocity), _agreement(moved, velocity)
        if told > 0 and along < 0.7 and fixed > 0.9:
            return (f'twist is in frame {newest.frame_id!r}, expected in that of the vehicle, '
                    f'{newest.child_frame_id!r}')
        if abs(forward[:, 0].mean()) < 0.5:
            return 'poses move sideways: x must point forward, y left, z up (REP 103)'
        return ''


def _speeds(samples: list[OdometrySample]) -> np.ndarray | None:
    """Speeds [n] by the twist, m/s; None when it tells nothing."""
    speeds = np.array([math.nan if s.velocity is None else math.hypot(*s.velocity)
                       for s in samples])
    return speeds if np.isfinite(speeds).all() and speeds.any() else None


def _unit(vectors) -> np.ndarray:
    vectors = np.asarray(vectors, float)
    vectors = vectors / np.maximum(np.abs(vectors).max(-1, keepdims=True), 1e-9)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)


def _agreement(a, b) -> float:
    """Mean cosine between vectors [n, 3]."""
    return float((_unit(a) * _unit(b)).sum(-1).mean())
