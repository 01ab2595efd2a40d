"""
The road of an episode: one reference line with lanes on both sides of it.

Everything that moves is placed by arc length `s` along the reference line and
offset `d` to its left.  Traffic keeps right: lane 0 is next to the centre line
at d = -width/2, lane 1 at d = -3 width/2, and so on; oncoming lanes mirror it.
A junction is a stretch of the reference line that goes straight on or turns,
with arms (side roads) on the directions that the route does not take.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import pi

import numpy as np

STEP_M = 0.5
"""Distance of two samples of the reference line."""
STOP_LINE_M = 5.0
"""From the stop line to the junction."""
CROSSWALK_WIDTH_M = 3.0


@dataclass(frozen=True)
class RoadShape:
    """Cross-section, the same in both directions; widths in metres."""

    lanes: int = 2
    lane_width: float = 3.5
    shoulder: float = 0.5
    sidewalk: float = 2.5

    @property
    def lane_edge(self) -> float:
        """From the centre line to the outer edge of the outermost lane."""
        return self.lanes * self.lane_width

    @property
    def kerb(self) -> float:
        """From the centre line to the kerb."""
        return self.lane_edge + self.shoulder

    def lane_offset(self, lane, direction=1):
        """Offset d of the middle of a lane; direction -1 is oncoming traffic."""
        return -np.asarray(direction) * (np.asarray(lane) + 0.5) * self.lane_width


@dataclass(frozen=True)
class Arm:
    """A side road: a straight centre line from its mouth at the junction outwards."""

    x: float
    y: float
    yaw: float
    length: float


@dataclass(frozen=True)
class Junction:
    """A four-way junction; `turn` is what the route does: 'straight', 'left' or 'right'."""

    begin: float
    end: float
    turn: str
    x: float
    y: float
    yaw: float
    half_size: float
    arms: tuple[Arm, ...]

    @property
    def stop(self) -> float:
        """Arc length of our stop line."""
        return self.begin - STOP_LINE_M


@dataclass(frozen=True)
class Crosswalk:
    """A pedestrian crossing of our road between two junctions; `stop` is our stop line."""

    s: float
    stop: float


@dataclass
class Route:
    """Sampled reference line (`s`, `x`, `y`, `yaw`, `curvature` [n]) with what lies along it."""

    shape: RoadShape
    s: np.ndarray
    x: np.ndarray
    y: np.ndarray
    yaw: np.ndarray
    curvature: np.ndarray
    junctions: tuple[Junction, ...] = ()
    crosswalks: tuple[Crosswalk, ...] = ()

    @property
    def length(self) -> float:
        """Arc length of the reference line, m."""
        return float(self.s[-1])

    def pose(self, s, d=0.0):
        """Return x, y, yaw of the points at arc length `s` and offset `d` (arrays or numbers)."""
        yaw = np.interp(s, self.s, self.yaw)
        x = np.interp(s, self.s, self.x) - d * np.sin(yaw)
        y = np.interp(s, self.s, self.y) + d * np.cos(yaw)
        beyond = np.maximum(np.asarray(s) - self.s[-1], 0) + np.minimum(np.asarray(s), 0)
        return x + beyond * np.cos(yaw), y + beyond * np.sin(yaw), yaw

    def yaw_at(self, s):
        """Heading of the reference line."""
        return np.interp(s, self.s, self.yaw)

    def curvature_at(self, s, d=0.0):
        """Curvature of the line at offset `d` (1/m, positive left)."""
        k = np.interp(s, self.s, self.curvature)
        return k / np.maximum(1 - k * d, 0.1)

    def locate(self, x: float, y: float, near: float | None = None) -> tuple[float, float]:
        """Return s and d of a point; `near` keeps the search within 30 m of that arc length."""
        if near is None:
            lo, hi = 0, len(self.s)
        else:
            lo, hi = self._around(near)
        i = lo + int(np.argmin((self.x[lo:hi] - x) ** 2 + (self.y[lo:hi] - y) ** 2))
        dx, dy, yaw = x - self.x[i], y - self.y[i], self.yaw[i]
        along = dx * np.cos(yaw) + dy * np.sin(yaw)
        aside = -dx * np.sin(yaw) + dy * np.cos(yaw)
        k = self.curvature[i]
        ds = along / max(1 - k * aside, 0.1)
        return float(self.s[i] + ds), float(aside + 0.5 * k * ds * along)

    def offsets(self, points, near: float) -> np.ndarray:
        """Return d of points [k, 2] within 30 m of that arc length, as `locate` does for one."""
        lo, hi = self._around(near)
        x, y = points.T
        i = lo + np.argmin((self.x[lo:hi] - x[:, None]) ** 2 + (self.y[lo:hi] - y[:, None]) ** 2,
                           1)
        dx, dy, yaw, k = x - self.x[i], y - self.y[i], self.yaw[i], self.curvature[i]
        c, s = np.cos(yaw), np.sin(yaw)
        along, aside = dx * c + dy * s, -dx * s + dy * c
        return aside + 0.5 * k * (along / np.maximum(1 - k * aside, 0.1)) * along

    def _around(self, s: float) -> tuple[int, int]:
        """First sample and the one after the last within 30 m of an arc length."""
        n = len(self.s)
        lo = int(min(max((s - 30) / STEP_M, 0), n - 2))
        return lo, int(min(max((s + 30) / STEP_M, lo + 2), n))

    def junction_at(self, s: float) -> Junction | None:
        """Return the junction whose inside holds arc length `s`."""
        return next((j for j in self.junctions if j.begin <= s <= j.end), None)


def bend(length: float, angle: float) -> np.ndarray:
    """Curvature samples of a bend that turns by `angle`, eased in and out over a quarter each."""
    n = max(round(length / STEP_M), 4)
    t = (np.arange(n) + 0.5) / n
    profile = np.minimum(1, np.minimum(t, 1 - t) * 4)
    return angle * profile / (profile.sum() * STEP_M)


def line_of(curvature: np.ndarray, x=0.0, y=0.0, yaw=0.0):
    """Integrate curvature samples [n] to n + 1 points x, y, yaw."""
    angle = yaw + np.concatenate([[0], np.cumsum(curvature) * STEP_M])
    middle = (angle[1:] + angle[:-1]) / 2
    return (x + np.concatenate([[0], np.cumsum(np.cos(middle)) * STEP_M]),
            y + np.concatenate([[0], np.cumsum(np.sin(middle)) * STEP_M]), angle)


def turn_length(half_size: float) -> float:
    """Length of the bend that joins two arms of a junction of that half size at a right angle."""
    x, y, _ = line_of(bend(100.0, pi / 2))
    return 100.0 * half_size / ((x[-1] + y[-1]) / 2)


class RouteBuilder:
    """
    Strings straights, bends and junctions together; the parts of a scenario in their order.

    Bends keep the heading within 50 degrees of the base direction and the base
    direction within a right angle of where it began, so a route never meets itself.
    """

    def __init__(self, shape: RoadShape, rng: np.random.Generator):
        self.shape, self.rng = shape, rng
        self._parts: list[np.ndarray] = []
        self._junctions: list[tuple[float, float, str]] = []
        self._crosswalks: list[float] = []
        self._length = 0.0
        self._heading = 0.0
        self._base = 0.0

    @property
    def length(self) -> float:
        """Arc length so far."""
        return self._length

    def straight(self, length: float) -> RouteBuilder:
        """Append a straight part."""
        return self._append(np.zeros(max(round(length / STEP_M), 1)))

    def curve(self, radius: float, angle: float | None = None) -> RouteBuilder:
        """Append a bend of about that radius, to a new heading around the base direction."""
        if angle is None:
            target = self._base + self.rng.uniform(0.3, 0.85) * self.rng.choice([-1, 1])
            angle = target - self._heading
            if abs(angle) < 0.3:
                angle = 0.5 * (1 if angle >= 0 else -1)
        self._heading += angle
        return self._append(bend(abs(angle) * radius / 0.75, angle))

    def junction(self, turn: str = 'straight') -> RouteBuilder:
        """Append a junction; a turn that would lead backwards goes to the other side."""
        half = self.shape.kerb + (6.0 if turn == 'straight' else 8.0)
        begin = self._length
        if turn == 'straight':
            self.straight(2 * half)
        else:
            side = 1 if turn == 'left' else -1
            if abs(self._base + side * pi / 2) > 1.6:
                side, turn = -side, 'right' if turn == 'left' else 'left'
            self._base += side * pi / 2
            self._heading += side * pi / 2
            self._append(bend(turn_length(half), side * pi / 2))
        self._junctions.append((begin, self._length, turn))
        return self

    def crosswalk(self) -> RouteBuilder:
        """Mark a pedestrian crossing here."""
        self._crosswalks.append(self._length)
        return self

    def _append(self, curvature: np.ndarray) -> RouteBuilder:
        self._parts.append(curvature)
        self._length += len(curvature) * STEP_M
        return self

    def build(self) -> Route:
        """Return the sampled route with its junctions, their arms and the crosswalks."""
        curvature = np.concatenate(self._parts)
        x, y, yaw = line_of(curvature)
        s = np.arange(len(x)) * STEP_M
        smooth = np.concatenate([curvature[:1], (curvature[1:] + curvature[:-1]) / 2,
                                 curvature[-1:]])
        route = Route(self.shape, s, x, y, yaw, smooth)
        route.junctions = tuple(self._make_junction(route, *j) for j in self._junctions)
        route.crosswalks = tuple(
            Crosswalk(at, at - CROSSWALK_WIDTH_M / 2 - 2) for at in self._crosswalks)
        return route

    @staticmethod
    def _make_junction(route: Route, begin: float, end: float, turn: str) -> Junction:
        x0, y0, yaw0 = (float(v) for v in route.pose(begin))
        x1, y1, yaw1 = (float(v) for v in route.pose(end))
        if turn == 'straight':
            half = (end - begin) / 2
            headings = (yaw0 + pi / 2, yaw0 - pi / 2)
        else:
            half = (abs((x1 - x0) * np.cos(yaw0) + (y1 - y0) * np.sin(yaw0)))
            headings = (yaw0, yaw1 + pi)
        cx, cy = x0 + half * np.cos(yaw0), y0 + half * np.sin(yaw0)
        arms = []
        for heading in headings:
            dx, dy = np.cos(heading), np.sin(heading)
            length = _free_length(route, begin, end, cx, cy, dx, dy, half)
            arms.append(Arm(cx + half * dx, cy + half * dy, float(heading), length))
        return Junction(begin, end, turn, cx, cy, yaw0, half, tuple(arms))


def _free_length(route: Route, begin, end, cx, cy, dx, dy, half, limit=140.0) -> float:
    """How far an arm may reach before it comes near another part of the route."""
    other = (route.s < begin - half - 5) | (route.s > end + half + 5)
    px, py = route.x[other][::4] - cx, route.y[other][::4] - cy
    along, aside = px * dx + py * dy, np.abs(-px * dy + py * dx)
    blocking = (along > half + 5) & (aside < 2 * route.shape.kerb + 12)
    free = along[blocking].min() - half - 40 if blocking.any() else limit
    return float(np.clip(free, 12, limit))
