"""An engine small enough to read: its plans follow from the images' mean colour."""
from __future__ import annotations

import threading

import numpy as np

from ...core.types import GRID_NS, DrivePlan, InputError, Reasoning, WindowState

POINTS, DT_S = 64, 0.1


class EngineDouble:
    """
    Implements the engine's interface without a model.

    Every plan comes with `primitives`; None are plans that were asked for none.
    Speed is the front camera's mean red / 10 m/s; the text names t0 and the
    navigation text.  `steps`, `resets`, `prepared` and `freed` record what was asked of it;
    `fault`, called before each step with its frames, may raise or block.
    """

    camera_ids = None
    frames_per_camera = 4
    model_name = 'double'
    trained = False
    drafting_state = 'off: no drafter'

    def __init__(self, trajectories=2):
        self.trajectories = trajectories
        self.steps, self.resets, self.prepared = [], [], []
        self.primitives, self.reasoning = (), {}
        self.warm = False
        self.freed = 0
        self.fault = lambda frames: None
        self.spoil = False
        self.threads = set()
        self.settings = {}
        self._last_ns = None
        self._plan_id = 0

    def warm_up(self, camera_ids):
        """Note that it was asked to."""
        self.threads.add(threading.get_ident())
        self.warm = True

    def reset(self, reason):
        """Forget the last step."""
        self.threads.add(threading.get_ident())
        self.resets.append(reason)
        self._last_ns = None

    def free(self):
        """Note that it was asked to."""
        self.freed += 1

    def prepare(self, camera_id, frame):
        """Note what was asked for."""
        self.threads.add(threading.get_ident())
        self.prepared.append((camera_id, frame))
        return True

    def configure(self, **changes):
        """Take settings; more than 8 trajectories are refused."""
        if changes.get('num_trajectories', 0) > 8:
            raise InputError('the double draws 8 trajectories at most')
        self.settings |= changes

    def ask(self, question):
        """Repeat the question."""
        if self._last_ns is None:
            raise InputError('no frames were seen yet')
        return f'{question} at {self._last_ns}'

    def step(self, frames, ego, nav_text='', history=()):
        """Plan, unless the frames are the last ones again."""
        self.threads.add(threading.get_ident())
        self.fault(frames)
        if frames.t0_ns == self._last_ns:
            return None
        streaming = self._last_ns is not None and frames.t0_ns - self._last_ns == GRID_NS
        self._last_ns = frames.t0_ns
        self.steps.append((frames, ego, nav_text, tuple(history)))
        self._plan_id += 1
        return self._plan(frames, ego, nav_text, streaming)

    def _plan(self, frames, ego, nav_text, streaming):
        speed = float(frames.frames[frames.camera_ids[0]].image[..., 0].mean()) / 10
        times = DT_S * np.arange(1, POINTS + 1)
        xyz = np.zeros((self.trajectories, POINTS, 3))
        xyz[..., 0] = speed * times
        xyz[..., 1] = 0.01 * np.arange(self.trajectories)[:, None] * times
        if self.spoil:
            xyz[0, 5, 0] = np.nan
        flat = np.zeros((self.trajectories, POINTS))
        return DrivePlan(
            t0_ns=frames.t0_ns, plan_id=self._plan_id, xyz=xyz, yaw=flat, speed=flat + speed,
            acceleration=flat, curvature=flat, scores=np.linspace(1, 0, self.trajectories),
            chosen=0, dt_s=DT_S, reasoning=Reasoning(
                f't0 {frames.t0_ns} {nav_text}', (1, 2, 3), **self.reasoning),
            window=WindowState('streaming' if streaming else 'prefill',
                               '' if streaming else 'first window', 4, 4, 4, 100, 25),
            stage_times_ms={'encode': 1.0, 'total': 2.0}, model=self.model_name,
            trained=self.trained, primitives=self.primitives or (),
            drawn=self.primitives is not None)
