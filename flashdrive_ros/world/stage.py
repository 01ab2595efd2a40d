"""What the renderer needs to know of the actors: their meshes, places and lamps."""
from __future__ import annotations

import numpy as np

from .agents import LAMP_OF
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
    route = director.route
    things = [Thing(int(flow.ids[i]), flow.models[i], *pose, paint=flow.paints[i],
                    lamps=flow.lamps(i))
              for flow in director.flows for i, pose in enumerate(flow.poses().tolist())]
    things += [Thing(p.id, p.model, p.x, p.y, p.yaw, paint=p.paint,
                     lamps=frozenset([BRAKE] if p.waiting else []))
               for p in director.parked]
    for person, (x, y, yaw) in zip(director.people, director.people_poses().tolist(),
                                   strict=True):
        things.append(Thing(person.id, 'pedestrian', x, y, yaw, paint=person.paint,
                            phase=person.phase))
    for k, signal in enumerate(director.signals):
        lamp = frozenset([LAMP_OF[signal.state(t)]])
        for h, (x, y, yaw, z) in enumerate(signal_heads(signal.junction, route.shape)):
            things.append(Thing(SIGNAL_IDS + 16 * k + h, 'traffic_light', x, y, yaw, z,
                                lamps=lamp))
    return things
