"""Heads at the wheel: closed loop with a plan every half second, for heads and for the expert."""
from __future__ import annotations

from collections import deque

import numpy as np

from ..core.types import FrameSet
from ..evaluation.policies import Move, Scene, speeds_of
from ..evaluation.windows import ego_history, navigation
from ..world.vehicle import from_map, to_map
from .head import DrivingHead
from .interpolation import dense
from .reading import Reader
from .status import command_of, motion_of, rows_of

EVERY = 5
"""Ticks from one plan to the next; in between the last one is followed."""
POINTS = 20


class _Periodic:
    """Plans every `EVERY` ticks from a whole window; keeps the frames that it needs."""

    def __init__(self, frames: int):
        self.memory = frames - 1
        self._seen: deque[FrameSet] = deque(maxlen=frames - 1)
        self._plan: tuple | None = None
        self._turn = 0

    def watch(self, scene: Scene) -> None:
        """Keep the frames: they complete the first window."""
        self._seen.append(scene.frames())

    def plan(self, scene: Scene) -> Move:
        """Plan anew when it is time, else go on with what is left of the last plan."""
        here, turn = scene.poses[-1], self._turn % EVERY
        self._turn += 1
        if turn == 0:
            frames = scene.frames()
            rows = self._fresh(scene, frames, list(self._seen))
            self._plan = here, rows
            self._seen.append(frames)
            return Move(rows, speeds_of(rows))
        if turn > EVERY - 1 - self.memory:  # only these are in the next window
            self._seen.append(scene.frames())
        pose, rows = self._plan
        left = from_map(here, to_map(pose, rows))[turn:]
        return Move(left, speeds_of(left))

    def _fresh(self, scene: Scene, frames: FrameSet, before: list[FrameSet]) -> np.ndarray:
        """Rows x, y, yaw [n, 3] 0.1 s apart of a new plan."""
        raise NotImplementedError


class HeadPolicy(_Periodic):
    """A head on the frozen model's features."""

    def __init__(self, reader: Reader, head: DrivingHead, seed: int = 0):
        super().__init__(reader.frames)
        reader.reset()
        self.reader, self.head, self.seed = reader, head, seed

    def _fresh(self, scene, frames, before):
        ego, words = ego_history(scene.poses, scene.t0_ns), navigation(scene.world)
        reading = self.reader.read(frames, ego, words, before)
        history = rows_of(ego)
        conditions = self.head.conditions([reading.select(self.head.config.inputs)], None,
                                          history[None], [command_of(words)])
        waypoints = self.head.plan(conditions, POINTS, seed=self.seed + scene.tick)[:, 0]
        speed, rate = motion_of(history)
        return dense(waypoints, np.array([speed]), np.array([rate]))[0]


class ExpertHeadPolicy(_Periodic):
    """The model's own action expert, asked as seldom as the heads and with whole windows."""

    def __init__(self, planner):
        super().__init__(planner.frames)
        planner.reset()
        self.planner = planner

    def _fresh(self, scene, frames, before):
        ego = ego_history(scene.poses, scene.t0_ns)
        plan = self.planner.plan(frames, ego, navigation(scene.world), before,
                                 streaming=False).plan
        return np.column_stack((plan.xyz[plan.chosen, :, :2], plan.yaw[plan.chosen]))
