"""The arm on its table: reset to a seeded task, act at 15 Hz, look, judge."""
from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from . import scene
from .cameras import MAIN_CAMERA, wrist_camera
from .kinematics import joints_of, tip_of

RATE_HZ = 15
SUBSTEPS = 20
TASKS = ('pick', 'place', 'open', 'close')
LIMIT_STEPS = {'pick': 120, 'place': 180, 'open': 150, 'close': 120}
_VERBS = {'pick': 'Pick up the {} can.', 'place': 'Put the {} can on the tray.',
          'open': 'Open the drawer.', 'close': 'Close the drawer.'}


@dataclass(frozen=True)
class Observation:
    """Joints [4] rad, gripper (0 shut, 1 open) and RGB uint8 [96, 96, 3] of both cameras."""

    joints: np.ndarray
    gripper: float
    main: np.ndarray
    wrist: np.ndarray


class ArmSimulator:
    """One table; everything random comes from the seed of `reset`."""

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(scene.mjcf())
        self.data = mujoco.MjData(self.model)
        self.reset('pick', 0)

    def reset(self, task: str, seed: int) -> None:
        """Begin `task`, one of `TASKS`; raises `ValueError` for any other."""
        if task not in TASKS:
            raise ValueError(f'task is {task!r}, expected one of {", ".join(TASKS)}')
        rng = np.random.default_rng((TASKS.index(task), seed))
        model, data = self.model, self.data
        self.task, self.steps = task, 0
        model.body('tray').pos[:2] = rng.uniform((0.22, -0.27), (0.34, -0.21))
        model.body('cabinet').pos[:2] = rng.uniform((0.43, 0.21), (0.47, 0.26))
        mujoco.mj_resetData(model, data)
        places = [rng.uniform((0.24, -0.12), (0.38, 0.1))]
        while len(places) < 2:
            other = rng.uniform((0.24, -0.12), (0.38, 0.1))
            if np.hypot(*(other - places[0])) > 0.1:
                places.append(other)
        names = rng.permutation(list(scene.COLOURS))[:2]
        for i, (place, name) in enumerate(zip(places, names)):
            model.geom(f'can{i}').rgba[:3] = scene.COLOURS[name]
            data.joint(model.body(f'can{i}').jntadr[0]).qpos[:] = (
                *place, scene.CAN_HALF_M, 1, 0, 0, 0)
        self.colour = str(names[0])
        if task == 'close':
            data.joint('drawer').qpos[0] = rng.uniform(0.09, scene.DRAWER_M)
        home = rng.uniform((0.2, -0.06, 0.2), (0.26, 0.06, 0.26))
        for name, angle in zip(scene.JOINTS, joints_of(home)):
            data.joint(name).qpos[0] = angle
        width = 0.0 if task == 'close' else scene.FINGER_M
        for side in ('left', 'right'):
            data.joint(f'finger_{side}').qpos[0] = width
        data.ctrl[:] = (*joints_of(home), width)
        mujoco.mj_forward(model, data)

    @property
    def instruction(self) -> str:
        """What the arm is told."""
        return _VERBS[self.task].format(self.colour)

    @property
    def joints(self) -> np.ndarray:
        """Angles [4] rad."""
        return np.array([self.data.joint(name).qpos[0] for name in scene.JOINTS])

    @property
    def gripper(self) -> float:
        """0 shut, 1 open."""
        return float(self.data.joint('finger_left').qpos[0] / scene.FINGER_M)

    @property
    def tip(self) -> np.ndarray:
        """Middle between the finger tips [3] m, base frame."""
        return tip_of(self.joints)

    @property
    def can(self) -> np.ndarray:
        """Place [3] m of the can that is meant."""
        return self.data.body('can0').xpos.copy()

    @property
    def tray(self) -> np.ndarray:
        """Place [3] m of the tray."""
        return self.data.body('tray').xpos.copy()

    @property
    def post(self) -> np.ndarray:
        """Place [3] m of the drawer's handle."""
        return self.data.geom('post').xpos.copy()

    @property
    def drawer(self) -> float:
        """How far the drawer is open, m."""
        return float(self.data.joint('drawer').qpos[0])

    def act(self, joints, gripper: float) -> None:
        """Hold joint targets [4] rad and a gripper target (0 to 1) for one period of 1/15 s."""
        targets = np.append(np.asarray(joints, float), np.clip(gripper, 0, 1) * scene.FINGER_M)
        if targets.shape != (5,) or not np.isfinite(targets).all():
            raise ValueError(f'action must be 4 finite joints and a gripper, got {targets}')
        self.data.ctrl[:] = targets
        mujoco.mj_step(self.model, self.data, SUBSTEPS)
        self.steps += 1

    def observe(self) -> Observation:
        """Joints and pictures of now."""
        mujoco.mj_forward(self.model, self.data)
        wrist = wrist_camera(self.model, self.data)
        return Observation(self.joints, self.gripper, *(
            camera.picture(self.model, self.data) for camera in (MAIN_CAMERA, wrist)))

    @property
    def success(self) -> bool:
        """Whether the task is done."""
        if self.task == 'pick':
            return bool(self.can[2] > scene.CAN_HALF_M + 0.08)
        if self.task == 'place':
            off = np.abs(self.can - self.tray)
            return bool(off[:2].max() < 0.055 and off[2] < 0.05 and self.gripper > 0.6)
        return self.drawer > 0.09 if self.task == 'open' else self.drawer < 0.015
