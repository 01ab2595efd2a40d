"""Time one row: load, warm up, drive, and say what each stage took."""
from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from ..core.engine import DEFAULT_CAMERAS, Engine
from ..core.types import DrivePlan, FrameSet
from .drives import noise_drive, world_drive
from .rows import ACCEPTED, TOKENS, NotAvailable, Row

STAGES = {'encode': 'encode', 'prefill': 'prefill', 'decode': 'reason', 'action': 'act'}
"""Stages of the table, and what `DrivePlan.stage_times_ms` calls them."""
SETTLED = 5
"""Windows until every place of one holds a frame of its own and every graph was used."""
LEAST = 3
GIB = 2 ** 30


@dataclass(frozen=True)
class Load:
    """
    What every row is given: the model's name and what it drives through.

    `size` (height, width) of noise images; a `trained` model drives through the world
    instead.  `repeats` steps are timed, fewer when they take longer than `limit_s`.
    """

    model: str
    device: torch.device
    trained: bool
    cameras: tuple[int, ...] = DEFAULT_CAMERAS
    size: tuple[int, int] = (1080, 1920)
    repeats: int = 30
    limit_s: float = 12.0
    seed: int = 0
    quantization: str = 'fp8'
    settings: dict = field(default_factory=dict)

    def drive(self):
        """Iterate over frames and ego histories, the same ones in every row."""
        if self.trained:
            return world_drive(self.seed)
        return noise_drive(self.seed, self.cameras, self.size, self.device)

    def engine(self, row: Row) -> Engine:
        """Load the engine of a row, ready to be warmed up; raises `NotAvailable`."""
        config = row.config(cuda=self.device.type == 'cuda', quantization=self.quantization,
                            device=str(self.device), **self.tokens(row), **self.settings)
        engine = Engine.from_checkpoint(self.model, config)
        if not self.trained and hasattr(engine, 'measure_acceptance'):
            engine.measure_acceptance = ACCEPTED
        elif not self.trained and row.drafts:
            raise NotAvailable('random drafts are never accepted, and the engine has no '
                               'measure_acceptance to count some as accepted')
        return engine

    def tokens(self, row: Row) -> dict:
        """
        Length of a reasoning with random weights, which no token ends.

        The last token of a text that ends by length is not passed through the model, but a
        trajectory-start token would be: plain decoding gets one more in its place.
        """
        return {} if self.trained else {'max_new_tokens': TOKENS + (not row.drafts)}


class Sample:
    """Times in ms of many steps, by stage, and 'total'."""

    def __init__(self):
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self.times: dict[str, list[float]] = {name: [] for name in (*STAGES, 'total')}
        self.tokens: list[int] = []
        self.rounds: list[int] = []

    def add(self, stages: dict[str, float], total: float, tokens: int, rounds: int) -> None:
        """Take in one step."""
        for name in STAGES:
            self.times[name].append(stages[name])
        self.times['total'].append(total)
        self.tokens.append(tokens)
        self.rounds.append(rounds)

    def summary(self) -> dict[str, float]:
        """Median and 90th percentile of every stage."""
        out = {name: float(np.median(values)) for name, values in self.times.items()}
        return out | {f'{name}_p90': float(np.percentile(values, 90))
                      for name, values in self.times.items()}

    def details(self) -> dict:
        """What was run, and the single totals."""
        return {'steps': len(self.tokens), 'tokens': float(np.median(self.tokens)),
                'passes': float(np.median(self.rounds)), 'totals_ms': self.times['total']}


def repeat(step: Callable[[], bool | None], repeats: int, limit_s: float) -> None:
    """Call `step` `repeats` times, fewer when that takes longer than `limit_s`, at least 3."""
    end = time.perf_counter() + limit_s
    for done in range(1, repeats + 1):
        step()
        if done >= LEAST and time.perf_counter() > end:
            return


class Driver:
    """Feeds an engine windows one after the other as a row wants them."""

    def __init__(self, engine: Engine, load: Load, streams: bool):
        self.engine, self.load, self.streams = engine, load, streams
        self.windows = load.drive()
        self.recent: list[FrameSet] = []

    def step(self, early: bool = False) -> tuple[DrivePlan, float]:
        """
        Plan of the next window, and the milliseconds from the frames to it.

        `early`: all cameras but the last were there before, and are prepared already.
        """
        frames, ego = next(self.windows)
        if not self.streams:
            self.engine.reset('every window anew')
        for camera in frames.camera_ids[:-1] if early else ():
            self.engine.prepare(camera, frames.frames[camera])
        synchronise(self.load.device)
        begin = time.perf_counter()
        plan = self.engine.step(frames, ego, history=self.recent)
        took = (time.perf_counter() - begin) * 1e3
        self.recent = [*self.recent, frames][1 - self.engine.frames_per_camera:]
        return plan, took


def time_engine(engine: Engine, load: Load, row: Row,
                early: bool = False) -> tuple[Sample, DrivePlan]:
    """Times of a warm engine's steps, and the last plan; `early` as in `Driver.step`."""
    driver, sample = Driver(engine, load, row.streams), Sample()
    plan = None
    for _ in range(SETTLED):
        plan, _ = driver.step(early)

    def step():
        nonlocal plan
        plan, took = driver.step(early)
        stages = {name: plan.stage_times_ms[ours] for name, ours in STAGES.items()}
        text = plan.reasoning
        sample.add(stages, took, len(text.token_ids), text.rounds)
    repeat(step, load.repeats, load.limit_s)
    return sample, plan


def warm_up(engine: Engine, load: Load) -> None:
    """Have everything compiled and captured."""
    height, width = load.size
    engine.warm_up(load.cameras, height, width)


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def clean(device: torch.device) -> None:
    """Free what the last row held, and count memory from here."""
    gc.collect()
    if device.type == 'cuda':
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> dict[str, float] | None:
    """Peak of allocated and of reserved device memory since `clean`; None on a CPU."""
    if device.type != 'cuda':
        return None
    return {'allocated': torch.cuda.max_memory_allocated(device) / GIB,
            'reserved': torch.cuda.max_memory_reserved(device) / GIB}
