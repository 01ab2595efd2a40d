"""
The embedded world: an episode that can be stepped and looked at.

    world = World(seed=3)
    world.step(0.1)                       # the expert drives
    world.step(0.1, trajectory)           # or a plan does
    observation = world.observe()

The same seed, scenario and steps give the same numbers and, bit for bit, the
same images.  The frame of the map is fixed; base_link is the ego's rear axle.
"""
from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass

import cv2
import numpy as np

from .boxes import Box2D, Box3D, boxes_2d, boxes_3d
from .cameras import Camera, default_rig, jittered_rig
from .director import Director
from .expert import STEP_S, Decision, Expert
from .ground import Ground
from .look import Look
from .metrics import Metrics, Status
from .reason import describe
from .renderer import Renderer
from .scenario import START_M, Scenario
from .scenery import build_scenery
from .stage import stage_poles, things_of
from .vehicle import Tracker, VehicleState

SUBSTEP_S = STEP_S
MEMORY_S = 4.0
END_M = 230.0
"""An episode ends this far before its route does, where the road would come to an end in sight."""


@dataclass(frozen=True)
class Trajectory:
    """
    A plan for `World.step`: rows x, y, yaw in the ego frame at `t0_s`, 0.1 s apart.

    The first row is for t0 + 0.1 s.  `t0_s` is world time (`World.time`).
    """

    t0_s: float
    points: np.ndarray


@dataclass(frozen=True)
class Observation:
    """What can be seen and known at `time` (s); boxes are in base_link, images RGB by camera."""

    time: float
    images: dict[int, np.ndarray]
    state: VehicleState
    boxes_3d: tuple[Box3D, ...]
    boxes_2d: dict[int, tuple[Box2D, ...]]
    decision: Decision
    text: str


class World:
    """One episode at a time, drawn from a seed."""

    def __init__(self, seed: int = 0, scenario: Scenario | str | None = None, *,
                 rig: dict[int, Camera] | None = None, jitter_cameras: bool = False,
                 route_length: float = 1500.0, start_noise: float = 0.0):
        cv2.setNumThreads(1)
        self._wanted = scenario
        self._rig = rig or default_rig()
        self._jitter_cameras = jitter_cameras
        self._route_length = route_length
        self._start_noise = start_noise
        self.reset(seed)

    def reset(self, seed: int | None = None):
        """Begin the episode of that seed, or the same one again."""
        self.seed = self.seed if seed is None else int(seed)
        names = ('scenario', 'route', 'look', 'scenery', 'ground', 'renderer', 'director',
                 'cameras', 'start')
        rngs = dict(zip(names, (np.random.default_rng(s) for s in np.random.SeedSequence(
            self.seed).spawn(len(names))), strict=True))
        wanted = self._wanted
        self.scenario = wanted if isinstance(wanted, Scenario) else Scenario.sample(
            rngs['scenario'], wanted)
        self.rig = jittered_rig(self._rig, rngs['cameras']) if self._jitter_cameras else self._rig
        self.route = self.scenario.build_route(rngs['route'], self._route_length)
        self.look = Look.sample(rngs['look'], self.scenario.terrain)
        self.director = Director(self.scenario, self.route, rngs['director'])
        self._rngs = rngs
        self._renderer = None
        self.expert = Expert(self.route, self.director.lane, self.scenario.speed_limit)
        self.time = 0.0
        self.state = self._start(rngs['start'])
        self._s, self._d = self.route.locate(self.state.x, self.state.y, START_M)
        self._tracker: Tracker | None = None
        self._followed = None
        self._poses = deque([(0.0, self.state.pose)], maxlen=int(MEMORY_S / SUBSTEP_S))
        self.metrics = Metrics(self.route, self._s)
        self.decision = self._decide()
        self._wording, self._worded = 0, None

    def _start(self, rng) -> VehicleState:
        side = rng.normal(0, 0.5) * self._start_noise
        turn = rng.normal(0, np.radians(4)) * self._start_noise
        x, y, yaw = self.route.pose(START_M, self.expert.offset + side)
        return VehicleState(float(x), float(y), float(yaw + turn), self.director.speed)

    @property
    def s(self) -> float:
        """Arc length of the rear axle on the route, m."""
        return self._s

    @property
    def d(self) -> float:
        """Offset of the rear axle to the left of the route's reference line, m."""
        return self._d

    @property
    def done(self) -> bool:
        """True when the route's end is near."""
        return self._s > self.route.length - END_M

    def pose_at(self, time: float) -> tuple[float, float, float]:
        """Pose of base_link in the map at a time of the last seconds; ValueError if forgotten."""
        times = np.array([t for t, _ in self._poses])
        if not times[0] - 1e-6 <= time <= times[-1] + 1e-6:
            raise ValueError(f'the pose at {time:.2f} s is not known, only {times[0]:.2f} to '
                             f'{times[-1]:.2f} s')
        poses = np.array([p for _, p in self._poses])
        return tuple(float(np.interp(time, times, poses[:, i])) for i in range(3))

    def step(self, dt: float = 0.1, trajectory: Trajectory | np.ndarray | None = None) -> Status:
        """
        Move the world on by `dt` seconds, a multiple of 0.05.

        Without a trajectory the expert drives.  A trajectory is tracked along
        its own time: its `t0_s` may lie in the past (a bare array [n, 3]
        begins now).  The same object again goes on being tracked.
        """
        steps = round(dt / SUBSTEP_S)
        if steps < 1 or abs(steps * SUBSTEP_S - dt) > 1e-9:
            raise ValueError(f'dt must be a multiple of {SUBSTEP_S} s, got {dt}')
        self._tracker = self._tracker_of(trajectory)
        status = None
        for _ in range(steps):
            status = self._substep()
        return status

    def _tracker_of(self, trajectory) -> Tracker | None:
        if trajectory is None:
            self._followed = None
            return None
        if self._tracker is not None and trajectory is self._followed:
            return self._tracker
        self._followed = trajectory
        if not isinstance(trajectory, Trajectory):
            trajectory = Trajectory(self.time, trajectory)
        return Tracker(trajectory.t0_s, self.pose_at(trajectory.t0_s), trajectory.points)

    def _substep(self) -> Status:
        if self._tracker is None:
            command = self.decision.acceleration, self.decision.curvature
        else:
            command = self._tracker.control(self.state, self.time, SUBSTEP_S)
        self.state = self.state.advance(*command, SUBSTEP_S)
        self.director.move(self.time, SUBSTEP_S, self._s, self._d, self.state)
        self.time = round(self.time + SUBSTEP_S, 6)
        self._poses.append((self.time, self.state.pose))
        self._s, self._d = self.route.locate(self.state.x, self.state.y, self._s)
        if self._tracker is not None:
            self.expert.take_lane_of(self._d)
        self.decision = self._decide()
        return self.metrics.update(self.state, self._s, self._d, self.director, self.time)

    def _decide(self) -> Decision:
        stage = self.director
        return self.expert.decide(self.state, self._s, self._d, stage.traffic, stage.people,
                                  stage.signals, self.time)

    @property
    def text(self) -> str:
        """Why the expert does what it does, or would do in the ego's place."""
        key = self.decision.cause.name, self.decision.cause.subject
        if key != self._worded:
            self._worded = key
            self._wording = zlib.crc32(repr((self.seed, key, round(self.time, 2))).encode())
        return describe(self.decision.cause, np.random.default_rng(self._wording))

    @property
    def renderer(self) -> Renderer:
        """The renderer of this episode; building it takes a moment, so it is done when needed."""
        if self._renderer is None:
            rngs, scenario = self._rngs, self.scenario
            scenery = build_scenery(self.route, self.look, rngs['scenery'],
                                    buildings=scenario.buildings, trees=scenario.trees,
                                    tall=scenario.storeys)
            stage_poles(scenery, self.route, self.look)
            ground = Ground(self.route, self.look, rngs['ground'], scenery.shadows)
            self._renderer = Renderer(self.rig, ground, scenery, self.look, rngs['renderer'])
        return self._renderer

    def observe(self, images: bool = True, boxes: bool = True) -> Observation:
        """Look around: images of the rig's cameras, boxes of what they show, cause and text."""
        things = things_of(self.director, self.time)
        pictures, ids, flat = {}, {}, {}
        if images and boxes:
            pictures, ids = self.renderer.render(self.state.pose, things, ids=True)
            flat = {i: boxes_2d(ids[i], things) for i in ids}
        elif images:
            pictures = self.renderer.render(self.state.pose, things)
        solid = boxes_3d(things, self.director.speeds(), self.state) if boxes else ()
        if flat:
            seen = {box.id for found in flat.values() for box in found}
            solid = tuple(box for box in solid if box.id in seen)
        return Observation(self.time, pictures, self.state, solid, flat, self.decision, self.text)
