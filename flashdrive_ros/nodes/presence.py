"""Which cameras are there: who gave no usable frame for too long, and who came back to stay."""
from __future__ import annotations

from collections.abc import Iterable


class Presence:
    """
    Arrivals of usable frames on a steady clock, in seconds.

    A camera is absent after `timeout_s` of silence, and again present only
    after giving frames for as long: one that flickers must not change what the
    model sees with every flicker.  After a silence of all it begins anew: none is
    absent, and each has `timeout_s` to be heard.
    """

    def __init__(self, cameras: Iterable[int], begin_s: float):
        self._begin(cameras, begin_s)

    def _begin(self, cameras: Iterable[int], now_s: float):
        self._last_s = dict.fromkeys(cameras, now_s)
        self._since_s = dict(self._last_s)
        self._absent: set[int] = set()

    def heard(self, camera: int, now_s: float, timeout_s: float):
        """Tell that a usable frame of a camera came."""
        if now_s - max(self._last_s.values()) > timeout_s:
            self._begin(self._last_s, now_s)
        elif now_s - self._last_s[camera] > timeout_s:
            self._since_s[camera] = now_s
        self._last_s[camera] = now_s

    def absent(self, now_s: float, timeout_s: float) -> frozenset[int]:
        """Cameras without which it is to go on now."""
        for camera, last_s in self._last_s.items():
            if now_s - last_s > timeout_s:
                self._absent.add(camera)
            elif last_s - self._since_s[camera] >= timeout_s:
                self._absent.discard(camera)
        return frozenset(self._absent)
