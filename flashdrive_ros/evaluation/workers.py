"""
Many tasks in worker processes, their rows written to a file the moment they are there.

A run that is cut loses what was being worked on and nothing else: run it again
and only what is missing is done.
"""
from __future__ import annotations

import json
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path

from ..errors import UserError
from ..one_thread import single_threaded_children
from .planners import Planners, RemotePlanners

Task = dict
Row = dict
Work = Callable[[Task, Callable], Iterable[Row]]
"""(task, planners by checkpoint) -> rows; a function that other processes can import."""
SAY_S = 5.0
"""Progress is told no more often than this."""


@dataclass(frozen=True)
class Crew:
    """
    Who does the work.

    `processes` of one core each; 0: this one.  With `lanes` 0 each has an
    engine of its own on `device` ('cuda' is spread over all there are).  Else
    each works on that many tasks at once, and `servers` more processes plan
    for all of them, many windows in a batch.
    """

    processes: int = 1
    device: str = 'cpu'
    dtype: str = 'auto'
    lanes: int = 0
    servers: int = 1
    limit_s: float = 0.0


class RowFile:
    """
    JSON lines: first what the rows are measured with, then a row each.

    Rows of other settings are never mixed: opening such a file raises `UserError`.
    """

    def __init__(self, path: Path | str, settings: dict):
        self.path, self.settings = Path(path), json.loads(json.dumps(settings))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = self._read()

    def _read(self) -> list[Row]:
        if not self.path.exists():
            self.path.write_text(json.dumps({'settings': self.settings}) + '\n', encoding='utf-8')
            return []
        lines = self.path.read_text(encoding='utf-8').splitlines(keepends=True)
        whole = [line for line in lines if line.endswith('\n')]
        if len(whole) < len(lines):  # the last one was cut while it was written
            self.path.write_text(''.join(whole), encoding='utf-8')
        try:
            head, *rows = map(json.loads, whole)
            found = head['settings']
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f'{self.path} holds no rows of an evaluation: {error}') from None
        if found != self.settings:
            different = sorted(k for k in {*found, *self.settings}
                               if found.get(k) != self.settings.get(k))
            raise UserError(
                f'{self.path} holds rows of another setting ({", ".join(different)}); give '
                'another folder, or --fresh to begin anew')
        return rows

    def append(self, row: Row) -> None:
        """Add a row and see that it is in the file."""
        self.rows.append(row)
        with self.path.open('a', encoding='utf-8') as file:
            file.write(json.dumps(row) + '\n')
            file.flush()


def run_tasks(work: Work, tasks: Sequence[Task], file: RowFile, crew: Crew,
              say: Callable[[str], None] = print) -> list[str]:
    """
    Do the tasks in order, every row into `file`; returns what failed, in words.

    After `crew.limit_s` seconds (0: never) whatever is not ready is given up.
    """
    failures, done, began, told = [], 0, time.monotonic(), 0.0
    until = began + crew.limit_s if crew.limit_s else float('inf')
    events = (_here if crew.processes == 0 else _in_processes)(work, tasks, crew, until)
    for task, row, failure in events:
        if row is not None:
            file.append(row)
            continue
        done += 1
        if failure:
            failures.append(f'{label(task)}: {failure}')
            say(f'FAILED {failures[-1]}')
        seconds = time.monotonic() - began
        if seconds - told > SAY_S or done == len(tasks):
            told = seconds
            say(f'{done} of {len(tasks)} in {seconds:.0f} s: {label(task)}')
    if done < len(tasks):
        say(f'stopped after {time.monotonic() - began:.0f} s with {done} of {len(tasks)} done; '
            'run it again to go on')
    return failures


def label(task: Task) -> str:
    """Return the task in words, without its settings."""
    return ' '.join(f'{name} {value}' for name, value in task.items() if name != 'config')


Event = tuple[Task, Row | None, str]
"""A row of a task; at its end None, with what went wrong if anything did."""


def _here(work, tasks, crew: Crew, until: float) -> Iterator[Event]:
    planners = Planners(crew.device, crew.dtype)
    for task in tasks:
        if time.monotonic() > until:
            return
        for row in work(task, planners):
            yield task, row, ''
        yield task, None, ''


def _in_processes(work, tasks, crew: Crew, until: float) -> Iterator[Event]:
    waiting = list(reversed(tasks))
    count = min(crew.processes, len(tasks))
    own = 'none' if crew.lanes else crew.device
    processes = [_Process(work, crew.dtype, device, crew.lanes)
                 for device in _devices(own, count)]
    lanes = {lane.pipe: lane for process in processes for lane in process.lanes}
    servers = _servers(crew, [lane for lane in lanes.values() if lane.plans])
    try:
        # one task a process before the second of any
        for lane in sorted(lanes.values(), key=lambda lane: lane.number):
            if waiting:
                lane.begin(waiting.pop())
        while any(lane.task for lane in lanes.values()):
            ready = connection.wait(lanes, max(0.0, min(until - time.monotonic(), 3600.0)))
            if time.monotonic() >= until:
                return
            for pipe in ready:
                lane = lanes[pipe]
                event = lane.read()
                if event is None:
                    del lanes[pipe]
                    continue
                yield event
                if lane.task is None and waiting and lane.alive:
                    lane.begin(waiting.pop())
    finally:
        for process in processes:
            process.end()
        for server in servers:
            server.kill()
            server.join()


def _servers(crew: Crew, lanes: Sequence[_Lane]) -> list:
    """Start the processes that plan for `lanes`, each for every n-th of them."""
    from .plan_server import serve
    count = min(max(crew.servers, 1), len(lanes))
    processes: list = []
    for i, device in enumerate(_devices(crew.device, count)):
        pipes = [lane.plans for lane in lanes[i::count]]
        processes.append(get_context('spawn').Process(
            target=serve, args=(pipes, device, crew.dtype), daemon=True))
        with single_threaded_children():
            processes[-1].start()
    for lane in lanes:
        lane.plans.close()
    return processes


def _devices(device: str, count: int) -> list[str]:
    """One device a process: plain 'cuda' means all that there are, in turn."""
    if device != 'cuda':
        return [device] * count
    if count == 0:
        return []
    import torch
    found = torch.cuda.device_count()
    if found == 0:
        raise UserError('device cuda: this machine has none')
    return [f'cuda:{i % found}' for i in range(count)]


class _Lane:
    """A thread of a process that does a task at a time."""

    def __init__(self, process: _Process, number: int, context, asks: bool):
        self.owner, self.number, self.task = process, number, None
        self.pipe, self.theirs = context.Pipe()
        self.plans, self.their_plans = context.Pipe() if asks else (None, None)

    @property
    def alive(self) -> bool:
        return self.owner.process.is_alive()

    def begin(self, task: Task) -> None:
        self.pipe.send(task)
        self.task = task

    def read(self) -> Event | None:
        """Return the next event; None when there are no more to come."""
        task = self.task
        try:
            row, failure = self.pipe.recv()
        except (EOFError, ConnectionError):
            if task is None:
                return None
            self.owner.process.join(5)
            self.task = None
            return task, None, f'its process ended, exit code {self.owner.process.exitcode}'
        if row is None:
            self.task = None
        return task, row, failure


class _Process:
    """A worker process with its lanes."""

    def __init__(self, work: Work, dtype: str, device: str, lanes: int):
        context = get_context('spawn')
        self.lanes = [_Lane(self, i, context, lanes > 0) for i in range(max(lanes, 1))]
        ends = [(lane.theirs, lane.their_plans) for lane in self.lanes]
        self.process = context.Process(target=_serve, args=(ends, work, device, dtype),
                                       daemon=True)
        with single_threaded_children():
            self.process.start()
        for pipes in ends:
            for pipe in filter(None, pipes):
                pipe.close()

    def end(self) -> None:
        """End the process, at once if it is at work."""
        if self.process.is_alive() and not any(lane.task for lane in self.lanes):
            for lane in self.lanes:
                lane.pipe.close()
            self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(ends, work: Work, device: str, dtype: str) -> None:
    """
    Main function of a worker process.

    Its lanes take turns: one computes while the others wait for plans.  Threads
    that compute at once would spend their time on Python's lock.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    turn = threading.Lock()

    @contextmanager
    def waiting():
        turn.release()
        try:
            yield
        finally:
            turn.acquire()
    threads = [threading.Thread(target=_do_tasks, args=(
        pipe, work, RemotePlanners(plans, waiting) if plans else Planners(device, dtype), turn))
        for pipe, plans in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _do_tasks(pipe, work: Work, planners, turn: threading.Lock) -> None:
    """Do task after task until the pipe is closed."""
    try:
        while True:
            task = pipe.recv()
            try:
                with turn:
                    for row in work(task, planners):
                        pipe.send((row, ''))
                pipe.send((None, ''))
            except (EOFError, ConnectionError):
                raise
            except Exception:
                pipe.send((None, traceback.format_exc()))
    except (EOFError, ConnectionError):
        return
