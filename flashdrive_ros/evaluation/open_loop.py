"""
Open loop: plans beside the way that the expert took, on held-out seeds.

Along each episode a few stretches of consecutive windows are driven.  A
streaming row runs every window of them, so that its keys and values are as
old as they get; a full row computes only the windows that count, whole.  All
rows see the same windows, so their errors can be compared one by one.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from ..core.ego import HISTORY_POSES, EgoHistory
from ..core.types import DrivePlan
from .engines import engine_of
from .errors import errors
from .expert_drive import ExpertDrive, record_expert
from .flow import FlowProbe
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
ROWS = (FULL, STREAMING, 'streaming_vlm_tuned', 'streaming_expert_tuned', CONSTANT_VELOCITY)


@dataclass(frozen=True)
class OpenLoop:
    """
    What is measured: how much of each episode, and with which checkpoints.

    `models` names the checkpoint of each row ('' for none); rows named
    streaming… stream.  Of each stretch of `windows` consecutive windows every
    `every`-th counts, the last one always.  The flow is examined (`probe`) in
    the last window of each stretch of that row.
    """

    models: dict[str, str]
    seconds: float = 24.0
    stretches: int = 2
    windows: int = 16
    every: int = 4
    samples: int = 6
    probe: str = ''
    engine_seed: int = 0
    dtype: str = 'auto'

    @property
    def ticks(self) -> int:
        """Ticks that an episode lasts, the way after its last window included."""
        return HISTORY_POSES + round(self.seconds / TICK_S) + FUTURE

    def starts(self, seed: int) -> list[int]:
        """First tick of each stretch: one anywhere in each equal part of the episode."""
        rng = np.random.default_rng([seed, 2])
        edges = np.linspace(HISTORY_POSES + 3, self.ticks - FUTURE - self.windows,
                            self.stretches + 1).astype(int)
        return [int(rng.integers(a, max(b, a + 1))) for a, b in zip(edges[:-1], edges[1:])]

    def counts(self, age: int) -> bool:
        """Whether the window at this place of its stretch counts."""
        return (self.windows - 1 - age) % self.every == 0 and age > 0


def tasks(config: OpenLoop, seeds, rows: list[dict]) -> list[dict]:
    """Return what is still to be done: a seed and a row of the table each, the seeds in turn."""
    check_seeds(seeds)
    done = {(row['seed'], row['row']) for row in rows}
    todo = []
    for seed in seeds:
        missing = [name for name in config.models if (seed, name) not in done]
        todo += [{'seed': seed, 'row': name, 'config': asdict(config)} for name in missing]
    return todo


def run_task(task: dict, device: str) -> dict:
    """Measure one row of the table on one seed."""
    config, name = OpenLoop(**task['config']), task['row']
    drive = recorded(config, task['seed'])
    row = {'seed': task['seed'], 'row': name, 'event': drive.event, 'fault': drive.fault}
    if drive.fault:
        return {**row, 'windows': []}
    plan = _constant_velocity if name == CONSTANT_VELOCITY else _Windows(config, name, device)
    found = [_scored(config, drive, stretch, age, plan)
             for stretch in config.starts(task['seed']) for age in range(config.windows)]
    return {**row, 'windows': [w for w in found if w]}


@lru_cache(maxsize=1)
def _recorded(seed: int, ticks: int, draw: tuple[int, ...]) -> ExpertDrive:
    return record_expert(seed, ticks, draw)


def recorded(config: OpenLoop, seed: int) -> ExpertDrive:
    """Give the expert's episode of a seed with the images of all windows; the last one is kept."""
    draw = sorted({t for start in config.starts(seed)
                   for t in range(start - 3, start + config.windows)})
    return _recorded(seed, config.ticks, tuple(draw))


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
    """Runs the windows of a stretch through an engine, as its row of the table says."""

    def __init__(self, config: OpenLoop, name: str, device: str):
        self.config, self.streaming = config, name != FULL
        self.engine = engine_of(config.models[name], device, config.dtype)
        self.probe = FlowProbe(self.engine) if name == config.probe else None

    def __call__(self, drive: ExpertDrive, tick: int, age: int, history: EgoHistory) -> dict:
        """Plan for the window that ends at `tick`; nothing to do where it does not count."""
        config, engine = self.config, self.engine
        counts = config.counts(age)
        if not counts and not self.streaming:
            return {}
        self._configure(counts)
        if age == 0 or not self.streaming:
            engine.reset('another stretch')
        frames = [frame_set(drive.images[t], stamp_ns(drive.seed, t))
                  for t in range(tick - engine.frames_per_camera + 1, tick + 1)]
        examine = self.probe is not None and age == config.windows - 1
        if examine:
            self.probe.begin()
        plan = engine.step(frames[-1], history, drive.navigation[tick], frames[:-1])
        about = _about(plan)
        if examine:
            about['flow'] = self.probe.examine(history, drive.future(tick))
        return {'xy': plan.xyz[..., :2], 'about': about}

    def _configure(self, counts: bool) -> None:
        """Windows that only keep the stream going need no more than a hint of a trajectory."""
        self.engine.configure(
            streaming=self.streaming, seed=self.config.engine_seed,
            num_trajectories=self.config.samples if counts else 1,
            flow_steps=0 if counts else 1)


def _about(plan: DrivePlan) -> dict:
    text = plan.reasoning.text
    return {'mode': plan.window.mode, 'text': text, 'named': cause_named(text),
            'tokens': len(plan.reasoning.token_ids),
            'ms': {stage: round(ms, 1) for stage, ms in plan.stage_times_ms.items()}}
