"""
Faults, one after another, against a driving node: what was sent, lost, and how long until well.

A fault distorts what the car sends, or does something to a process while the car drives, for a
few seconds.  Then the car is healthy again.  `sent` counts the windows (one a 100 ms) of the
fault and of the time until recovery, `lost` those of them without a plan, `recovery_s` is the
time from the fault's end to the first plan made of later frames.  A fault is held when the node
recovers in time, loses no more than the fault must cost, says what it must say, publishes only
finite plans of times that were sent, grows no memory and writes no traceback.
"""
from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...core.types import GRID_NS, NANOSECONDS
from . import car
from .car import Distortion, Event
from .rig import DOUBLE, Rig

LEAD_S = 0.8
"""Healthy driving before a fault, so that every fault breaks something that works."""
GROWTH_MB = 24.0
"""Memory that a few seconds of a fault may cost: buffers of another image size, say."""


def _same(events: list[Event], rng: np.random.Generator) -> list[Event]:
    return events


@dataclass(frozen=True)
class Fault:
    """
    One way to break a drive.

    `says` must be found in diagnostics; `may_lose` is the share of the fault's windows that may
    stay without a plan; `act(rig)` runs when the fault begins and `heal(rig)` at its end, `before`
    and `after` outside of what is measured.  A time in ns that `heal` returns is that of healing.
    """

    name: str
    says: str = ''
    distort: Distortion = _same
    act: Callable[[Rig], object] = lambda rig: None
    heal: Callable[[Rig], object] = lambda rig: None
    before: Callable[[Rig], object] = lambda rig: None
    after: Callable[[Rig], object] = lambda rig: None
    seconds: float = 2.5
    may_lose: float = 0.0
    recover_s: float = 1.0
    transport: str = 'compressed'
    parameters: dict = field(default_factory=dict)


@dataclass
class Row:
    """What came of one fault; `why` is empty when it was held."""

    fault: str
    engine: str
    sent: int
    lost: int
    recovery_s: float | None
    held: bool
    why: str
    growth_mb: float
    note: str = ''


def run(faults: Iterable[Fault], folder: Path, engine: str = DOUBLE, seed: int = 0,
        say: Callable[[Row], None] = lambda row: None, cameras=(0, 1), **parameters) -> list[Row]:
    """Break the drive in every way; one node goes through all faults of the same parameters."""
    rows, rig, key = [], None, None
    try:
        for fault in faults:
            wanted = (fault.transport, repr(fault.parameters))
            if rig is None or wanted != key:
                if rig is not None:
                    rig.close()
                rig, key = Rig(folder, engine, cameras, fault.transport,
                               **{**parameters, **fault.parameters}), wanted
                rig.start()
                rig.drive_on(2.0)  # the history of odometry begins
                rig.drive_on(1.0)
            rows.append(_break(rig, fault, np.random.default_rng(seed)))
            say(rows[-1])
    finally:
        if rig is not None:
            rig.close()
    return rows


def _break(rig: Rig, fault: Fault, rng) -> Row:
    rig.drive_while(lambda: fault.before(rig))
    rig.drive_on(2 * LEAD_S if rig.parts else LEAD_S)  # a new odometry needs its history
    rig.note = ''
    memory, process = rig.memory_mb(), rig.drive
    rig.reasons.clear()
    begin = car.next_grid_ns()
    end = begin + round(fault.seconds * 10) * GRID_NS
    events = fault.distort(rig.events(begin, end), rng)
    events.append(Event(begin, 'action', data=lambda: fault.act(rig)))
    rig.car.play(events)
    healed = rig.drive_while(lambda: fault.heal(rig), end)
    since = healed if isinstance(healed, int) else end
    well, until = _recover(rig, fault, since)
    recovery = None if well is None else max(0.0, (well.at_ns - since) / NANOSECONDS)
    plans = {p.t0_ns for p in rig.planned(begin, until)}
    sent = (until - begin) // GRID_NS
    alive = rig.drive is process and process.returncode is None
    growth = rig.memory_mb() - memory if alive else 0.0
    lost = max(0, sent - len(plans))
    why = _why(rig, fault, begin, until, lost, recovery, growth)
    fault.after(rig)
    return Row(fault.name, rig.engine, sent, lost, recovery, not why, why, growth, rig.note)


def _recover(rig: Rig, fault: Fault, since: int):
    """Drive well until a plan is made of frames after `since`; returns it, and until when."""
    until, limit = car.next_grid_ns(), time.monotonic() + fault.recover_s + 3.0
    seen = rig.diagnosed
    well = None
    while time.monotonic() < limit and rig.drive.returncode is None and (
            well is None or rig.diagnosed < seen + 2):
        _, until = rig.drive_on(0.2, until)
        later = rig.planned(since, until)
        well = later[0] if later else None
    time.sleep(0.1)  # for the last plan
    return well, until


def _why(rig: Rig, fault: Fault, begin, until, lost, recovery, growth) -> str:
    """Why a fault was not held; '' when it was."""
    if rig.drive.returncode is not None:
        return f'the node ended with {rig.drive.returncode}'
    if trouble := rig.trouble():
        return f'{trouble} in its log'
    if recovery is None:
        return f'no plan again: {rig.value("why no plan")}'
    if recovery > fault.recover_s:
        return f'recovered after {recovery:.2f} s, {fault.recover_s:g} s are allowed'
    allowed = fault.may_lose * fault.seconds * 10 + 2 + fault.recover_s * 10 * (
        fault.may_lose > 0)
    if lost > allowed:
        return f'{lost} windows lost, {allowed:.0f} are allowed'
    if not all(p.finite for p in rig.planned(begin, until)):
        return 'a plan that is not finite was published'
    if fault.says and not any(re.search(fault.says, text) for text in rig.reasons):
        return f'diagnostics never said {fault.says!r}'
    if growth > GROWTH_MB:
        return f'memory grew by {growth:.0f} MB'
    return ''
