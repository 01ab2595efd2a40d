"""Who may drive in closed loop: the expert, constant velocity, the model whole or streaming."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..core.types import DrivePlan, FrameSet
from ..world import World
from .expert_drive import ExpertDrive
from .planners import Planner
from .windows import constant_velocity, ego_history, frame_set, navigation, stamp_ns

EXPERT, CONSTANT_VELOCITY, FULL, STREAMING = 'expert', 'constant_velocity', 'full', 'streaming'
POLICIES = (EXPERT, CONSTANT_VELOCITY, FULL, STREAMING)


@dataclass(frozen=True)
class Move:
    """
    A plan: rows x, y, yaw [n, 3] in the ego frame, speeds [n] m/s, one a tick; and its reasons.

    `drives` is False when the world's own expert is to drive instead; `made` is
    the model's plan as it gave it.
    """

    points: np.ndarray
    speeds: np.ndarray
    text: str | None = None
    mode: str = ''
    drives: bool = True
    made: DrivePlan | None = None


@dataclass
class Scene:
    """The world as a policy finds it, tick after tick of one episode."""

    world: World
    tick: int = 0
    poses: list = field(default_factory=list)

    @property
    def t0_ns(self) -> int:
        """Stamp of this tick."""
        return stamp_ns(self.world.seed, self.tick)

    def frames(self) -> FrameSet:
        """What the cameras see now."""
        return frame_set(self.world.observe(boxes=False).images, self.t0_ns)


class ExpertPolicy:
    """The upper bound; its plan is what it is going to do."""

    memory = 0

    def __init__(self, reference: ExpertDrive):
        self.reference = reference

    def watch(self, scene: Scene) -> None:
        """See a tick before the policy's turn."""

    def plan(self, scene: Scene) -> Move:
        """Tell what the expert does."""
        points = self.reference.future(scene.tick)
        return Move(points, speeds_of(points), scene.world.text, drives=False)


class ConstantVelocityPolicy:
    """The lower bound: straight on at the speed of now."""

    memory = 0

    def watch(self, scene: Scene) -> None:
        """See a tick before the policy's turn."""

    def plan(self, scene: Scene) -> Move:
        """Go on."""
        points = constant_velocity(ego_history(scene.poses, scene.t0_ns))
        return Move(points, speeds_of(points))


class ModelPolicy:
    """A checkpoint at the wheel."""

    def __init__(self, planner: Planner, **settings):
        self.planner, self.settings = planner, settings
        self.memory = planner.frames - 1
        self._seen: list[FrameSet] = []

    def watch(self, scene: Scene) -> None:
        """Keep the frames: they complete the first window."""
        self._seen.append(scene.frames())

    def plan(self, scene: Scene) -> Move:
        """Ask for a plan for what is seen now."""
        history = ego_history(scene.poses, scene.t0_ns)
        plan = self.planner.plan(scene.frames(), history, navigation(scene.world), self._seen,
                                 **self.settings).plan
        self._seen = []
        k = plan.chosen
        points = np.column_stack((plan.xyz[k, :, :2], plan.yaw[k]))
        return Move(points, plan.speed[k], plan.reasoning.text, plan.window.mode, made=plan)


def speeds_of(points: np.ndarray) -> np.ndarray:
    """Speeds [n] along rows x, y [n, 2 or more], one a tick, from the origin on."""
    steps = np.diff(np.concatenate((np.zeros((1, 2)), points[:, :2])), axis=0)
    return np.linalg.norm(steps, axis=1) / 0.1


def policy_of(name: str, reference: ExpertDrive, models: dict, planners, settings: dict):
    """Policy by its name."""
    if name == EXPERT:
        return ExpertPolicy(reference)
    if name == CONSTANT_VELOCITY:
        return ConstantVelocityPolicy()
    return ModelPolicy(planners(models[name]), streaming=name != FULL, **settings)
