"""Times of the arm's plans and actions, counted in periods of 1/15 s."""

CHUNK = 20
"""Periods of a chunk of actions (spec `vflash.md` section 4.2)."""
CHUNKS_PER_PLAN = 3
WAYPOINTS = 10
SPACING = CHUNK * CHUNKS_PER_PLAN // WAYPOINTS
"""Periods between two waypoints of a plan."""
