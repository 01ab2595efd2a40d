"""When the embedded world waits for a plan, and what a recording of that says."""
import re

import numpy as np
import pytest
from support.recordings import MESSAGES, START_NS, TICK_NS, write_recording

from flashdrive_ros.nodes.lockstep import HISTORY_NS, LockStep
from flashdrive_ros.recording.recording import Recording
from flashdrive_ros.recording.summary import summarise, table
from flashdrive_ros.recording.writer import BagWriter

EPISODE_NS = 1_000_000_000_000
_PIXELS = np.zeros((18, 32, 3), np.uint8)


def answered(steps, t0_ns):
    steps.hear('plan', t0_ns)
    steps.hear('trajectory', t0_ns)


def test_a_window_without_enough_odometry_is_not_waited_for():
    steps = LockStep()
    assert not steps.expects(EPISODE_NS + HISTORY_NS - TICK_NS, EPISODE_NS)
    assert steps.expects(EPISODE_NS + HISTORY_NS, EPISODE_NS)


def test_a_window_is_answered_when_all_of_its_plan_is_here_in_any_order():
    steps, now = LockStep(), EPISODE_NS + HISTORY_NS
    steps.hear('trajectory', now)
    assert not steps.is_answered(now)
    steps.hear('plan', now - 7)   # the grid's time, beside that of a frame
    assert steps.is_answered(now) and not steps.is_answered(now + TICK_NS)


def test_after_a_wait_in_vain_time_goes_on_until_plans_come_again():
    steps, now = LockStep(), EPISODE_NS + HISTORY_NS
    steps.note(now, 20.0)
    assert not steps.expects(now + TICK_NS, EPISODE_NS)
    answered(steps, now)
    assert steps.expects(now + 2 * TICK_NS, EPISODE_NS)
    answered(steps, now + 2 * TICK_NS)
    steps.note(now + 2 * TICK_NS, 0.5)
    assert (steps.answered, steps.missed, steps.waited_s) == (1, 1, 20.5)


def world_recording(path, stretch, control, ticks=21, source='embedded world; waits for plans'):
    """A bag of a world whose 100 ms took `stretch` times as long; control by tick."""
    bag = BagWriter(path)
    bag.add_topic('/camera/front_wide_120/image_raw/compressed',
                  'sensor_msgs/msg/CompressedImage')
    bag.add_topic('/drive/plan', 'flashdrive_ros/msg/DrivePlan')
    bag.add_topic('/clock', 'rosgraph_msgs/msg/Clock')
    for topic in ('/world/source', '/world/control'):
        bag.add_topic(topic, 'std_msgs/msg/String')

    def put(topic, time_ns, message):
        assert bag.put(topic, time_ns, MESSAGES.cdr(message))

    put('/world/source', START_NS, MESSAGES.make('std_msgs/msg/String', data=source))
    for i in range(ticks):
        stamp, heard = START_NS + i * TICK_NS, START_NS + round(i * TICK_NS * stretch)
        put('/camera/front_wide_120/image_raw/compressed', heard, MESSAGES.image(
            stamp, 'front_wide_120', _PIXELS))
        put('/clock', heard, MESSAGES.make('rosgraph_msgs/msg/Clock'))
        put('/drive/plan', heard + round(0.9 * TICK_NS * stretch), MESSAGES.plan(
            stamp, total_ms=90 * stretch))
        if i in control:
            put('/world/control', heard + round(0.95 * TICK_NS * stretch),
                MESSAGES.make('std_msgs/msg/String', data=control[i]))
    bag.close()
    return Recording(path)


def test_the_summary_says_that_the_world_waited_and_how_fast_it_went(tmp_path):
    recording = world_recording(tmp_path / 'bag', 4.0, {0: 'plan', 15: 'expert: no plan yet'})
    summary = summarise(recording)
    assert summary['pace'] == {'driven_s': 2.0, 'wall_s': 8.0, 'times_real_time': 0.25,
                               'waits_for_plans': True}
    assert summary['plans_followed_share'] == 0.75
    assert summary['windows']['planned_share'] == 1.0
    # the published clock stood still meanwhile: the wall clock counts
    assert summary['camera_to_plan_ms']['median'] == pytest.approx(360.0)
    said = table(summary)
    assert '2.0 s in 8.0 s; the world waited for plans: 0.25 times real time' in said
    assert re.search(r'plans followed +75.0 % of that time', said)


def test_a_source_that_does_not_wait_is_not_said_to(tmp_path):
    summary = summarise(Recording(write_recording(tmp_path / 'bag', ticks=11)))
    assert summary['pace'] == {'driven_s': 1.0, 'wall_s': 1.0, 'times_real_time': 1.0,
                               'waits_for_plans': False}
    assert summary['plans_followed_share'] is None
    assert 'waited' not in table(summary)
