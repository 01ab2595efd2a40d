"""
Thousands of windows in lock-step: memory must not grow, and none may vanish without a reason.

The next window is sent when the plan of the last one was heard, or when
diagnostics have said why there is none.  Every so often something is wrong: a
gap, time that goes back, a damaged image, a failing step, settings, a question.
"""
from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ...core.types import GRID_NS, NANOSECONDS
from . import car
from .rig import DOUBLE, Rig

PLAN_S = 1.0
"""Patience for a plan of the engine double; a model's is longer."""
STEPS = {'time goes back': -100 * NANOSECONDS, 'gap': 2 * NANOSECONDS}
"""From the window before to one with which time goes on elsewhere, ns."""
SETTLED = 0.2
"""Share of the windows at the beginning that the memory's slope does not count: caches fill."""


@dataclass
class Soak:
    """What was seen; memory is sampled as (window, MB)."""

    windows: int = 0
    plans: int = 0
    explained: int = 0
    unexplained: list[str] = field(default_factory=list)
    memory: list[tuple[int, float]] = field(default_factory=list)

    def slope(self) -> float:
        """Growth of the node's resident memory, MB in 1000 windows."""
        kept = np.array(self.memory[int(SETTLED * len(self.memory)):])
        return float(np.polyfit(kept[:, 0] / 1000, kept[:, 1], 1)[0])

    def summary(self) -> dict:
        """For the results file."""
        return {'windows': self.windows, 'rss_slope_mb_per_1000': self.slope(),
                'unexplained_gaps': len(self.unexplained), 'plans': self.plans,
                'withheld_with_reason': self.explained, 'rss_mb': [
                    self.memory[0][1], self.memory[-1][1]], 'unexplained': self.unexplained[:10]}


def _wrong(window: int) -> str:
    """What is wrong with a window; mostly nothing."""
    for every, what in ((997, 'time goes back'), (499, 'gap'), (307, 'damaged image'),
                        (211, 'failing step'), (97, 'setting')):
        if window % every == every - 1:
            return what
    return ''


def run(folder: Path, windows: int, engine: str = DOUBLE, faults: bool = True, say=print,
        **parameters) -> Soak:
    """Drive that many windows."""
    soak, patience = Soak(), PLAN_S if engine == DOUBLE else 60.0
    with Rig(folder, engine, timeout_s=0.5, **parameters) as rig:
        t0 = car.next_grid_ns()
        _history(rig, t0)
        for window in range(windows):
            wrong = _wrong(window) if faults else ''
            t0 += STEPS.get(wrong, GRID_NS)
            if wrong in STEPS:
                _history(rig, t0)
            _window(rig, soak, t0, wrong, patience)
            if window % 50 == 0:
                soak.memory.append((window, rig.memory_mb()))
            if window % 1000 == 0:
                say(f'{window} windows, {soak.plans} plans, {soak.memory[-1][1]:.1f} MB')
    return soak


def _history(rig: Rig, t0: int):
    """Odometry up to t0, as it comes before the cameras in a recording."""
    for event in car.odometry_events(t0 - 2 * NANOSECONDS, t0):
        rig.car.send(event)
        time.sleep(0.002)  # best effort: a burst would be lost in part


def _window(rig: Rig, soak: Soak, t0: int, wrong: str, patience: float):
    """Send one window and account for it."""
    before = dict(rig.problems())
    if wrong == 'failing step' and rig.engine == DOUBLE:
        rig.order(error='failure')
    if wrong == 'setting':
        rig.set_parameter('temperature', 0.5 + (t0 // GRID_NS) % 5 / 10)
    for event in _events(rig, t0, wrong):
        rig.car.send(event)
    soak.windows += 1
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if rig.plans and rig.plans[-1].t0_ns == t0:
            soak.plans += 1
            del rig.plans[:-1]
            return
        time.sleep(0.0005)
    seen, end = rig.diagnosed, time.monotonic() + 5.0
    while time.monotonic() < end and rig.diagnosed < seen + 2:
        time.sleep(0.05)
    if rig.problems() != before or rig.value('why no plan'):
        soak.explained += 1
    else:
        soak.unexplained.append(f'window {soak.windows - 1} ({wrong or "nothing wrong"})')


def _events(rig: Rig, t0: int, wrong: str) -> Iterator[car.Event]:
    yield from car.odometry_events(t0 - GRID_NS // 5 * 4, t0 + 1)
    for camera in rig.cameras:
        event = car.Event(0, camera, t0, car.PICTURE_JPEG)
        damaged = wrong == 'damaged image' and camera == rig.cameras[0]
        yield replace(event, data=event.data[:1000]) if damaged else event
