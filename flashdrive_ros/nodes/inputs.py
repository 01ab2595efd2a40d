"""
What the callbacks store and the worker fetches: cameras, odometry, texts.  No ROS here.

`StepInputs` holds everything behind one lock.  Storing is cheap and never
decodes; `take` gives the newest complete set of frames that odometry covers,
or says why there is none.
"""
from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..core.ego import EgoHistory, usable_poses
from ..core.text import refuse_free_text
from ..core.types import CAMERA_NAMES, NANOSECONDS, CameraFrame, FrameSet, InputError
from .frames import FrameSelector, Selection
from .stamps import StampGate

ODOMETRY_SPAN_NS = 4 * NANOSECONDS


@dataclass(frozen=True)
class StepInput:
    """
    Arguments of one `Engine.step`.

    `image_ms` is what decoding took; `restart` as `StepInputs.pop_restart`.
    """

    frames: FrameSet
    ego: EgoHistory
    nav_text: str
    history: tuple[FrameSet, ...]
    image_ms: float
    restart: str = ''


class OdometryBuffer:
    """Poses of the last seconds by stamp; refuses late ones, starts again when time jumps."""

    def __init__(self, span_ns: int = ODOMETRY_SPAN_NS):
        self.span_ns = span_ns
        self.counts: Counter = Counter()
        self._gate = StampGate()
        self._samples: deque = deque()

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest sample; None without one."""
        return self._samples[-1][0] if self._samples else None

    def add(self, stamp_ns: int, position, quaternion_xyzw):
        """Store one pose; unusable, late or foreign ones are counted and dropped."""
        self.counts['received'] += 1
        if not usable_poses(position, quaternion_xyzw):
            self.counts['unusable'] += 1
            return
        sample = (stamp_ns, position, quaternion_xyzw)
        verdict = self._gate.judge(stamp_ns)
        if verdict == 'jump':
            self._samples.clear()
            self.counts['jumps'] += 1
        elif verdict != 'new':
            self.counts[verdict] += 1
            return
        self._samples.append(sample)
        while self._samples[0][0] < stamp_ns - self.span_ns:
            self._samples.popleft()

    def history(self, t0_ns: int) -> EgoHistory:
        """Ego history at t0; raises `InputError` when the samples do not cover it."""
        stamps, positions, quaternions = zip(*self._samples, strict=True) if self._samples else (
            (), (), ())
        return EgoHistory.from_odometry(stamps, positions, quaternions, t0_ns)


class StepInputs:
    """
    Thread-safe store between callbacks and the worker.

    `decode(camera_id, payload)` turns a stored payload into RGB uint8; it runs
    in `take`, once, for chosen frames only.  Each step gets the `window` - 1
    sets before its own too, with which an engine that missed some completes
    its window.
    """

    def __init__(self, selector: FrameSelector, decode: Callable[[int, object], np.ndarray],
                 window: int = 4, clock: Callable[[], float] = time.monotonic):
        self.selector = selector
        self.odometry = OdometryBuffer()
        self.window = window
        self.heard_s: dict[int, float] = {}
        self.odometry_heard_s: float | None = None
        self.ignored_texts: dict[str, str] = {}
        """Why the last text of a kind is not used, by kind."""
        self.lock = threading.RLock()  # diagnostics hold it over several calls
        self._decode = decode
        self._clock = clock
        self._nav_text = self._route_text = self._restart = ''
        self._decoded: list[tuple[Selection, FrameSet]] = []

    def add_camera(self, camera: int, stamp_ns: int, payload: object) -> str | None:
        """Store one image; returns the reason when time jumped and older images were dropped."""
        with self.lock:
            self.heard_s[camera] = self._clock()
            jumped = self.selector.add(camera, stamp_ns, payload)
            self._restart = jumped or self._restart
            return jumped

    def add_odometry(self, stamp_ns: int, position, quaternion_xyzw):
        """Store one pose of the vehicle in a fixed frame."""
        with self.lock:
            self.odometry_heard_s = self._clock()
            self.odometry.add(stamp_ns, position, quaternion_xyzw)

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
            until_ns = self.odometry.newest_ns
            if until_ns is None:
                return None
            selection = self.selector.take(history=self.window - 1, until_ns=until_ns)
            if selection is None:
                return None
            ego = self.odometry.history(selection.t0_ns)
            restart = self.pop_restart()
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
        return StepInput(frames, ego, self.nav_text, tuple(history), image_ms, restart)

    def _frame_set(self, selection: Selection) -> FrameSet:
        """Decode a set, unless that was done for an earlier step."""
        for known, frame_set in self._decoded:
            if known.frames == selection.frames:
                return frame_set
        return FrameSet(selection.t0_ns, {
            camera: CameraFrame(self._decode(camera, item.payload), item.stamp_ns)
            for camera, item in selection.frames.items()})

    def waiting_for(self, timeout_s: float, topics: Mapping[int, str]) -> str:
        """Why `take` gives nothing: the silent camera, the odometry, …; '' when it should."""
        now = self._clock()
        with self.lock:
            silent = [c for c in self.selector.camera_ids
                      if now - self.heard_s.get(c, -1e9) > timeout_s]
            if silent:
                return 'no images from ' + ', '.join(
                    f'camera {c} {CAMERA_NAMES[c]} ({topics.get(c, "?")})' for c in silent)
            newest, odometry = self.selector.newest_ns(), self.odometry.newest_ns
            if odometry is None:
                return 'no odometry'
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
