"""
Says why the expert does what it does.

The text is written from the constraint that binds, so its cause is the true
one by construction.  What the vehicle does (the first half) follows the
acceleration that the constraint asks for.
"""
from __future__ import annotations

import numpy as np

from .expert import Cause

CAUSES = ('clear_road', 'curve', 'lead_slower', 'lead_braking', 'lead_stopped', 'cut_in',
          'yellow_light', 'red_light', 'pedestrian')

_BRAKE_HARD, _SLOW, _KEEP, _GO, _WAIT = range(5)

_ACTIONS = {
    _BRAKE_HARD: ('Brake hard', 'Brake firmly'),
    _SLOW: ('Slow down', 'Decelerate', 'Ease off'),
    _KEEP: ('Keep speed', 'Hold the speed'),
    _GO: ('Accelerate', 'Speed up'),
    _WAIT: ('Stay stopped', 'Wait'),
}

_BECAUSE = {
    'clear_road': ('the road ahead is clear', 'our lane is free'),
    'curve': ('the road bends to the {turn}', 'a {turn} bend lies ahead'),
    'lead_slower': ('the lead vehicle is {gap} m ahead', 'a vehicle {gap} m ahead drives slower'),
    'lead_braking': ('the lead vehicle brakes {gap} m ahead', 'the vehicle ahead is braking'),
    'lead_stopped': ('the lead vehicle has stopped {gap} m ahead', 'the vehicle ahead stands'),
    'cut_in': ('a vehicle cuts in from the {turn}',
               'a vehicle from the {turn} moves into our lane'),
    'yellow_light': ('the traffic light turned yellow', 'the light ahead is yellow'),
    'red_light': ('the traffic light is red', 'the light ahead is red'),
    'pedestrian': ('a pedestrian crosses {gap} m ahead', 'a pedestrian is on the crosswalk'),
}

_KEEP_FOR = {
    'lead_slower': ('Keep the distance', 'Follow the lane at this distance'),
    'lead_braking': ('Keep the distance', 'Be ready to brake'),
    'lead_stopped': ('Approach carefully', 'Roll on slowly'),
    'cut_in': ('Keep the distance', 'Leave room'),
    'yellow_light': ('Approach the stop line', 'Prepare to stop'),
    'red_light': ('Approach the stop line', 'Prepare to stop'),
    'pedestrian': ('Approach the crosswalk carefully', 'Prepare to stop'),
}


def action_of(cause: Cause) -> int:
    """What the vehicle does about it."""
    if cause.speed < 0.3 and cause.acceleration < 0.2:
        return _WAIT
    if cause.acceleration < -3.0:
        return _BRAKE_HARD
    if cause.acceleration < -0.25:
        return _SLOW
    return _KEEP if cause.acceleration < 0.25 or cause.name in _KEEP_FOR else _GO


def describe(cause: Cause, rng: np.random.Generator | None = None) -> str:
    """Return one sentence; without `rng` always the first wording."""
    def pick(options):
        return options[0 if rng is None else int(rng.integers(len(options)))]
    action = action_of(cause)
    if action == _KEEP and cause.name in _KEEP_FOR:
        verb = pick(_KEEP_FOR[cause.name])
        if cause.acceleration >= 0.25 and cause.name.startswith('lead'):
            verb = 'Close up'
    else:
        verb = pick(_ACTIONS[action])
    because = pick(_BECAUSE[cause.name])
    gap = '' if np.isnan(cause.gap) else str(max(round(cause.gap), 0))
    return f'{verb} because {because.format(gap=gap, turn=cause.turn)}.'
