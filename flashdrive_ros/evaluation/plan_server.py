"""One batched engine a checkpoint for the episodes of many processes."""
from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection

from .batched import BatchedEngine, kind
from .planners import PlanRequest


class PlanServer:
    """
    Takes requests from pipes and answers them together, as many as there are.

    While a batch is computed, the next one gathers; nothing waits for a batch
    to be full.
    """

    def __init__(self, device: str, dtype: str = 'auto', most: int = 128):
        self.device, self.dtype, self.most = device, dtype, most
        self.engines: dict[str, BatchedEngine] = {}
        self.waiting: dict[Connection, PlanRequest] = {}
        self.names: dict[Connection, int] = {}

    def take(self, pipe: Connection) -> None:
        """Read what a pipe has: a checkpoint's name, answered at once, or a request."""
        asked = pipe.recv()
        if isinstance(asked, PlanRequest):
            self.waiting[pipe] = asked
        else:
            self._answer([pipe], lambda: [self._engine(asked).frames])

    def forget(self, pipe: Connection) -> None:
        """Nobody is there any more."""
        self.waiting.pop(pipe, None)

    def work(self) -> None:
        """Answer the largest group of requests that can be planned for together."""
        groups: dict[tuple, list[Connection]] = {}
        for pipe, request in self.waiting.items():
            groups.setdefault(kind(request), []).append(pipe)
        pipes = max(groups.values(), key=len)[:self.most]
        requests = [self.waiting.pop(pipe) for pipe in pipes]
        names = [self.names.setdefault(pipe, len(self.names)) for pipe in pipes]
        engine = self._engine(requests[0].model)
        self._answer(pipes, lambda: engine.step(requests, names))

    def _engine(self, model: str) -> BatchedEngine:
        if model not in self.engines:
            self.engines[model] = BatchedEngine(model, self.device, self.dtype)
        return self.engines[model]

    @staticmethod
    def _answer(pipes: list[Connection], make: Callable[[], list]) -> None:
        """Send each pipe its answer, or all of them what went wrong."""
        try:
            answers = make()
        except Exception:
            answers = [traceback.format_exc()] * len(pipes)
        for pipe, answer in zip(pipes, answers):
            try:
                pipe.send(answer)
            except OSError:
                continue  # its process has ended; that is noticed where it was started


def serve(pipes: Sequence[Connection], device: str, dtype: str) -> None:
    """Main function of a process: answer `pipes` until the other end of the last one is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    server, asking = PlanServer(device, dtype), set(pipes)
    while asking:
        for pipe in connection.wait(asking, 0 if server.waiting else None):
            try:
                server.take(pipe)
            except (EOFError, ConnectionError):
                asking.discard(pipe)
                server.forget(pipe)
        if server.waiting:
            server.work()
