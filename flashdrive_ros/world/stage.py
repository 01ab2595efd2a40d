"""What the renderer needs to know of the actors: their meshes, places and lamps."""
from __future__ import annotations

from functools import cached_property

import numpy as np

from .agents import LAMP_OF, walkers_poses
from .look import Look
from .map import Route
from .meshes import BODY, BRAKE, FIXED, block
from .scenery import Scenery
from .soup import Thing

HEAD_Z_M = 5.0
NEAR_HEAD_Z_M = 2.5
POLE = (70, 74, 78)
SIGNAL_IDS = 60000
"""Ids of traffic lights begin here: junction number * 16 + head."""


def signal_heads(junction, shape):
    """Places x, y, yaw, z of a junction's heads for our direction: beyond it, and at our line."""
    c, s = np.cos(junction.yaw), np.sin(junction.yaw)
    far = junction.half_size + 1.5
    near = -junction.half_size - 4.0
    places = [(far, float(shape.lane_offset(lane)), HEAD_Z_M) for lane in range(shape.lanes)]
    places.append((near, -shape.kerb - 0.7, NEAR_HEAD_Z_M))
    return [(junction.x + a * c - b * s, junction.y + a * s + b * c, junction.yaw, z)
            for a, b, z in places]


def stage_poles(scenery: Scenery, route: Route, look: Look):
    """Add the poles that carry the traffic lights."""
    for junction in route.junctions:
        *_, near = signal_heads(junction, route.shape)
        c, s = np.cos(junction.yaw), np.sin(junction.yaw)
        edge = -route.shape.kerb - 0.7
        a = junction.half_size + 1.7
        x, y = junction.x + a * c - edge * s, junction.y + a * s + edge * c
        reach = -edge + float(route.shape.lane_offset(0))
        thing = scenery.thing(x, y)
        scenery.add_mesh(thing, [
            (block(-.1, .1, -.1, .1, 0, HEAD_Z_M + 1.0)[:4], POLE, FIXED, BODY),
            (block(-.07, .07, 0, reach, HEAD_Z_M + .85, HEAD_Z_M + 1.0), POLE, FIXED, BODY),
        ], x, y, junction.yaw, look)
        scenery.footprints.append((x, y, junction.yaw, 0.2, 0.2))
        thing = scenery.thing(near[0], near[1])
        scenery.add_mesh(thing, [(block(.1, .2, -.06, .06, 0, NEAR_HEAD_Z_M + 1.1)[:4], POLE,
                                  FIXED, BODY)], near[0], near[1], junction.yaw, look)
        scenery.footprints.append((near[0], near[1], junction.yaw, 0.2, 0.2))


def things_of(director, t: float) -> list[Thing]:
    """Everything that moves or changes, as the renderer wants it."""
    return list(Snapshot(director, t).things)


class Snapshot:
    """
    What moves or changes at time `t`; cheap to take, its `things` are made when asked for.

    The director may go on: all that it changes in place is copied.
    """

    def __init__(self, director, t: float):
        self._director, self._time = director, t
        self._flows = [flow.copy() for flow in director.flows]
        self._people = [(p.id, p.paint, p.phase, p.s, p.d, p.along, p.across)
                        for p in director.people]

    @cached_property
    def things(self) -> tuple[Thing, ...]:
        """Vehicles, people and traffic lights in their places."""
        director = self._director
        things = [Thing(id_, model, *pose, paint=paint, lamps=lamps)
                  for flow in self._flows for id_, model, pose, paint, lamps in zip(
                      flow.ids.tolist(), flow.models, flow.poses().tolist(), flow.paints,
                      flow.lamps(), strict=True)]
        things += [Thing(p.id, p.model, p.x, p.y, p.yaw, paint=p.paint,
                         lamps=frozenset([BRAKE] if p.waiting else []))
                   for p in director.parked]
        if self._people:
            ids, paints, phases, *places = zip(*self._people, strict=True)
            poses = walkers_poses(director.route, *np.array(places)).tolist()
            things += [Thing(id_, 'pedestrian', *pose, paint=paint, phase=phase)
                       for id_, pose, paint, phase in zip(ids, poses, paints, phases,
                                                          strict=True)]
        for k, signal in enumerate(director.signals):
            lamp = frozenset([LAMP_OF[signal.state(self._time)]])
            heads = signal_heads(signal.junction, director.route.shape)
            things += [Thing(SIGNAL_IDS + 16 * k + h, 'traffic_light', *place, lamps=lamp)
                       for h, place in enumerate(heads)]
        return tuple(things)
