"""People on foot and traffic lights."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .map import Crosswalk, Junction, Route
from .meshes import GREEN, RED, YELLOW


@dataclass(frozen=True)
class Signal:
    """Traffic light of a junction: for us and those that come towards us the same."""

    junction: Junction
    green: float
    red: float
    offset: float
    yellow: float = 3.0

    def state(self, t: float) -> str:
        """'green', 'yellow' or 'red' at time t."""
        phase = (t + self.offset) % (self.green + self.yellow + self.red)
        if phase < self.green:
            return 'green'
        return 'yellow' if phase < self.green + self.yellow else 'red'

    def cross_state(self, t: float) -> str:
        """Return the state for the side roads: green while ours is safely red."""
        phase = (t + self.offset) % (self.green + self.yellow + self.red)
        since = phase - self.green - self.yellow
        if 2.0 <= since < self.red - 5.0:
            return 'green'
        return 'yellow' if self.red - 5.0 <= since < self.red - 2.0 else 'red'


LAMP_OF = {'green': GREEN, 'yellow': YELLOW, 'red': RED}


@dataclass
class Pedestrian:
    """Someone on foot at arc length s and offset d; `crossing` is the crosswalk or None."""

    id: int
    s: float
    d: float
    along: float
    across: float
    paint: tuple[float, float, float]
    crosswalk: Crosswalk | None = None
    walking: bool = True
    walked: float = 0.0

    def step(self, dt: float):
        """Walk on."""
        if self.walking:
            self.s += self.along * dt
            self.d += self.across * dt
            self.walked += dt * (float(np.hypot(self.along, self.across)) if self.across
                                 else abs(self.along))

    def on_road(self, kerb: float) -> bool:
        """Tell whether they are on the carriageway or about to step on it."""
        return self.crosswalk is not None and self.walking and abs(self.d) < kerb + 0.4

    def blocks(self, kerb: float, d: float, half_width: float = 2.2) -> bool:
        """Tell whether they are in, or coming into, the way of someone who drives at offset d."""
        past = (self.d - d) * np.sign(self.across) > half_width
        return self.on_road(kerb) and not past

    @property
    def phase(self) -> int:
        """Step of the walk, for the mesh."""
        return int(self.walked / 0.19) % 8 if self.walking else 0


def walkers_poses(route: Route, s, d, along, across) -> np.ndarray:
    """Where people on foot are and face, rows x, y, yaw in the map; speeds in m/s."""
    x, y, yaw = route.pose(s, d)
    return np.stack([x, y, yaw + np.arctan2(across, along)], 1)
