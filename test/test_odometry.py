"""Odometry of the last seconds: what is refused, and what is doubtful."""
import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashdrive_ros.core.types import InputError
from flashdrive_ros.nodes.odometry import OdometryBuffer, OdometrySample

MS = 1_000_000
T0 = 1_700_000_000_000_000_000


def at(ms):
    return T0 + round(ms * MS)


def add(buffer, stamp_ns, position, quaternion, **more):
    buffer.add(OdometrySample(stamp_ns, position, quaternion, **more))


def test_odometry_that_is_not_finite_late_or_odd_is_counted_and_dropped():
    buffer = OdometryBuffer()
    still = (0, 0, 0, 1)
    for ms in range(0, 1600, 10):
        add(buffer, at(ms), (ms / 100, 0, 0), still)
    add(buffer, at(1610), (float('nan'), 0, 0), still)
    add(buffer, at(1610), (0, 0, 0), (0, 0, 0, 0))
    add(buffer, at(1000), (0, 0, 0), still)
    add(buffer, at(1590), (0, 0, 0), still)
    add(buffer, at(1e7), (0, 0, 0), still)
    assert buffer.counts == {'received': 165, 'unusable': 2, 'late': 1, 'repeated': 1,
                             'foreign': 1}
    assert buffer.history(at(1550)).xyz[0, 0] == pytest.approx(-15)


@pytest.mark.parametrize('position, quaternion', [
    ((0, 0, 0), (0, 0, 0, 1e-9)), ((0, 0, 0), (1e200, 1e200, 0, 0)), ((1e308, 0, 0), (0, 0, 0, 1)),
    ((1e15, 0, 0), (0, 0, 0, 1)), ((0, float('inf'), 0), (0, 0, 0, 1))])
def test_one_unusable_pose_spoils_none_of_the_others(position, quaternion):
    buffer = OdometryBuffer()
    for ms in range(0, 1600, 10):
        add(buffer, at(ms), (ms / 100, 0, 0), (0, 0, 0, 1))
        add(buffer, at(ms + 5), position, quaternion)
    assert buffer.counts['unusable'] == 160
    assert buffer.history(at(1550)).xyz[0, 0] == pytest.approx(-15)


@pytest.mark.parametrize('jump', [-100.0, 20.0, 1e6])
def test_odometry_that_jumps_is_refused_until_the_jump_is_history(jump):
    buffer = OdometryBuffer()
    for ms in range(0, 4000, 20):
        add(buffer, at(ms), (ms / 100 + jump * (ms > 2000), 0, 0), (0, 0, 0, 1))
    buffer.history(at(2000))
    for ms in (2050, 2500, 3500):
        with pytest.raises(InputError, match=r'odometry jumps by .* m, .* s before the frames'):
            buffer.history(at(ms))
    assert buffer.history(at(3700)).xyz[0, 0] == pytest.approx(-15)


def test_odometry_starts_again_when_time_jumps():
    buffer = OdometryBuffer()
    for ms in (*range(5000, 8000, 50), *range(0, 1600, 50)):
        add(buffer, at(ms), (ms / 100, 0, 0), (0, 0, 0, 1))
    # the sample that proved the jump is the first one kept
    assert buffer.newest_ns == at(1550)
    with pytest.raises(InputError, match=r'begins 0\.0'):
        buffer.history(at(1500))
    assert buffer.history(at(1550)).xyz[0, 0] == pytest.approx(-15)


def test_odometry_is_kept_for_a_few_seconds_only():
    buffer = OdometryBuffer()
    for ms in range(0, 60_000, 10):
        add(buffer, at(ms), (0, 0, 0), (0, 0, 0, 1))
    assert len(buffer._samples) <= 401


# ---- jumps that are no speeding

def drive(buffer, to_ms=2000, step_ms=10, speed=10.0, twist=True, jump=None, child='base_link',
          frame='odom', yaw=0.0, velocity=None):
    """Straight along `yaw`; `jump` is (ms, metres to the side)."""
    way = np.array([np.cos(yaw), np.sin(yaw), 0])
    side = np.array([-way[1], way[0], 0])
    quaternion = (0, 0, np.sin(yaw / 2), np.cos(yaw / 2))
    for ms in np.arange(0, to_ms + 1e-6, step_ms):
        place = way * speed * ms / 1000
        if jump is not None and ms > jump[0]:
            place = place + side * jump[1]
        told = velocity if velocity is not None else (speed, 0, 0) if twist else (0, 0, 0)
        add(buffer, at(ms), tuple(place), quaternion, velocity=tuple(told), frame_id=frame,
            child_frame_id=child)


@pytest.mark.parametrize('step_ms', [10, 20, 1000 / 30])
@pytest.mark.parametrize('twist', [True, False])
@pytest.mark.parametrize('metres', [2.0, 3.0, 8.0, -8.0])
def test_a_jump_below_ten_metres_is_refused_until_it_is_history(step_ms, twist, metres):
    """Issue 7: jumps, also such that could be driven; the speed does not explain them."""
    buffer = OdometryBuffer()
    drive(buffer, 4000, step_ms, twist=twist, jump=(2000, metres))
    buffer.history(at(1950))
    for ms in (2100, 3000, 3400):
        with pytest.raises(InputError, match=r'odometry jumps by .* m in .* than its speed'):
            buffer.history(at(ms))
    assert buffer.history(at(3700)).xyz[0, 0] == pytest.approx(-15)


def test_coarse_odometry_may_jump_as_far_as_it_is_allowed():
    buffer = OdometryBuffer(max_jump_m=5.0)
    drive(buffer, 4000, jump=(2000, 4.0))
    buffer.history(at(2500))


def test_a_pose_that_stands_still_while_the_twist_drives_on_is_refused():
    buffer = OdometryBuffer()
    for ms in range(0, 2000, 20):
        stuck = 1000 <= ms < 1700
        add(buffer, at(ms), (10.0 if stuck else ms / 100, 0, 0), (0, 0, 0, 1),
            velocity=(10.0, 0, 0))
    with pytest.raises(InputError, match='odometry jumps'):
        buffer.history(at(1900))


@settings(max_examples=60, deadline=None)
@given(step_ms=st.sampled_from([5, 10, 20, 33.3, 50, 100]), start=st.floats(0, 30),
       accelerations=st.lists(st.floats(-8, 5), min_size=20, max_size=20),
       rates=st.lists(st.floats(-0.6, 0.6), min_size=20, max_size=20),
       scale=st.sampled_from([0.0, 1.0, 3.6]), noise=st.floats(0, 0.05))
def test_no_drive_is_taken_for_a_jump(step_ms, start, accelerations, rates, scale, noise):
    """Hard braking, curves, a missing twist (0) and one in km/h (3.6) are no jumps."""
    buffer = OdometryBuffer()
    random = np.random.default_rng(0)
    x = y = yaw = 0.0
    speed, dt = start, step_ms / 1000
    for i in range(int(2000 / step_ms) + 1):
        add(buffer, at(i * step_ms), (x + noise * random.standard_normal(), y, 0),
            (0, 0, np.sin(yaw / 2), np.cos(yaw / 2)), velocity=(speed * scale, 0, 0))
        k = min(int(i * step_ms / 100), 19)
        speed = max(speed + accelerations[k] * dt, 0)
        yaw += rates[k] * dt
        x, y = x + speed * np.cos(yaw) * dt, y + speed * np.sin(yaw) * dt
    buffer.history(at(1900))


# ---- what is doubtful

@pytest.mark.parametrize('how, said', [
    ({}, ''),
    ({'yaw': 1.2}, ''),
    ({'speed': -5.0}, ''),
    ({'speed': 0.3}, ''),
    ({'twist': False}, ''),
    ({'child': ''}, ''),
    ({'child': 'gps'}, "child_frame_id is 'gps', expected 'base_link'"),
    ({'velocity': (36.0, 0, 0)}, 'poses move at 10.0 m/s, the twist says 36.0 m/s'),
    ({'yaw': 1.5, 'velocity': (0.7, 9.97, 0)}, "twist is in frame 'odom', expected in that"),
])
def test_twist_and_frames_are_checked_against_the_poses(how, said):
    """Issue 7: twist check; twist is in the child frame (nav_msgs/Odometry)."""
    buffer = OdometryBuffer()
    drive(buffer, **how)
    trouble = buffer.trouble('base_link')
    assert trouble.startswith(said) and bool(trouble) == bool(said)


def test_a_vehicle_whose_x_is_not_forward_is_doubtful():
    """REP 103: x forward."""
    buffer = OdometryBuffer()
    for ms in range(0, 2000, 20):
        add(buffer, at(ms), (0, ms / 100, 0), (0, 0, 0, 1))
    assert 'sideways' in buffer.trouble()


def test_a_vehicle_at_rest_and_one_just_heard_are_not_doubted():
    buffer = OdometryBuffer()
    assert buffer.trouble('base_link') == ''
    add(buffer, at(0), (0, 0, 0), (0, 0, 0, 1), child_frame_id='base_link')
    assert buffer.trouble('base_link') == ''
    drive(buffer, speed=0.0)
    assert buffer.trouble('base_link') == ''


def test_two_publishers_of_different_frames_are_named_and_give_no_history():
    buffer = OdometryBuffer()
    for ms in range(0, 2000, 10):
        frame, x = ('odom', 0.0) if ms % 20 else ('map', 5000.0)
        add(buffer, at(ms), (x + ms / 100, 0, 0), (0, 0, 0, 1), frame_id=frame)
    assert buffer.trouble() == 'comes in several frames by turns: map, odom'
    with pytest.raises(InputError, match='odometry comes in several frames'):
        buffer.history(at(1900))


def test_another_fixed_frame_begins_again_once():
    buffer = OdometryBuffer()
    drive(buffer, 2000, frame='odom')
    for ms in range(2010, 4000, 10):
        add(buffer, at(ms), (5000 + ms / 100, 0, 0), (0, 0, 0, 1), frame_id='map')
    assert buffer.counts['frame changes'] == 1 and buffer.frame_id == 'map'
    assert buffer.history(at(3900)).xyz[0, 0] == pytest.approx(-15)


# ---- rates, gaps, and where the vehicle is

@pytest.mark.parametrize('rate_hz', [10, 20, 30, 100, 400])
def test_odometry_of_any_rate_gives_the_same_history(rate_hz):
    """Weak point 5 of the peer: ego history by index."""
    buffer = OdometryBuffer()
    drive(buffer, 2000, 1000 / rate_hz, yaw=0.5)
    history = buffer.history(at(1900))
    assert history.xyz[:, 0] == pytest.approx(np.linspace(-15, 0, 16), abs=1e-6)
    assert history.xyz[:, 1] == pytest.approx(np.zeros(16), abs=1e-6)


def test_a_gap_is_named_with_its_length():
    buffer = OdometryBuffer()
    for ms in (*range(0, 1000, 20), *range(1700, 3000, 20)):
        add(buffer, at(ms), (ms / 100, 0, 0), (0, 0, 0, 1))
    with pytest.raises(InputError, match=r'a gap of 0\.720 s'):
        buffer.history(at(2000))


def test_a_little_missing_odometry_can_be_bridged():
    buffer = OdometryBuffer()
    drive(buffer, 1950)
    with pytest.raises(InputError, match=r'ends 0\.050 s before'):
        buffer.history(at(2000))
    assert buffer.history(at(2000), 0.06).xyz[0, 0] == pytest.approx(-15)


def test_history_tells_where_the_vehicle_is_in_the_fixed_frame():
    buffer = OdometryBuffer()
    drive(buffer, 2000, yaw=0.5)
    history = buffer.history(at(1950))
    assert history.origin_xyz == pytest.approx([19.5 * np.cos(0.5), 19.5 * np.sin(0.5), 0])
    assert history.origin_rot[:, 0] == pytest.approx([np.cos(0.5), np.sin(0.5), 0])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(
    st.integers(-2**40, 2**62), st.floats(allow_nan=True, allow_infinity=True),
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(['', 'odom', 'map'])),
    max_size=50))
def test_any_odometry_gives_a_history_or_says_why_not(items):
    buffer = OdometryBuffer()
    for stamp, place, turn, frame in items:
        add(buffer, stamp, (place, 0, 0), (0, 0, turn, 1), frame_id=frame,
            velocity=(1e300, 0, 0))
        buffer.trouble('base_link')
        with contextlib.suppress(InputError):
            buffer.history(stamp)
