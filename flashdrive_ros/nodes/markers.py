"""A `DrivePlan` as markers for RViz, all in the vehicle's frame."""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from geometry_msgs.msg import Point, Pose, Quaternion
from std_msgs.msg import ColorRGBA, Header
from visualization_msgs.msg import Marker, MarkerArray

from flashdrive_ros import msg

from ..core import types
from ..core.types import NANOSECONDS
from .messages import duration

UNTRAINED = 'UNTRAINED MODEL: this plan means nothing'
OWN = 'ego'
"""Label of the path that the model draws for its own vehicle."""

_CHOSEN = ColorRGBA(r=0.1, g=0.9, b=0.3, a=0.95)
_OTHER = ColorRGBA(r=0.3, g=0.6, b=1.0, a=0.4)
_BOX = ColorRGBA(r=1.0, g=0.6, b=0.1, a=0.45)
_DRAWN = ColorRGBA(r=1.0, g=0.35, b=0.85, a=0.9)
_MOTION = ColorRGBA(r=1.0, g=0.65, b=0.2, a=0.9)
_TEXT = ColorRGBA(r=1.0, g=1.0, b=1.0, a=1.0)
_WARNING = ColorRGBA(r=1.0, g=0.2, b=0.2, a=1.0)


class _Group:
    """
    Markers that are made anew together.

    Their lifetime is at least twice the period between two makings, so that they
    never flicker and vanish when none follow; what a making has fewer of than the
    one before is deleted by name.
    """

    def __init__(self, period_s: float):
        self._period_s = period_s
        self._last_ns: int | None = None
        self._shown: set[tuple[str, int]] = set()

    def made(self, t0_ns: int, header: Header, markers: list[Marker]) -> list[Marker]:
        """Give the markers their header and lifetime, and add the deletions."""
        if self._last_ns is not None and t0_ns > self._last_ns:
            # slow to shrink, so that one quick pair cannot cut the lifetime
            step_s = min((t0_ns - self._last_ns) / NANOSECONDS, 5.0)
            self._period_s = max(step_s, 0.9 * self._period_s)
        self._last_ns = t0_ns
        shown = {(m.ns, m.id) for m in markers}
        lifetime = duration(2.5 * max(self._period_s, 0.1))
        for marker in markers:
            marker.header, marker.lifetime, marker.frame_locked = header, lifetime, True
        gone = [Marker(header=header, ns=ns, id=number, action=Marker.DELETE)
                for ns, number in sorted(self._shown - shown)]
        self._shown = shown
        return markers + gone


class PlanMarkers:
    """
    Markers of one plan after another.

    Namespaces: trajectories, reasoning; and of plans that were asked for primitives
    boxes, drawn (the own path), motion (of others) and labels.
    """

    def __init__(self, period_s: float = 0.5):
        self._period_s = period_s
        self._forget()

    def _forget(self):
        self._plan, self._drawing = _Group(self._period_s), _Group(self._period_s)

    def reset(self) -> MarkerArray:
        """Forget everything; the message removes every marker at once."""
        self._forget()
        return MarkerArray(markers=[Marker(action=Marker.DELETEALL)])

    def of(self, plan: types.DrivePlan, message: msg.DrivePlan) -> MarkerArray:
        """Trajectories and the reasoning text of one plan, and what was drawn with it."""
        markers = self._plan.made(plan.t0_ns, message.header,
                                  [*_trajectories(message), _reasoning(message)])
        if plan.drawn:
            markers += self._drawing.made(plan.t0_ns, message.header,
                                          _numbered(_primitives(plan.primitives)))
        return MarkerArray(markers=markers)


def _line(ns: str, number: int, points: list[Point], width: float, color: ColorRGBA) -> Marker:
    marker = Marker(ns=ns, id=number, type=Marker.LINE_STRIP, points=points, color=color)
    marker.scale.x = width
    marker.pose.orientation.w = 1.0
    return marker


def _trajectories(message: msg.DrivePlan) -> Iterator[Marker]:
    for k, trajectory in enumerate(message.trajectories):
        chosen = k == message.chosen_index
        points = [Point()] + [p.pose.position for p in trajectory.points]
        yield _line('trajectories', k, points, 0.35 if chosen else 0.12,
                    _CHOSEN if chosen else _OTHER)


def _reasoning(message: msg.DrivePlan) -> Marker:
    text = message.reasoning.text
    if not message.trained:
        text = f'{UNTRAINED}\n{text}'
    return _words('reasoning', text, (0.0, 0.0, 3.0), 0.8,
                  _TEXT if message.trained else _WARNING)


def _primitives(primitives: Iterable[types.Primitive]) -> Iterator[Marker]:
    """Primitives of the ego frame that are in view; those of a camera have no place there."""
    for p in primitives:
        rows = np.atleast_2d(np.asarray(p.values, dtype=np.float64))
        rows = rows[np.isfinite(rows).all(1)].tolist()
        if p.type == 'box_3d':
            for row in rows:
                yield _box(row)
                yield from _label(p.label, row[:3], row[5] / 2 + 0.5)
        elif p.type == 'trajectory_3d' and rows and p.camera_id is None:
            points = [Point(x=x, y=y, z=z) for x, y, z in rows]
            if p.label == OWN:
                yield _line('drawn', 0, [Point(), *points], 0.2, _DRAWN)
            else:
                yield _line('motion', 0, points, 0.15, _MOTION)
                yield from _label(p.label, rows[0], 1.0)


def _label(label: str, at, above: float) -> Iterator[Marker]:
    if label:
        x, y, z = at
        yield _words('labels', label, (x, y, z + above), 0.7, _MOTION)


def _numbered(markers: Iterable[Marker]) -> list[Marker]:
    """Number markers within their namespaces."""
    counts: dict[str, int] = {}
    markers = list(markers)
    for marker in markers:
        marker.id = counts.get(marker.ns, 0)
        counts[marker.ns] = marker.id + 1
    return markers


def _box(row: list[float]) -> Marker:
    x, y, z, length, width, height, yaw = row
    marker = Marker(ns='boxes', type=Marker.CUBE, color=_BOX)
    marker.pose = Pose(position=Point(x=x, y=y, z=z),
                       orientation=Quaternion(z=math.sin(yaw / 2), w=math.cos(yaw / 2)))
    marker.scale.x, marker.scale.y, marker.scale.z = (
        max(side, 0.01) for side in (length, width, height))
    return marker


def _words(ns: str, text: str, at: tuple[float, float, float], size_m: float,
           color: ColorRGBA) -> Marker:
    marker = Marker(ns=ns, type=Marker.TEXT_VIEW_FACING, text=text, color=color)
    marker.pose.position = Point(x=at[0], y=at[1], z=at[2])
    marker.pose.orientation.w = 1.0
    marker.scale.z = size_m
    return marker
