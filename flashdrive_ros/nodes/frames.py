"""
Which camera frames belong together: chosen by stamp on a 100 ms grid, never by count.

`FrameSelector` takes stamped items (the payload is opaque and stays undecoded)
from any number of cameras of any rate and phase, and gives sets of one frame a
camera.  The grid belongs to the anchor camera: it starts at the anchor's first
stamp, goes on in steps of exactly 100 ms, and is shifted only when the anchor
has drifted away from it.  For each grid time every camera gives its nearest
frame within the tolerance; a frame is used once.

The choice depends on stamps alone, not on when items arrive, so a recording
chooses as the drive did.  Cameras may arrive in any order among themselves; an
item that is older than its camera's newest is dropped and counted.

Sets hold the `required` cameras, at first all.  `require` leaves some out, such as
one that fell silent, or takes them back.

Not thread-safe: the caller holds one lock around every call.
"""
from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from ..core.types import CAMERA_NAMES, GRID_NS, NANOSECONDS
from .stamps import JUMP_NS, LateRun, StampGate, describe_difference

FRONT_WIDE = 1
TOLERANCE_NS = 50_000_000
"""Half the grid: a camera of 10 Hz or more has a frame this near at any phase."""
DRIFT_NS = 22_000_000
"""Above half the period of a 25 Hz camera, whose nearest frame alternates by that much."""
KEPT_SETS = 12
"""More than a second, beyond which frames are of another time."""
KEPT_PENDING = 16
KEPT_REFUSED = 4


@dataclass(frozen=True)
class Stamped:
    """One item of a camera: when it was taken, and whatever the caller needs to decode it."""

    stamp_ns: int
    payload: object


@dataclass(frozen=True)
class Selection:
    """
    The frames of one grid time.

    `history` are the sets of the grid times just before, oldest first and
    without a hole.
    """

    t0_ns: int
    frames: Mapping[int, Stamped]
    history: tuple[Selection, ...] = ()


@dataclass
class CameraTrack:
    """
    One camera's items that are not decided yet, and its counters.

    `offset_ns` is how far its last chosen frame was from the grid.
    """

    camera: int
    pending: deque = field(default_factory=lambda: deque(maxlen=KEPT_PENDING))
    foreign: deque = field(default_factory=lambda: deque(maxlen=KEPT_REFUSED))
    newest_ns: int | None = None
    last_ns: int | None = None
    offset_ns: int | None = None
    index: int = 0
    repeats: int = 0
    counts: Counter = field(default_factory=Counter)
    late: LateRun = field(default_factory=LateRun)
    _steps: deque = field(default_factory=lambda: deque(maxlen=9))

    @property
    def period_ns(self) -> int | None:
        """Shortest of the last steps between stamps (drops lengthen some); None before three."""
        return min(self._steps) if len(self._steps) >= 3 else None

    @property
    def elsewhere(self) -> bool:
        """Its last items were all of another time than the anchor's."""
        return len(self.foreign) == self.foreign.maxlen

    @property
    def frozen(self) -> bool:
        """Its last items all repeated one stamp."""
        return self.repeats >= self.foreign.maxlen

    def append(self, item: Stamped):
        """Add an item newer than all before."""
        if self.newest_ns is not None:
            self._steps.append(item.stamp_ns - self.newest_ns)
        self.newest_ns = item.stamp_ns
        self.pending.append(item)
        self.foreign.clear()
        self.late.end()

    def flush(self):
        """Forget the items; counters stay."""
        self.pending.clear()
        self._steps.clear()
        self.newest_ns, self.index = None, 0
        self.late.end()

    def step_back(self, item: Stamped):
        """Begin again with this item: the clock of this camera alone went back."""
        index = self.index
        self.flush()
        self.index = index
        self.append(item)

    def nearest(self, grid_ns: int) -> Stamped | None:
        """Nearest item once no later one can be nearer, else None; drops those before it."""
        pending = self.pending
        while len(pending) > 1 and (abs(pending[1].stamp_ns - grid_ns)
                                    <= abs(pending[0].stamp_ns - grid_ns)):
            pending.popleft()
        if not pending:
            return None
        early = grid_ns - pending[0].stamp_ns
        final = early <= 0 or len(pending) > 1 or (
            self.period_ns is not None and early <= 0.4 * self.period_ns)
        return pending[0] if final else None


@dataclass
class _Slot:
    grid_ns: int
    frames: dict = field(default_factory=dict)


class FrameSelector:
    """Stamped items of several cameras in, sets on the anchor's 100 ms grid out."""

    def __init__(self, camera_ids: Iterable[int], tolerance_ns: int = TOLERANCE_NS,
                 anchor: int | None = None):
        self.camera_ids = tuple(sorted(set(camera_ids)))
        if not self.camera_ids:
            raise ValueError('at least one camera is needed')
        if not 0 < tolerance_ns < GRID_NS:
            raise ValueError(f'tolerance must be within (0, {GRID_NS}) ns, got {tolerance_ns}')
        if anchor is None:
            anchor = _best_anchor(self.camera_ids)
        if anchor not in self.camera_ids:
            raise ValueError(f'anchor {anchor} is not one of the cameras {self.camera_ids}')
        self._first_anchor = self.anchor = anchor
        self.required = frozenset(self.camera_ids)
        self.tolerance_ns = tolerance_ns
        self.tracks = {camera: CameraTrack(camera) for camera in self.camera_ids}
        self.counts: Counter = Counter()
        self._start()

    def _start(self):
        self._gate = StampGate()
        self._slots: dict[int, _Slot] = {}
        self._errors: deque = deque(maxlen=3)
        self._taken = -1
        self._refused: deque = deque(maxlen=KEPT_REFUSED)
        for track in self.tracks.values():
            track.flush()

    def reset(self):
        """Forget every item and the grid; counters stay."""
        self._start()
        for track in self.tracks.values():
            track.foreign.clear()

    def require(self, cameras: Iterable[int]):
        """
        Have sets hold these cameras, of which there must be one at least.

        Frames that are there stay, unless the anchor is left out or comes back:
        then a grid of another anchor begins.
        """
        cameras = frozenset(cameras)
        if not cameras or not cameras <= set(self.camera_ids):
            raise ValueError(f'required cameras must be some of {self.camera_ids}, '
                             f'got {sorted(cameras)}')
        self.required = cameras
        anchor = self._first_anchor if self._first_anchor in cameras else _best_anchor(cameras)
        if anchor != self.anchor:
            self.anchor = anchor
            self.reset()

    def add(self, camera: int, stamp_ns: int, payload: object) -> str | None:
        """Store one item; returns the reason when time jumped and everything older was dropped."""
        track = self.tracks[camera]
        item = Stamped(stamp_ns, payload)
        track.counts['received'] += 1
        track.repeats = track.repeats + 1 if stamp_ns == track.last_ns else 0
        track.last_ns = stamp_ns
        if camera != self.anchor:
            self._add_other(track, item)
            return None
        before = self._gate.newest_ns
        verdict = self._gate.judge(stamp_ns)
        if verdict == 'new':
            track.append(item)
            self._advance_all()
            return None
        if verdict != 'jump':
            self._refuse(track, item, verdict)
            self._refused.append(item)
            return None
        self._restart(item)
        return _jump_reason(CAMERA_NAMES.get(camera, camera), stamp_ns - before)

    def _add_other(self, track: CameraTrack, item: Stamped):
        anchor_ns = self._gate.newest_ns
        if anchor_ns is not None and abs(item.stamp_ns - anchor_ns) > JUMP_NS:
            self._refuse(track, item, 'foreign')
        elif item.stamp_ns == track.newest_ns:
            self._refuse(track, item, 'repeated')
        elif track.newest_ns is None or item.stamp_ns > track.newest_ns:
            track.append(item)
            self._advance(track)
        elif track.late.went_back(item.stamp_ns):
            track.counts['steps back'] += 1
            track.step_back(item)
            self._advance(track)
        else:
            self._refuse(track, item, 'late')

    @staticmethod
    def _refuse(track: CameraTrack, item: Stamped, verdict: str):
        track.counts[verdict] += 1
        if verdict == 'foreign':
            track.foreign.append(item)

    def _restart(self, item: Stamped):
        """Begin again at the time to which the anchor jumped, with what was held back."""
        held = {camera: list(track.foreign) for camera, track in self.tracks.items()}
        witness = [old for old in self._refused if old.stamp_ns == self._gate.witness_ns]
        held[self.anchor] = [*witness[-1:], item]
        self.reset()
        self.counts['jumps'] += 1
        for camera in (self.anchor, *(c for c in self.camera_ids if c != self.anchor)):
            track = self.tracks[camera]
            for old in held[camera]:
                if camera == self.anchor:
                    self._gate.judge(old.stamp_ns)
                    track.append(old)
                elif abs(old.stamp_ns - item.stamp_ns) <= JUMP_NS and (
                        track.newest_ns is None or old.stamp_ns > track.newest_ns):
                    track.append(old)
        self._advance_all()

    def _advance_all(self):
        anchor = self.tracks[self.anchor]
        if not self._slots:
            self._begin(anchor.pending[0].stamp_ns)
        self._advance(anchor)
        for track in self.tracks.values():
            self._advance(track)

    def _begin(self, grid_ns: int):
        """Start the grid, and hold back what other cameras sent of another time before it."""
        self._slots[0] = _Slot(grid_ns)
        for track in self.tracks.values():
            if track.newest_ns is not None and abs(track.newest_ns - grid_ns) > JUMP_NS:
                track.foreign.extend(track.pending)
                track.flush()

    def _advance(self, track: CameraTrack):
        """Give this camera's frames to all grid times that are decided."""
        if not self._slots:
            return
        track.index = max(track.index, min(self._slots))
        while (slot := self._slots.get(track.index)) is not None:
            item = track.nearest(slot.grid_ns)
            if item is None:
                return
            error_ns = item.stamp_ns - slot.grid_ns
            matched = abs(error_ns) <= self.tolerance_ns
            if matched:
                slot.frames[track.camera] = track.pending.popleft()
                track.offset_ns = error_ns
                self.counts['sets'] += track.camera in self.required and self._complete(slot)
            else:
                track.counts['unmatched'] += 1
            if track.camera == self.anchor:
                self._extend(slot, error_ns if matched else 0)
            track.index += 1

    def _complete(self, slot: _Slot) -> bool:
        return self.required <= slot.frames.keys()

    def _extend(self, slot: _Slot, error_ns: int):
        """Add the next grid time, following an anchor that keeps drifting to one side."""
        step = GRID_NS
        self._errors.append(error_ns)
        limit = min(DRIFT_NS, self.tolerance_ns // 2)
        if len(self._errors) == 3 and (min(self._errors) > limit or max(self._errors) < -limit):
            step += int(median(self._errors))
            self._errors.clear()
            self.counts['shifts'] += 1
        newest = max(self._slots)
        self._slots[newest + 1] = _Slot(slot.grid_ns + step)
        self._slots.pop(newest + 1 - KEPT_SETS, None)

    def trouble(self, camera: int) -> str:
        """What is wrong with the stamps of a camera; '' when nothing is."""
        track = self.tracks[camera]
        if track.frozen:
            return 'stamps do not advance' + (
                '' if track.last_ns else ' from 0: the driver sets none')
        if not track.elsewhere:
            return ''
        if camera == self.anchor:
            return f'stamps are more than {JUMP_NS / NANOSECONDS:g} s apart'
        said = f'stamps are of another time than those of camera {CAMERA_NAMES[self.anchor]}'
        if (newest := self._gate.newest_ns) is None:
            return said
        return f'{said}: {describe_difference(track.last_ns, newest)}'

    def newest_ns(self) -> int | None:
        """Grid time of the newest complete set that was not taken; None without one."""
        index = self._find(None)
        return None if index is None else self._slots[index].grid_ns

    def pending(self) -> dict[int, Stamped]:
        """Frames of required cameras at the newest grid time; none when it was taken."""
        index = max((i for i, slot in self._slots.items() if slot.frames), default=-1)
        if index <= self._taken:
            return {}
        return {c: item for c, item in self._slots[index].frames.items() if c in self.required}

    def absent(self) -> list[int]:
        """Cameras without a frame at the newest grid time on which all have decided."""
        index = min(self.tracks[camera].index for camera in self.required) - 1
        slot = self._slots.get(index)
        return [] if slot is None else sorted(self.required - slot.frames.keys())

    def _find(self, until_ns: int | None) -> int | None:
        for index in sorted(self._slots, reverse=True):
            slot = self._slots[index]
            if index <= self._taken:
                return None
            if self._complete(slot) and (until_ns is None or slot.grid_ns <= until_ns):
                return index
        return None

    def take(self, history: int = 0, until_ns: int | None = None) -> Selection | None:
        """
        Return the newest complete set that is newer than the last one taken, else None.

        `history` asks for that many sets before it; fewer come when there is a
        hole.  `until_ns` passes over sets later than that, which stay.
        """
        index = self._find(until_ns)
        if index is None:
            return None
        older: list[Selection] = []
        for i in range(index - 1, index - 1 - history, -1):
            slot = self._slots.get(i)
            if slot is None or not self._complete(slot):
                break
            older.insert(0, self._selection(slot))
        passed = [i for i in self._slots if self._taken < i < index]
        self.counts['skipped'] += sum(self._complete(self._slots[i]) for i in passed)
        self.counts['taken'] += 1
        self._taken = index
        for i in [i for i in self._slots if i < index - history]:  # nobody asks for them again
            del self._slots[i]
        return self._selection(self._slots[index], tuple(older))

    def _selection(self, slot: _Slot, history: tuple[Selection, ...] = ()) -> Selection:
        return Selection(slot.grid_ns, {c: slot.frames[c] for c in sorted(self.required)}, history)


def _best_anchor(cameras: Iterable[int]) -> int:
    return FRONT_WIDE if FRONT_WIDE in cameras else min(cameras)


def _jump_reason(name, step_ns: int) -> str:
    seconds = abs(step_ns) / NANOSECONDS
    if step_ns < 0:
        return f'camera {name}: time went back by {seconds:.3f} s'
    return f'camera {name}: a gap of {seconds:.3f} s'
