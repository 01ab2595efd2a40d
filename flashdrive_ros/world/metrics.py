"""What went wrong and how far the ego came: collision, off road, wrong lane, red light."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .map import Route
from .vehicle import FRONT_M, LENGTH_M, MIDDLE_M, WIDTH_M, VehicleState

NEAR_M = 14.0


@dataclass(frozen=True)
class Status:
    """State of an episode; the flags tell of this moment, `progress` (m) of all of it."""

    time: float
    collision: bool
    off_road: bool
    wrong_lane: bool
    red_light: bool
    progress: float


class Metrics:
    """Watches an episode; `collided`, `left_road`, ... remember whether it ever happened."""

    def __init__(self, route: Route, s: float):
        self.route = route
        self._start = self._last = s
        self.collided = self.left_road = self.was_wrong = self.ran_red = False

    def update(self, state: VehicleState, s: float, d: float, director, t: float) -> Status:
        """Judge the newest moment."""
        collision = hits_anything(state, s, director)
        off_road = is_off_road(state, self.route, s)
        junction = self.route.junction_at(s)
        wrong = d > WIDTH_M / 2 and junction is None and not off_road
        red = any(self._last + FRONT_M <= signal.junction.begin < s + FRONT_M
                  and signal.state(t) == 'red' for signal in director.signals)
        self._last = s
        self.collided |= collision
        self.left_road |= off_road
        self.was_wrong |= wrong
        self.ran_red |= red
        return Status(t, collision, off_road, wrong, red, s - self._start)


def ego_corners(state: VehicleState) -> np.ndarray:
    """Corners [4, 2] of the ego's body in the map."""
    return rectangle(state.x + MIDDLE_M * np.cos(state.yaw),
                     state.y + MIDDLE_M * np.sin(state.yaw), state.yaw, LENGTH_M, WIDTH_M)


def rectangle(x, y, yaw, length, width) -> np.ndarray:
    """Corners [4, 2] of a rectangle around (x, y)."""
    c, s = np.cos(yaw), np.sin(yaw)
    local = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [length / 2, width / 2]
    return local @ np.array([[c, s], [-s, c]]) + [x, y]


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two rectangles [4, 2] have points in common (separating axes)."""
    for box in (a, b):
        for axis in (box[1] - box[0], box[3] - box[0]):
            pa, pb = a @ axis, b @ axis
            if pa.max() < pb.min() or pb.max() < pa.min():
                return False
    return True


def is_off_road(state: VehicleState, route: Route, s: float) -> bool:
    """Whether a corner of the body is beyond the kerb; junctions are open on all sides."""
    junction = route.junction_at(s + MIDDLE_M)
    corners = ego_corners(state)
    if junction is not None:
        reach = junction.half_size + 3
        offset = corners - [junction.x, junction.y]
        c, sn = np.cos(junction.yaw), np.sin(junction.yaw)
        local = np.stack([offset[:, 0] * c + offset[:, 1] * sn,
                          -offset[:, 0] * sn + offset[:, 1] * c], 1)
        return bool((np.abs(local) > reach).any())
    return bool((np.abs(route.offsets(corners, s)) > route.shape.kerb + 0.05).any())


def hits_anything(state: VehicleState, s: float, director) -> bool:
    """Whether the ego's body overlaps a vehicle, a person or a parked car."""
    mine = ego_corners(state)
    middle = mine.mean(0)
    bodies = director.bodies(*middle, s, NEAR_M)
    near = np.hypot(bodies[:, 0] - middle[0], bodies[:, 1] - middle[1]) < NEAR_M
    return any(overlap(mine, rectangle(*body)) for body in bodies[near])
