"""A route of waypoints, as a navigation system would say it."""
from __future__ import annotations

import numpy as np

AHEAD_M = 90.0
STEP_M = 10
TURN_RAD = np.deg2rad(30)


def route_text(waypoints) -> str:
    """
    'Turn left in 30 m.' or 'Go straight for 90 m.' from waypoints [n, 2] m in the rig frame.

    A turn begins where the route's direction first is 30 degrees off that of the car, within
    90 m.  '' for no route.
    """
    points = np.asarray(waypoints, np.float64).reshape(-1, 2)
    points = points[np.isfinite(points).all(1)]
    points = points[points[:, 0] > 0] if len(points) else points
    if not len(points):
        return ''
    points = np.concatenate((np.zeros((1, 2)), points))
    steps = np.diff(points, axis=0)
    lengths = np.hypot(*steps.T)
    begins = np.concatenate(([0.0], np.cumsum(lengths)[:-1]))
    angles = np.arctan2(steps[:, 1], steps[:, 0])
    turns = np.flatnonzero((np.abs(angles) > TURN_RAD) & (begins < AHEAD_M) & (lengths > 1e-6))
    if not len(turns):
        return f'Go straight for {AHEAD_M:.0f} m.'
    metres = min(round(begins[turns[0]] / STEP_M) * STEP_M, int(AHEAD_M))
    return f'Turn {"left" if angles[turns[0]] > 0 else "right"} in {metres:02d} m.'
