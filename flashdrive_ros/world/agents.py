"""Everything else that moves: traffic that follows and brakes, people, traffic lights."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .look import car_paint
from .map import Crosswalk, Junction, Route
from .meshes import BRAKE, GREEN, LABELS, LEFT, RED, RIGHT, SIZES, YELLOW

STOPPABLE = 3.5
"""Who would have to brake harder than this (m/s^2) for a yellow light drives on."""


def idm(speed, desired, gap, closing, *, headway=1.5, acceleration=1.8, braking=2.5, least=3.0):
    """Acceleration of the intelligent driver model; `closing` is own speed minus the leader's."""
    wanted = least + np.maximum(
        speed * headway + speed * closing / (2 * np.sqrt(acceleration * braking)), 0)
    desired = np.maximum(desired, 0.5)
    free = np.where(speed < desired, 1 - (speed / desired) ** 4,
                    np.maximum(-0.8 * (speed - desired), -2.0))
    near = (wanted / np.maximum(gap, 0.3)) ** 2
    return acceleration * np.maximum(free - near, -5.0)


COMFORTABLE = 2.5


def follow(speed, desired, gap, lead_speed, lead_acceleration=0.0, *, least=3.0):
    """
    Acceleration behind something `gap` m ahead (a stop line has speed 0).

    The intelligent driver model, but never braking much harder than it takes
    to stop behind the place where the one ahead would stop.
    """
    a = idm(speed, desired, gap, speed - lead_speed, least=least)
    moving = np.maximum(lead_speed, 0)
    stops_after = moving ** 2 / (2 * np.maximum(-np.asarray(lead_acceleration), 3.0))
    needed = speed ** 2 / (2 * np.maximum(gap - 1.0 + stops_after, 0.3))
    return np.maximum(a, -np.maximum(COMFORTABLE, 1.5 * needed))


LATERAL = 2.2
"""Lateral acceleration (m/s^2) that drivers accept in bends."""
_REACH = np.arange(0, 72, 3.0)


def bend_speed(route: Route, s, d, direction=1.0, braking: float = 1.3):
    """Speed now that lets one take the next 70 m of bends, braking gently before each."""
    reach = _REACH.reshape(-1, *(1,) * np.ndim(s))
    k = np.abs(route.curvature_at(s + direction * reach, d))
    return np.sqrt((LATERAL / np.maximum(k, 1e-4) + 2 * braking * reach).min(0))


@dataclass(frozen=True)
class Signal:
    """Traffic light of a junction: for us and those that come towards us the same."""

    junction: Junction
    green: float
    red: float
    offset: float
    yellow: float = 3.0

    def state(self, t: float) -> str:
        """'green', 'yellow' or 'red' at time t."""
        phase = (t + self.offset) % (self.green + self.yellow + self.red)
        if phase < self.green:
            return 'green'
        return 'yellow' if phase < self.green + self.yellow else 'red'

    def cross_state(self, t: float) -> str:
        """Return the state for the side roads: green while ours is safely red."""
        phase = (t + self.offset) % (self.green + self.yellow + self.red)
        since = phase - self.green - self.yellow
        if 2.0 <= since < self.red - 5.0:
            return 'green'
        return 'yellow' if self.red - 5.0 <= since < self.red - 2.0 else 'red'


LAMP_OF = {'green': GREEN, 'yellow': YELLOW, 'red': RED}


@dataclass
class Traffic:
    """
    Vehicles on the route's lanes, one row each.

    `direction` is 1 for ours and -1 for oncoming; `change` is the time since a
    lane change began (negative: none) from `d_from` to `d_to`.
    """

    route: Route
    rng: np.random.Generator
    ids: np.ndarray
    models: list[str]
    paints: list[tuple[float, float, float]]
    s: np.ndarray
    d: np.ndarray
    direction: np.ndarray
    speed: np.ndarray
    desired: np.ndarray
    acceleration: np.ndarray
    brake_left: np.ndarray
    change: np.ndarray
    d_from: np.ndarray
    d_to: np.ndarray
    stopping: np.ndarray
    brake_rate: float = 0.004
    change_s: float = 3.5

    @classmethod
    def empty(cls, route: Route, rng: np.random.Generator) -> Traffic:
        """Return an empty road."""
        none = np.zeros(0)
        return cls(route, rng, np.zeros(0, int), [], [], none, none, none, none, none, none, none,
                   none, none, none, np.zeros(0, bool))

    def add(self, id_: int, model: str, s, d, direction, speed, desired):
        """Put one more vehicle on the road."""
        self.ids = np.append(self.ids, id_)
        self.models.append(model)
        self.paints.append(tuple(car_paint(self.rng)))
        row = {'s': s, 'd': d, 'direction': direction, 'speed': speed, 'desired': desired,
               'acceleration': 0.0, 'brake_left': 0.0, 'change': -1.0, 'd_from': d, 'd_to': d}
        for name, value in row.items():
            setattr(self, name, np.append(getattr(self, name), float(value)))
        self.stopping = np.append(self.stopping, False)

    def __len__(self):
        return len(self.s)

    @property
    def sizes(self) -> np.ndarray:
        """Length, width, height [n, 3]."""
        return np.array([SIZES[m] for m in self.models]).reshape(-1, 3)

    def step(self, dt: float, obstacles: np.ndarray, stops: list[tuple[float, int, bool]]):
        """
        Move for `dt` seconds.

        `obstacles` rows are (s, d, speed along the route, length, width,
        acceleration) of what isn't traffic, such as the ego.  `stops` are
        (s, direction, must), lines that are closed; who can't stop for one that
        is not a must drives on.
        """
        n = len(self)
        if not n:
            return
        self._random_braking(dt)
        gap, lead_speed, lead_acceleration = self._leaders(obstacles)
        desired = np.minimum(self.desired, bend_speed(self.route, self.s, self.d, self.direction))
        a = follow(self.speed, desired, gap, lead_speed, lead_acceleration)
        a = np.minimum(a, self._for_stops(stops))
        a = np.where(self.brake_left > 0, np.minimum(a, -3.0), a)
        a = np.clip(a, -8.0, 3.0)
        speed = np.maximum(self.speed + a * dt, 0)
        self.acceleration = (speed - self.speed) / dt
        travelled = (speed + self.speed) / 2 * dt
        self.speed = speed
        bend = np.maximum(1 - np.interp(self.s, self.route.s, self.route.curvature) * self.d, 0.2)
        self.s = self.s + self.direction * travelled / bend
        self._change_lanes(dt)
        self._drop_gone()

    def _random_braking(self, dt):
        self.brake_left = np.maximum(self.brake_left - dt, 0)
        start = (self.rng.random(len(self)) < self.brake_rate * dt) & (self.speed > 3)
        self.brake_left = np.where(start, 2.5, self.brake_left)

    def _leaders(self, obstacles):
        """Gap (m) to whatever is ahead in one's way, its speed and acceleration."""
        sizes = self.sizes
        s = np.concatenate([self.s, obstacles[:, 0]])
        d = np.concatenate([self.d, obstacles[:, 1]])
        v = np.concatenate([self.speed * self.direction, obstacles[:, 2]])
        a = np.concatenate([self.acceleration, obstacles[:, 5]])
        length = np.concatenate([sizes[:, 0], obstacles[:, 3]])
        width = np.concatenate([sizes[:, 1], obstacles[:, 4]])
        n = len(self)
        ahead = (s[None] - self.s[:, None]) * self.direction[:, None]
        gaps = ahead - (length[None] + sizes[:, :1]) / 2
        aside = np.minimum(np.abs(d[None] - self.d[:, None]), np.abs(d[None] - self.d_to[:, None]))
        in_way = (ahead > 0) & (aside < (width[None] + sizes[:, 1:2]) / 2 + 0.3)
        in_way[np.arange(n), np.arange(n)] = False
        gaps = np.where(in_way, gaps, 1e6)
        first = gaps.argmin(1)
        gap = gaps[np.arange(n), first]
        return gap, v[first] * self.direction, a[first]

    def _for_stops(self, stops):
        a = np.full(len(self), 1e3)
        stopping = np.zeros(len(self), bool)
        for s, direction, must in stops:
            gap = (s - self.s) * self.direction - self.sizes[:, 0] / 2
            needed = self.speed ** 2 / (2 * np.maximum(gap, 0.1))
            concerned = (self.direction == direction) & (gap > -0.5) & (gap < 90)
            obey = concerned & (must | (needed < STOPPABLE) | (self.stopping & (needed < 7)))
            stopping |= obey
            a = np.where(obey, np.minimum(a, follow(self.speed, 99.0, gap, 0.0, least=1.0)), a)
        self.stopping = stopping
        return a

    def _change_lanes(self, dt):
        busy = self.change >= 0
        self.change = np.where(busy, self.change + dt, -1.0)
        share = np.clip(self.change / self.change_s, 0, 1)
        self.d = np.where(busy, self.d_from + (self.d_to - self.d_from)
                          * (1 - np.cos(np.pi * share)) / 2, self.d_to)
        self.change = np.where(share >= 1, -1.0, self.change)

    def change_lane(self, i: int, d: float):
        """Let vehicle i begin to move over to offset d."""
        self.d_from[i], self.d_to[i], self.change[i] = self.d[i], d, 0.0

    def _drop_gone(self):
        keep = (self.s > 2) & (self.s < self.route.length - 2)
        if not keep.all():
            self.select(keep)

    def select(self, keep):
        """Keep some of the vehicles."""
        self.models = [m for m, k in zip(self.models, keep, strict=True) if k]
        self.paints = [p for p, k in zip(self.paints, keep, strict=True) if k]
        for name in ('ids', 's', 'd', 'direction', 'speed', 'desired', 'acceleration',
                     'brake_left', 'change', 'd_from', 'd_to', 'stopping'):
            setattr(self, name, getattr(self, name)[keep])

    def poses(self) -> np.ndarray:
        """Middle and heading of each vehicle in the map, rows x, y, yaw."""
        x, y, yaw = self.route.pose(self.s, self.d)
        drift = np.where(self.change >= 0,
                         (self.d_to - self.d_from) * np.pi / 2 / self.change_s
                         * np.sin(np.pi * np.clip(self.change / self.change_s, 0, 1)), 0)
        lean = np.arctan2(drift, np.maximum(self.speed, 2.0))
        return np.stack([x, y, yaw + np.where(self.direction < 0, np.pi - lean, lean)], 1)

    def lamps(self, i: int) -> frozenset[int]:
        """Return the lamps of vehicle i that are on."""
        on = set()
        if self.acceleration[i] < -0.6 or self.speed[i] < 0.3:
            on.add(BRAKE)
        if self.change[i] >= 0:
            to_left = (self.d_to[i] - self.d_from[i]) * self.direction[i] > 0
            on.add(LEFT if to_left else RIGHT)
        return frozenset(on)

    def labels(self) -> list[str]:
        """Class of each vehicle."""
        return [LABELS.get(m, m) for m in self.models]


@dataclass
class Pedestrian:
    """Someone on foot at arc length s and offset d; `crossing` is the crosswalk or None."""

    id: int
    s: float
    d: float
    along: float
    across: float
    paint: tuple[float, float, float]
    crosswalk: Crosswalk | None = None
    walking: bool = True
    walked: float = 0.0

    def step(self, dt: float):
        """Walk on."""
        if self.walking:
            self.s += self.along * dt
            self.d += self.across * dt
            self.walked += dt * float(np.hypot(self.along, self.across))

    def on_road(self, kerb: float) -> bool:
        """Tell whether they are on the carriageway or about to step on it."""
        return self.crosswalk is not None and self.walking and abs(self.d) < kerb + 0.4

    def blocks(self, kerb: float, d: float, half_width: float = 2.2) -> bool:
        """Tell whether they are in, or coming into, the way of someone who drives at offset d."""
        past = (self.d - d) * np.sign(self.across) > half_width
        return self.on_road(kerb) and not past

    @property
    def phase(self) -> int:
        """Step of the walk, for the mesh."""
        return int(self.walked / 0.19) % 8 if self.walking else 0
