"""What a plan must keep to before anybody may see it: the limits of a road vehicle."""
from __future__ import annotations

import numpy as np

from ..core.config import ActionConfig
from ..core.types import DrivePlan

LIMITS = {
    'speed': (-15.0, 70.0, 'm/s'),
    'acceleration': (*ActionConfig.accel_bounds, 'm/s^2'),
    'curvature': (*ActionConfig.curvature_bounds, '1/m'),
}
"""
Least and greatest value at every waypoint of every trajectory.

Acceleration and curvature are those of the models' action space: 1 g, and a
turning radius of 3 m.
"""


def implausible(plan: DrivePlan) -> str:
    """Why a plan must not be published; '' when it may."""
    if not plan.is_finite:
        return f'plan {plan.plan_id} has values that are not finite'
    for name, (low, high, unit) in LIMITS.items():
        values = getattr(plan, name)
        worst = values.flat[np.argmax(np.maximum(low - values, values - high))]
        if not low <= worst <= high:
            return (f'plan {plan.plan_id} has {name} {worst:.3g} {unit}, '
                    f'allowed is {low:g} to {high:g} {unit}')
    return ''
