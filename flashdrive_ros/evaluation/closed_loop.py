"""
Closed loop: a policy drives held-out episodes, beside what the expert does in the same ones.

The expert drives the first seconds (a window needs a past); then the policy's
newest plan is tracked for a tick at a time.  The world waits for the plan: no
latency is simulated.  An episode ends early with a collision or after a
second off the road.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from ..core.ego import HISTORY_POSES
from ..world import Trajectory, World
from ..world.vehicle import to_map
from .driving import distances, plan_deviation, relative_progress
from .expert_drive import ExpertDrive, record_expert
from .planners import Planner
from .policies import CONSTANT_VELOCITY, Move, Scene, policy_of
from .texts import agrees, cause_named, is_near
from .windows import FUTURE, TICK_S, check_seeds

OFF_ROAD_S = 1.0
WARM_UP = 4
"""The first plans are not timed: a window is computed whole, libraries are loaded."""


@dataclass(frozen=True)
class ClosedLoop:
    """
    What is driven: `models` names the checkpoint of each policy ('' for none).

    `settings` are fields of `EngineConfig` for the models.
    """

    models: dict[str, str]
    seconds: float = 20.0
    settings: dict = field(default_factory=dict)

    @property
    def ticks(self) -> int:
        """Ticks that a policy drives."""
        return round(self.seconds / TICK_S)


def tasks(config: ClosedLoop, seeds: Sequence[int], rows: list[dict]) -> list[dict]:
    """Return what is still to be done: a seed each, and the policies that have not driven it."""
    check_seeds(seeds)
    done = {(row['seed'], row['policy']) for row in rows}
    missing = {seed: [n for n in config.models if (seed, n) not in done] for seed in seeds}
    return [{'seed': seed, 'policies': names, 'config': asdict(config)}
            for seed, names in missing.items() if names]


def run_task(task: dict, planners: Callable[[str], Planner]) -> Iterator[dict]:
    """Drive one episode with one policy after the other; gives a row each."""
    config, seed = ClosedLoop(**task['config']), task['seed']
    reference = record_expert(seed, HISTORY_POSES + config.ticks + FUTURE)
    for name in task['policies']:
        about = {'seed': seed, 'policy': name, 'event': reference.event,
                 'fault': reference.fault}
        if not reference.fault:
            policy = policy_of(name, reference, config.models, planners, config.settings)
            episode = Episode(World(seed), reference, policy)
            while episode.ticks < config.ticks and not episode.ended:
                episode.step()
            about |= episode.results(config.ticks, judge_text=name != CONSTANT_VELOCITY)
        yield about


def latency(config: ClosedLoop, name: str, planners: Callable[[str], Planner], seed: int,
            plans: int = 30) -> dict | None:
    """Time of the engine's step in ms, with nothing else at work; None for who has no engine."""
    if not config.models[name]:
        return None
    reference = record_expert(seed, HISTORY_POSES + plans + FUTURE)
    policy = policy_of(name, reference, config.models, planners, config.settings)
    episode = Episode(World(seed), reference, policy)
    while episode.ticks < plans and not episode.ended:
        episode.step()
    times = [m.made.stage_times_ms['total'] for m in episode.moves[WARM_UP:]]
    return {'p50': float(np.percentile(times, 50)), 'p90': float(np.percentile(times, 90)),
            'plans': len(times)} if times else None


class Episode:
    """One episode under a policy, and everything that is measured of it."""

    def __init__(self, world: World, reference: ExpertDrive, policy):
        self.world, self.reference, self.policy = world, reference, policy
        self.scene = Scene(self.world, poses=[self.world.state.pose])
        self.ticks, self.ended = 0, ''
        self.moves: list[Move] = []
        self.deviations: list[float] = []
        self.readings: list[dict] = []
        self.flags = {'collision': False, 'off_road': False, 'wrong_lane': False,
                      'red_light': False}
        self._off_road_ticks = 0
        self._last: np.ndarray | None = None
        while self.scene.tick < HISTORY_POSES:
            if self.scene.tick >= HISTORY_POSES - policy.memory:
                policy.watch(self.scene)
            self.world.step(TICK_S)
            self._tick()
        self._start_s = self.world.s

    def _tick(self) -> None:
        self.scene.tick += 1
        self.scene.poses.append(self.world.state.pose)

    def step(self) -> Move:
        """Let the policy plan and drive for one tick."""
        world = self.world
        move = self.policy.plan(self.scene)
        self.moves.append(move)
        self._compare(to_map(world.state.pose, move.points))
        if move.text is not None:
            self._read(move)
        plan = Trajectory(world.time, move.points) if move.drives else None
        self._judge(world.step(TICK_S, plan))
        self.ticks += 1
        self._tick()
        return move

    def _compare(self, in_map: np.ndarray) -> None:
        if self._last is not None:
            self.deviations.append(plan_deviation(self._last, in_map))
        self._last = in_map

    def _read(self, move: Move) -> None:
        decision, named = self.world.decision, cause_named(move.text)
        self.readings.append({
            'true': decision.cause.name, 'named': named, 'near': is_near(named, decision),
            'agrees': agrees(move.text, move.speeds, self.world.state.speed)})

    def _judge(self, status) -> None:
        for name in self.flags:
            self.flags[name] |= getattr(status, name)
        self._off_road_ticks = self._off_road_ticks + 1 if status.off_road else 0
        if status.collision:
            self.ended = 'collision'
        elif self._off_road_ticks * TICK_S > OFF_ROAD_S:
            self.ended = 'off_road'
        elif self.world.done:
            self.ended = 'end of the road'

    def results(self, ticks: int, judge_text: bool = True) -> dict:
        """Return the metrics of the episode, which was to last `ticks`."""
        begin, reference = HISTORY_POSES, self.reference
        driven = np.array(self.scene.poses[begin:])
        to_path, to_place = distances(driven, reference.poses[begin:])
        last = min(begin + ticks, len(reference.progress) - 1)
        found = {
            'ticks': self.ticks, 'ended': self.ended, **self.flags,
            'p_rel': relative_progress(self.world.s - self._start_s,
                                       reference.progress[last] - reference.progress[begin]),
            'd_traj': float(to_path.max()), 'd_loc': float(to_place.max()),
            'd_traj_mean': float(to_path.mean()), 'd_loc_mean': float(to_place.mean()),
            'plan_dev': float(np.mean(self.deviations)) if self.deviations else None,
            'modes': count(m.mode for m in self.moves if m.mode)}
        return {**found, 'texts': readings_of(self.readings)} if judge_text else found


def count(items) -> dict[str, int]:
    """How often each item occurs, the most frequent first."""
    items = list(items)
    return dict(sorted(((i, items.count(i)) for i in set(items)), key=lambda x: (-x[1], x[0])))


def readings_of(readings: list[dict]) -> dict:
    """How many reasonings were right, nearly right, in accord with the plan; by true cause."""
    checked = [r['agrees'] for r in readings if r['agrees'] is not None]
    causes = count(r['true'] for r in readings)
    return {
        'plans': len(readings), 'right': sum(r['named'] == r['true'] for r in readings),
        'near': sum(r['near'] for r in readings),
        'named': sum(r['named'] is not None for r in readings),
        'checked': len(checked), 'agree': sum(checked),
        'by_cause': {cause: [sum(r['named'] == cause for r in readings if r['true'] == cause), n]
                     for cause, n in causes.items()}}
