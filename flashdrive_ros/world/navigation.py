"""
What a navigation system would say: the speed limit and the next turn.

Every text has the same number of words and digits, so that a prompt with it
keeps its length while one drives.
"""
from __future__ import annotations

from .map import Route

ANNOUNCE_M = 90
STEP_M = 10


def navigation_text(route: Route, s: float, speed_limit: float) -> str:
    """Text for someone at arc length `s` (m) on the route; `speed_limit` in m/s."""
    limit = f'Limit {min(round(speed_limit * 3.6), 99):02d} km/h.'
    for junction in route.junctions:
        if junction.end > s and junction.turn != 'straight' and junction.begin - s < ANNOUNCE_M:
            ahead = max(junction.begin - s, 0.0)
            metres = min(round(ahead / STEP_M) * STEP_M, ANNOUNCE_M)
            return f'{limit} Turn {junction.turn} in {metres:02d} m.'
    return f'{limit} Go straight for {ANNOUNCE_M} m.'
