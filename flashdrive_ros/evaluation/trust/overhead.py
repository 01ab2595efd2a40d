"""What the node itself costs: from the cameras' stamp to the plan, less the engine's step."""
from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core.types import GRID_NS, NANOSECONDS
from . import car
from .rig import Rig

CAMERAS = (0, 1, 2, 6)
PATIENCE_S = 20.0


def measure(folder: Path, engine: str, plans: int, cameras: Sequence[int] = CAMERAS,
            **parameters) -> dict:
    """
    Overhead of `plans` plans, ms.

    The cameras of a set are published at its stamp, odometry of that stamp too;
    the plan's arrival in another process ends the interval.  A set comes only
    after the plan before it, so that none waits for a busy engine.
    """
    overheads, engines, images = [], [], []
    with Rig(folder, engine, cameras, timeout_s=30.0, **parameters) as rig:
        rig.drive_on(2.0)
        for _ in range(plans):
            heard = _one(rig)
            if heard is not None:
                overheads.append((heard.at_ns - heard.t0_ns) / 1e6 - heard.engine_ms)
                engines.append(heard.engine_ms)
                images.append(heard.image_ms)
    p50, p95, p99 = np.percentile(overheads, (50, 95, 99))
    return {'p50_ms': p50, 'p95_ms': p95, 'p99_ms': p99, 'max_ms': max(overheads),
            'plans': len(overheads), 'asked': plans, 'engine': engine, 'cameras': list(cameras),
            'image_size': list(car.SIZE), 'engine_p50_ms': float(np.median(engines)),
            'decoding_p50_ms': float(np.median(images))}


def _one(rig: Rig):
    """Drive to the next set, and wait for its plan; None when there is none."""
    begin = time.time_ns()
    t0 = car.next_grid_ns(begin + GRID_NS // 2)
    events = car.odometry_events(begin - begin % (GRID_NS // 5), t0)
    # stamped when they are sent: what a camera needs is not the node's
    events += [rig.car.prepared(car.Event(t0, source, t0, data)) for source, data in (
        ('odometry', car.SPEED * (t0 % 10 ** 14) / NANOSECONDS),
        *((camera, car.PICTURE_JPEG) for camera in rig.cameras))]
    rig.car.play(events)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = rig.planned(t0, t0 + 1)
        if found:
            return found[0]
        now = time.time_ns()  # odometry goes on, as its history must have no hole
        rig.car.send(car.odometry_events(now, now + 1)[0])
        time.sleep(0.02)
    return None
