"""
The one thread that owns the engine, and with it the device, for life.

CUDA graphs and caches belong to the thread that made them, so loading, warming
up, stepping, resetting and asking all happen here.  Callers get a `Future`.
Between requests the thread fetches its next input when woken; there is no
queue of inputs, so it always takes the newest.  No exception ends the thread.
"""
from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from ..core.types import DrivePlan, InputError
from .inputs import StepInput

_WAKE = object()
_STOP = object()


class EngineWorker:
    """
    Runs an engine in its own thread.

    `fetch()` gives the next `StepInput` or None; `deliver(plan, step_input)`
    gets each plan; `report(kind, error)` gets every problem, kind 'input' for
    refused input and 'engine' for anything else.
    """

    def __init__(self, fetch: Callable[[], StepInput | None],
                 deliver: Callable[[DrivePlan, StepInput], None],
                 report: Callable[[str, Exception], None]):
        self.engine = None
        self.stepping = False
        self._fetch, self._deliver, self._report = fetch, deliver, report
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._woken = threading.Event()
        # daemon: a load that hangs must not keep the process from ending
        self._thread = threading.Thread(target=self._run, name='engine', daemon=True)
        self._thread.start()

    def load(self, make_engine: Callable[[], object]) -> Future:
        """Make an engine and warm it up; the future gives the engine or its exception."""
        def load(_):
            self.engine = None
            engine = make_engine()
            engine.warm_up()
            self.engine = engine
            return engine
        return self.call(load)

    def unload(self) -> Future:
        """Drop the engine."""
        def unload(_):
            self.engine = None
        return self.call(unload)

    def call(self, function: Callable) -> Future:
        """Run `function(engine)` between two steps; the engine is None before `load`."""
        future: Future = Future()
        self._requests.put((function, future))
        return future

    def wake(self):
        """Say that there may be new input."""
        if not self._woken.is_set():
            self._woken.set()
            self._requests.put(_WAKE)

    def close(self, timeout_s: float = 1.0) -> bool:
        """End the thread; False when it is still busy after `timeout_s`."""
        self.stepping = False
        self._requests.put(_STOP)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self):
        while (request := self._requests.get()) is not _STOP:
            if request is _WAKE:
                self._woken.clear()
                self._guarded_step()
            else:
                self._answer(*request)

    def _answer(self, function, future: Future):
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function(self.engine))
        except Exception as error:  # the caller gets it
            future.set_exception(error)

    def _guarded_step(self):
        if not self.stepping or self.engine is None:
            return
        try:
            step_input = self._fetch()
            if step_input is None:
                return
            plan = self.engine.step(step_input.frames, step_input.ego, step_input.nav_text,
                                    history=step_input.history)
            if plan is not None:
                self._deliver(plan, step_input)
        except InputError as error:
            self._report('input', error)
        except Exception as error:
            self._recover(error)

    def _recover(self, error: Exception):
        """The engine's state is unknown after an exception: start a new window."""
        self._report('engine', error)
        try:
            self.engine.reset(f'{type(error).__name__}: {error}')
        except Exception as second:
            self._report('engine', second)
