"""An episode driven by the expert, written down: the truth of open loop, the measure of closed."""
from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..world import World
from ..world.vehicle import from_map
from .windows import FUTURE, TICK_S, navigation


@dataclass(frozen=True)
class ExpertDrive:
    """
    What the expert did, a row a tick: `poses` [n, 3] (x, y, yaw) in the map, cause and navigation.

    `progress` [n] is the arc length along the route, m; `images` are those of
    the ticks that were asked for; `fault` says what went wrong ('' if nothing,
    which is how it should be).
    """

    seed: int
    event: str
    poses: np.ndarray
    progress: np.ndarray
    causes: tuple[str, ...]
    navigation: tuple[str, ...]
    fault: str
    images: Mapping[int, Mapping[int, np.ndarray]] = field(default_factory=dict)

    def future(self, tick: int, points: int = FUTURE) -> np.ndarray:
        """Rows x, y, yaw [points, 3] after `tick`, in the ego frame there."""
        return from_map(self.poses[tick], self.poses[tick + 1:tick + 1 + points])


def record_expert(seed: int, ticks: int, draw: Collection[int] = (), **world) -> ExpertDrive:
    """
    Let the expert drive for `ticks` ticks; `draw` are the ticks whose images are kept.

    `world` are arguments of `World`.  Ends early where the road does.
    """
    world = World(seed, **world)
    poses, progress, causes, words, images = [], [], [], [], {}
    for tick in range(ticks + 1):
        if tick:
            if world.done:
                break
            world.step(TICK_S)
        poses.append(world.state.pose)
        progress.append(world.s)
        causes.append(world.decision.cause.name)
        words.append(navigation(world))
        if tick in draw:
            images[tick] = world.observe(boxes=False).images
    return ExpertDrive(seed, world.scenario.event, np.array(poses), np.array(progress),
                       tuple(causes), tuple(words), fault_of(world.metrics), images)


def fault_of(metrics) -> str:
    """Name what an episode's metrics remember: collision, off_road or red_light; '' if nothing."""
    faults = {'collision': metrics.collided, 'off_road': metrics.left_road,
              'red_light': metrics.ran_red}
    return next((name for name, happened in faults.items() if happened), '')
