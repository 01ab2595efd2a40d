"""Traffic on the streets that cross ours: it waits for its own green and for a clear junction."""
from __future__ import annotations

import numpy as np

from .agents import Signal
from .map import STEP_M, STOP_LINE_M, RoadShape, Route
from .traffic import Traffic

ACTIVE_M = 200.0
"""Farther away from the junction than this nothing moves."""
ACROSS_M = 2.4
"""How much of a lane someone blocks who stands across it."""


class SideStreet:
    """The straight street over a junction that our route crosses."""

    def __init__(self, signal: Signal, shape: RoadShape, rng: np.random.Generator):
        self.signal = signal
        junction = signal.junction
        left, right = junction.arms
        length = left.length + right.length + 2 * junction.half_size
        s = np.arange(0, length, STEP_M)
        x0 = right.x + right.length * np.cos(right.yaw)
        y0 = right.y + right.length * np.sin(right.yaw)
        self.route = Route(shape, s, x0 + s * np.cos(left.yaw), y0 + s * np.sin(left.yaw),
                           np.full(len(s), left.yaw), np.zeros(len(s)))
        self.middle = right.length + junction.half_size
        self.traffic = Traffic(self.route, rng, change_rate=0.0)

    def fill(self, new_vehicle, spacing_m: float, speed_limit: float):
        """Put vehicles on both sides; `new_vehicle()` gives an id and a model."""
        rng, shape = self.traffic.rng, self.route.shape
        keep_out = self.signal.junction.half_size + STOP_LINE_M + 4
        for direction in (1, -1):
            for lane in range(shape.lanes):
                s = 4 + rng.exponential(spacing_m)
                while s < self.route.length - 4:
                    if abs(s - self.middle) > keep_out:
                        desired = min(speed_limit, 12.0) * rng.uniform(0.7, 1.0)
                        self.traffic.add(*new_vehicle(), s, float(
                            shape.lane_offset(lane, direction)), direction, desired / 2, desired)
                    s += 14 + rng.exponential(spacing_m)

    def step(self, t: float, dt: float, bodies: np.ndarray):
        """Move on; `bodies` are those of our route, rows (x, y, yaw, length, width)."""
        inside = self.in_junction(bodies)
        reach = self.signal.junction.half_size + STOP_LINE_M
        stops = []
        if self.signal.cross_state(t) != 'green' or len(inside):
            must = self.signal.cross_state(t) == 'red'
            stops = [(self.middle - reach, 1, must), (self.middle + reach, -1, must)]
        rows = [(*self.route.locate(x, y), 0.0, ACROSS_M, length, 0.0)
                for x, y, _, length, _ in inside]
        begin = self.traffic.route.length
        self.traffic.step(dt, np.array(rows).reshape(-1, 6), stops, drop=False)
        past = np.where(self.traffic.direction > 0, self.traffic.s > begin - 2,
                        self.traffic.s < 2)
        for i in np.flatnonzero(past):
            self._send_round(i)

    def _send_round(self, i: int):
        """Let who has left at one end come back at the other, when there is room."""
        traffic = self.traffic
        entry = 2.0 if traffic.direction[i] > 0 else self.route.length - 2.0
        others = (np.abs(traffic.d - traffic.d[i]) < 1.5) & (np.abs(traffic.s - entry) < 16)
        others[i] = False
        if others.any():
            traffic.speed[i] = 0.0
        else:
            traffic.s[i], traffic.speed[i] = entry, traffic.desired[i] / 2

    def distance(self, x: float, y: float) -> float:
        """How far from the kerbs of this street a point lies, m; 0 or less between them."""
        route = self.route
        yaw = route.yaw[0]
        aside = (y - route.y[0]) * np.cos(yaw) - (x - route.x[0]) * np.sin(yaw)
        return abs(float(aside)) - route.shape.kerb

    def in_junction(self, bodies: np.ndarray) -> np.ndarray:
        """Rows of bodies that are on the junction."""
        junction = self.signal.junction
        dx, dy = bodies[:, 0] - junction.x, bodies[:, 1] - junction.y
        c, s = np.cos(junction.yaw), np.sin(junction.yaw)
        reach = junction.half_size + 1.0
        along, aside = np.abs(dx * c + dy * s), np.abs(dy * c - dx * s)
        return bodies[(along < reach + bodies[:, 3] / 2) & (aside < reach)]

    def blockers(self, route: Route) -> list[tuple[float, ...]]:
        """Rows for `Traffic.step` of our route: those of this street that are on the junction."""
        traffic = self.traffic
        if not len(traffic):
            return []
        near = np.abs(traffic.s - self.middle) < self.signal.junction.half_size + 2
        if not near.any():
            return []
        poses = traffic.poses(near)
        middle = (self.signal.junction.begin + self.signal.junction.end) / 2
        return [(*route.locate(x, y, middle), 0.0, ACROSS_M, length, 0.0)
                for (x, y, _), length in zip(poses, traffic.sizes[near, 0], strict=True)]
