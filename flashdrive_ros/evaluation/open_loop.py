"""
Open loop: plans beside the way that the expert took, on held-out seeds.

Along each episode a few stretches of consecutive windows are driven.  A
streaming row runs every window of them, so that its keys and values are as
old as they get; a full row computes only the windows that count, whole.  All
rows see the same windows, so their errors can be compared one by one.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import numpy as np

from ..core.ego import HISTORY_POSES, EgoHistory
from ..core.types import DrivePlan
from .errors import errors
from .expert_drive import ExpertDrive, record_expert
from .planners import Planner
from .texts import cause_named
from .windows import (
    FUTURE,
    TICK_S,
    check_seeds,
    constant_velocity,
    ego_history,
    frame_set,
    stamp_ns,
)

CONSTANT_VELOCITY = 'constant_velocity'
FULL, STREAMING = 'full', 'streaming'
BEFORE = 3
"""Frames before the newest one in a window."""
ROWS = (FULL, STREAMING, 'streaming_vlm_tuned', 'streaming_expert_tuned', CONSTANT_VELOCITY)


@dataclass(frozen=True)
class OpenLoop:
    """
    What is measured: how much of each episode, and with which checkpoints.

    `models` names the checkpoint of each row ('' for none); rows named
    streaming… stream.  Of each stretch of `windows` consecutive windows every
    `every`-th counts, the last one always.  The flow is examined (`probe`) in
    the last window of each stretch of that row.  `settings` are further fields
    of `EngineConfig`.
    """

    models: dict[str, str]
    seconds: float = 24.0
    stretches: int = 2
    windows: int = 16
    every: int = 4
    samples: int = 6
    probe: str = ''
    engine_seed: int = 0
    settings: dict = field(default_factory=dict)

    @property
    def ticks(self) -> int:
        """Ticks that an episode lasts, the way after its last window included."""
        return HISTORY_POSES + round(self.seconds / TICK_S) + FUTURE

    def starts(self, seed: int) -> list[int]:
        """First tick of each stretch: one anywhere in each equal part of the episode."""
        rng = np.random.default_rng([seed, 2])
        edges = np.linspace(HISTORY_POSES + BEFORE, self.ticks - FUTURE - self.windows,
                            self.stretches + 1).astype(int)
        return [int(rng.integers(a, max(b, a + 1))) for a, b in zip(edges[:-1], edges[1:])]

    def counts(self, age: int) -> bool:
        """Whether the window at this place of its stretch counts."""
        return (self.windows - 1 - age) % self.every == 0 and age > 0


def tasks(config: OpenLoop, seeds, rows: list[dict]) -> list[dict]:
    """Return what is still to be done: a seed each, and the rows of the table that it lacks."""
    check_seeds(seeds)
    done = {(row['seed'], row['row']) for row in rows}
    missing = {seed: [n for n in config.models if (seed, n) not in done] for seed in seeds}
    return [{'seed': seed, 'rows': names, 'config': asdict(config)}
            for seed, names in missing.items() if names]


def run_task(task: dict, planners: Callable[[str], Planner]) -> Iterator[dict]:
    """Measure rows of the table on one seed."""
    config = OpenLoop(**task['config'])
    starts = config.starts(task['seed'])
    draw = {t for start in starts for t in range(start - BEFORE, start + config.windows)}
    drive = record_expert(task['seed'], config.ticks, draw)
    for name in task['rows']:
        row = {'seed': drive.seed, 'row': name, 'event': drive.event, 'fault': drive.fault,
               'windows': []}
        if not drive.fault:
            plan = _constant_velocity if name == CONSTANT_VELOCITY else _Windows(
                config, name, planners(config.models[name]))
            found = [_scored(config, drive, start, age, plan)
                     for start in starts for age in range(config.windows)]
            row['windows'] = [window for window in found if window]
        yield row


def _scored(config: OpenLoop, drive: ExpertDrive, start: int, age: int, plan: Callable):
    """Run a window and return its errors if it counts."""
    tick = start + age
    if tick + FUTURE >= len(drive.poses):
        return None
    history = ego_history(drive.poses[:tick + 1], stamp_ns(drive.seed, tick))
    made = plan(drive, tick, age, history)
    if not config.counts(age):
        return None
    return {'tick': tick, 'age': age, **errors(made['xy'], drive.future(tick)),
            **made['about'], 'cause': drive.causes[tick]}


def _constant_velocity(drive, tick, age, history: EgoHistory) -> dict:
    return {'xy': constant_velocity(history)[None, :, :2], 'about': {}}


class _Windows:
    """Runs the windows of a stretch, as their row of the table says."""

    def __init__(self, config: OpenLoop, name: str, planner: Planner):
        self.config, self.planner, self.streaming = config, planner, name != FULL
        self.explores = name == config.probe

    def __call__(self, drive: ExpertDrive, tick: int, age: int, history: EgoHistory) -> dict:
        """Plan for the window that ends at `tick`; nothing to do where it does not count."""
        config, planner = self.config, self.planner
        counts = config.counts(age)
        if not counts and not self.streaming:
            return {}
        before: list = []
        if age == 0 or not self.streaming:
            planner.reset()
            before = [frame_set(drive.images[t], stamp_ns(drive.seed, t))
                      for t in range(tick - planner.frames + 1, tick)]
        explores = self.explores and age == config.windows - 1
        settings = {**config.settings, 'streaming': self.streaming, 'seed': config.engine_seed,
                    'num_trajectories': config.samples}
        if not counts:  # to keep the stream going takes no more than a hint of a trajectory
            settings |= {'num_trajectories': 1, 'flow_steps': 1, 'velocity_reuse': ()}
        made = planner.plan(
            frame_set(drive.images[tick], stamp_ns(drive.seed, tick)), history,
            drive.navigation[tick], before, explores, **settings)
        about = _about(made.plan)
        if made.flow is not None:
            truth = drive.future(tick)
            scored = {name: errors(xy, truth) for name, xy in made.flow.xy.items()}
            about['flow'] = {'change': made.flow.change, 'reuse': {
                name: [e['ade'], e['min_ade']] for name, e in scored.items()}}
        return {'xy': made.plan.xyz[..., :2], 'about': about}


def _about(plan: DrivePlan) -> dict:
    text = plan.reasoning.text
    return {'mode': plan.window.mode, 'text': text, 'named': cause_named(text),
            'tokens': len(plan.reasoning.token_ids)}
