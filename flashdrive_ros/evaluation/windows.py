"""What an engine gets to see of the embedded world: frames, ego history and navigation text."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..core.ego import HISTORY_POSES, EgoHistory
from ..core.types import GRID_NS, NANOSECONDS, CameraFrame, FrameSet
from ..errors import UserError
from ..training.episodes import HELD_OUT
from ..world import World
from ..world.navigation import navigation_text
from ..world.vehicle import from_map

TICK_S = GRID_NS / NANOSECONDS
"""The world is stepped from window to window."""
FUTURE = 64
"""Waypoints of a plan, one a tick."""
EPISODE_NS = 3600 * NANOSECONDS


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse world seeds that a model may have been trained on, with `UserError`."""
    trained = [seed for seed in seeds if not 0 <= seed < HELD_OUT]
    if trained:
        raise UserError(f'world seeds must be from 0 to {HELD_OUT - 1}, which are never trained '
                        f'on; got {trained[0]}')


def stamp_ns(seed: int, tick: int) -> int:
    """Stamp of a tick; each seed has an hour of its own, so that each draws noise of its own."""
    return seed * EPISODE_NS + (tick + 1) * GRID_NS


def frame_set(images: Mapping[int, np.ndarray], t0_ns: int) -> FrameSet:
    """Images by camera id, all taken at `t0_ns`."""
    return FrameSet(t0_ns, {c: CameraFrame(image, t0_ns) for c, image in images.items()})


def ego_history(poses, t0_ns: int) -> EgoHistory:
    """From the last 16 poses (x, y, yaw) in the map, one a tick up to now."""
    poses = np.asarray(poses, dtype=np.float64)[-HISTORY_POSES:]
    seen = from_map(poses[-1], poses)
    xyz = np.concatenate((seen[:, :2], np.zeros((len(seen), 1))), 1)
    c, s = np.cos(seen[:, 2]), np.sin(seen[:, 2])
    rot = np.tile(np.eye(3), (len(seen), 1, 1))
    rot[:, 0, 0], rot[:, 0, 1], rot[:, 1, 0], rot[:, 1, 1] = c, -s, s, c
    return EgoHistory(t0_ns, xyz, rot)


def navigation(world: World) -> str:
    """What the navigation system says now."""
    return navigation_text(world.route, world.s, world.scenario.speed_limit)


def constant_velocity(history: EgoHistory, points: int = FUTURE) -> np.ndarray:
    """Rows x, y, yaw [points, 3] of someone who goes straight on at the speed of the last tick."""
    speed = float(np.linalg.norm(history.xyz[-1] - history.xyz[-2])) / TICK_S
    plan = np.zeros((points, 3))
    plan[:, 0] = speed * TICK_S * np.arange(1, points + 1)
    return plan
