"""
NAVSIM's scores from what needs no map (spec `vflash.md` section 5.1).

Poses are those of the rear axle (x, y, yaw), metres and radians, 10 Hz, the first at t0:
[41, 3] for 4 s.  NAVSIM scores what its own controller makes of a trajectory, so values from
a plan itself are near its figures, not equal to them.  What a map would tell (drivable area,
several lanes, junctions) are masks that a caller may give.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...world.metrics import overlap, rectangle

STEP_S = 0.1
LENGTH_M, WIDTH_M, MIDDLE_M = 5.176, 2.297, 1.461
"""NAVSIM's ego: its body, and the middle of it in front of the rear axle."""
STOPPED_MPS, STANDSTILL_MPS = 5e-2, 5e-3
AHEAD_RAD, BEHIND_RAD = np.deg2rad(30), np.deg2rad(150)
TTC_STEPS = (0, 3, 6, 9)
PROGRESS_M = 5.0
PDMS_WEIGHTS = {'ttc': 5, 'ep': 5, 'c': 2}
EPDMS_WEIGHTS = {'ttc': 5, 'ep': 5, 'lk': 2, 'hc': 2, 'ec': 2}
PDMS_FACTORS = ('nc', 'dac')
EPDMS_FACTORS = ('nc', 'dac', 'ddc', 'tlc')


@dataclass(frozen=True)
class Track:
    """
    Another road user: `boxes` [n, 5] (x, y, yaw, length, width) at 10 Hz from t0 on.

    NaN where it is not there; n may exceed the ego's 41 by the second that TTC looks ahead.
    `agent` is False for things that can not move by themselves (half the penalty).
    """

    boxes: np.ndarray
    agent: bool = True

    def box(self, index: int) -> np.ndarray | None:
        """Box at a step; None where it is not there."""
        if index >= len(self.boxes) or not np.isfinite(self.boxes[index]).all():
            return None
        return self.boxes[index]

    @property
    def stopped(self) -> bool:
        """Whether it stands at t0 (its first step)."""
        known = self.boxes[np.isfinite(self.boxes).all(1)][:2, :2]
        return len(known) < 2 or np.hypot(*(known[1] - known[0])) / STEP_S <= STOPPED_MPS


def no_collision(poses, tracks: Sequence[Track], astray=None) -> float:
    """
    NC: 1, or 0.5 after an at-fault collision with a thing, 0 with an agent.

    At fault are those with what stands, with the front, and from the side while `astray` [n]
    (in several lanes or off the drivable area).  Not at fault: while standing, and from behind.
    What touches the ego at t0 already is left out.
    """
    poses, speeds = _checked(poses)
    astray = _mask(astray, len(poses))
    score, ignored = 1.0, _touching_at_start(poses, tracks)
    for t, pose in enumerate(poses):
        body = ego_corners(pose)
        for number, track in enumerate(tracks):
            box = track.box(t)
            if number in ignored or box is None or not overlap(body, rectangle(*box)):
                continue
            if speeds[t] > STOPPED_MPS and (
                    track.stopped or (_angle(pose, box) <= BEHIND_RAD
                    and (overlap(body[[1, 2, 2, 1]] + _thickness(pose), rectangle(*box))
                         or astray[t]))):
                score = min(score, 0.0 if track.agent else 0.5)
            else:
                ignored.add(number)
    return score


def time_to_collision(poses, tracks: Sequence[Track], astray=None) -> float:
    """
    TTC: 0 when going straight on at the same speed for up to 0.9 s would hit something ahead.

    Also what is beside the ego counts where it is `astray` [n] or in a junction.
    """
    poses, speeds = _checked(poses)
    astray, ignored = _mask(astray, len(poses)), _touching_at_start(poses, tracks)
    for t, pose in enumerate(poses):
        for step in TTC_STEPS:
            reach = speeds[t] * step * STEP_S * np.array([np.cos(pose[2]), np.sin(pose[2])])
            body = ego_corners(pose) + reach
            for number, track in enumerate(tracks):
                box = track.box(t + step)
                if (number in ignored or box is None or speeds[t] < STANDSTILL_MPS
                        or not overlap(body, rectangle(*box))):
                    continue
                angle = _angle(pose, box)
                if angle < AHEAD_RAD or (astray[t] and angle <= BEHIND_RAD):
                    return 0.0
                ignored.add(number)
    return 1.0


def drivable_area(on_road) -> float:
    """DAC from a mask [n, 4] or [n]: 1 when every corner is always on the drivable area."""
    return float(np.asarray(on_road, bool).all())


def progress_m(poses, reference) -> float:
    """Way m along the polyline `reference` [n, 2] from the first to the last pose, 0 at least."""
    middle = [ego_corners(pose).mean(0) for pose in np.asarray(poses, np.float64)[[0, -1]]]
    start, end = (_along(np.asarray(reference, np.float64), point) for point in middle)
    return max(end - start, 0.0)


def ego_progress(own_m: float, reference_m: float, factor: float = 1.0) -> float:
    """EP: progress by that of the reference planner; `factor` is the product of the others."""
    own = own_m * factor
    most = max(own, reference_m)
    if most > PROGRESS_M:
        return own / most
    return 0.0 if factor == 0 else 1.0


def pdms(scores: Mapping[str, float]) -> float:
    """PDMS of NAVSIM v1 from nc, dac, ttc, ep and c."""
    return _composed(scores, PDMS_FACTORS, PDMS_WEIGHTS)


def epdms(scores: Mapping[str, float], human: Mapping[str, float] | None = None) -> float:
    """
    EPDMS of NAVSIM v2 from nc, dac, ddc, tlc, ttc, ep, lk, hc and ec.

    A score counts as 1 where that of the `human` driver is 0.
    """
    human = human or {}
    filtered = {n: 1.0 if human.get(n, 1) == 0 else value for n, value in scores.items()}
    return _composed(filtered, EPDMS_FACTORS, EPDMS_WEIGHTS)


def ego_corners(pose) -> np.ndarray:
    """Corners [4, 2] m: rear right, front right, front left, rear left."""
    x, y, yaw = pose
    return rectangle(x + MIDDLE_M * np.cos(yaw), y + MIDDLE_M * np.sin(yaw), yaw, LENGTH_M,
                     WIDTH_M)


def _composed(scores, factors, weights) -> float:
    missing = sorted({*factors, *weights} - set(scores))
    if missing:
        raise ValueError(f'scores lack {", ".join(missing)}')
    wrong = [n for n in (*factors, *weights) if not 0 <= scores[n] <= 1]
    if wrong:
        raise ValueError(f'{wrong[0]} must be from 0 to 1, got {scores[wrong[0]]}')
    mean = sum(w * scores[n] for n, w in weights.items()) / sum(weights.values())
    return float(np.prod([scores[n] for n in factors]) * mean)


def _checked(poses):
    poses = np.asarray(poses, np.float64)
    if poses.ndim != 2 or poses.shape[1] != 3 or len(poses) < 2 or not np.isfinite(poses).all():
        raise ValueError(f'poses must be [n, 3] and finite, got {list(poses.shape)}')
    speeds = np.linalg.norm(np.gradient(poses[:, :2], STEP_S, axis=0), axis=1)
    return poses, speeds


def _mask(mask, n: int) -> np.ndarray:
    mask = np.zeros(n, bool) if mask is None else np.asarray(mask, bool)
    if mask.shape != (n,):
        raise ValueError(f'astray must be [{n}], got {list(mask.shape)}')
    return mask


def _touching_at_start(poses, tracks) -> set[int]:
    body = ego_corners(poses[0])
    return {i for i, track in enumerate(tracks)
            if track.box(0) is not None and overlap(body, rectangle(*track.box(0)))}


def _thickness(pose) -> np.ndarray:
    """Make the front edge a rectangle, as the test of overlaps needs one."""
    back = -1e-3 * np.array([np.cos(pose[2]), np.sin(pose[2])])
    return np.stack([np.zeros(2), np.zeros(2), back, back])


def _angle(pose, box) -> float:
    """Angle rad between the ego's direction and that from its rear axle to a box."""
    away = box[:2] - pose[:2]
    length = np.hypot(*away)
    along = away @ [np.cos(pose[2]), np.sin(pose[2])]
    return float(np.arccos(np.clip(along / length, -1, 1))) if length else 0.0


def _along(line: np.ndarray, point) -> float:
    """Arc length at which a polyline is nearest to a point."""
    if line.ndim != 2 or len(line) < 2:
        raise ValueError(f'reference must be [n, 2] with n of 2 at least, got {list(line.shape)}')
    steps = np.diff(line[:, :2], axis=0)
    lengths = np.hypot(*steps.T)
    share = ((point - line[:-1, :2]) * steps).sum(1) / np.maximum(lengths ** 2, 1e-12)
    share = np.clip(share, 0, 1)
    foot = line[:-1, :2] + share[:, None] * steps
    i = int(np.hypot(*(foot - point).T).argmin())
    return float(lengths[:i].sum() + share[i] * lengths[i])
