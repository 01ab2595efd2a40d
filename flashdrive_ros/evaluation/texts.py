"""
Whether a reasoning names the true cause, and whether the trajectory does what it says.

Both are judged by the world's own grammar, which is sampled rather than
copied: a verb may be said of the accelerations that the grammar says it of.
"""
from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from ..training.causes import BECAUSE, cause_named
from ..world.expert import Cause, Decision
from ..world.reason import CAUSES, describe

__all__ = ['agrees', 'cause_named', 'is_near', 'verb_of']

NEAR = 0.3
"""Constraints this close to the binding one (m/s^2) are as good a reason."""
SLACK = 0.6
"""How far a plan's acceleration may lie outside what its verb allows, m/s^2."""
LOOK_S = 0.5
STANDING = 0.5
"""A speed of standing still, m/s."""


def is_near(name: str | None, decision: Decision) -> bool:
    """Whether the cause named is the binding one, or asks for nearly the same."""
    binding = decision.cause
    asked = decision.constraints.get(name, np.inf) if name else np.inf
    return name == binding.name or asked <= binding.acceleration + NEAR


def verb_of(text: str) -> str:
    """What the text says that the vehicle does; '' when it gives no reason."""
    verb, found, _ = text.partition(BECAUSE)
    return verb.strip().lower() if found else ''


@lru_cache(maxsize=1)
def verbs() -> Mapping[str, tuple[float, float]]:
    """Every verb of the grammar and the accelerations (lowest, highest) that it is said of."""
    rng, found = np.random.default_rng(0), {}
    for name in CAUSES:
        for speed in (0.0, 8.0):
            for a in np.arange(-8.0, 3.01, 0.25):
                for shift in (-0.01, 0.01):
                    for _ in range(6):
                        cause = Cause(name, float(a + shift), speed, 12.0, 3.0, 1, 'left')
                        verb = verb_of(describe(cause, rng))
                        low, high = found.get(verb, (np.inf, -np.inf))
                        found[verb] = min(low, cause.acceleration), max(high, cause.acceleration)
    return found


def agrees(text: str, speeds: np.ndarray, speed_now: float) -> bool | None:
    """
    Whether planned `speeds` [n] m/s, one a tick from the next on, do what the text says.

    None when the text says nothing that can be checked.
    """
    allowed = verbs().get(verb_of(text))
    if allowed is None:
        return None
    ticks = round(LOOK_S / 0.1)
    acceleration = (float(speeds[ticks - 1]) - speed_now) / LOOK_S
    low, high = allowed
    if speed_now < STANDING and acceleration <= SLACK:  # who stands can't brake any harder
        return low < SLACK
    return low - SLACK <= acceleration <= high + SLACK
