"""The engine's thread, with an engine double."""
import threading
import weakref
from concurrent.futures import TimeoutError

import numpy as np
import pytest
from support.engine_double import EngineDouble

from flashdrive_ros.core.ego import EgoHistory
from flashdrive_ros.core.types import CameraFrame, FrameSet, InputError
from flashdrive_ros.nodes.inputs import StepInput
from flashdrive_ros.nodes.worker import FAILURES, EngineWorker


def step_input(t0_ns):
    frames = FrameSet(t0_ns, {1: CameraFrame(np.zeros((2, 2, 3), np.uint8), t0_ns)})
    ego = EgoHistory(t0_ns, np.zeros((16, 3)), np.tile(np.eye(3), (16, 1, 1)))
    return StepInput(frames, ego, '', (), 0.0)


class Bench:
    """A worker whose newest input is set by hand."""

    def __init__(self):
        self.engine = EngineDouble()
        self.newest = None
        self.early = []
        self.plans, self.problems, self.given_up = [], [], []
        self.worker = EngineWorker(self.fetch, self.deliver, self.report, self.given_up.append,
                                   lambda: self.early.pop(0) if self.early else None)

    def fetch(self):
        newest, self.newest = self.newest, None
        if isinstance(newest, Exception):
            raise newest
        return newest

    def deliver(self, plan, given):
        self.plans.append(plan.t0_ns)

    def report(self, kind, error):
        self.problems.append((kind, str(error)))

    def start(self):
        self.worker.load(lambda: self.engine)
        self.worker.stepping = True

    def step(self, given):
        self.newest = given
        self.worker.wake()
        self.settle()

    def settle(self):
        self.worker.tell(lambda engine: None).result(10.0)


@pytest.fixture
def bench():
    b = Bench()
    yield b
    assert b.worker.close()


def test_everything_the_engine_does_is_on_one_thread(bench):
    bench.start()
    bench.step(step_input(100))
    bench.worker.ask(lambda engine: engine.reset('x'), 10.0)
    assert len(bench.engine.threads) == 1 and threading.get_ident() not in bench.engine.threads


def test_nothing_is_stepped_before_it_is_loaded_and_started(bench):
    bench.step(step_input(100))
    bench.worker.load(lambda: bench.engine)
    bench.step(step_input(200))
    bench.worker.stepping = True
    bench.step(step_input(300))
    assert bench.plans == [300]


def test_a_busy_worker_takes_the_newest_input_when_it_is_free(bench):
    entered, go_on = threading.Event(), threading.Event()
    bench.start()

    def hold(frames):
        entered.set()
        go_on.wait(10)
    bench.engine.fault = hold
    bench.newest = step_input(100)
    bench.worker.wake()
    assert entered.wait(10)
    for t0 in (200, 300, 400):
        bench.newest = step_input(t0)
        bench.worker.wake()
    go_on.set()
    bench.settle()
    assert bench.plans == [100, 400]


def test_a_repeated_frame_gives_no_plan(bench):
    bench.start()
    bench.step(step_input(100))
    bench.step(step_input(100))
    assert bench.plans == [100] and not bench.problems


def test_refused_input_is_reported_and_the_engine_kept_as_it_is(bench):
    bench.start()
    bench.step(InputError('no odometry'))
    bench.step(step_input(100))
    assert bench.problems == [('input', 'no odometry')]
    assert bench.plans == [100] and bench.engine.resets == []


@pytest.mark.parametrize('error', [RuntimeError('device lost'), MemoryError('out of memory')])
def test_a_failed_step_is_reported_and_the_engine_reset(bench, error):
    bench.start()

    def fail(frames):
        raise error
    bench.engine.fault = fail
    bench.step(step_input(100))
    bench.engine.fault = lambda frames: None
    bench.step(step_input(200))
    assert bench.problems == [('engine', str(error))]
    assert bench.engine.resets == [f'{type(error).__name__}: {error}']
    assert bench.plans == [200]


def test_an_engine_that_cannot_even_reset_does_not_end_the_thread(bench):
    bench.start()
    bench.engine.fault = bench.engine.reset = lambda _: 1 / 0
    bench.step(step_input(100))
    bench.step(step_input(200))
    assert [kind for kind, _ in bench.problems] == ['engine'] * 4


def test_frames_of_a_set_to_come_are_prepared_when_there_is_nothing_to_step(bench):
    bench.start()
    frames = [(camera, CameraFrame(np.zeros((2, 2, 3), np.uint8), 100)) for camera in (1, 2)]
    bench.early = list(frames)
    bench.step(step_input(100))
    assert bench.plans == [100] and not bench.engine.prepared
    bench.step(None)
    assert bench.engine.prepared == frames and len(bench.engine.threads) == 1


def test_a_frame_that_can_not_be_prepared_is_reported_and_nothing_is_reset(bench):
    bench.start()
    bench.engine.prepare = lambda camera, frame: 1 / 0
    bench.early = [(1, None)]
    bench.step(None)
    bench.step(step_input(100))
    assert bench.problems == [('engine', 'division by zero')]
    assert bench.plans == [100] and bench.engine.resets == []


class OutOfMemoryError(RuntimeError):
    """As torch's, by name."""


@pytest.mark.parametrize('error', [
    MemoryError(), OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB'),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")])
def test_a_lack_of_memory_frees_the_cache_and_never_gives_the_engine_up(bench, error):
    def fail(frames):
        raise error
    bench.start()
    bench.engine.fault = fail
    for t0 in range(100, 100 * (FAILURES + 3), 100):
        bench.step(step_input(t0))
    assert bench.engine.freed == len(bench.engine.resets) == FAILURES + 2
    assert not bench.given_up
    bench.engine.fault = lambda frames: None
    bench.step(step_input(5000))
    assert bench.plans == [5000]


def test_a_failed_step_keeps_nothing_of_its_tensors(bench):
    tensors = []

    def fail(frames):
        tensor = np.zeros(3)
        tensors.append(weakref.ref(tensor))
        raise OutOfMemoryError('no room')
    bench.start()
    bench.engine.fault = fail
    bench.engine.free = lambda: tensors.append(tensors[0]())
    bench.step(step_input(100))
    assert tensors[1] is None


def test_an_engine_that_fails_again_and_again_is_given_up_with_the_reason(bench):
    bench.start()
    bench.engine.fault = lambda frames: 1 / 0
    for t0 in range(100, 100 * FAILURES, 100):
        bench.step(step_input(t0))
    assert not bench.given_up
    bench.step(step_input(9000))
    assert bench.given_up == [f'{FAILURES} steps in a row have failed, the last with '
                              'ZeroDivisionError: division by zero']


def test_failures_that_are_not_in_a_row_do_not_add_up(bench):
    bench.start()
    for t0 in range(100, 100 * 4 * FAILURES, 100):
        bench.engine.fault = (lambda frames: 1 / 0) if t0 % 200 else (lambda frames: None)
        bench.step(step_input(t0))
    assert not bench.given_up


@pytest.mark.parametrize('error', [
    RuntimeError('CUDA error: an illegal memory access was encountered'),
    type('AcceleratorError', (RuntimeError,), {})('unspecified launch failure')])
def test_a_lost_device_gives_the_engine_up_at_once(bench, error):
    def fail(frames):
        raise error
    bench.start()
    bench.engine.fault = fail
    bench.step(step_input(100))
    assert bench.given_up == [f'the device is lost: {type(error).__name__}: {error}']


@pytest.mark.parametrize('exit_', [SystemExit('native code says so'), KeyboardInterrupt()])
def test_nothing_that_a_step_raises_ends_the_thread(bench, exit_):
    def fail(frames):
        raise exit_
    bench.start()
    bench.engine.fault = fail
    bench.step(step_input(100))
    bench.engine.fault = lambda frames: None
    bench.step(step_input(200))
    assert bench.plans == [200] and [kind for kind, _ in bench.problems] == ['engine']


def test_an_engine_is_made_again_by_the_same_hands_on_the_same_thread(bench):
    made = []

    def make():
        made.append(threading.get_ident())
        return bench.engine
    bench.worker.load(make)
    bench.worker.tell(lambda engine: bench.worker.reload()).result(10.0)
    assert len(made) == 2 and len(set(made)) == 1 and made[0] != threading.get_ident()


def test_the_worker_says_how_long_a_step_has_taken_until_now(bench):
    entered, go_on = threading.Event(), threading.Event()
    bench.start()
    assert bench.worker.busy_s == 0

    def hold(frames):
        entered.set()
        go_on.wait(10)
    bench.engine.fault = hold
    bench.newest = step_input(100)
    bench.worker.wake()
    assert entered.wait(10) and bench.worker.busy_s > 0
    go_on.set()
    bench.settle()
    assert bench.worker.busy_s == 0


def test_a_failed_delivery_does_not_reset_the_engine(bench):
    bench.start()
    bench.worker._deliver = lambda plan, given: 1 / 0
    bench.step(step_input(100))
    assert bench.problems == [('output', 'division by zero')] and bench.engine.resets == []


def test_a_failed_load_raises_where_it_was_asked_for(bench):
    def broken():
        raise FileNotFoundError('no such checkpoint')
    bench.start()
    with pytest.raises(FileNotFoundError, match='no such checkpoint'):
        bench.worker.load(broken)
    assert bench.worker.engine is None


def test_asking_without_an_engine_is_refused(bench):
    with pytest.raises(InputError, match='no model is loaded'):
        bench.worker.ask(lambda engine: None, 10.0)


def test_asking_a_busy_engine_ends_in_time_and_the_question_is_dropped(bench):
    bench.start()
    go_on = threading.Event()
    bench.worker.tell(lambda engine: go_on.wait(10))
    asked = []
    with pytest.raises(TimeoutError, match=r'busy for more than 0\.2 s'):
        bench.worker.ask(asked.append, 0.2)
    go_on.set()
    bench.settle()
    assert asked == []


def test_closing_frees_whoever_waits():
    worker = EngineWorker(lambda: None, None, None)
    go_on, said = threading.Event(), []

    def wait():
        try:
            worker.load(lambda: go_on.wait(10))
        except TimeoutError as error:
            said.append(str(error))
    waiter = threading.Thread(target=wait)
    waiter.start()
    assert worker.close(timeout_s=0.2) is False
    waiter.join(10)
    assert said == ['the node is closing']
    go_on.set()
