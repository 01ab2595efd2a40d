"""What the drive node does when engine, device or peers let it down, over real DDS."""
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from diagnostic_msgs.msg import DiagnosticStatus
from rcl_interfaces.srv import DescribeParameters, GetParameters
from std_msgs.msg import String
from support.drive_rig import rig
from support.engine_double import EngineDouble

from flashdrive_ros.core.types import GRID_NS, CameraFrame, FrameSet
from flashdrive_ros.evaluation.trust import faults
from flashdrive_ros.evaluation.trust.double_node import ObedientEngine
from flashdrive_ros.evaluation.trust.fault_table import FAULTS
from flashdrive_ros.evaluation.trust.rig import Rig
from flashdrive_ros.nodes.drive_node import GIVEN_UP
from flashdrive_ros.nodes.worker import FAILURES

LOST = RuntimeError('CUDA error: unspecified launch failure')


def failing(error):
    def fail(frames):
        raise error
    return fail


def see(r, ms):
    r.car.drive_on(ms - 50, ms)
    r.car.see(ms)


def engines_that_fail(*errors):
    """Factory of one engine an error, each failing at every step; None: a healthy one."""
    made = []

    def load(model, config):
        error = errors[len(made)]
        made.append(EngineDouble())
        if error is not None:
            made[-1].fault = failing(error)
        return made[-1]
    return load, made


def test_a_model_that_goes_on_failing_is_loaded_again_and_plans_come_back():
    load, made = engines_that_fail(RuntimeError('state is broken'), None)
    with rig(load) as r:
        r.started()
        for i in range(FAILURES):
            see(r, 100 * i)
            assert r.until(lambda n=i + 1: r.drive.health.counts['engine'] == n)
        assert r.until(lambda: len(made) == 2 and r.drive.health.engine_state == 'ready')
        assert made[1].warm
        r.plan_at(500)
        assert r.until(lambda: r.car.values('plan').get('reloads') == '1')
        assert 'state is broken' in r.car.values('plan')['last problem']


def test_a_model_that_fails_soon_after_loading_again_is_not_loaded_without_end():
    load, made = engines_that_fail(*[RuntimeError('state is broken')] * 9)
    with rig(load) as r:
        r.started()
        for i in range(2 * FAILURES + 1):
            see(r, 100 * i)
            assert r.until(lambda n=i + 1: r.drive.health.counts['engine'] == n)
        assert len(made) == 2
        assert r.car.state() == 'active' and r.says('state is broken')


def test_a_lost_device_that_stays_lost_ends_the_process_with_its_own_exit_code():
    made = []

    def load(model, config):
        if made:
            raise LOST
        made.append(EngineDouble())
        made[0].fault = failing(LOST)
        return made[0]
    with rig(load) as r:
        r.started()
        see(r, 0)
        assert r.until(lambda: not r.context.ok())
        assert r.drive.exit_code == GIVEN_UP
        assert not r.car.heard['plan']
        assert r.drive.health.engine_error == (
            f'the device is lost: RuntimeError: {LOST}; the model can not be loaded again: '
            f'RuntimeError: {LOST}')


def test_a_step_that_never_ends_ends_the_process_when_that_is_wanted():
    go_on = threading.Event()
    engine = EngineDouble()
    with rig(lambda model, config: engine, parameters={'step_timeout_s': 0.5}) as r:
        r.started()
        engine.fault = lambda frames: go_on.wait(30)
        see(r, 0)
        assert r.until(lambda: not r.context.ok())
        assert r.drive.exit_code == GIVEN_UP
        assert r.drive.health.engine_error == 'a step has not ended in 0.5 s'
        go_on.set()


def test_a_long_step_is_told_and_everything_else_is_answered_meanwhile():
    entered, go_on = threading.Event(), threading.Event()
    engine = EngineDouble()

    def hold(frames):
        entered.set()
        go_on.wait(30)
    with rig(lambda model, config: engine) as r:
        r.started()
        engine.fault = hold
        see(r, 0)
        assert entered.wait(10)
        assert r.says('the engine is busy with one step for')
        assert r.car.level('plan') == DiagnosticStatus.ERROR
        assert r.car.state() == 'active'
        assert r.car.call(GetParameters, 'get_parameters', names=['seed']).values
        received = r.drive._inputs.selector.tracks[1].counts['received']
        for ms in (100, 200, 300):
            see(r, ms)
        assert r.until(lambda: r.drive._inputs.selector.tracks[1].counts['received']
                       == received + 3)
        engine.fault = lambda frames: None
        go_on.set()
        assert r.until(lambda: r.car.plan_times() == [0, 300])  # the newest, not all


def test_frames_that_come_while_the_model_loads_are_dropped_and_not_queued():
    go_on = threading.Event()
    engine = EngineDouble()

    def slow(model, config):
        assert go_on.wait(30)
        return engine
    with rig(slow) as r:
        assert r.until(lambda: r.drive.health.engine_state == 'loading')
        r.car.drive_on(-1600, 0)
        r.car.see(0)
        assert r.says('engine loading')
        go_on.set()
        r.started()
        assert engine.warm and not engine.steps
        r.plan_at(100)
        assert [len(history) for *_, history in engine.steps] == [0]


def test_parameters_say_whether_they_can_be_set_while_driving():
    with rig(lambda model, config: EngineDouble()) as r:
        r.started()
        live, fixed = r.car.call(DescribeParameters, 'describe_parameters',
                                 names=['temperature', 'model']).descriptors
        assert 'at any time' in live.description and 'while unconfigured' in fixed.description


def test_a_flood_on_one_topic_holds_no_other_up():
    with rig(lambda model, config: EngineDouble()) as r:
        r.started()
        assert r.until(lambda: r.car.nav_text.get_subscription_count() > 0)
        stop = threading.Event()

        def flood():
            while not stop.is_set():
                r.car.nav_text.publish(String(data='turn left'))
                stop.wait(0.0005)
        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            for ms in range(0, 500, 100):
                r.plan_at(ms)
        finally:
            stop.set()
            flooding.join()


def test_the_fault_harness_breaks_a_drive_and_sees_it_recover(tmp_path):
    fault, = (f for f in FAULTS if f.name == 'out of memory twice')
    row, = faults.run([fault], tmp_path)
    assert row.held, row.why
    assert row.sent >= 25 and row.lost > 0 and row.recovery_s < fault.recover_s


def test_the_fault_harness_tells_what_was_not_held(tmp_path):
    fault = faults.Fault('a node that is killed and not started again', seconds=0.3,
                         act=lambda rig: rig.drive.process.kill())
    row, = faults.run([fault], tmp_path)
    assert not row.held and row.recovery_s is None and row.why == 'the node ended with -9'


def test_faults_have_names_of_their_own():
    assert len({f.name for f in FAULTS}) == len(FAULTS) > 40


def test_every_test_that_the_page_names_is_there():
    tests = Path(__file__).parent
    named = re.findall(r'`(test_\w+\.py)::(test_\w+)`',
                       (tests.parent / 'docs' / 'trust.md').read_text(encoding='utf-8'))
    assert len(named) > 40
    missing = [f'{file}::{name}' for file, name in named
               if f'def {name}(' not in (tests / file).read_text(encoding='utf-8')]
    assert not missing


def test_the_engine_of_the_harness_keeps_no_frames():
    engine = ObedientEngine()
    image = np.zeros((2, 2, 3), np.uint8)
    for i in range(100):
        frame = CameraFrame(image, GRID_NS * i)
        engine.prepare(0, frame)
        engine.step(FrameSet(GRID_NS * i, {0: frame}), None)
    assert len(engine.prepared) <= 1 and not engine.steps and len(engine.resets) <= 10


def test_a_signal_ends_a_node_in_the_middle_of_a_long_step(tmp_path):
    with Rig(tmp_path) as r:
        r.drive_on(2.0)
        assert r.plans
        r.order(delay_s=30.0)
        r.drive_on(0.5)
        r.drive.process.send_signal(signal.SIGTERM)
        assert r.drive.process.wait(15) == 0
        assert not r.trouble()
