"""
Stamps of one stream, judged one by one, and clocks told apart by how far they differ.

Pure Python on integer nanoseconds.
"""
from __future__ import annotations

from ..core.types import GRID_NS, NANOSECONDS

JUMP_NS = NANOSECONDS
"""A stamp further than this from its predecessor belongs to another time."""

_YEAR_S = 365 * 86_400
_GPS_BEHIND_S = 315_964_800 - 18
"""Seconds of GPS time behind Unix time: it counts from 1980-01-06, without leap seconds."""
_TAI_AHEAD_S = 37
_ZONE_S = 900
"""Time zones differ from UTC by multiples of a quarter of an hour."""


class LateRun:
    """
    Late stamps in a row, seen one by one.

    When they go on, ascending, for the length of the grid, no reordering
    explains them: the clock went back.
    """

    def __init__(self):
        self._first_ns: int | None = None
        self.last_ns: int | None = None

    def went_back(self, stamp_ns: int) -> bool:
        """Take the next late stamp; True when the clock went back."""
        if self.last_ns is None or stamp_ns <= self.last_ns:
            self._first_ns = stamp_ns
        self.last_ns = stamp_ns
        return stamp_ns - self._first_ns >= GRID_NS

    def end(self):
        """Tell that a stamp in order came."""
        self._first_ns = self.last_ns = None


class StampGate:
    """
    Tells new stamps of one stream from repeated, late and foreign ones.

    A single stamp far from its predecessor is 'foreign' (a glitch); a second
    one right after it, and consistent with it, is a 'jump' of the whole stream.
    A single stamp a little before its predecessor is 'late'; a `LateRun` of
    them that means that the clock went back is a 'jump' as well.
    """

    def __init__(self, limit_ns: int = JUMP_NS):
        self.limit_ns = limit_ns
        self.newest_ns: int | None = None
        self._suspect_ns: int | None = None
        self._late = LateRun()
        self.witness_ns: int | None = None
        """The refused stamp that, with the next, proved the last jump."""

    def judge(self, stamp_ns: int) -> str:
        """Return 'new', 'repeated', 'late', 'foreign' or 'jump'; new and jump are accepted."""
        step = 1 if self.newest_ns is None else stamp_ns - self.newest_ns
        if step == 0:
            return 'repeated'
        verdict = 'new'
        if -self.limit_ns <= step < 0:
            witness = self._late.last_ns
            verdict = 'jump' if self._late.went_back(stamp_ns) else 'late'
        elif step < 0 or step > self.limit_ns:
            witness, self._suspect_ns = self._suspect_ns, stamp_ns
            proved = witness is not None and 0 < stamp_ns - witness <= self.limit_ns
            verdict = 'jump' if proved else 'foreign'
        if verdict == 'jump':
            self.witness_ns = witness
        if verdict in ('new', 'jump'):
            self.newest_ns, self._suspect_ns = stamp_ns, None
            self._late.end()
        return verdict


def describe_difference(stamp_ns: int, reference_ns: int) -> str:
    """How a stamp differs from one that was taken at about the same moment, and of what clock."""
    difference_s = (stamp_ns - reference_ns) / NANOSECONDS
    away = f'{abs(difference_s):.6g} s {"ahead" if difference_s > 0 else "behind"}'
    clock = _clock(stamp_ns / NANOSECONDS, reference_ns / NANOSECONDS, difference_s)
    return f'{away}, {clock}' if clock else away


def _clock(stamp_s: float, reference_s: float, difference_s: float) -> str:
    """Name the clock that a stamp seems to be of; '' when there is nothing to tell."""
    if stamp_s == 0:
        return 'the driver sets no stamp'
    if abs(difference_s + _GPS_BEHIND_S) < 30:
        return 'as of GPS time'
    if stamp_s < 10 * _YEAR_S < reference_s:
        return 'as of a clock that counts from its start, or simulated time'
    if abs(difference_s - _TAI_AHEAD_S) < 1:
        return 'as of TAI (a PTP clock without UTC offset)'
    zones = round(difference_s / _ZONE_S)
    if 0 < abs(zones) <= 14 * 4 and abs(difference_s - zones * _ZONE_S) < 2:
        return 'as of local time instead of UTC'
    return ''
