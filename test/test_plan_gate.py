"""Which plans may be published."""
from dataclasses import replace

import numpy as np
import pytest
from support.plans import make_plan

from flashdrive_ros.nodes.gate import implausible


def test_an_ordinary_plan_passes():
    assert implausible(make_plan()) == ''


@pytest.mark.parametrize('name, value, reason', [
    ('speed', 71.0, 'speed 71 m/s, allowed is -15 to 70 m/s'),
    ('speed', -152.0, 'speed -152 m/s'),
    ('acceleration', 12.0, 'acceleration 12 m/s^2, allowed is -9.8 to 9.8 m/s^2'),
    ('curvature', -0.5, 'curvature -0.5 1/m, allowed is -0.33 to 0.33 1/m'),
    ('yaw', np.nan, 'values that are not finite'),
])
def test_one_waypoint_beyond_a_limit_is_named(name, value, reason):
    plan = make_plan()
    values = np.array(getattr(plan, name), np.float64)
    values[-1, 7] = value
    assert reason in implausible(replace(plan, **{name: values}))
