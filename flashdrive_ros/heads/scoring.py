"""
A score of driven plans after PDMS (spec `vflash.md` section 5.1): safe first, then good.

    score = NC * DAC * TLC * (5 TTC + 5 EP + 2 C) / 12

NC: no collision at fault; DAC: on the road; TLC: no red light run (a factor that EPDMS has);
TTC: no collision at fault within a second if the ego goes on as it does; EP: progress along
the route over the expert's; C: comfort.  Plans are tracked by the world's vehicle for 4 s;
others do what was recorded.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..world.vehicle import FRONT_M, LENGTH_M, MIDDLE_M, WIDTH_M
from .surroundings import ROAD_STEP_M, Surroundings
from .tracking import Driven, drive_plans

SCORED = 40
"""Rows of 0.1 s."""
EVERY = 2
"""Collisions to come are looked for from every second row."""
AHEAD_S = 0.3, 0.6, 0.9
STANDING = 0.05
LEAST_PROGRESS_M = 5.0
"""Where the expert makes less way than this, everyone makes enough."""
WEIGHTS = {'ttc': 5.0, 'progress': 5.0, 'comfort': 2.0}
ACCELERATION = -4.05, 2.40
LATERAL, JERK, YAW_RATE, YAW_ACCELERATION = 4.89, 8.37, 0.95, 1.93
"""Bounds of comfort: m/s^2, m/s^3, rad/s and rad/s^2."""
KERB_SLACK_M = 0.05
JUNCTION_SLACK_M = 3.0
SMOOTHED = 5
"""Rows over which accelerations are averaged before comfort is judged."""


@dataclass(frozen=True)
class Scores:
    """Parts [B] of the score of B plans, each from 0 to 1, and the whole."""

    no_collision: np.ndarray
    on_road: np.ndarray
    no_red_light: np.ndarray
    ttc: np.ndarray
    progress: np.ndarray
    comfort: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Score [B]."""
        good = sum(w * getattr(self, name) for name, w in WEIGHTS.items())
        return self.no_collision * self.on_road * self.no_red_light * good / sum(
            WEIGHTS.values())


def score(plans: np.ndarray, speeds: np.ndarray, yaw_rates: np.ndarray,
          around: Surroundings) -> Scores:
    """
    Score `plans` [B, n >= 40, 3] (rows 0.1 s apart) in the surroundings of B windows.

    `speeds` and `yaw_rates` [B] are those at t0.
    """
    curvatures = np.where(speeds > 0.5, yaw_rates / np.maximum(speeds, 0.5), 0.0)
    driven = drive_plans(plans, speeds, curvatures, SCORED)
    return score_driven(driven, around)


def score_driven(driven: Driven, around: Surroundings) -> Scores:
    """Score what was driven, [B, SCORED + 1] rows."""
    arc, offsets = along_road(driven.poses, around)
    return Scores(
        1.0 - collides(driven, around), 1.0 - off_road(driven, offsets, arc, around),
        1.0 - runs_red(arc, around), 1.0 - collides_soon(driven, around),
        progress(arc, around), comfort(driven))


def body(poses: np.ndarray) -> np.ndarray:
    """Middle x, y and yaw [..., 3] of the ego's body at poses of its rear axle."""
    x, y, yaw = np.moveaxis(poses, -1, 0)
    return np.stack((x + MIDDLE_M * np.cos(yaw), y + MIDDLE_M * np.sin(yaw), yaw), -1)


def corners(boxes: np.ndarray) -> np.ndarray:
    """Corners [..., 4, 2] of rectangles [..., 5]: x, y, yaw, length, width."""
    x, y, yaw, length, width = (boxes[..., i, None] for i in range(5))
    u = np.array([-0.5, 0.5, 0.5, -0.5]) * length
    w = np.array([-0.5, -0.5, 0.5, 0.5]) * width
    c, s = np.cos(yaw), np.sin(yaw)
    return np.stack((x + u * c - w * s, y + u * s + w * c), -1)


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether rectangles [..., 5] have points in common (separating axes)."""
    near = np.hypot(a[..., 0] - b[..., 0], a[..., 1] - b[..., 1]) < (
        np.hypot(a[..., 3], a[..., 4]) + np.hypot(b[..., 3], b[..., 4])) / 2
    a, b = np.broadcast_arrays(a, b)
    found = np.array(near)
    ca, cb = corners(a[near]), corners(b[near])
    together = np.ones(len(ca), dtype=bool)
    for yaw in (a[near][:, 2], b[near][:, 2]):
        for axis in (np.stack((np.cos(yaw), np.sin(yaw)), -1),
                     np.stack((-np.sin(yaw), np.cos(yaw)), -1)):
            pa, pb = (np.einsum('bki,bi->bk', k, axis) for k in (ca, cb))
            together &= (pa.max(1) >= pb.min(1)) & (pb.max(1) >= pa.min(1))
    found[near] = together
    return found


def _ego_boxes(poses: np.ndarray) -> np.ndarray:
    middle = body(poses)
    size = np.broadcast_to([LENGTH_M, WIDTH_M], (*middle.shape[:-1], 2))
    return np.concatenate((middle, size), -1)


def _moves_towards(boxes: np.ndarray, speeds: np.ndarray, agents: np.ndarray) -> np.ndarray:
    """Whether [..., A] the ego moves and an agent is not behind it."""
    dx, dy = (agents[..., i] - boxes[..., i] for i in (0, 1))
    ahead = dx * np.cos(boxes[..., 2]) + dy * np.sin(boxes[..., 2])
    return (speeds > STANDING) & (ahead > -LENGTH_M / 2)


def _contacts(driven: Driven, around: Surroundings) -> np.ndarray:
    """Whether [B, SCORED + 1, A] an agent touches the ego now or has before."""
    touches = overlap(_ego_boxes(driven.poses)[:, :, None], around.agents[:, :SCORED + 1])
    return np.logical_or.accumulate(touches, 1)


def collides(driven: Driven, around: Surroundings) -> np.ndarray:
    """
    Whether [B] the ego runs into anyone.

    The first contact decides whose fault it is: others are recorded and may drive through a
    slower ego.  What touches it at t0 already does not count.
    """
    touched = _contacts(driven, around)
    first = touched[:, 1:] & ~touched[:, :-1]
    ours = _moves_towards(_ego_boxes(driven.poses)[:, 1:, None], driven.speeds[:, 1:, None],
                          around.agents[:, 1:SCORED + 1])
    return (first & ours).any((1, 2)).astype(float)


def collides_soon(driven: Driven, around: Surroundings) -> np.ndarray:
    """Whether [B] the ego, going straight on at its speed from any row, would hit someone."""
    found = np.zeros(len(driven.poses), dtype=bool)
    yaw, speed, touched = driven.poses[..., 2], driven.speeds, _contacts(driven, around)
    rows = np.arange(EVERY, SCORED + 1, EVERY)
    now = _moves_towards(_ego_boxes(driven.poses)[:, rows, None], speed[:, rows, None],
                         around.agents[:, rows]) & ~touched[:, rows]
    for later in AHEAD_S:
        moved = driven.poses[:, rows].copy()
        moved[..., 0] += speed[:, rows] * later * np.cos(yaw[:, rows])
        moved[..., 1] += speed[:, rows] * later * np.sin(yaw[:, rows])
        hits = overlap(_ego_boxes(moved)[:, :, None], around.agents[:, rows + round(later / 0.1)])
        found |= (hits & now).any((1, 2))
    return found.astype(float)


def along_road(poses: np.ndarray, around: Surroundings) -> tuple[np.ndarray, np.ndarray]:
    """Arc length [B, T] of the rear axle from the first row; offsets [B, T, 4] of corners."""
    points = np.concatenate((poses[:, :, None, :2], corners(_ego_boxes(poses))), 2)
    line = around.road
    arc, offset = np.empty(points.shape[:3]), np.empty(points.shape[:3])
    for b, (road, p) in enumerate(zip(line, points)):
        p = p.reshape(-1, 2)
        i = ((p[:, :1] - road[:, 0]) ** 2 + (p[:, 1:] - road[:, 1]) ** 2).argmin(1)
        dx, dy, yaw, k = p[:, 0] - road[i, 0], p[:, 1] - road[i, 1], road[i, 2], road[i, 3]
        u, d = dx * np.cos(yaw) + dy * np.sin(yaw), -dx * np.sin(yaw) + dy * np.cos(yaw)
        u = u / np.maximum(1 - k * d, 0.1)
        arc[b] = (i * ROAD_STEP_M + u).reshape(arc.shape[1:])
        offset[b] = (d + 0.5 * k * u * u).reshape(arc.shape[1:])
    return arc[..., 0], offset[..., 1:]


def off_road(driven: Driven, offsets: np.ndarray, arc: np.ndarray,
             around: Surroundings) -> np.ndarray:
    """Whether [B] a corner of the ego is ever beyond the kerb; junctions are open on all sides."""
    out = (np.abs(offsets) > around.kerb[:, None, None] + KERB_SLACK_M).any(-1)
    points = corners(_ego_boxes(driven.poses))
    for j in range(around.junctions.shape[1]):
        x, y, yaw, half, begin, end = (around.junctions[:, j, i, None] for i in range(6))
        inside = (arc + MIDDLE_M >= begin) & (arc + MIDDLE_M <= end)
        dx, dy = points[..., 0] - x[..., None], points[..., 1] - y[..., None]
        c, s = np.cos(yaw)[..., None], np.sin(yaw)[..., None]
        local = np.maximum(np.abs(dx * c + dy * s), np.abs(-dx * s + dy * c))
        beyond = (local > half[..., None] + JUNCTION_SLACK_M).any(-1)
        out = np.where(inside, beyond, out)
    return out[:, 1:].any(1).astype(float)


def runs_red(arc: np.ndarray, around: Surroundings) -> np.ndarray:
    """Whether [B] the ego's front ever enters a junction while its light is red."""
    front = arc + FRONT_M
    begin = around.junctions[:, :, 4]
    enters = (front[:, :-1, None] <= begin[:, None]) & (front[:, 1:, None] > begin[:, None])
    return (enters & around.red[:, 1:front.shape[1]]).any((1, 2)).astype(float)


def progress(arc: np.ndarray, around: Surroundings) -> np.ndarray:
    """Way along the route [B] over the expert's in the same time, at most 1."""
    made = arc[:, SCORED] - arc[:, 0]
    expert = around.progress[:, SCORED] - around.progress[:, 0]
    share = np.clip(made / np.maximum(expert, LEAST_PROGRESS_M), 0.0, 1.0)
    return np.where(expert < LEAST_PROGRESS_M, 1.0, share)


def comfort(driven: Driven) -> np.ndarray:
    """Whether [B] accelerations, jerk and turning stay within the bounds of comfort."""
    along = _smooth(np.diff(driven.speeds, axis=1) / 0.1)
    rate = driven.speeds * driven.curvatures
    across, turning = _smooth(driven.speeds * rate), _smooth(np.diff(rate, axis=1) / 0.1)
    jerk = np.diff(along, axis=1) / 0.1
    within = ((along >= ACCELERATION[0]) & (along <= ACCELERATION[1])).all(1)
    for values, bound in ((across, LATERAL), (jerk, JERK), (rate, YAW_RATE),
                          (turning, YAW_ACCELERATION)):
        within &= (np.abs(values) <= bound).all(1)
    return within.astype(float)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Running means [B, T - SMOOTHED + 1]."""
    sums = np.cumsum(np.pad(values, ((0, 0), (1, 0))), 1)
    return (sums[:, SMOOTHED:] - sums[:, :-SMOOTHED]) / SMOOTHED


