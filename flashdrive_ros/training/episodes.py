"""
Episodes that the expert drives, written down so that clips of them can be drawn later.

Driving is cheap and drawing is not: an episode is driven first, then the moments
worth learning from are chosen, then only those are drawn.  Now and then the
vehicle is pushed off its way for a moment; what the expert does after that is
how to recover (a plan that drifts would otherwise never be corrected).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..core.ego import HISTORY_POSES
from ..world.cameras import default_rig
from ..world.expert import Cause
from ..world.navigation import navigation_text
from ..world.reason import action_of
from ..world.scenario import EVENTS
from ..world.soup import Thing
from ..world.stage import Snapshot
from ..world.vehicle import from_map
from ..world.world import SUBSTEP_S, World

TICK_S = 0.1
FUTURE = 64
HELD_OUT = 100_000
"""World seeds below this are never trained on."""
VALIDATION = 50_000
"""World seeds from here to `HELD_OUT` are for validation during training."""
EVENT_BOOST = {'cut_in': 3.0, 'light': 1.5, 'pedestrian': 2.2, 'free': 0.8, 'follow': 0.7}
"""How much more often a kind of scenario is drawn for training than in the world itself."""
CAUSE_BOOST = {'cut_in': 4.0, 'yellow_light': 4.0, 'lead_stopped': 1.5, 'pedestrian': 1.5}
"""How much more often clips of rare causes are chosen, others counting once."""
SPACING = 6
RECOVERY = 25
"""Ticks after a push that count as recovering from it."""
RECOVERY_BOOST = 2.5
"""How much more often clips of a recovery are chosen."""
HARDEST = 2.0, 7.5
"""Deceleration (m/s^2) that the expert needs when inattention ends, least and most."""
AFTERMATH = 10
"""Ticks after the last waypoint in which nothing may have gone wrong either."""


PUSHES = {'shove': 0.4, 'inattention': 0.5, 'hesitation': 0.1}
"""Kinds of disturbances and how often each is drawn."""


@dataclass(frozen=True)
class EpisodeConfig:
    """
    How episodes are driven, and the size of the images.

    `push_every_s` is the mean time from one push to the next (0: none), long
    enough for a future without one; shoves last about `push_s`.  `balanced`
    draws eventful scenarios more often than the world does.
    """

    width: int = 320
    height: int = 180
    seconds: float = 60.0
    route_length: float = 1000.0
    push_every_s: float = 13.0
    push_s: float = 1.0
    push_side_m: float = 0.7
    push_acceleration: float = 2.0
    pushes: Mapping[str, float] = field(default_factory=lambda: dict(PUSHES))
    jitter_cameras: float = 0.5
    balanced: bool = True


@dataclass(frozen=True)
class Moment:
    """The world at a tick: enough to draw it and to say what should be done."""

    pose: tuple[float, float, float]
    speed: float
    snapshot: Snapshot
    because: Cause
    text: str
    navigation: str
    pushed: bool
    failed: bool

    @property
    def things(self) -> tuple[Thing, ...]:
        """What moves or changes, as the renderer wants it; made when first asked for."""
        return self.snapshot.things

    @property
    def kind(self) -> tuple[str, int]:
        """What it is a case of: the cause, and what is done about it."""
        return self.because.name, action_of(self.because)


@dataclass(frozen=True)
class Episode:
    """Moments 0.1 s apart in the world they come from."""

    world: World
    moments: tuple[Moment, ...]

    def poses(self) -> np.ndarray:
        """Rows x, y, yaw [n, 3] in the map."""
        return np.array([m.pose for m in self.moments])

    def history(self, tick: int) -> np.ndarray:
        """Rows x, y, yaw [16, 3] up to `tick`, in the ego frame there."""
        return self._seen_from(tick, tick - HISTORY_POSES + 1, tick + 1)

    def future(self, tick: int) -> np.ndarray:
        """Rows x, y, yaw [64, 3] after `tick`, in the ego frame there."""
        return self._seen_from(tick, tick + 1, tick + FUTURE + 1)

    def motions(self, tick: int, ahead: Sequence[int]) -> dict[int, np.ndarray]:
        """
        Places x, y [len(ahead), 2] of things by id, so many ticks after `tick`.

        They are in the ego frame at `tick`; things that are not there at all of these ticks are
        left out.
        """
        places = [{thing.id: (thing.x, thing.y, thing.yaw) for thing in
                   self.moments[tick + k].things} for k in ahead]
        stay = sorted(set.intersection(*map(set, places)))
        here = self.moments[tick].pose
        return {i: from_map(here, [there[i] for there in places])[:, :2] for i in stay}

    def _seen_from(self, tick: int, begin: int, end: int) -> np.ndarray:
        poses = [m.pose for m in self.moments[begin:end]]
        return from_map(self.moments[tick].pose, poses)

    def learnable(self) -> np.ndarray:
        """Whether the window that ends at a tick [n] has a past, and a future free of faults."""
        n = len(self.moments)
        spoilt = np.array([m.pushed for m in self.moments])
        failed = np.array([m.failed for m in self.moments])
        good = np.zeros(n, dtype=bool)
        for tick in range(HISTORY_POSES, n - FUTURE - AFTERMATH):
            good[tick] = not (spoilt[tick + 1:tick + FUTURE + 1].any()
                              or failed[tick - HISTORY_POSES:tick + FUTURE + AFTERMATH].any())
        return good


def training_seed(seed: int, index: int, attempt: int) -> int:
    """World seed of an episode; never a held-out one."""
    state = np.random.SeedSequence([seed, index, attempt]).generate_state(1)[0]
    return HELD_OUT + int(state)


def drive(world_seed: int, config: EpisodeConfig) -> Episode:
    """Let the expert drive one episode; the same seed and configuration give the same one."""
    rng = np.random.default_rng([world_seed, 1])
    event = _draw_event(rng) if config.balanced else None
    world = World(world_seed, event, rig=default_rig(config.width, config.height),
                  route_length=config.route_length,
                  jitter_cameras=bool(rng.random() < config.jitter_cameras))
    pushes = Pushes(config, rng)
    moments = [_moment(world, False, False)]
    while len(moments) * TICK_S < config.seconds and not world.done:
        failed = False
        pushed = pushes.begin_tick(world)
        for _ in range(round(TICK_S / SUBSTEP_S)):
            if pushed:
                pushes.apply(world)
            status = world.step(SUBSTEP_S)
            failed |= status.collision or status.off_road or status.red_light
        moments.append(_moment(world, pushed, failed))
    return Episode(world, tuple(moments))


def _draw_event(rng: np.random.Generator) -> str:
    shares = np.array([share * EVENT_BOOST.get(name, 1.0) for name, share in EVENTS.items()])
    return str(rng.choice(list(EVENTS), p=shares / shares.sum()))


def _moment(world: World, pushed: bool, failed: bool) -> Moment:
    return Moment(
        pose=world.state.pose, speed=world.state.speed,
        snapshot=Snapshot(world.director, world.time), because=world.decision.cause,
        text=world.text,
        navigation=navigation_text(world.route, world.s, world.scenario.speed_limit),
        pushed=pushed, failed=failed)


class Pushes:
    """
    Disturbances, from which the expert has to recover.

    A shove steers past the lane's middle and changes the speed for a moment.
    Inattention holds an acceleration for seconds whatever is ahead, until the
    expert would have to brake as hard as was drawn: without it the gap to a
    lead vehicle would follow from the own speed, and nobody would have to look.
    Hesitation falls behind in the same way.
    """

    def __init__(self, config: EpisodeConfig, rng: np.random.Generator):
        self.config, self.rng = config, rng
        self.ticks_left = 0
        self.next_s = 1.6 + rng.uniform(0, 0.6) * config.push_every_s
        self.curvature = self.acceleration = 0.0
        self.held: float | None = None
        self.until = -np.inf

    def begin_tick(self, world: World) -> bool:
        """Whether the vehicle is pushed in the next 0.1 s."""
        every = self.config.push_every_s
        if self.ticks_left:
            self.ticks_left -= 1
            if world.decision.cause.acceleration < self.until:
                self.ticks_left = 0
        elif every and world.time >= self.next_s:
            self._draw(world)
            self.next_s = world.time + every * self.rng.uniform(0.85, 1.25)
        return self.ticks_left > 0

    def _draw(self, world: World) -> None:
        config, rng = self.config, self.rng
        kind = rng.choice(list(config.pushes), p=list(config.pushes.values()))
        duration = config.push_s * rng.uniform(0.5, 1.5)
        side = float(np.clip(rng.normal(0, config.push_side_m), -1.2, 1.2))
        travelled = max(world.state.speed, 3.0) * duration
        self.curvature = float(np.clip(2 * side / travelled ** 2, -0.06, 0.06))
        self.acceleration = float(rng.normal(0, config.push_acceleration))
        self.held, self.until = None, -np.inf
        if kind != 'shove':
            inattentive = kind == 'inattention'
            duration, self.curvature = rng.uniform(1.5, 8.0 if inattentive else 4.0), 0.0
            self.held = float(np.clip(rng.normal(0.5, 0.7), -0.3, 1.8) if inattentive
                              else -rng.uniform(0.4, 1.8))
            self.until = -float(rng.uniform(*HARDEST)) if inattentive else -np.inf
        self.ticks_left = round(duration / TICK_S)

    def apply(self, world: World) -> None:
        """Replace the expert's commands of the next 0.05 s."""
        decision = world.decision
        road = float(world.route.curvature_at(world.s + 0.1 * world.state.speed,
                                              world.expert.offset))
        if self.held is None:
            world.decision = replace(
                decision, acceleration=decision.acceleration + self.acceleration,
                curvature=road + self.curvature)
        else:
            world.decision = replace(decision, acceleration=self.held)


def choose(episode: Episode, count: int, frames: int, window: int,
           rng: np.random.Generator) -> list[int]:
    """
    First ticks of up to `count` clips of `frames` frames, rare situations as often as others.

    All windows of `window` frames in a clip are learnable.  Clips begin `SPACING`
    ticks apart, or half of that where there are few, and overlap by less than half.
    """
    good = episode.learnable()
    inside = frames - window + 1
    runs = np.convolve(good, np.ones(inside, dtype=int), 'valid') == inside
    starts = np.flatnonzero(runs) - (window - 1)
    starts = starts[starts >= 0]
    kinds = [episode.moments[s + frames - 1].kind for s in starts]
    share = {kind: kinds.count(kind) for kind in set(kinds)}
    weight = np.array([CAUSE_BOOST.get(kind[0], 1.0) / share[kind] for kind in kinds])
    pushed = np.array([m.pushed for m in episode.moments])
    recovers = [pushed[max(s + frames - RECOVERY, 0):s + frames].any() for s in starts]
    weight = np.where(recovers, RECOVERY_BOOST * weight, weight)
    chosen: list[int] = []
    for apart in (SPACING, SPACING // 2):
        apart = max(apart, frames // 2 + 1)
        while len(chosen) < count:
            far = [all(abs(s - c) >= apart for c in chosen) for s in starts]
            share = np.where(far, weight, 0.0)
            if not share.any():
                break
            chosen.append(int(rng.choice(starts, p=share / share.sum())))
    return chosen
