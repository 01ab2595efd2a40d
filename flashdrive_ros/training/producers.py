"""
Processes that drive and draw clips while the trainer trains.

Every worker owns a few slots of one shared file and fills them in turn; two
semaphores per worker say which are full and which are free.  Worker w makes the
episodes w, w + W, …, so with the same number W of workers the clips and their
order are the same in every run.
"""
from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..one_thread import single_threaded_children
from .samples import ClipMaker, Field, SlotLayout

SLOTS = 3


def shared_folder(nbytes: int) -> str:
    """Return a folder in memory with room for that many bytes, or else the temporary folder."""
    memory = Path('/dev/shm')
    if memory.is_dir() and shutil.disk_usage(memory).free > 1.25 * nbytes:
        return str(memory)
    return tempfile.gettempdir()


class Turn:
    """The clips of one worker of several, made one after the other."""

    def __init__(self, maker: Callable[[], ClipMaker], per_episode: int, worker: int = 0,
                 workers: int = 1, first_clip: int = 0):
        self.make, self.per_episode = maker(), per_episode
        self.worker, self.workers = worker, workers
        self.made = made_before(first_clip, worker, workers)
        self._clips = iter(())

    def next(self) -> dict[str, np.ndarray]:
        """Make the next clip."""
        clip = next(self._clips, None)
        if clip is None:
            index = self.made // self.per_episode * self.workers + self.worker
            self._clips = self.make.clips(index, self.made % self.per_episode)
            clip = next(self._clips)
        self.made += 1
        return clip


def made_before(clip: int, worker: int, workers: int) -> int:
    """How many of the first `clip` clips come from `worker`."""
    return max(0, -(-(clip - worker) // workers))


class Producers:
    """
    Clips made by `workers` processes, taken in a fixed order.

    `maker` builds a `ClipMaker` in each of them (it must be picklable);
    `first_clip` skips what an earlier run has taken already; `limit` clips in all.
    """

    def __init__(self, maker: Callable[[], ClipMaker], fields: dict[str, Field], workers: int,
                 per_episode: int, first_clip: int = 0, limit: int | None = None):
        self.layout, self.workers = SlotLayout(fields), workers
        self.taken, self.limit = first_clip, limit
        total = self.layout.nbytes * SLOTS * workers
        handle, self.path = tempfile.mkstemp(prefix='flashdrive-clips-',
                                             dir=shared_folder(total))
        os.close(handle)
        os.truncate(self.path, total)
        self.slots = np.memmap(self.path, np.uint8, 'r+').reshape(workers, SLOTS, -1)
        context = multiprocessing.get_context('spawn')
        self.free = [context.Semaphore(SLOTS) for _ in range(workers)]
        self.full = [context.Semaphore(0) for _ in range(workers)]
        self.next, self.lent = [0] * workers, None
        self.failures = context.SimpleQueue()
        self.processes = [context.Process(
            target=_work, daemon=True, name=f'clips-{w}',
            args=(maker, fields, self.path, w, workers, per_episode, first_clip, limit,
                  self.free[w], self.full[w], self.failures)) for w in range(workers)]
        with single_threaded_children():
            for process in self.processes:
                process.start()

    def take(self, wait: bool = True) -> dict[str, np.ndarray] | None:
        """
        Take the next clip; None when it is not made yet and `wait` is off, or at the limit.

        Without `wait` the clip of any worker that has one is taken, the next in turn first.
        The arrays lie in shared memory and are valid until the next call.
        """
        self._give_back()
        if self.limit is not None and self.taken >= self.limit:
            return None
        turn = self.taken % self.workers
        workers = [turn] if wait else [(turn + k) % self.workers for k in range(self.workers)]
        for w in workers:
            if self._acquire(w, wait):
                self.taken += 1
                self.lent = w
                return self.layout.views(self.slots[w, self.next[w] % SLOTS])
        return None

    def _give_back(self) -> None:
        """Free the slot of the clip that was taken last."""
        if self.lent is not None:
            self.next[self.lent] += 1
            self.free[self.lent].release()
            self.lent = None

    def _acquire(self, w: int, wait: bool) -> bool:
        while not self.full[w].acquire(block=wait, timeout=1.0 if wait else None):
            if not self.failures.empty():
                raise RuntimeError('a clip worker failed:\n' + self.failures.get())
            if not wait:
                return False
            if not self.processes[w].is_alive():
                raise RuntimeError(f'clip worker {w} ended, exit code '
                                   f'{self.processes[w].exitcode}')
        return True

    def close(self) -> None:
        """End the workers and give back their memory."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(5)
        del self.slots
        Path(self.path).unlink(missing_ok=True)

    def __enter__(self) -> Producers:
        """Use as a context: closed at its end."""
        return self

    def __exit__(self, *_) -> None:
        """Close."""
        self.close()


def _work(maker, fields, path, worker, workers, per_episode, first_clip, limit, free, full,
          failures) -> None:
    """Make the clips of one worker until the limit, or for ever."""
    import cv2
    import torch
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer saves, then ends its workers
    parent = os.getppid()
    try:
        turn = Turn(maker, per_episode, worker, workers, first_clip)
        layout, first = SlotLayout(fields), turn.made
        slots = np.memmap(path, np.uint8, 'r+').reshape(workers, SLOTS, -1)[worker]
        while limit is None or turn.made * workers + worker < limit:
            slot = slots[(turn.made - first) % SLOTS]
            clip = turn.next()
            while not free.acquire(timeout=2.0):
                if os.getppid() != parent:
                    return
            for name, view in layout.views(slot).items():
                view[...] = clip[name]
            full.release()
    except Exception:
        failures.put(f'worker {worker}:\n{traceback.format_exc()}')
        raise


class InProcess:
    """The clips of one worker without a process for it."""

    def __init__(self, maker: Callable[[], ClipMaker], per_episode: int, first_clip: int = 0,
                 limit: int | None = None):
        self.turn = Turn(maker, per_episode, first_clip=first_clip)
        self.limit = limit

    @property
    def taken(self) -> int:
        """Clips taken so far."""
        return self.turn.made

    def take(self, wait: bool = True) -> dict[str, np.ndarray] | None:
        """Make the next clip; None at the limit."""
        if self.limit is not None and self.taken >= self.limit:
            return None
        return self.turn.next()

    def close(self) -> None:
        """Nothing to end."""


class RayProducers:
    """
    The same on the machines of a Ray cluster, two clips in flight per worker.

    Needs `ray`, which is not installed with this package.
    """

    def __init__(self, maker: Callable[[], ClipMaker], workers: int, per_episode: int,
                 first_clip: int = 0, limit: int | None = None):
        try:
            import ray
        except ModuleNotFoundError:
            raise RuntimeError('clips from a Ray cluster need ray: pip install ray') from None
        self.ray = ray
        if not ray.is_initialized():
            ray.init()  # the cluster of RAY_ADDRESS, or this machine
        self.taken, self.limit, self.workers = first_clip, limit, workers
        remote = ray.remote(num_cpus=1)(Turn)
        self.actors = [remote.remote(maker, per_episode, w, workers, first_clip)
                       for w in range(workers)]
        self.pending = [[a.next.remote() for _ in range(2)] for a in self.actors]

    def take(self, wait: bool = True) -> dict[str, np.ndarray] | None:
        """Take the next clip; None when it is not made yet and `wait` is off, or at the limit."""
        if self.limit is not None and self.taken >= self.limit:
            return None
        turn = self.taken % self.workers
        ready, _ = self.ray.wait(self.pending[turn][:1], timeout=None if wait else 0)
        if not ready:
            return None
        clip = self.ray.get(self.pending[turn].pop(0))
        self.pending[turn].append(self.actors[turn].next.remote())
        self.taken += 1
        return clip

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            self.ray.kill(actor)


def measure(producers: Producers, seconds: float) -> tuple[int, float]:
    """Clips taken in `seconds` after the first one of every worker, and that time."""
    for _ in range(producers.workers):
        producers.take()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        count += producers.take(wait=False) is not None
        time.sleep(0.002)
    return count, time.perf_counter() - began
