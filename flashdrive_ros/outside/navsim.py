"""
An agent for NAVSIM: 8 poses over 4 s at 2 Hz from our engine.

    agent._target_=flashdrive_ros.outside.navsim.FlashDriveAgent agent.model=DIR agent.device=cuda

NAVSIM need not be installed to use the class: it then has the same methods and gives the same
poses in plain classes of the same fields.
"""
from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np

from ..core.ego import EgoHistory
from ..core.types import NANOSECONDS, CameraFrame, DrivePlan, FrameSet, InputError
from .resample import poses_at, times_s

CAMERAS = {'cam_l0': 0, 'cam_f0': 1, 'cam_r0': 2}
"""Our camera by NAVSIM's name: front left, front, front right."""
COMMANDS = ('Turn left.', 'Go straight.', 'Turn right.', '')
"""By NAVSIM's driving command: left, straight, right, unknown."""
HISTORY = 4
STEP_NS = NANOSECONDS // 2
T0_NS = 10 * NANOSECONDS


def _of(module: str, name: str, otherwise):
    """Return a class of NAVSIM or nuPlan, or another where they are not installed."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] not in ('navsim', 'nuplan', 'pytorch_lightning'):
            raise
        return otherwise


@dataclass(frozen=True)
class PlainSampling:
    """`TrajectorySampling` of nuPlan where that is not installed."""

    time_horizon: float = 4.0
    interval_length: float = 0.5

    @property
    def num_poses(self) -> int:
        """Poses of a trajectory."""
        return round(self.time_horizon / self.interval_length)


@dataclass(frozen=True)
class PlainTrajectory:
    """`Trajectory` of NAVSIM where that is not installed: `poses` [n, 3] float32."""

    poses: np.ndarray
    trajectory_sampling: object


class PlainAgent:
    """`AbstractAgent` of NAVSIM where that is not installed."""

    def __init__(self, trajectory_sampling, requires_scene: bool = False):
        self.requires_scene, self._trajectory_sampling = requires_scene, trajectory_sampling


_SAMPLING = 'nuplan.planning.simulation.trajectory.trajectory_sampling'
Sampling = _of(_SAMPLING, 'TrajectorySampling', PlainSampling)
Trajectory = _of('navsim.common.dataclasses', 'Trajectory', PlainTrajectory)
SensorConfig = _of('navsim.common.dataclasses', 'SensorConfig', dict)


class FlashDriveAgent(_of('navsim.agents.abstract_agent', 'AbstractAgent', PlainAgent)):
    """
    Our engine as an agent.

    `model` is a checkpoint, loaded in `initialize`; `settings` are fields of `EngineConfig`;
    `commands` are what the four driving commands say to the model.
    """

    def __init__(self, model: str = 'small', device: str = 'auto', settings: dict | None = None,
                 trajectory_sampling=None, commands=COMMANDS):
        super().__init__(trajectory_sampling or Sampling(time_horizon=4, interval_length=0.5))
        self.model_name, self.device_name = model, device
        self.settings, self.commands = dict(settings or {}), tuple(commands)
        self._flashdrive = None

    def name(self) -> str:
        """Return the name for result files."""
        return f'flashdrive_{self.model_name.replace("/", "_")}'

    def get_sensor_config(self):
        """Cameras of the newest of the 4 frames; nothing else is loaded."""
        newest = [HISTORY - 1]
        others = ('cam_l1', 'cam_l2', 'cam_r1', 'cam_r2', 'cam_b0', 'lidar_pc')
        return SensorConfig(**dict.fromkeys(CAMERAS, newest), **dict.fromkeys(others, False))

    def initialize(self) -> None:
        """Load the model."""
        from ..core.config import EngineConfig
        from ..core.engine import Engine
        if self._flashdrive is None:
            config = EngineConfig(**{'device': self.device_name, **self.settings})
            self._flashdrive = (Engine.from_checkpoint(self.model_name, config),)

    def compute_trajectory(self, agent_input):
        """`Trajectory` of an `AgentInput`; raises `InputError` that says what it lacks."""
        times = times_s(1 / self._trajectory_sampling.interval_length,
                        self._trajectory_sampling.time_horizon)
        poses = poses_at(self.plan(agent_input), times).astype(np.float32)
        return Trajectory(poses, self._trajectory_sampling)

    def plan(self, agent_input) -> DrivePlan:
        """Plan for an `AgentInput` by itself: each scene begins a new window."""
        self.initialize()
        engine, = self._flashdrive
        cameras = agent_input.cameras[-1]
        images = {number: getattr(cameras, name).image for name, number in CAMERAS.items()
                  if getattr(cameras, name, None) is not None
                  and getattr(cameras, name).image is not None}
        missing = sorted(set(engine.camera_ids or CAMERAS.values()) - set(images))
        if missing:
            raise InputError(f'the agent input has no image for cameras {missing}')
        frames = FrameSet(T0_NS, {c: CameraFrame(np.asarray(image), T0_NS)
                                  for c, image in images.items()})
        engine.reset('another scene')
        text = '' if engine.model.config.is_r1 else self._text(agent_input.ego_statuses[-1])
        return engine.step(frames, ego_history(agent_input.ego_statuses, T0_NS), text)

    def _text(self, status) -> str:
        command = np.asarray(status.driving_command).reshape(-1)
        if len(command) != len(self.commands) or not command.any():
            return ''
        return self.commands[int(command.argmax())]


def ego_history(statuses, t0_ns: int) -> EgoHistory:
    """Ego history at 10 Hz from 4 statuses (`ego_pose`: x, y, heading) at 2 Hz, the last at t0."""
    poses = np.array([status.ego_pose for status in statuses[-HISTORY:]], np.float64)
    if poses.shape != (HISTORY, 3):
        raise InputError(f'{HISTORY} ego poses of x, y, heading are needed, '
                         f'got {list(poses.shape)}')
    zero = np.zeros(HISTORY)
    turn = np.stack([zero, zero, np.sin(poses[:, 2] / 2), np.cos(poses[:, 2] / 2)], 1)
    stamps = t0_ns + np.arange(-HISTORY + 1, 1) * STEP_NS
    return EgoHistory.from_odometry(stamps, np.column_stack((poses[:, :2], zero)), turn, t0_ns)
