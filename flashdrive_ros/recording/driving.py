"""How a recorded drive went by: world time against the wall clock, and who drove."""
from __future__ import annotations

import numpy as np

from .recording import Recording

WAITS = 'waits for plans'
"""A source of images that says so stands still until its frames are answered."""
PLAN = 'plan'


def pace(recording: Recording) -> dict | None:
    """
    Time of the frames against the wall clock, from the first plan on.

    None where that says nothing: without plans or images.
    """
    frames = _frames(recording)
    if len(frames) < 2:
        return None
    # gaps between episodes are no driving
    steps, walls = (np.diff(frames[:, i]) / 1e9 for i in (0, 1))
    driven = (steps > 0) & (steps < 1)
    world_s, wall_s = float(steps[driven].sum()), float(walls[driven].sum())
    return {'driven_s': round(world_s, 2), 'wall_s': round(wall_s, 2),
            'times_real_time': round(world_s / wall_s, 3) if wall_s > 0 else None,
            'waits_for_plans': WAITS in recording.source}


def followed_share(recording: Recording) -> float | None:
    """
    Share of the frames from the first plan on after which a plan drove the embedded world.

    None for other sources.
    """
    frames, control = _frames(recording), sorted(recording.control)
    if len(frames) < 2 or not control:
        return None
    # who drives is said after a frame and holds from then on
    times = np.array([time for time, _ in control])
    said = np.searchsorted(times, frames[1:, 1], side='right') - 1
    driven = np.diff(frames[:, 0]) < 1e9
    follows = np.array([i >= 0 and control[i][1] == PLAN for i in said])
    return round(float(follows[driven].mean()), 4) if driven.any() else None


def _frames(recording: Recording) -> np.ndarray:
    """Stamp and log time [n, 2] of the anchor's frames from that of the first plan on."""
    if not recording.plans or not recording.cameras:
        return np.zeros((0, 2), np.int64)
    track = recording.anchor
    first = min(p.stamp_ns for p in recording.plans)
    return np.array([(stamp, heard) for stamp, heard in zip(track.stamps_ns, track.received_ns)
                     if stamp >= first], np.int64).reshape(-1, 2)
