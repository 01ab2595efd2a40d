"""ROS time of a node: whether there is any, and when it goes back."""
from __future__ import annotations

from collections.abc import Callable

from rclpy.clock import JumpThreshold
from rclpy.duration import Duration

from ..core.types import NANOSECONDS


class RosTime:
    """
    Watches the clock of a node, which is /clock with `use_sim_time`.

    `went_back(now_ns, reason)` is called when it does, by however little.  The
    first message on /clock is a jump forward by all of its time, and is none.
    """

    def __init__(self, node, went_back: Callable[[int, str], None]):
        self._clock = node.get_clock()
        self._went_back = went_back
        threshold = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1),
                                  on_clock_change=False)
        # the clock keeps no reference to its handle: without ours it would call freed memory
        self._handle = self._clock.create_jump_callback(threshold, post_callback=self._jumped)

    def _jumped(self, jump):
        seconds = -jump.delta.nanoseconds / NANOSECONDS
        self._went_back(self.now_ns(), f'/clock went back by {seconds:.3f} s')

    def now_ns(self) -> int:
        """Now; 0 while simulated time has not begun."""
        return self._clock.now().nanoseconds

    def trouble(self) -> str:
        """Say when time is simulated and nobody tells it."""
        waits = self._clock.ros_time_is_active and self.now_ns() == 0
        return 'waiting for /clock (use_sim_time is true)' if waits else ''

    def close(self):
        """Stop watching."""
        if self._handle is not None:
            self._handle.unregister()
            self._handle = None
