"""
The driver that knows everything: the upper bound, the teacher and the source of causes.

Its acceleration is the smallest that any of a few named constraints allows;
the one that binds is the cause of what it does, which the text then names.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .agents import Pedestrian, Signal
from .map import Route
from .traffic import STOPPABLE, Traffic, bend_speed, follow, idm
from .vehicle import FRONT_M, WIDTH_M, VehicleState, clip

SIGHT_M = 90.0
"""The expert minds nothing farther ahead."""
LATERAL_LIMIT = 4.0
JERK = -15.0, 4.0
STEP_S = 0.05
"""The expert is asked this often."""


@dataclass(frozen=True)
class Cause:
    """
    The constraint that binds and what it asks for.

    `name` is one of `reason.CAUSES`; `acceleration` and `speed` are the ego's;
    `gap` (m) and `other_speed` (m/s) belong to what it minds, NaN without;
    `subject` is the id of that thing, 0 without; `turn` the side it is on or
    turns to: 'left', 'right' or ''.
    """

    name: str
    acceleration: float
    speed: float
    gap: float = float('nan')
    other_speed: float = float('nan')
    subject: int = 0
    turn: str = ''


@dataclass(frozen=True)
class Decision:
    """Commands for the vehicle and why; `constraints` are all accelerations by name."""

    acceleration: float
    curvature: float
    cause: Cause
    constraints: dict[str, float] = field(default_factory=dict)


class Expert:
    """Drives along a lane of the route."""

    def __init__(self, route: Route, lane: int, speed_limit: float):
        self.route, self.lane, self.speed_limit = route, lane, speed_limit
        self._stops_for_light = False

    @property
    def offset(self) -> float:
        """Offset d of the lane's middle."""
        return float(self.route.shape.lane_offset(self.lane))

    def take_lane_of(self, d: float):
        """Go on from wherever someone else drove the vehicle: in the nearest lane of ours."""
        shape = self.route.shape
        self.lane = int(np.clip(round(-d / shape.lane_width - 0.5), 0, shape.lanes - 1))

    def decide(self, state: VehicleState, s: float, d: float, traffic: Traffic,
               people: Sequence[Pedestrian], signals: Sequence[Signal], t: float) -> Decision:
        """Weigh the constraints of this moment; `s`, `d` locate the rear axle on the route."""
        found = [self._free_road(state, s)]
        found += self._lead(state, s, traffic)
        found += self._lights(state, s, signals, t)
        found += self._people(state, s, people)
        cause = min(found, key=lambda c: c.acceleration)
        smooth = clip(cause.acceleration, state.acceleration + JERK[0] * STEP_S,
                      state.acceleration + JERK[1] * STEP_S)
        return Decision(float(smooth), self._steer(state, s, d), cause,
                        {c.name: c.acceleration for c in found})

    def _free_road(self, state, s) -> Cause:
        bend = float(bend_speed(self.route, s, self.offset))
        desired = min(self.speed_limit, bend)
        a = float(idm(state.speed, desired, 1e6, 0.0))
        if bend > self.speed_limit - 0.3:
            return Cause('clear_road', a, state.speed)
        k = self.route.curvature_at(s + np.arange(0, 60, 3.0), self.offset)
        turn = 'left' if k[np.abs(k).argmax()] > 0 else 'right'
        return Cause('curve', a, state.speed, turn=turn)

    def _lead(self, state, s, traffic: Traffic) -> list[Cause]:
        if not len(traffic):
            return []
        sizes = traffic.sizes
        ahead = traffic.s - s
        gap = ahead - FRONT_M - sizes[:, 0] / 2
        near = np.minimum(np.abs(traffic.d - self.offset), np.abs(traffic.d_to - self.offset))
        in_way = (ahead > 0) & (gap < SIGHT_M) & (near < (sizes[:, 1] + WIDTH_M) / 2 + 0.3)
        if not in_way.any():
            return []
        i = int(np.flatnonzero(in_way)[gap[in_way].argmin()])
        speed = float(traffic.speed[i] * traffic.direction[i])
        a = float(follow(state.speed, self.speed_limit + 2, max(gap[i], 0.3), speed,
                         traffic.acceleration[i]))
        turn = ''
        if traffic.change[i] >= 0 and abs(traffic.d_from[i] - self.offset) > 1.5:
            name = 'cut_in'
            turn = 'left' if traffic.d_from[i] > self.offset else 'right'
        elif speed < 0.5:
            name = 'lead_stopped'
        else:
            name = 'lead_braking' if traffic.acceleration[i] < -1.0 else 'lead_slower'
        return [Cause(name, a, state.speed, float(gap[i]), speed, int(traffic.ids[i]), turn)]

    def _lights(self, state, s, signals, t) -> list[Cause]:
        for signal in signals:
            gap = signal.junction.stop - (s + FRONT_M)
            colour = signal.state(t)
            if not -1.0 < gap < SIGHT_M or colour == 'green':
                continue
            needed = state.speed ** 2 / (2 * max(gap, 0.1))
            limit = 5.0 if colour == 'red' else STOPPABLE
            if needed < limit or (self._stops_for_light and needed < 8):
                self._stops_for_light = True
                a = float(follow(state.speed, self.speed_limit + 2, max(gap, 0.3), 0.0, least=1.0))
                return [Cause(f'{colour}_light', a, state.speed, float(gap), 0.0)]
        self._stops_for_light = False
        return []

    def _people(self, state, s, people) -> list[Cause]:
        found = []
        kerb = self.route.shape.kerb
        for person in people:
            if person.crosswalk is None or not person.blocks(kerb, self.offset):
                continue
            gap = person.crosswalk.stop - (s + FRONT_M)
            if -2.0 < gap < SIGHT_M:
                a = float(follow(state.speed, self.speed_limit + 2, max(gap, 0.3), 0.0, least=1.0))
                turn = 'left' if person.d > self.offset else 'right'
                found.append(Cause('pedestrian', a, state.speed, float(person.s - s - FRONT_M),
                                   0.0, person.id, turn))
        return found

    def _steer(self, state, s, d) -> float:
        """Feed the lane's curvature forward, steer back to its middle along a smooth approach."""
        reach = max(5.0, 0.9 * state.speed)
        yaw = float(self.route.yaw_at(s))
        turn = (state.yaw - yaw + np.pi) % (2 * np.pi) - np.pi
        wanted = np.arctan(clip((self.offset - d) / reach, -0.5, 0.5))
        ahead = float(self.route.curvature_at(s + 0.1 * state.speed, self.offset))
        curvature = ahead + 2.0 / reach * (wanted - turn)
        limit = LATERAL_LIMIT / max(state.speed, 1.0) ** 2
        return float(clip(curvature, -limit, limit))
