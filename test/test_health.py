"""What diagnostics say, without a graph."""
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip('rclpy')

from support.plans import make_plan

from flashdrive_ros.nodes.frames import FrameSelector
from flashdrive_ros.nodes.health import ERROR, OK, WARN, DriveHealth
from flashdrive_ros.nodes.inputs import StepInputs
from flashdrive_ros.nodes.odometry import OdometrySample

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
GIVEN = SimpleNamespace(frames=SimpleNamespace(skew_ns=3 * MS), image_ms=2.0)


class Drive:
    """Health of a drive of two cameras, with the clock in hand."""

    def __init__(self):
        self.now = 50.0
        self.health = DriveHealth('car/drive', clock=lambda: self.now)
        self.inputs = StepInputs(FrameSelector([0, 1]),
                                 lambda *_: np.zeros((2, 2, 3), np.uint8), clock=lambda: self.now)
        self.health.topics = {0: '/left', 1: '/front', 'odometry': '/odometry'}
        self.health.configuring(1.0)
        self.health.engine_state = 'ready'

    def run(self, seconds, plans=True, cameras=(0, 1), odometry=True):
        """Move on in steps of 100 ms; odometry at 50 Hz."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            stamp = T0 + round(self.now * 1e9)
            if odometry:
                for ms in (80, 60, 40, 20, 0):
                    self.inputs.add_odometry(
                        OdometrySample(stamp - ms * MS, (0, 0, 0), (0, 0, 0, 1)))
            for camera in cameras:
                self.inputs.add_camera(camera, stamp, None)
            if plans:
                self.health.published(make_plan(t0_ns=stamp), GIVEN)

    def say(self, active=True):
        found = self.health.statuses(active, self.inputs)
        assert all(s.name.startswith('car/drive: ') for s in found)
        return {s.name.removeprefix('car/drive: '): s for s in found}


def values(status):
    return {v.key: v.value for v in status.values}


@pytest.fixture
def drive():
    d = Drive()
    d.run(2)
    d.say()
    return d


def test_a_healthy_drive_is_ok_with_its_rates(drive):
    drive.run(2)
    said = drive.say()
    assert {s.level for s in said.values()} == {OK}
    assert values(said['plan'])['rate_hz'] == '10'
    assert values(said['camera 1 front_wide_120'])['rate_hz'] == '10'
    assert values(said['odometry'])['rate_hz'] == '50'
    assert values(said['plan'])['skew_ms'] == '3'
    assert values(said['plan'])['why no plan'] == ''


def test_an_untrained_model_is_a_warning(drive):
    drive.health.trained = False
    drive.run(1)
    said = drive.say()
    assert said['plan'].level == said['engine'].level == WARN
    assert said['plan'].message == 'plans of an untrained model'


def test_a_text_that_is_not_used_is_a_warning_while_plans_go_on(drive):
    drive.inputs.set_nav_text('a' * 600)
    drive.run(1)
    said = drive.say()['plan']
    assert said.level == WARN
    assert said.message == ('publishing, but without the text: navigation text has 600 '
                            'characters, at most 512 are allowed')


def test_the_latest_problem_is_told_until_plans_come_again(drive):
    drive.health.problem('engine', 'RuntimeError: device lost')
    assert drive.say()['plan'].message == 'no plan: RuntimeError: device lost'
    drive.run(0.1)
    assert drive.say()['plan'].level == OK


def test_one_camera_fewer_is_an_error_that_names_it(drive):
    drive.run(2, cameras=[1], plans=False)
    said = drive.say()
    assert said['camera 0 cross_left_120'].level == ERROR
    assert said['camera 0 cross_left_120'].message == '/left: silent for 2.0 s'
    assert said['plan'].message == 'no plan: no images from camera 0 cross_left_120 (/left)'


def test_old_odometry_is_an_error(drive):
    drive.run(2, odometry=False, plans=False)
    said = drive.say()
    assert said['odometry'].message == '/odometry: silent for 2.0 s'
    assert said['plan'].message == 'no plan: odometry is 2.000 s older than the newest frames'


def test_a_slow_camera_is_a_warning(drive):
    for _ in range(10):
        drive.run(0.1, cameras=[0, 1])
        drive.run(0.1, cameras=[1])
    said = drive.say()['camera 0 cross_left_120']
    assert said.level == WARN and said.message == '/left: slower than 10 Hz'


def test_states_of_the_engine_come_first(drive):
    drive.health.configuring(1.0)
    assert drive.say(active=False)['plan'].message == 'no plan: engine loading'
    drive.health.failed('CheckpointError: small/config.json does not exist')
    said = drive.say(active=False)
    assert said['plan'].message.startswith('no plan: engine failed: CheckpointError')
    assert said['engine'].level == ERROR


def test_an_engine_that_does_not_come_back_is_told(drive):
    drive.run(2, plans=False)
    assert drive.say()['plan'].message == 'no plan: the engine is busy'


def test_a_step_that_does_not_end_is_told_with_its_time(drive):
    drive.health.busy_s = 12.34
    drive.run(2, plans=False)
    assert drive.say()['plan'].message == 'no plan: the engine is busy with one step for 12.3 s'


def test_a_problem_that_was_over_before_anybody_looked_is_still_told(drive):
    drive.health.problem('engine', 'RuntimeError: once')
    drive.run(3)
    said = drive.say()['plan']
    assert said.level == OK
    assert values(said)['last problem'] == 'RuntimeError: once'
    assert values(said)['last problem age_s'] == '3' and values(said)['engine'] == '1'


def test_windows_that_were_computed_whole_are_counted_with_the_last_reason(drive):
    before = int(values(drive.say()['plan']).get('refills', 0))
    for reason in ('a gap of 2 s', 'prompt length changed'):
        plan = make_plan(t0_ns=T0)
        drive.health.published(dataclasses.replace(plan, window=dataclasses.replace(
            plan.window, mode='prefill', reason=reason)), GIVEN)
    drive.health.published(dataclasses.replace(plan, window=dataclasses.replace(
        plan.window, mode='streaming', reason='')), GIVEN)
    said = values(drive.say()['plan'])
    assert int(said['refills']) == before + 2
    assert said['last refill'] == 'prompt length changed'


def test_a_model_that_is_loaded_again_is_counted_and_not_ready_meanwhile(drive):
    drive.health.reloading()
    assert drive.say()['plan'].message == 'no plan: engine loading'
    drive.health.reloaded()
    drive.run(0.1)
    said = drive.say()['plan']
    assert said.level == OK and values(said)['reloads'] == '1'


def test_a_model_that_was_dropped_while_it_was_loaded_again_is_not_ready(drive):
    drive.health.reloading()
    drive.health.engine_state = 'not loaded'
    drive.health.reloaded()
    assert drive.health.engine_state == 'not loaded'
