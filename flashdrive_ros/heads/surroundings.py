"""
What happens around a window while its plan is driven, recorded so that plans can be scored.

Everything is in the ego frame at t0, at the times 0, 0.1, … `HORIZON` * 0.1 s; others do what
they did when the expert drove (they do not react to the plan).
"""
from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..training.episodes import Episode
from ..world.meshes import SIZES
from ..world.vehicle import from_map

HORIZON = 50
AGENTS = 24
"""The nearest ones are kept."""
JUNCTIONS = 3
BEHIND_M, AHEAD_M = 20.0, 180.0
ROAD_STEP_M = 1.0
ROAD = int((BEHIND_M + AHEAD_M) / ROAD_STEP_M) + 1
FAR_M = 1e4
"""Where those are put who are not there."""
BODIES = frozenset(SIZES) - {'traffic_light'}


@dataclass(frozen=True)
class Surroundings:
    """
    Arrays of one window, or of B windows with a dimension before all others.

    agents     [HORIZON + 1, AGENTS, 5] x, y, yaw of the middle, length, width
    road       [ROAD, 4] x, y, yaw, curvature of the reference line every `ROAD_STEP_M`
    kerb       [] offset of the kerb on both sides, m
    junctions  [JUNCTIONS, 6] x, y, yaw, half size, arc lengths where it begins and ends,
               counted from the road's first row; what is not there is `FAR_M` away
    red        [HORIZON + 1, JUNCTIONS] whether our light is red
    progress   [HORIZON + 1] arc length of the expert from there, m
    """

    agents: np.ndarray
    road: np.ndarray
    kerb: np.ndarray
    junctions: np.ndarray
    red: np.ndarray
    progress: np.ndarray

    def __getitem__(self, rows) -> Surroundings:
        """Some of the windows."""
        return Surroundings(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def stack(all_: list[Surroundings]) -> Surroundings:
        """Windows one after the other, in one."""
        return Surroundings(*(np.stack([getattr(s, f.name) for s in all_])
                              for f in fields(Surroundings)))


def surroundings_of(episode: Episode, tick: int) -> Surroundings:
    """Record what is around from `tick` on."""
    world, here = episode.world, episode.moments[tick].pose
    route = world.route
    own_s, _ = route.locate(here[0], here[1])
    first = own_s - BEHIND_M
    poses = np.array([m.pose for m in episode.moments[tick:tick + HORIZON + 1]])
    progress, s = [], own_s
    for x, y, _ in poses:
        s, _ = route.locate(x, y, s)
        progress.append(s - first)
    signals = sorted((g for g in world.director.signals
                      if first <= g.junction.end and g.junction.begin <= first + ROAD),
                     key=lambda g: g.junction.begin)[:JUNCTIONS]
    junctions = np.full((JUNCTIONS, 6), FAR_M)
    junctions[:, 2:4] = 0, 1
    red = np.zeros((HORIZON + 1, JUNCTIONS), dtype=bool)
    for i, signal in enumerate(signals):
        j = signal.junction
        junctions[i, :3] = from_map(here, [(j.x, j.y, j.yaw)])[0]
        junctions[i, 3:] = j.half_size, j.begin - first, j.end - first
        red[:, i] = [signal.state((tick + k) * 0.1) == 'red' for k in range(HORIZON + 1)]
    arc = first + ROAD_STEP_M * np.arange(ROAD)
    line = from_map(here, np.stack(route.pose(arc), 1))
    road = np.concatenate((line, route.curvature_at(arc)[:, None]), 1)
    return Surroundings(_agents(episode, tick, poses).astype(np.float32), road.astype(np.float32),
                        np.float32(route.shape.kerb), junctions.astype(np.float32), red,
                        np.array(progress, np.float32))


def _agents(episode: Episode, tick: int, poses: np.ndarray) -> np.ndarray:
    """Bodies [HORIZON + 1, AGENTS, 5] nearest to the expert's way."""
    tracks: dict[int, np.ndarray] = {}
    for k, moment in enumerate(episode.moments[tick:tick + HORIZON + 1]):
        for thing in moment.things:
            if thing.model in BODIES:
                if thing.id not in tracks:
                    tracks[thing.id] = np.full((HORIZON + 1, 5), np.nan)
                # a person is a square to the world's own judge of collisions
                size = (0.5, 0.5) if thing.model == 'pedestrian' else SIZES[thing.model][:2]
                tracks[thing.id][k] = thing.x, thing.y, thing.yaw, *size
    distance = {i: np.nanmin(np.hypot(*(t[:, :2] - poses[:, :2]).T))
                for i, t in tracks.items()}
    found = np.zeros((HORIZON + 1, AGENTS, 5))
    found[..., :2], found[..., 3:] = FAR_M, 1.0
    here = episode.moments[tick].pose
    for a, i in enumerate(sorted(distance, key=distance.get)[:AGENTS]):
        track = tracks[i]
        there = ~np.isnan(track[:, 0])
        found[there, a, :3] = from_map(here, track[there, :3])
        found[there, a, 3:] = track[there, 3:]
    return found
