"""
What a plan must keep to before anybody may see it: the limits of a road vehicle.

Every trajectory of a plan must be finite, within the limits, and begin where the
vehicle is, at about its speed; else the plan is refused.  A plan whose words say
one thing and whose chosen trajectory does another is published, with a warning.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from ..core.config import ActionConfig
from ..core.ego import EgoHistory
from ..core.types import GRID_NS, NANOSECONDS, DrivePlan

LOOK_S = 3.0
"""What a plan does by then is compared with its words."""
TURN_RAD, SPEED_MPS = 0.15, 1.0
"""A heading and a speed that change by this much do so for everybody to see."""
_REASON = re.compile(r'\b(because|since|due to|as|so that|for)\b', re.I)
_WORDS = (
    ('slower', re.compile(r'\b(brak|decelerat|slow|stop|halt)', re.I)),
    ('faster', re.compile(r'\b(accelerat|speed up|pick up speed)', re.I)),
    ('to the left', re.compile(r'\bturn\w* left\b', re.I)),
    ('to the right', re.compile(r'\bturn\w* right\b', re.I)),
)


@dataclass(frozen=True)
class GateLimits:
    """
    The thresholds, each a parameter of the drive node named gate_<name>.

    Acceleration and curvature are those of the models' action space: 1 g, and a
    turning radius of 3 m.  `max_start_m` is how far the first waypoint may be from
    where the vehicle is then by its own speed, `max_speed_step_mps` how far the
    first speed may be from that of the vehicle.
    """

    min_speed_mps: float = -15.0
    max_speed_mps: float = 70.0
    max_acceleration_mps2: float = ActionConfig.accel_bounds[1]
    max_lateral_acceleration_mps2: float = 12.0
    max_curvature_1pm: float = ActionConfig.curvature_bounds[1]
    max_start_m: float = 2.0
    max_speed_step_mps: float = 5.0

    @classmethod
    def of(cls, parameters: Mapping) -> GateLimits:
        """Limits as the node's parameters say."""
        return cls(**{f.name: parameters[f'gate_{f.name}'] for f in fields(cls)})


@dataclass(frozen=True)
class Verdict:
    """
    What the gate found: why a plan is refused ('' when it passes), and what is odd about it.

    `values` are the extremes of the plan, by name, with units.
    """

    refused: str
    warning: str
    values: Mapping[str, str]


def judge(plan: DrivePlan, ego: EgoHistory, limits: GateLimits) -> Verdict:
    """Hold a plan against the limits and against the motion that it goes on from."""
    if not plan.is_finite:
        return Verdict(f'plan {plan.plan_id} has values that are not finite', '', {})
    reasons, values = [], {}
    for name, measured, low, high, unit in _measured(plan, ego, limits):
        values[name] = f'{measured.flat[np.abs(measured).argmax()]:.3g} {unit}'
        worst = measured.flat[np.argmax(np.maximum(low - measured, measured - high))]
        if not low <= worst <= high:
            reasons.append(f'{name} {worst:.3g} {unit}, allowed is {low:g} to {high:g} {unit}')
    refused = f'plan {plan.plan_id} has {reasons[0]}' if reasons else ''
    return Verdict(refused, contradiction(plan, _speed(ego)), values)


def _measured(plan: DrivePlan, ego: EgoHistory, limits: GateLimits):
    """Name, values, least, greatest and unit of all that is limited."""
    now = _speed(ego)
    acceleration, curvature = limits.max_acceleration_mps2, limits.max_curvature_1pm
    lateral = np.square(plan.speed) * plan.curvature
    expected = np.array([now * plan.dt_s, 0.0])
    return (
        ('speed', plan.speed, limits.min_speed_mps, limits.max_speed_mps, 'm/s'),
        ('acceleration', plan.acceleration, -acceleration, acceleration, 'm/s^2'),
        ('curvature', plan.curvature, -curvature, curvature, '1/m'),
        ('lateral acceleration', lateral, -limits.max_lateral_acceleration_mps2,
         limits.max_lateral_acceleration_mps2, 'm/s^2'),
        ('distance from the vehicle at its start', np.linalg.norm(
            plan.xyz[:, 0, :2] - expected, axis=-1), 0.0, limits.max_start_m, 'm'),
        ('step from the vehicle\'s speed', plan.speed[:, 0] - now,
         -limits.max_speed_step_mps, limits.max_speed_step_mps, 'm/s'),
    )


def _speed(ego: EgoHistory) -> float:
    """Speed at t0 along the vehicle, m/s, by the last two poses of the history."""
    return float((ego.xyz[-1] - ego.xyz[-2])[0] * NANOSECONDS / GRID_NS)


def contradiction(plan: DrivePlan, speed_now: float) -> str:
    """Say how the chosen trajectory does the opposite of what the words say; '' when not."""
    said = _REASON.split(plan.reasoning.text, maxsplit=1)[0]
    index = min(round(LOOK_S / plan.dt_s), plan.speed.shape[1]) - 1
    speed = float(plan.speed[plan.chosen, index]) - speed_now
    turn = float(plan.yaw[plan.chosen, index])
    opposite = {'slower': speed > SPEED_MPS, 'faster': speed < -SPEED_MPS,
                'to the left': turn < -TURN_RAD, 'to the right': turn > TURN_RAD}
    for way, pattern in _WORDS:
        if opposite[way] and pattern.search(said):
            does = f'{speed:+.1f} m/s' if way in ('slower', 'faster') else f'{turn:+.2f} rad'
            return f'the text says {way} ("{said.strip()}"), the plan {does} in {LOOK_S:g} s'
    return ''
