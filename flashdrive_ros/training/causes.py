"""
Which cause a sentence names, found by the world's own grammar.

The grammar is sampled, not copied, so it may grow without a change here.
"""
from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from ..world.expert import Cause
from ..world.reason import CAUSES, describe

BECAUSE = ' because '
SIDES = ('left', 'right')
ACCELERATIONS = (-5.0, -1.0, 0.0, 1.0)
SPEEDS = (0.0, 8.0)


def sentences(wordings: int = 24, gaps=(3.0, 12.0, 47.0)) -> list[str]:
    """Sentences that the grammar gives for every cause; with repeats as often as it says them."""
    rng = np.random.default_rng(0)
    return [describe(Cause(name, a, speed, gap, 3.0, 1, side), rng)
            for name in CAUSES for a in ACCELERATIONS for speed in SPEEDS for gap in gaps
            for side in SIDES for _ in range(wordings)]


@lru_cache(maxsize=1)
def _patterns() -> list[tuple[re.Pattern, str]]:
    """Every wording of a cause as a pattern in which numbers are free, with the cause's name."""
    rng = np.random.default_rng(0)
    found = {}
    for name in CAUSES:
        for side in SIDES:
            for _ in range(64):
                text = describe(Cause(name, -1.0, 8.0, 12.0, 3.0, 1, side), rng)
                why = text.partition(BECAUSE)[2].rstrip('.')
                found.setdefault(re.sub(r'\\?\d+', r'\\d+', re.escape(why)), name)
    return [(re.compile(pattern, re.IGNORECASE), found[pattern])
            for pattern in sorted(found, key=len, reverse=True)]


def cause_named(text: str) -> str | None:
    """Name (one of `reason.CAUSES`) of the cause in `text`; None when it names none."""
    why = text.partition(BECAUSE)[2]
    return next((name for pattern, name in _patterns() if pattern.search(why)), None)
