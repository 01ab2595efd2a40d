"""
What the callbacks store and the worker fetches: cameras, odometry, texts.  No ROS here.

`StepInputs` holds everything behind one lock.  Storing is cheap and never
decodes; `take` gives the newest complete set of frames that odometry covers,
or says why there is none.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..core.ego import EgoHistory
from ..core.text import refuse_free_text
from ..core.types import CAMERA_NAMES, GRID_NS, NANOSECONDS, CameraFrame, FrameSet, InputError
from .frames import FrameSelector, Selection, Stamped
from .odometry import OdometryBuffer, OdometrySample
from .presence import Presence
from .stamps import describe_difference

OTHER_TIME_NS = 10 * NANOSECONDS
"""Odometry further than this from the frames is of another clock, not late."""


@dataclass(frozen=True)
class StepInput:
    """
    Arguments of one `Engine.step`.

    `image_ms` is what decoding took; `restart` as `StepInputs.pop_restart`;
    `odometry_frame` is the fixed frame of the odometry.
    """

    frames: FrameSet
    ego: EgoHistory
    nav_text: str
    history: tuple[FrameSet, ...]
    image_ms: float
    restart: str = ''
    odometry_frame: str = ''


class StepInputs:
    """
    Thread-safe store between callbacks and the worker.

    `decode(camera_id, payload)` turns a stored payload into RGB uint8; it runs
    in `take`, once, for chosen frames only.  Each step gets the `window` - 1
    sets before its own too, with which an engine that missed some completes
    its window.

    With `go_on`, sets come without a camera that gave no usable frame for
    `timeout_s`, until it is back for as long (`missing`); else they stop.
    Up to `extrapolation_s` without odometry is bridged at constant velocity.
    """

    def __init__(self, selector: FrameSelector, decode: Callable[[int, object], np.ndarray],
                 window: int = 4, *, go_on: bool = False, timeout_s: float = 1.0,
                 extrapolation_s: float = 0.0, odometry: OdometryBuffer | None = None,
                 clock: Callable[[], float] = time.monotonic):
        self.selector = selector
        self.odometry = odometry or OdometryBuffer()
        self.window = window
        self.go_on, self.timeout_s = go_on, timeout_s
        self.extrapolation_s = extrapolation_s
        self.missing: frozenset[int] = frozenset()
        """Cameras without which sets come now."""
        self.heard_s: dict[int, float] = {}
        self.odometry_heard_s: float | None = None
        self.ignored_texts: dict[str, str] = {}
        """Why the last text of a kind is not used, by kind."""
        self.lock = threading.RLock()  # diagnostics hold it over several calls
        self._decode = decode
        self._clock = clock
        self._presence = Presence(selector.camera_ids, clock())
        self._nav_text = self._route_text = self._restart = ''
        self._decoded: list[tuple[Selection, FrameSet]] = []
        self._early: dict[int, tuple[Stamped, CameraFrame | None]] = {}

    def add_camera(self, camera: int, stamp_ns: int, payload: object) -> str | None:
        """Store one image; returns the reason when time jumped and older images were dropped."""
        with self.lock:
            now = self.heard_s[camera] = self._clock()
            track = self.selector.tracks[camera]
            before_ns = track.newest_ns
            jumped = self.selector.add(camera, stamp_ns, payload)
            if track.newest_ns != before_ns:
                self._presence.heard(camera, now, self.timeout_s)
            self._restart = jumped or self._restart
            return jumped

    def add_odometry(self, sample: OdometrySample):
        """Store one pose of the vehicle in a fixed frame."""
        with self.lock:
            self.odometry_heard_s = self._clock()
            self.odometry.add(sample)

    def clock_went_back(self, now_ns: int, reason: str):
        """Forget all frames and odometry, unless their stamps went back by themselves before."""
        with self.lock:
            stamps = (self.odometry.newest_ns, *(
                track.newest_ns for track in self.selector.tracks.values()))
            if any(stamp is not None and stamp > now_ns + GRID_NS for stamp in stamps):
                self.selector.reset()
                self.odometry.clear()
                self._restart = reason

    def set_nav_text(self, text: str):
        """Text for the coming steps; an empty one leaves the route text, if any."""
        self._nav_text = self._usable('navigation text', text)

    def set_route_text(self, text: str):
        """Text for the coming steps while there is no navigation text."""
        self._route_text = self._usable('route text', text)

    def _usable(self, kind: str, text: str) -> str:
        """Return the text, or an empty one in place of one that no prompt takes."""
        text = text.strip()
        others = {k: why for k, why in self.ignored_texts.items() if k != kind}
        try:
            refuse_free_text(kind, text)
        except InputError as error:
            text, others[kind] = '', str(error)[:200]
        self.ignored_texts = others  # diagnostics may be reading the old one
        return text

    @property
    def nav_text(self) -> str:
        """What the next step is told."""
        return self._nav_text or self._route_text

    def pop_restart(self) -> str:
        """Why time jumped since the last step or call; '' when it did not."""
        with self.lock:
            restart, self._restart = self._restart, ''
            return restart

    def take(self) -> StepInput | None:
        """
        Return the input of the next step, or None while nothing new is complete.

        Raises `InputError` when the chosen frames or their ego history are
        unusable; those frames are then used up.
        """
        with self.lock:
            self._go_on_without()
            if self.odometry.newest_ns is None:
                return None
            until_ns = self.odometry.newest_ns + round(self.extrapolation_s * NANOSECONDS)
            selection = self.selector.take(history=self.window - 1, until_ns=until_ns)
            if selection is None:
                return None
            if other := self._other_time(selection.t0_ns):
                raise InputError(other)
            ego = self.odometry.history(selection.t0_ns, self.extrapolation_s)
            restart, frame_id = self.pop_restart(), self.odometry.frame_id
        begin = time.perf_counter()
        decoded = [(selection, self._frame_set(selection))]
        for older in reversed(selection.history):
            try:
                decoded.insert(0, (older, self._frame_set(older)))
            except InputError:  # told when it was the newest; the window ends here
                break
        self._decoded = decoded
        *history, frames = (frame_set for _, frame_set in decoded)
        image_ms = (time.perf_counter() - begin) * 1e3
        return StepInput(frames, ego, self.nav_text, tuple(history), image_ms, restart, frame_id)

    def _go_on_without(self):
        """Leave cameras out that are absent, and take them back."""
        if not self.go_on:
            return
        absent = self._presence.absent(self._clock(), self.timeout_s)
        present = set(self.selector.camera_ids) - absent
        if absent != self.missing and present:  # without any there is nothing to go on with
            self.missing = absent
            self.selector.require(present)

    def _other_time(self, frames_ns: int) -> str:
        """Say when odometry is of another clock than the frames."""
        newest = self.odometry.newest_ns
        if newest is None or abs(newest - frames_ns) <= OTHER_TIME_NS:
            return ''
        return ('odometry is of another time than the frames: '
                + describe_difference(newest, frames_ns))

    def take_early(self) -> tuple[int, CameraFrame] | None:
        """
        Return a frame of the set that is being completed, by camera, each once; else None.

        `take` gives this very frame later.  One that can not be decoded is left for `take`
        to complain about.
        """
        with self.lock:
            pending = self.selector.pending()
        for camera, item in pending.items():
            if self._early.get(camera, (None,))[0] is item:
                continue
            self._early[camera] = item, None
            try:
                frame = self._frame(camera, item)
            except InputError:
                continue
            self._early[camera] = item, frame
            return camera, frame
        return None

    def _frame(self, camera: int, item: Stamped) -> CameraFrame:
        """Decode one frame, unless that was done early."""
        early, frame = self._early.get(camera, (None, None))
        if early is item and frame is not None:
            return frame
        return CameraFrame(self._decode(camera, item.payload), item.stamp_ns)

    def _frame_set(self, selection: Selection) -> FrameSet:
        """Decode a set, unless that was done for an earlier step."""
        for known, frame_set in self._decoded:
            if known.frames == selection.frames:
                return frame_set
        return FrameSet(selection.t0_ns, {
            camera: self._frame(camera, item) for camera, item in selection.frames.items()})

    def waiting_for(self, timeout_s: float, topics: Mapping[int, str]) -> str:
        """Why `take` gives nothing: the silent camera, the odometry, …; '' when it should."""
        now = self._clock()
        with self.lock:
            silent = [c for c in self.selector.camera_ids
                      if now - self.heard_s.get(c, -1e9) > timeout_s]
            self._go_on_without()
            silent = [c for c in silent if c not in self.missing]
            if silent:
                return 'no images from ' + ', '.join(
                    f'camera {c} {CAMERA_NAMES[c]} ({topics.get(c, "?")})' for c in silent)
            newest, odometry = self.selector.newest_ns(), self.odometry.newest_ns
            if odometry is None:
                return 'no odometry'
            if newest is not None and (other := self._other_time(newest)):
                return other
            if newest is not None and newest > odometry:
                return (f'odometry is {(newest - odometry) / NANOSECONDS:.3f} s '
                        'older than the newest frames')
            return '' if newest is not None else self._apart(topics)

    def _apart(self, topics: Mapping[int, str]) -> str:
        """Which camera keeps the others from making a set."""
        def name(camera):
            return f'camera {camera} {CAMERA_NAMES[camera]} ({topics.get(camera, "?")})'
        anchor = self.selector.anchor  # its stamps are what the others are measured by
        for camera in (anchor, *self.selector.tracks):
            if trouble := self.selector.trouble(camera):
                return f'{name(camera)}: {trouble}'
        absent = self.selector.absent()
        if absent:
            return 'no frame near those of the others from ' + ', '.join(map(name, absent))
        return 'no complete set of frames'
