"""
The one thread that owns the engine, and with it the device, for life.

CUDA graphs and caches belong to the thread that made them, so loading, warming
up, stepping, resetting and asking all happen here.  Between requests the
thread fetches its next input when woken; there is no queue of inputs, so it
always takes the newest.  No exception ends the thread.

After a failed step the engine is reset, after a lack of memory its cache is freed
too.  An engine that fails again and again, or whose device is lost, is given up:
whoever owns the worker then has it made again, or ends the process.
"""
from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError

from ..core.types import CameraFrame, DrivePlan, InputError
from .inputs import StepInput

_WAKE = object()
_STOP = object()
FAILURES = 5
"""So many failed steps in a row are not bad luck."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether a step failed for want of memory: the next one may have enough."""
    return isinstance(error, MemoryError) or type(error).__name__ == 'OutOfMemoryError' or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in (
            'out of memory', "can't allocate memory")))


def lost_device(error: BaseException) -> bool:
    """Whether the device reports an error after which nothing on it works in this process."""
    return not ran_out_of_memory(error) and isinstance(error, RuntimeError) and (
        type(error).__name__ == 'AcceleratorError' or 'CUDA error' in str(error))


class EngineWorker:
    """
    Runs an engine in its own thread.

    `fetch()` gives the next `StepInput` or None; `deliver(plan, step_input)`
    gets each plan; `report(kind, error)` gets every problem: kind 'input' for
    refused input, 'engine' for a failed step, 'output' for a failed delivery.
    `give_up(why)` is called, on the engine's thread, for an engine that is of no
    use any more; it may call `reload`.  `fetch_early()` gives a camera and its frame
    while others of their set are still missing, or None: the engine prepares it when
    there is nothing to step.
    """

    def __init__(self, fetch: Callable[[], StepInput | None],
                 deliver: Callable[[DrivePlan, StepInput], None],
                 report: Callable[[str, BaseException], None],
                 give_up: Callable[[str], None] = lambda why: None,
                 fetch_early: Callable[[], tuple[int, CameraFrame] | None] = lambda: None):
        self.engine = None
        self.stepping = False
        self._fetch, self._deliver, self._report = fetch, deliver, report
        self._give_up, self._fetch_early = give_up, fetch_early
        self._make_engine: Callable[[], object] | None = None
        self._failures = 0
        self._step_began_s: float | None = None
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._woken = threading.Event()
        self._closing = threading.Event()
        # daemon: a load that hangs must not keep the process from ending
        self._thread = threading.Thread(target=self._run, name='engine', daemon=True)
        self._thread.start()

    def load(self, make_engine: Callable[[], object]):
        """Make an engine, which must come back warm, in place of the one there is."""
        def load(_):
            self._make_engine = make_engine
            return self.reload()
        return self._wait(self.tell(load), float('inf'))

    def reload(self):
        """Make the engine anew, the old one's memory first given back; on the engine's thread."""
        self.engine, self._failures = None, 0
        self.engine = self._make_engine()
        return self.engine

    @property
    def busy_s(self) -> float:
        """How long the step that is going on has taken until now; 0 between steps."""
        began = self._step_began_s
        return 0.0 if began is None else time.monotonic() - began

    def unload(self):
        """Drop the engine; does not wait."""
        def unload(_):
            self.engine = None
        self.tell(unload)

    def tell(self, function: Callable) -> Future:
        """Run `function(engine)` between two steps, without waiting for it."""
        future: Future = Future()
        self._requests.put((function, future))
        return future

    def ask(self, function: Callable, timeout_s: float):
        """
        Run `function(engine)` between two steps and return what it returns.

        Raises what it raises, `InputError` without an engine, or TimeoutError
        after `timeout_s` and when the worker is closing; a function that had
        not begun by then never runs.
        """
        def asked(engine):
            if engine is None:
                raise InputError('no model is loaded')
            return function(engine)
        return self._wait(self.tell(asked), timeout_s)

    def _wait(self, future: Future, timeout_s: float):
        end = time.monotonic() + timeout_s
        while not self._closing.is_set() and (left := end - time.monotonic()) > 0:
            try:
                return future.result(min(left, 0.1))
            except TimeoutError:
                if future.done():  # the function itself raised it
                    raise
        future.cancel()
        raise TimeoutError('the node is closing' if self._closing.is_set() else
                           f'the engine is busy for more than {timeout_s:g} s')

    def wake(self):
        """Say that there may be new input."""
        if not self._woken.is_set():
            self._woken.set()
            self._requests.put(_WAKE)

    def close(self, timeout_s: float = 1.0) -> bool:
        """End the thread, then free whoever waits; False when it is busy beyond `timeout_s`."""
        self.stepping = False
        self._requests.put(_STOP)
        self._thread.join(timeout_s)
        self._closing.set()
        return not self._thread.is_alive()

    def _run(self):
        while (request := self._requests.get()) is not _STOP:
            if request is not _WAKE:
                self._answer(*request)
                continue
            self._woken.clear()
            try:
                self._step()
            except BaseException as error:  # without this thread nothing is planned any more
                self._report('engine', error)

    def _answer(self, function, future: Future):
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function(self.engine))
        except BaseException as error:  # whoever asked gets it
            future.set_exception(error)

    def _step(self):
        if not self.stepping or self.engine is None:
            return
        self._step_began_s = time.monotonic()
        why = ''
        try:
            step_input = self._fetch()
            if step_input is None:
                self._prepare()
                return
            plan = self.engine.step(step_input.frames, step_input.ego, step_input.nav_text,
                                    history=step_input.history)
            self._failures = 0
            if plan is not None:
                self._hand_over(plan, step_input)
        except InputError as error:
            self._report('input', error)
        except BaseException as error:
            why = self._recover(error)
        finally:
            self._step_began_s = None
        if why:
            self._give_up(why)

    def _prepare(self):
        """Prepare frames of the set that is being completed, until there may be a whole one."""
        try:
            while not self._woken.is_set() and (early := self._fetch_early()) is not None:
                self.engine.prepare(*early)
        except BaseException as error:  # the engine is as it was: the step encodes it again
            self._report('engine', error)

    def _hand_over(self, plan: DrivePlan, step_input: StepInput):
        try:
            self._deliver(plan, step_input)
        except Exception as error:
            self._report('output', error)

    def _recover(self, error: BaseException) -> str:
        """
        Have the next step begin a new window, as the engine's state is unknown.

        Returns why the engine is of no use any more; '' while it may be.
        """
        self._report('engine', error)
        text = f'{type(error).__name__}: {error}'
        if lost_device(error):
            return f'the device is lost: {text}'
        traceback.clear_frames(error.__traceback__)  # they hold tensors of the failed step
        try:
            self.engine.reset(text)
            if ran_out_of_memory(error):
                self.engine.free()
                return ''
        except Exception as second:
            self._report('engine', second)
        self._failures += 1
        if self._failures < FAILURES:
            return ''
        return f'{FAILURES} steps in a row have failed, the last with {text}'
