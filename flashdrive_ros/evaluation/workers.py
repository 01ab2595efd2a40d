"""
Many tasks in worker processes, their rows written to a file the moment they are there.

A run that is cut loses what was being worked on and nothing else: run it again
and only what is missing is done.
"""
from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, get_context
from pathlib import Path

from ..errors import UserError

Task = dict
Row = dict
Work = Callable[[Task, str], Row]
"""(task, torch device) -> row; a function of a module, so that a new process can import it."""


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


def run_tasks(work: Work, tasks: Sequence[Task], file: RowFile, *, workers: int = 1,
              device: str = 'cpu', limit_s: float = 0.0,
              say: Callable[[str], None] = print) -> list[str]:
    """
    Do the tasks in order, each row into `file`; returns what failed, in words.

    `workers` processes with one thread each; 0 works in this process.  Device
    'cuda' is spread over all of them.  After `limit_s` seconds (0: never)
    whatever is not ready is given up.
    """
    if not tasks:
        return []
    began, failures, done = time.monotonic(), [], 0
    until = began + limit_s if limit_s else float('inf')
    rows = (_here(work, tasks, device, until) if workers == 0
            else _in_processes(work, tasks, min(workers, len(tasks)), device, until))
    for task, row, failure in rows:
        done += 1
        if failure:
            failures.append(f'{task}: {failure}')
            say(f'FAILED {task}\n{failure}')
        else:
            file.append(row)
        seconds = time.monotonic() - began
        say(f'{done} of {len(tasks)} in {seconds:.0f} s: {task}')
    if done < len(tasks):
        say(f'stopped after {time.monotonic() - began:.0f} s with {done} of {len(tasks)} done; '
            'run it again to go on')
    return failures


def _here(work, tasks, device, until) -> Iterator[tuple[Task, Row | None, str]]:
    for task in tasks:
        if time.monotonic() > until:
            return
        yield task, work(task, device), ''


def _in_processes(work, tasks, workers, device, until) -> Iterator[tuple[Task, Row | None, str]]:
    waiting = list(reversed(tasks))
    crew = [_Worker(work, d) for d in _devices(device, workers)]
    try:
        for worker in crew:
            worker.begin(waiting.pop())
        while any(worker.task for worker in crew):
            busy = {w.pipe: w for w in crew if w.task}
            ready = connection.wait(list(busy), max(0.0, min(until - time.monotonic(), 3600)))
            if not ready and time.monotonic() >= until:
                return
            for pipe in ready:
                worker = busy[pipe]
                yield worker.finish()
                if waiting and worker.alive:
                    worker.begin(waiting.pop())
    finally:
        for worker in crew:
            worker.end()


def _devices(device: str, workers: int) -> list[str]:
    """One device a worker: plain 'cuda' means all that there are, in turn."""
    if device != 'cuda':
        return [device] * workers
    import torch
    count = torch.cuda.device_count()
    if count == 0:
        raise UserError('device cuda: this machine has none')
    return [f'cuda:{i % count}' for i in range(workers)]


class _Worker:
    """A process with one thread that does a task at a time."""

    def __init__(self, work: Work, device: str):
        context = get_context('spawn')
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, device), daemon=True)
        with _one_thread():
            self.process.start()
        theirs.close()
        self.task: Task | None = None

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def begin(self, task: Task) -> None:
        self.pipe.send(task)
        self.task = task

    def finish(self) -> tuple[Task, Row | None, str]:
        task, self.task = self.task, None
        try:
            return task, *self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            return task, None, f'its process ended with exit code {self.process.exitcode}'

    def end(self) -> None:
        if self.task is None and self.alive:
            self.pipe.send(None)
            self.process.join(5)
        if self.alive:
            self.process.kill()
            self.process.join()


@contextmanager
def _one_thread():
    """Processes that are started meanwhile get numerical libraries with one thread."""
    names = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, '1'))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe, work: Work, device: str) -> None:
    """Main function of a worker."""
    import torch
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    torch.set_num_threads(1)
    while (task := pipe.recv()) is not None:
        try:
            pipe.send((work(task, device), ''))
        except Exception:
            pipe.send((None, traceback.format_exc()))
