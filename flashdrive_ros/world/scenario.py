"""What an episode is about, drawn so that every cause gets its share."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .map import RoadShape, Route, RouteBuilder

EVENTS = {
    'free': 0.14, 'follow': 0.14, 'lead_brake': 0.14, 'stop_and_go': 0.1, 'cut_in': 0.12,
    'curve': 0.12, 'light': 0.14, 'pedestrian': 0.1,
}
"""Names of scenarios and how often each is drawn."""

START_M = 40.0
"""The ego begins here on the route; behind it there is road to see."""


@dataclass(frozen=True)
class Scenario:
    """Parameters of an episode; `event` is what is sure to happen in its first half minute."""

    event: str
    lanes: int
    speed_limit: float
    density: float
    shoulder: float
    parked: float
    buildings: float
    trees: float
    storeys: float
    terrain: str
    junctions: bool

    @classmethod
    def sample(cls, rng: np.random.Generator, event: str | None = None) -> Scenario:
        """Draw a scenario, of that event if one is given."""
        if event is None:
            event = str(rng.choice(list(EVENTS), p=np.array(list(EVENTS.values()))))
        elif event not in EVENTS:
            raise ValueError(f'scenario must be one of {sorted(EVENTS)}, got {event!r}')
        place = str(rng.choice(['town', 'suburb', 'country'], p=[0.45, 0.3, 0.25]))
        if event in ('light', 'pedestrian') and place == 'country':
            place = 'suburb'
        lanes = int(rng.choice([1, 2, 3], p=[0.25, 0.5, 0.25]))
        if event == 'cut_in':
            lanes = max(lanes, 2)
        limits = {'town': (9.0, 13.9), 'suburb': (10.0, 15.0), 'country': (13.0, 20.0)}[place]
        thin = 0.3 if event == 'free' else 1.0
        common = {'event': event, 'lanes': lanes, 'speed_limit': float(rng.uniform(*limits)),
                  'density': float(rng.uniform(0.3, 1.6)) * thin}
        if place == 'country':
            return cls(**common, shoulder=float(rng.uniform(0.5, 1.5)), parked=0.0,
                       buildings=0.03, trees=float(rng.uniform(0.1, 0.8)), storeys=1.0,
                       terrain=str(rng.choice(['grass', 'dry', 'earth'])), junctions=False)
        town = place == 'town'
        parking = rng.random() < 0.5
        return cls(**common, shoulder=2.3 if parking else float(rng.uniform(0.4, 1.6)),
                   parked=float(rng.uniform(0.2, 0.7)) if parking else 0.0,
                   buildings=float(rng.uniform(0.6, 0.95) if town else rng.uniform(0.3, 0.6)),
                   trees=float(rng.uniform(0.1, 0.5) if town else rng.uniform(0.3, 0.8)),
                   storeys=float(rng.uniform(3, 7) if town else rng.uniform(1, 2.5)),
                   terrain='paving' if town and rng.random() < 0.5 else 'grass', junctions=True)

    @property
    def shape(self) -> RoadShape:
        """Cross-section of the road."""
        return RoadShape(lanes=self.lanes, shoulder=self.shoulder,
                         sidewalk=2.5 if self.junctions else 0.6)

    def build_route(self, rng: np.random.Generator, length: float) -> Route:
        """Lay out the road: the event's place first, then whatever comes."""
        builder = RouteBuilder(self.shape, rng)
        builder.straight(START_M + rng.uniform(30, 60))
        if self.event == 'curve':
            builder.curve(rng.uniform(30, 60))
        elif self.event == 'light':
            builder.straight(rng.uniform(30, 70)).junction(self._turn(rng))
        elif self.event == 'pedestrian':
            builder.straight(rng.uniform(20, 60)).crosswalk()
        while builder.length < length:
            builder.straight(rng.uniform(25, 90))
            kind = rng.random()
            if kind < 0.6 or not self.junctions:
                tight = 32 if self.speed_limit < 14 else 60
                builder.curve(rng.uniform(tight, 160))
            elif kind < 0.85:
                builder.straight(rng.uniform(30, 60)).junction(self._turn(rng))
                builder.straight(30)
            else:
                builder.straight(20).crosswalk().straight(20)
        return builder.build()

    def _turn(self, rng) -> str:
        if self.lanes > 2:
            return 'straight'
        return str(rng.choice(['straight', 'left', 'right'], p=[0.6, 0.2, 0.2]))
