"""
Time that waits for plans: when a window must be answered before time goes on.

The embedded world can stand still until the plan for what it just showed has
arrived.  A machine of any speed then drives every 10 Hz window, and drives the
same way every time; only the clock on the wall tells how fast.  No ROS here.
"""
from __future__ import annotations

from ..core.ego import HISTORY_POSES
from ..core.types import GRID_NS

HISTORY_NS = (HISTORY_POSES - 1) * GRID_NS
"""Odometry that a plan needs before its frames."""
ANSWERS = ('plan', 'trajectory')
"""Messages that a window is answered with; they come in any order."""


class LockStep:
    """
    Which windows wait for a plan.

    One does not when the odometry of its episode is too short for a plan, and
    when the window before it waited in vain: then time goes on by itself until
    plans come again.
    """

    def __init__(self):
        self.waited_s = 0.0
        """Wall clock that windows stood still for."""
        self.answered = self.missed = 0
        self._heard_ns = dict.fromkeys(ANSWERS, 0)
        self._hopeful = True

    def hear(self, kind: str, t0_ns: int):
        """A message of the plan for the frames at t0 came."""
        self._heard_ns[kind] = t0_ns
        self._hopeful = True

    def expects(self, now_ns: int, episode_ns: int) -> bool:
        """Say whether the window at `now_ns` of an episode that began then waits for its plan."""
        return self._hopeful and now_ns - episode_ns >= HISTORY_NS

    def is_answered(self, now_ns: int) -> bool:
        """Say whether the plan for the window is here; it bears the grid's time, not a frame's."""
        return min(self._heard_ns.values()) >= now_ns - GRID_NS // 2

    def note(self, now_ns: int, waited_s: float):
        """Count a window that has waited, in vain or not."""
        self.waited_s += waited_s
        if self.is_answered(now_ns):
            self.answered += 1
        else:
            self.missed += 1
            self._hopeful = False
