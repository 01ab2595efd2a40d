"""
The one thread that owns the engine, and with it the device, for life.

CUDA graphs and caches belong to the thread that made them, so loading, warming
up, stepping, resetting and asking all happen here.  Between requests the
thread fetches its next input when woken; there is no queue of inputs, so it
always takes the newest.  No exception ends the thread.
"""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError

from ..core.types import CameraFrame, DrivePlan, InputError
from .inputs import StepInput

_WAKE = object()
_STOP = object()


class EngineWorker:
    """
    Runs an engine in its own thread.

    `fetch()` gives the next `StepInput` or None; `deliver(plan, step_input)`
    gets each plan; `report(kind, error)` gets every problem: kind 'input' for
    refused input, 'engine' for a failed step, 'output' for a failed delivery.
    `fetch_early()` gives a camera and its frame while others of their set are still
    missing, or None: the engine prepares it when there is nothing to step.
    """

    def __init__(self, fetch: Callable[[], StepInput | None],
                 deliver: Callable[[DrivePlan, StepInput], None],
                 report: Callable[[str, Exception], None],
                 fetch_early: Callable[[], tuple[int, CameraFrame] | None] = lambda: None):
        self.engine = None
        self.stepping = False
        self._fetch, self._deliver, self._report = fetch, deliver, report
        self._fetch_early = fetch_early
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._woken = threading.Event()
        self._closing = threading.Event()
        # daemon: a load that hangs must not keep the process from ending
        self._thread = threading.Thread(target=self._run, name='engine', daemon=True)
        self._thread.start()

    def load(self, make_engine: Callable[[], object]):
        """Make an engine, which must come back warm, in place of the one there is."""
        def load(_):
            self.engine = None
            self.engine = make_engine()
            return self.engine
        return self._wait(self.tell(load), float('inf'))

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
            if request is _WAKE:
                self._woken.clear()
                self._step()
            else:
                self._answer(*request)

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
        try:
            step_input = self._fetch()
            if step_input is None:
                self._prepare()
                return
            plan = self.engine.step(step_input.frames, step_input.ego, step_input.nav_text,
                                    history=step_input.history)
        except InputError as error:
            self._report('input', error)
        except Exception as error:
            self._recover(error)
        else:
            if plan is not None:
                self._hand_over(plan, step_input)

    def _prepare(self):
        """Prepare frames of the set that is being completed, until there may be a whole one."""
        try:
            while not self._woken.is_set() and (early := self._fetch_early()) is not None:
                self.engine.prepare(*early)
        except Exception as error:  # the engine is as it was: the step encodes it again
            self._report('engine', error)

    def _hand_over(self, plan: DrivePlan, step_input: StepInput):
        try:
            self._deliver(plan, step_input)
        except Exception as error:
            self._report('output', error)

    def _recover(self, error: Exception):
        """The engine's state is unknown after an exception: start a new window."""
        self._report('engine', error)
        try:
            self.engine.reset(f'{type(error).__name__}: {error}')
        except Exception as second:
            self._report('engine', second)
