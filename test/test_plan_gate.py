"""Which plans may be published, and which get a warning."""
from dataclasses import replace

import numpy as np
import pytest
from support.plans import make_plan

from flashdrive_ros.core.ego import HISTORY_POSES, EgoHistory
from flashdrive_ros.core.types import Reasoning
from flashdrive_ros.nodes.drive_parameters import NODE
from flashdrive_ros.nodes.gate import GateLimits, judge


def going(speed=8.0):
    """Ego history of a vehicle that goes straight ahead."""
    xyz = np.zeros((HISTORY_POSES, 3))
    xyz[:, 0] = speed * 0.1 * np.arange(-HISTORY_POSES + 1, 1)
    return EgoHistory(0, xyz, np.tile(np.eye(3), (HISTORY_POSES, 1, 1)))


def verdict(plan, speed=8.0, **limits):
    return judge(plan, going(speed), GateLimits(**limits))


def saying(text, speed_change=0.0, yaw=0.0):
    """A plan that changes its speed evenly over its 6.4 s, and its heading."""
    plan, share = make_plan(trajectories=1), np.arange(1, 65) / 64
    return replace(plan, speed=8.0 + speed_change * share[None], yaw=yaw * share[None],
                   reasoning=Reasoning(text))


def test_an_ordinary_plan_passes_and_its_extremes_are_told():
    found = verdict(make_plan())
    assert found.refused == found.warning == ''
    assert found.values['speed'] == '9 m/s'
    assert found.values['lateral acceleration'] == '1.62 m/s^2'


@pytest.mark.parametrize('name, value, reason', [
    ('speed', 71.0, 'speed 71 m/s, allowed is -15 to 70 m/s'),
    ('speed', -152.0, 'speed -152 m/s'),
    ('acceleration', 12.0, 'acceleration 12 m/s^2, allowed is -9.8 to 9.8 m/s^2'),
    ('curvature', -0.5, 'curvature -0.5 1/m, allowed is -0.33 to 0.33 1/m'),
    ('curvature', 0.2, 'lateral acceleration 16.2 m/s^2, allowed is -12 to 12 m/s^2'),
    ('yaw', np.nan, 'values that are not finite'),
])
def test_one_waypoint_beyond_a_limit_is_named(name, value, reason):
    plan = make_plan()
    values = np.array(getattr(plan, name), np.float64)
    values[-1, 7] = value
    assert reason in verdict(replace(plan, **{name: values})).refused


@pytest.mark.parametrize('trajectory', [0, 1])
def test_a_plan_that_begins_elsewhere_than_at_the_vehicle_is_refused(trajectory):
    plan = make_plan()
    xyz = np.array(plan.xyz)
    xyz[trajectory] -= [10.6, 0, 0]   # behind the rear axle, as after a standing start
    assert 'distance from the vehicle at its start 10.' in verdict(replace(plan, xyz=xyz)).refused


def test_a_plan_of_another_speed_than_the_vehicles_is_refused():
    assert verdict(make_plan(), speed=2.5).refused.endswith(
        "step from the vehicle's speed 6.5 m/s, allowed is -5 to 5 m/s")


def test_every_limit_is_a_parameter_that_can_be_changed_while_driving():
    specs = {spec.name: spec for spec in NODE if spec.name.startswith('gate_')}
    assert all(spec.live for spec in specs.values())
    limits = GateLimits.of({name: spec.default for name, spec in specs.items()})
    assert limits == GateLimits()
    assert verdict(make_plan(), max_speed_mps=8.5).refused
    assert not verdict(make_plan(), speed=2.5, max_speed_step_mps=7.0).refused


@pytest.mark.parametrize('text, change, yaw, warned', [
    ('Decelerate because a pedestrian crosses.', -4.0, 0.0, ''),
    ('Decelerate because a pedestrian crosses.', 4.0, 0.0, 'slower ("Decelerate"), the plan +1.9'),
    ('Accelerate since the lane is free', -4.0, 0.0, 'faster ("Accelerate"), the plan -1.9 m/s'),
    ('Keep the lane because the car ahead brakes', 4.0, 0.0, ''),   # that is of another
    ('Turn left as the route does', 0.0, -1.0, 'to the left ("Turn left"), the plan -0.47 rad'),
    ('Turn right as the route does', 0.0, -1.0, ''),
    ('', 4.0, 0.0, ''),
])
def test_words_that_the_motion_contradicts_are_a_warning_and_no_more(text, change, yaw, warned):
    found = verdict(saying(text, change, yaw))
    assert found.refused == '' and warned in found.warning
    assert bool(found.warning) == bool(warned)
