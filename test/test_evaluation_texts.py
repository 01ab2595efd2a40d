"""Whether a reasoning is right, and whether the trajectory does what it says."""
import numpy as np
import pytest

from flashdrive_ros.evaluation.texts import agrees, cause_named, is_near, verb_of
from flashdrive_ros.world.expert import Cause, Decision
from flashdrive_ros.world.reason import CAUSES, describe


def cause(name, acceleration=-1.0, speed=8.0):
    return Cause(name, acceleration, speed, 12.0, 3.0, 1, 'left')


def speeds(start, acceleration):
    return np.maximum(start + acceleration * 0.1 * np.arange(1, 65), 0)


@pytest.mark.parametrize('name', CAUSES)
def test_every_cause_is_found_again_in_what_the_world_says(name):
    rng = np.random.default_rng(0)
    for acceleration in (-5.0, -1.0, 0.0, 1.0):
        for _ in range(20):
            assert cause_named(describe(cause(name, acceleration), rng)) == name


@pytest.mark.parametrize('text', ['', 'Slow down.', 'because', 'Slow down because of the moon.'])
def test_what_the_grammar_does_not_say_names_no_cause(text):
    assert cause_named(text) is None


@pytest.mark.parametrize('acceleration', [-5.0, -1.5, -0.1, 0.1, 1.5])
def test_a_trajectory_with_the_stated_acceleration_agrees(acceleration):
    rng = np.random.default_rng(0)
    for name in CAUSES:
        text = describe(cause(name, acceleration), rng)
        assert agrees(text, speeds(8.0, acceleration), 8.0), text


@pytest.mark.parametrize('said, done', [(-5.0, 0.0), (-1.5, 1.5), (1.5, -1.5), (0.0, -5.0)])
def test_a_trajectory_with_another_one_does_not(said, done):
    text = describe(cause('clear_road', said))
    assert agrees(text, speeds(8.0, done), 8.0) is False


def test_who_stands_may_brake_or_wait_but_not_speed_up():
    standing = speeds(0.0, -1.0)
    assert agrees(describe(cause('red_light', -3.5)), standing, 0.0)
    assert agrees(describe(cause('red_light', -1.0, 0.0)), standing, 0.0)
    assert agrees(describe(cause('clear_road', 1.5, 0.0)), speeds(0.0, 1.5), 0.0)
    assert agrees(describe(cause('red_light', -1.0, 0.0)), speeds(0.0, 2.0), 0.0) is False


def test_a_text_without_a_verb_can_not_be_checked():
    assert agrees('', speeds(8, 0), 8.0) is None and verb_of('Slow down.') == ''
    assert agrees('Fly because the road ahead is clear.', speeds(8, 0), 8.0) is None


def test_a_constraint_close_to_the_binding_one_is_nearly_right():
    decision = Decision(-1.0, 0.0, cause('red_light', -1.0), {
        'red_light': -1.0, 'lead_slower': -0.8, 'clear_road': 1.2})
    assert [is_near(n, decision) for n in ('red_light', 'lead_slower', 'clear_road', None)] == [
        True, True, False, False]
