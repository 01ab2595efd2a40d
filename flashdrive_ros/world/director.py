"""Puts an episode on stage: who stands where at its start, and what happens when."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .agents import Pedestrian, Signal, walkers_poses
from .look import car_paint
from .map import STOP_LINE_M, Crosswalk, Route
from .meshes import SIZES
from .scenario import START_M, Scenario
from .side_streets import ACTIVE_M, SideStreet
from .traffic import Traffic
from .vehicle import FRONT_M, LENGTH_M, MIDDLE_M, WIDTH_M, VehicleState

MODELS = ('car', 'hatchback', 'suv', 'van', 'truck')
MODEL_SHARES = (0.36, 0.22, 0.24, 0.1, 0.08)
MAX_WALKERS = 40
NEAR_ALONG_M = 80.0
"""What is farther away along the route than this (and its size) isn't near across any bend."""


@dataclass(frozen=True)
class Parked:
    """A vehicle that does not move during the episode; `waiting` ones stand on their brakes."""

    id: int
    model: str
    x: float
    y: float
    yaw: float
    paint: tuple[float, float, float]
    waiting: bool = False


@dataclass
class Director:
    """Casts the actors of a scenario and gives them their cues."""

    scenario: Scenario
    route: Route
    rng: np.random.Generator
    traffic: Traffic = field(init=False)
    people: list[Pedestrian] = field(init=False, default_factory=list)
    signals: list[Signal] = field(init=False, default_factory=list)
    streets: list[SideStreet] = field(init=False, default_factory=list)
    parked: list[Parked] = field(init=False, default_factory=list)

    def __post_init__(self):
        """Draw the start: lane and speed of the ego, traffic, people, lights, parked cars."""
        scenario, rng, route = self.scenario, self.rng, self.route
        self.traffic = Traffic(route, self._fork())
        self._next_id = 0
        self.lane = int(rng.integers(scenario.lanes))
        self.speed = float(scenario.speed_limit * rng.uniform(0.55, 0.95))
        self._cue = float(rng.uniform(2.5, 6.0))
        self._fill_road()
        self._cast_lead()
        self._send_cyclists()
        self._light_signals()
        self._open_side_streets()
        self._park_cars()
        self._cast_people()
        self._parked_bodies = np.array([(p.x, p.y, p.yaw, *SIZES[p.model][:2])
                                        for p in self.parked]).reshape(-1, 5)

    def _fork(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.integers(2 ** 63))

    @property
    def flows(self) -> list[Traffic]:
        """The traffic of our route and of the streets that cross it."""
        return [self.traffic, *(street.traffic for street in self.streets)]

    def _new_vehicle(self) -> tuple[int, str]:
        return self._new_id(), str(self.rng.choice(MODELS, p=MODEL_SHARES))

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _add_vehicle(self, s, lane, direction, speed, desired):
        d = float(self.route.shape.lane_offset(lane, direction))
        self.traffic.add(*self._new_vehicle(), s, d, direction, speed, desired)

    def _fill_road(self):
        scenario, rng = self.scenario, self.rng
        spacing = 100 / scenario.density
        for direction in (1, -1):
            for lane in range(scenario.lanes):
                s = rng.exponential(spacing / 2)
                while s < self.route.length - 20:
                    ours = direction > 0 and lane == self.lane
                    if not (ours and START_M - 40 < s < START_M + self._clear_ahead()):
                        desired = scenario.speed_limit * rng.uniform(0.75, 1.05)
                        self._add_vehicle(s, lane, direction, desired * 0.8, desired)
                    s += 16 + rng.exponential(spacing)

    def _clear_ahead(self) -> float:
        return 260.0 if self.scenario.event in ('free', 'curve', 'light', 'pedestrian') else 70.0

    def _cast_lead(self):
        event, rng, limit = self.scenario.event, self.rng, self.scenario.speed_limit
        if event in ('follow', 'lead_brake', 'stop_and_go'):
            desired = limit * rng.uniform(0.55, 0.85)
            gap = rng.uniform(14, 32) + 0.8 * max(self.speed - desired, 0)
            self._add_vehicle(START_M + FRONT_M + gap, self.lane, 1, desired, desired)
        if event == 'cut_in':
            side = self.lane + (1 if self.lane == 0 else -1)
            desired = limit * rng.uniform(0.65, 0.85)
            self._cue = float(rng.uniform(1.0, 2.5))
            self._clear_of(side, START_M - 10, START_M + 80)
            self._add_vehicle(START_M + FRONT_M + rng.uniform(20, 32), side, 1, desired, desired)

    def _clear_of(self, lane, begin, end):
        t = self.traffic
        d = float(self.route.shape.lane_offset(lane))
        t.select(~((np.abs(t.d - d) < 0.5) & (t.s > begin) & (t.s < end)))

    def _light_signals(self):
        for k, junction in enumerate(self.route.junctions):
            green, red = self.rng.uniform(9, 14), self.rng.uniform(13, 18)
            offset = self.rng.uniform(0, green + red + 3)
            if k == 0 and self.scenario.event == 'light':
                arrival = (junction.stop - START_M) / max(self.speed, 5)
                offset = green + 3 - arrival + self.rng.uniform(-2, red * 0.6)
            self.signals.append(Signal(junction, float(green), float(red), float(offset)))

    def _send_cyclists(self):
        scenario, shape, rng = self.scenario, self.route.shape, self.rng
        if scenario.parked or scenario.shoulder < 1.0 or rng.random() < 0.4:
            return
        for direction in (1, -1):
            s = rng.uniform(10, 120)
            while s < self.route.length - 20:
                desired = rng.uniform(3.5, 6.5)
                d = -direction * (shape.lane_edge + 0.55)
                self.traffic.add(self._new_id(), 'cyclist', s, d, direction, desired, desired)
                s += 25 + rng.exponential(90)

    def _open_side_streets(self):
        shape, rng = self.route.shape, self.rng
        for signal in self.signals:
            if signal.junction.turn == 'straight':
                street = SideStreet(signal, shape, self._fork())
                street.fill(self._new_vehicle, rng.uniform(15, 70), self.scenario.speed_limit)
                self.streets.append(street)
                continue
            for arm in signal.junction.arms:
                for lane in range(shape.lanes):
                    if rng.random() < 0.4:
                        self._wait_at(arm, float(shape.lane_offset(lane, -1)))

    def _wait_at(self, arm, d: float):
        """Let a vehicle wait at the stop line of an arm that no one comes from."""
        id_, model = self._new_vehicle()
        if model == 'truck':
            model = 'van'
        a = STOP_LINE_M + 0.8 + SIZES[model][0] / 2
        c, s = np.cos(arm.yaw), np.sin(arm.yaw)
        self.parked.append(Parked(id_, model, float(arm.x + a * c - d * s),
                                  float(arm.y + a * s + d * c), float(arm.yaw + np.pi),
                                  tuple(car_paint(self.rng)), waiting=True))

    def _park_cars(self):
        shape = self.route.shape
        if not self.scenario.parked:
            return
        blocked = [(j.begin - 14, j.end + 14) for j in self.route.junctions]
        blocked += [(c.s - 12, c.s + 12) for c in self.route.crosswalks]
        for side in (-1, 1):
            for s in np.arange(4.0, self.route.length - 4, 6.4):
                model = str(self.rng.choice(MODELS[:4], p=(0.4, 0.25, 0.25, 0.1)))
                paint = tuple(car_paint(self.rng))
                free = not any(a < s < b for a, b in blocked)
                if free and self.rng.random() < self.scenario.parked:
                    d = side * (shape.lane_edge + 0.25 + SIZES[model][1] / 2)
                    x, y, yaw = (float(v) for v in self.route.pose(s, d))
                    self.parked.append(Parked(self._new_id(), model, x, y,
                                              yaw + (np.pi if side > 0 else 0.0), paint))

    def _cast_people(self):
        shape, rng = self.route.shape, self.rng
        if not self.scenario.junctions:
            return
        places = rng.uniform(10, self.route.length - 10, MAX_WALKERS)
        for s in np.sort(places):
            if any(j.begin - 3 < s < j.end + 3 for j in self.route.junctions):
                continue
            side, way = rng.choice([-1, 1]), rng.choice([-1, 1])
            d = side * (shape.kerb + rng.uniform(1.0, shape.sidewalk - 0.5))
            self.people.append(Pedestrian(self._new_id(), float(s), float(d),
                                          float(way * rng.uniform(0.9, 1.5)), 0.0,
                                          tuple(rng.uniform(30, 220, 3))))
        for k, crosswalk in enumerate(self.route.crosswalks):
            sure = k == 0 and self.scenario.event == 'pedestrian'
            if sure or rng.random() < 0.6:
                self._place_crosser(crosswalk)

    def _place_crosser(self, crosswalk: Crosswalk):
        side = self.rng.choice([-1, 1])
        person = Pedestrian(
            self._new_id(), crosswalk.s + float(self.rng.uniform(-0.8, 0.8)),
            float(side * (self.route.shape.kerb + 1.2)), 0.0,
            float(-side * self.rng.uniform(1.1, 1.7)), tuple(self.rng.uniform(30, 220, 3)),
            crosswalk, walking=False)
        self.people.append(person)

    def stops(self, t: float) -> list[tuple[float, int, bool]]:
        """Closed stop lines for the traffic: (s, direction, no excuse)."""
        closed, kerb = [], self.route.shape.kerb
        for signal in self.signals:
            colour = signal.state(t)
            if colour != 'green':
                junction = signal.junction
                far = junction.end + (junction.begin - junction.stop)
                closed += [(junction.stop, 1, False), (far, -1, False)]
        for person in self.people:
            if person.on_road(kerb):
                c = person.crosswalk
                closed += [(c.stop, 1, True), (2 * c.s - c.stop, -1, True)]
        return closed

    def move(self, t: float, dt: float, ego_s: float, ego_d: float, ego: VehicleState):
        """Give the cues that are due, then move everyone but the ego for `dt` seconds."""
        self._cue_lead(t, ego_s, ego_d)
        self._cue_cut_in(t, ego_s, ego_d, ego)
        self._cue_crossing(ego_s, ego)
        self._move_streets(t, dt, ego_s, ego)
        obstacles = [self._ego_row(ego_s, ego_d, ego)]
        for street in self.streets:
            if self._is_near(street, ego_s):
                obstacles += street.blockers(self.route)
        self.traffic.step(dt, np.array(obstacles), self.stops(t))
        for person in self.people:
            person.step(dt)
            if person.crosswalk is None:
                self._turn_back_at_junction(person)
            if person.crosswalk is not None and abs(person.d) > self.route.shape.kerb + 1.3:
                person.walking = False

    def _turn_back_at_junction(self, person):
        """Keep walkers on the sidewalk: no one walks out between the cars of a side street."""
        for junction in self.route.junctions:
            if junction.begin - 2 < person.s < junction.end + 2:
                middle = (junction.begin + junction.end) / 2
                person.along = float(np.copysign(person.along, person.s - middle))

    def _ego_row(self, ego_s, ego_d, ego) -> tuple[float, ...]:
        """Return the ego as an obstacle for the traffic."""
        along = ego.speed * np.cos(ego.yaw - self.route.yaw_at(ego_s))
        return ego_s + MIDDLE_M, ego_d, along, LENGTH_M, WIDTH_M, ego.acceleration

    @staticmethod
    def _is_near(street, ego_s) -> bool:
        junction = street.signal.junction
        return junction.begin - ACTIVE_M < ego_s < junction.end + ACTIVE_M

    def _move_streets(self, t, dt, ego_s, ego):
        streets = [street for street in self.streets if self._is_near(street, ego_s)]
        if streets:
            x, y = ego.x + MIDDLE_M * np.cos(ego.yaw), ego.y + MIDDLE_M * np.sin(ego.yaw)
            own = np.array([[x, y, ego.yaw, LENGTH_M, WIDTH_M]])
            for street in streets:
                junction, s = street.signal.junction, self.traffic.s
                near = (s > junction.begin - NEAR_ALONG_M) & (s < junction.end + NEAR_ALONG_M)
                street.step(t, dt, np.concatenate([self.traffic.bodies(near), own]))

    def _cue_lead(self, t, ego_s, ego_d):
        if self.scenario.event not in ('lead_brake', 'stop_and_go') or t < self._cue:
            return
        traffic = self.traffic
        ahead = traffic.s - ego_s
        mine = (np.abs(traffic.d - ego_d) < 1.2) & (ahead > 0) & (ahead < 70)
        self._cue = t + float(self.rng.uniform(9, 16))
        if mine.any():
            i = int(np.flatnonzero(mine)[ahead[mine].argmin()])
            long = self.scenario.event == 'stop_and_go'
            traffic.brake_left[i] = float(self.rng.uniform(4, 7) if long
                                          else self.rng.uniform(1.5, 3))

    def _cue_cut_in(self, t, ego_s, ego_d, ego):
        if self.scenario.event != 'cut_in' or t < self._cue:
            return
        traffic, shape = self.traffic, self.route.shape
        ahead = traffic.s - ego_s - FRONT_M
        beside = (np.abs(np.abs(traffic.d - ego_d) - shape.lane_width) < 0.6) & (
            traffic.direction > 0) & (traffic.change < 0)
        room = 5.0 + np.maximum(ego.speed - traffic.speed, 0) * 2.5 + traffic.sizes[:, 0] / 2
        ready = np.flatnonzero(beside & (ahead > room) & (ahead < room + 9)
                               & (traffic.sizes[:, 1] > 1))
        if not len(ready):
            return
        i = int(ready[ahead[ready].argmin()])
        target = float(shape.lane_offset(int(np.clip(round(-ego_d / shape.lane_width - 0.5), 0,
                                                     shape.lanes - 1))))
        if traffic.has_room(i, target, np.array([self._ego_row(ego_s, ego_d, ego)])):
            traffic.change_lane(i, target)
            self._cue = t + float(self.rng.uniform(8, 14))

    def _cue_crossing(self, ego_s, ego):
        traffic = self.traffic
        for person in self.people:
            if person.crosswalk is None or person.walking or person.walked:
                continue
            c = person.crosswalk
            distance = c.stop - ego_s - FRONT_M
            if not 3.0 < distance < 38.0 or ego.speed ** 2 / 8 + 3 > distance:
                continue
            stop = np.where(traffic.direction > 0, c.stop, 2 * c.s - c.stop)
            gap = (stop - traffic.s) * traffic.direction - traffic.sizes[:, 0] / 2
            passing = (gap < traffic.speed ** 2 / 8 + 3) & (
                gap > -(2 * (c.s - c.stop) + traffic.sizes[:, 0] + 2))
            if not passing.any():
                person.walking = True

    def bodies(self, x: float, y: float, s: float, reach: float) -> np.ndarray:
        """
        Everything one can run into, rows (x, y, yaw, length, width) in the map.

        At least all whose middle is within `reach` (m) of a point near arc length `s`.
        """
        rows = [self._parked_bodies,
                self.traffic.bodies(np.abs(self.traffic.s - s) < reach + NEAR_ALONG_M)]
        rows += [street.traffic.bodies() for street in self.streets
                 if street.distance(x, y) < reach]
        people = [p for p in self.people if abs(p.s - s) < reach + NEAR_ALONG_M]
        if people:
            poses = walkers_poses(self.route, *np.array(
                [(p.s, p.d, p.along, p.across) for p in people]).T)
            rows.append(np.concatenate([poses, np.full((len(poses), 2), 0.5)], 1))
        return np.concatenate(rows)

    def speeds(self) -> dict[int, float]:
        """Speed of whatever moves by id, m/s."""
        speeds = {id_: speed for flow in self.flows for id_, speed in zip(
            flow.ids.tolist(), flow.speed.tolist(), strict=True)}
        for p in self.people:
            speeds[p.id] = float(np.hypot(p.along, p.across)) if p.walking else 0.0
        return speeds
