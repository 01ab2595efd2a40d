"""Light and colours of an episode, drawn from its seed (domain randomisation)."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PAINTS = np.array([
    [235, 235, 232], [28, 29, 32], [120, 124, 128], [176, 180, 184], [150, 22, 28],
    [24, 52, 110], [40, 92, 60], [196, 150, 40], [96, 58, 40], [52, 110, 150],
    [206, 90, 30], [70, 72, 90],
], np.float32)
"""Car colours, roughly as often as on the road: white, black and greys come first."""
PAINT_SHARES = np.array([.2, .16, .14, .14, .08, .08, .04, .03, .03, .04, .03, .03])
FACADES = np.array([
    [178, 160, 140], [150, 96, 78], [196, 190, 178], [120, 126, 134], [168, 140, 110],
    [206, 196, 170], [110, 84, 74], [140, 150, 150], [186, 120, 96], [92, 100, 112],
], np.float32)
TERRAINS = {'grass': (86, 116, 58), 'dry': (150, 136, 92), 'earth': (120, 104, 80),
            'paving': (142, 138, 132)}


@dataclass(frozen=True)
class Look:
    """
    Colours are RGB 0 to 255 as float; `sun` is the unit vector towards the sun (map frame).

    `noise` (grey levels) and `blur` (pixels) are standard deviations.
    """

    sun: np.ndarray
    ambient: float
    diffuse: float
    tint: np.ndarray
    haze_range: float
    haze: np.ndarray
    zenith: np.ndarray
    clouds: float
    asphalt: np.ndarray
    terrain: np.ndarray
    sidewalk: np.ndarray
    centre_line: np.ndarray
    line: np.ndarray
    noise: float
    blur: float

    @classmethod
    def sample(cls, rng: np.random.Generator, terrain: str = 'grass') -> Look:
        """Draw the light, the weather and the ground's colours."""
        azimuth, height = rng.uniform(0, 2 * np.pi), np.radians(rng.uniform(22, 65))
        sun = np.array([np.cos(azimuth) * np.cos(height), np.sin(azimuth) * np.cos(height),
                        np.sin(height)])
        overcast = rng.random() < 0.3
        level = rng.uniform(0.75, 1.08)
        warm = rng.uniform(-0.05, 0.07)
        tint = level * np.array([1 + warm, 1.0, 1 - warm])
        grey = rng.uniform(185, 222)
        haze = np.clip(np.array([grey - 6, grey, grey + 10]) * tint, 0, 250)
        blue = np.array([rng.uniform(70, 110), rng.uniform(125, 160), rng.uniform(200, 235)])
        zenith = haze * 0.9 if overcast else blue * level
        shade = rng.uniform(-12, 12)
        yellow = np.array([214.0, 170.0, 50.0])
        white = np.array([222.0, 222.0, 216.0])
        wear = rng.uniform(0.85, 1.0)
        return cls(
            sun=sun,
            ambient=0.72 if overcast else 0.56,
            diffuse=0.2 if overcast else 0.5,
            tint=tint,
            haze_range=float(rng.uniform(160, 260) if overcast else rng.uniform(260, 700)),
            haze=haze,
            zenith=zenith,
            clouds=1.0 if overcast else float(rng.uniform(0, 0.9)),
            asphalt=(np.array([88.0, 88, 91]) + shade) * tint,
            terrain=(np.array(TERRAINS[terrain]) + rng.uniform(-10, 10, 3)) * tint,
            sidewalk=(np.array([156.0, 152, 146]) + rng.uniform(-14, 14)) * tint,
            centre_line=(yellow if rng.random() < 0.6 else white) * wear * tint,
            line=white * wear * tint,
            noise=float(rng.uniform(0, 2.5)),
            blur=float(max(rng.uniform(-0.3, 0.6), 0.0)),
        )

    @property
    def overcast(self) -> bool:
        """True when there is too little sun for shadows."""
        return self.diffuse < 0.3

    def shade(self, colours, normals) -> np.ndarray:
        """Lit colours [n, 3] of faces with those unit normals [n, 3]."""
        facing = np.maximum(normals @ self.sun, 0) * self.diffuse
        sky = 0.12 * np.maximum(normals[..., 2], 0)
        return colours * (self.ambient + sky + facing)[..., None] * self.tint

    def haze_share(self, distance) -> np.ndarray:
        """How much of the haze colour covers something at that distance (m)."""
        return 1 - np.exp(-np.asarray(distance) / self.haze_range)


def car_paint(rng: np.random.Generator) -> np.ndarray:
    """Draw a car's colour."""
    return np.clip(PAINTS[rng.choice(len(PAINTS), p=PAINT_SHARES)] + rng.uniform(-12, 12, 3),
                   5, 245)
