"""What the node itself costs: from the cameras' stamp to the plan, less the engine's time."""
from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import car
from .rig import Rig

CAMERAS = (0, 1, 2, 6)
SETTLED = 10
"""First plans that are not counted."""
SECONDS_A_PLAN = 2.5
"""Longest that the engine may take on the average before the measurement is given up."""


def measure(folder: Path, engine: str, plans: int, cameras: Sequence[int] = CAMERAS,
            **parameters) -> dict:
    """
    Overhead of `plans` plans, ms.

    A car drives at 10 Hz, its frames and odometry published at their stamps.  A plan's
    overhead is the time to its arrival in another process, less the engine's step, from the
    stamp of its frames or, if the engine was busy then, from the arrival of the plan before
    it: what a set waits for a busy engine is the engine's time.  `waited` is the share of
    plans that did.
    """
    with Rig(folder, engine, cameras, timeout_s=30.0, **parameters) as rig:
        def enough():
            end = time.monotonic() + SECONDS_A_PLAN * (plans + SETTLED)
            while len(rig.plans) < plans + SETTLED + 1 and time.monotonic() < end:
                time.sleep(0.2)
        rig.drive_while(enough)
        heard = sorted(rig.plans, key=lambda plan: plan.at_ns)[SETTLED:]
    if len(heard) < 2:
        raise RuntimeError('the node made no plans of a healthy drive')
    pairs = list(zip(heard, heard[1:]))
    overheads = [(plan.at_ns - max(plan.t0_ns, before.at_ns)) / 1e6 - plan.engine_ms
                 for before, plan in pairs]
    p50, p95, p99 = np.percentile(overheads, (50, 95, 99))
    return {'p50_ms': p50, 'p95_ms': p95, 'p99_ms': p99, 'max_ms': max(overheads),
            'plans': len(overheads), 'asked': plans, 'engine': engine, 'cameras': list(cameras),
            'waited': float(np.mean([plan.t0_ns < before.at_ns for before, plan in pairs])),
            'image_size': list(car.SIZE),
            'engine_p50_ms': float(np.median([plan.engine_ms for _, plan in pairs])),
            'decoding_p50_ms': float(np.median([plan.image_ms for _, plan in pairs]))}
