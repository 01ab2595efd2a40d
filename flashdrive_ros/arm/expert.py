"""A scripted expert: waypoints by task, approached at a limited speed, closed loop."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .kinematics import ReachError, joints_of
from .simulator import ArmSimulator

STEP_M = 0.011
"""The set point moves so far in a period of 1/15 s at most."""
LEASH_M = 0.05
"""It runs ahead of the tip by no more than this."""
NEAR_M = 0.012


@dataclass(frozen=True)
class Phase:
    """One leg: words for it, where to (m, base frame), gripper, periods to wait there."""

    text: str
    goal: Callable[[ArmSimulator], np.ndarray]
    gripper: float
    wait: int = 0


def _over(place: str, height: float, x: float = 0.0):
    def goal(sim: ArmSimulator) -> np.ndarray:
        at = getattr(sim, place)
        return np.array([at[0] + x, at[1], height])
    return goal


def phases(sim: ArmSimulator) -> list[Phase]:
    """Legs of the task that `sim` was reset to."""
    can = f'the {sim.colour} can'
    start = sim.post
    pick = [Phase(f'Reach {can}.', _over('can', 0.13), 1),
            Phase(f'Reach {can}.', _over('can', 0.03), 1),
            Phase(f'Grasp {can}.', _over('can', 0.03), 0, 6)]
    if sim.task == 'pick':
        return [*pick, Phase(f'Lift {can}.', _over('can', 0.18), 0, 10)]
    if sim.task == 'place':
        return [*pick, Phase(f'Lift {can}.', _over('can', 0.15), 0),
                Phase(f'Carry {can} to the tray.', _over('tray', 0.15), 0),
                Phase(f'Set down {can}.', _over('tray', 0.045), 0),
                Phase(f'Let go of {can}.', _over('tray', 0.045), 1, 5),
                Phase('Move away.', _over('tray', 0.16), 1, 5)]
    if sim.task == 'open':
        pulled = np.array([start[0] - 0.125, start[1], 0.035])
        return [Phase('Reach the handle.', _over('post', 0.12), 1),
                Phase('Reach the handle.', _over('post', 0.035), 1),
                Phase('Grasp the handle.', _over('post', 0.035), 0, 6),
                Phase('Pull the drawer.', lambda _: pulled, 0, 8)]
    shut = np.array([start[0] + sim.drawer - 0.012, start[1], 0.035])
    return [Phase('Reach the handle.', _over('post', 0.12, -0.05), 0),
            Phase('Reach the handle.', _over('post', 0.035, -0.05), 0),
            Phase('Push the drawer.', lambda _: shut, 0, 8)]


class Expert:
    """Acts in one episode; `text` is the sub-task of now."""

    def __init__(self, sim: ArmSimulator):
        self.sim, self.legs = sim, phases(sim)
        self.leg = self.waited = 0
        self.point = sim.tip
        self.fixed: np.ndarray | None = None

    @property
    def text(self) -> str:
        """Sub-task in words."""
        return self.legs[self.leg].text

    def act(self) -> tuple[np.ndarray, float]:
        """Joint targets [4] rad and gripper for the next period."""
        leg, tip = self.legs[self.leg], self.sim.tip
        if self.fixed is None or (leg.wait == 0 and leg.gripper):
            self.fixed = leg.goal(self.sim)  # what is held moves with the hand
        goal = self.fixed
        if np.linalg.norm(tip - goal) < NEAR_M or self.waited:
            self.waited += 1
            if self.waited > leg.wait and self.leg + 1 < len(self.legs):
                self.leg, self.waited, self.fixed = self.leg + 1, 0, None
                leg = self.legs[self.leg]
                goal = self.fixed = leg.goal(self.sim)
        self.point = tip + _limited(self.point - tip, LEASH_M)
        self.point = self.point + _limited(goal - self.point, STEP_M)
        try:
            return joints_of(self.point), leg.gripper
        except ReachError:
            self.point = tip
            return joints_of(tip), leg.gripper


def _limited(vector: np.ndarray, most: float) -> np.ndarray:
    return vector * min(1.0, most / max(np.linalg.norm(vector), 1e-9))
