"""Vehicles on a road: they follow each other, brake, stop at lines and change lanes."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .look import car_paint
from .map import Route
from .meshes import BRAKE, LEFT, RIGHT, SIZES

STOPPABLE = 3.5
"""Who would have to brake harder than this (m/s^2) for a yellow light drives on."""
COMFORTABLE = 2.5
LATERAL = 2.2
"""Lateral acceleration (m/s^2) that drivers accept in bends."""
_REACH = np.arange(0, 72, 3.0)
_COLUMNS = ('ids', 'direction', 's', 'd', 'speed', 'desired', 'acceleration', 'brake_left',
            'change', 'd_from', 'd_to', 'stopping')


def idm(speed, desired, gap, closing, *, headway=1.5, acceleration=1.8, braking=2.5, least=3.0):
    """Acceleration of the intelligent driver model; `closing` is own speed minus the leader's."""
    wanted = least + np.maximum(
        speed * headway + speed * closing / (2 * np.sqrt(acceleration * braking)), 0)
    desired = np.maximum(desired, 0.5)
    free = np.where(speed < desired, 1 - (speed / desired) ** 4,
                    np.maximum(-0.8 * (speed - desired), -2.0))
    near = (wanted / np.maximum(gap, 0.3)) ** 2
    return acceleration * np.maximum(free - near, -5.0)


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


def bend_speed(route: Route, s, d, direction=1.0, braking: float = 1.3):
    """Speed now that lets one take the next 70 m of bends, braking gently before each."""
    reach = _REACH.reshape(-1, *(1,) * np.ndim(s))
    k = np.abs(route.curvature_at(s + direction * reach, d))
    return np.sqrt((LATERAL / np.maximum(k, 1e-4) + 2 * braking * reach).min(0))


def _none() -> np.ndarray:
    return np.zeros(0)


@dataclass
class Traffic:
    """
    Vehicles on the lanes of a road, one row each.

    `direction` is 1 along the road's reference line and -1 against it; `s`, `d`
    are the middle of the vehicle; `desired` is the speed that it would like;
    `brake_left` is how long it will brake for no reason that one could see;
    `change` is the time since a lane change from `d_from` to `d_to` began
    (negative: none); `sizes` [n, 3] are length, width and height.
    """

    route: Route
    rng: np.random.Generator
    brake_rate: float = 0.004
    change_rate: float = 0.02
    change_s: float = 3.5
    models: list[str] = field(default_factory=list)
    paints: list[tuple[float, float, float]] = field(default_factory=list)
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    direction: np.ndarray = field(default_factory=_none)
    s: np.ndarray = field(default_factory=_none)
    d: np.ndarray = field(default_factory=_none)
    speed: np.ndarray = field(default_factory=_none)
    desired: np.ndarray = field(default_factory=_none)
    acceleration: np.ndarray = field(default_factory=_none)
    brake_left: np.ndarray = field(default_factory=_none)
    change: np.ndarray = field(default_factory=_none)
    d_from: np.ndarray = field(default_factory=_none)
    d_to: np.ndarray = field(default_factory=_none)
    stopping: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))

    def add(self, id_: int, model: str, s, d, direction, speed, desired):
        """Put one more vehicle on the road."""
        self.models.append(model)
        self.paints.append(tuple(car_paint(self.rng)))
        row = {'ids': id_, 'direction': direction, 's': s, 'd': d, 'speed': speed,
               'desired': desired, 'acceleration': 0.0, 'brake_left': 0.0, 'change': -1.0,
               'd_from': d, 'd_to': d, 'stopping': False}
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.append(column, np.array(row[name], column.dtype)))
        self.sizes = np.concatenate([self.sizes, [SIZES[model]]])

    def __len__(self):
        return len(self.s)

    def step(self, dt: float, obstacles: np.ndarray, stops: list[tuple[float, int, bool]],
             drop: bool = True):
        """
        Move for `dt` seconds.

        `obstacles` rows are (s, d, speed along the route, length, width,
        acceleration) of what isn't traffic, such as the ego.  `stops` are
        (s, direction, must), lines that are closed; who can't stop for one that
        is not a must drives on.  Who comes to an end of the road is dropped.
        """
        if not len(self):
            return
        self._random_braking(dt)
        self._begin_lane_changes(dt, obstacles)
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
        if drop:
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
        moved = (1 - np.cos(np.pi * share)) / 2
        self.d = np.where(busy, self.d_from + (self.d_to - self.d_from) * moved, self.d_to)
        self.change = np.where(share >= 1, -1.0, self.change)

    def change_lane(self, i: int, d: float):
        """Let vehicle i begin to move over to offset d."""
        self.d_from[i], self.d_to[i], self.change[i] = self.d[i], d, 0.0

    def _begin_lane_changes(self, dt, obstacles):
        """Now and then someone moves over to the next lane, where there is room."""
        shape = self.route.shape
        drawn = self.rng.random(len(self)) < self.change_rate * dt
        side = self.rng.choice([-1, 1], len(self))
        for i in np.flatnonzero(drawn & (self.change < 0) & (self.speed > 4)):
            target = self.d[i] + side[i] * shape.lane_width
            lane = -target * self.direction[i] / shape.lane_width - 0.5
            on_lane = abs(lane - round(lane)) < 0.1 and -0.5 < lane < shape.lanes - 0.5
            if on_lane and self.models[i] != 'cyclist' and self.has_room(i, target, obstacles):
                self.change_lane(i, target)

    def has_room(self, i: int, d: float, obstacles: np.ndarray) -> bool:
        """Whether vehicle i can move over to offset d and no one has to brake hard for it."""
        way = self.direction[i]
        s = np.concatenate([self.s, obstacles[:, 0]])
        aside = np.minimum(np.abs(np.concatenate([self.d, obstacles[:, 1]]) - d),
                           np.abs(np.concatenate([self.d_to, obstacles[:, 1]]) - d))
        speed = np.concatenate([self.speed * self.direction, obstacles[:, 2]]) * way
        length = np.concatenate([self.sizes[:, 0], obstacles[:, 3]])
        ahead = (s - self.s[i]) * way
        gap = np.abs(ahead) - (length + self.sizes[i, 0]) / 2
        faster = np.where(ahead > 0, self.speed[i] - speed, speed - self.speed[i])
        clear = (gap > 5 + 2.5 * np.maximum(faster, 0)) | (aside > 2.6)
        clear[i] = True
        return bool(clear.all() and self._stays_on_open_road(i, way))

    def _stays_on_open_road(self, i, way) -> bool:
        """No junction begins before a lane change would be over."""
        reach = self.speed[i] * self.change_s + 10
        begin, end = sorted((self.s[i], self.s[i] + way * reach))
        return not any(j.begin < end and j.end > begin for j in self.route.junctions)

    def _drop_gone(self):
        keep = (self.s > 2) & (self.s < self.route.length - 2)
        if not keep.all():
            self.select(keep)

    def select(self, keep):
        """Keep some of the vehicles."""
        self.models = [m for m, k in zip(self.models, keep, strict=True) if k]
        self.paints = [p for p, k in zip(self.paints, keep, strict=True) if k]
        for name in (*_COLUMNS, 'sizes'):
            setattr(self, name, getattr(self, name)[keep])

    def poses(self, chosen=slice(None)) -> np.ndarray:
        """Middle and heading of the vehicles in the map, rows x, y, yaw."""
        x, y, yaw = self.route.pose(self.s[chosen], self.d[chosen])
        change, direction = self.change[chosen], self.direction[chosen]
        lean = np.zeros(len(change))
        if (change >= 0).any():
            drift = np.where(change >= 0,
                             (self.d_to - self.d_from)[chosen] * np.pi / 2 / self.change_s
                             * np.sin(np.pi * np.clip(change / self.change_s, 0, 1)), 0)
            lean = np.arctan2(drift, np.maximum(self.speed[chosen], 2.0))
        return np.stack([x, y, yaw + np.where(direction < 0, np.pi - lean, lean)], 1)

    def bodies(self, chosen=slice(None)) -> np.ndarray:
        """Rows (x, y, yaw, length, width) of the vehicles in the map."""
        return np.concatenate([self.poses(chosen), self.sizes[chosen, :2]], 1)

    def lamps(self) -> list[frozenset[int]]:
        """Return the lamps of each vehicle that are on."""
        braking = (self.acceleration < -0.6) | (self.speed < 0.3)
        to_left = (self.d_to - self.d_from) * self.direction > 0
        side = np.where(self.change < 0, 0, np.where(to_left, LEFT, RIGHT))
        return [frozenset(([BRAKE] if b else []) + ([s] if s else []))
                for b, s in zip(braking.tolist(), side.tolist(), strict=True)]

    def copy(self) -> Traffic:
        """Return a copy that stays as it is when this traffic moves on."""
        copy = object.__new__(Traffic)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update({name: getattr(self, name).copy()
                              for name in ('models', 'paints', *_COLUMNS)})
        return copy

    def obstacles(self, chosen=slice(None)) -> np.ndarray:
        """Rows (s, d, speed along the road, length, width, acceleration) of the vehicles."""
        return np.column_stack([self.s, self.d, self.speed * self.direction, self.sizes[:, 0],
                                self.sizes[:, 1], self.acceleration])[chosen]
