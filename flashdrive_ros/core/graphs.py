"""
CUDA graphs of the engine's stages.

A stage is a function of nothing that reads and writes named buffers whose
addresses never change.  What it allocates besides is scratch: all graphs share
one memory pool, so nothing but those buffers outlives a replay.
"""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

log = logging.getLogger(__name__)
Stage = Callable[[], None]


class GraphPool:
    """
    The memory that the graphs of a device share, and the one thread that may use them.

    Off a CUDA device, or not `enabled`, stages are called and nothing is captured.
    """

    def __init__(self, device: torch.device, enabled: bool = True):
        self.device = device
        self.enabled = enabled and device.type == 'cuda'
        self.owner: int | None = None
        if self.enabled:
            self.handle = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream(device)

    def capture(self, stage: Stage, name: str) -> torch.cuda.CUDAGraph:
        """Graph of a `stage` that has run before; nothing of it is executed now."""
        start, before = time.perf_counter(), self.free_gib()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.handle, stream=self.stream,
                              capture_error_mode='thread_local'):
            stage()
        log.info('captured %s in %.2f s; free memory %.2f GiB before, %.2f GiB after', name,
                 time.perf_counter() - start, before, self.free_gib())
        return graph

    def free_gib(self) -> float:
        """Memory of the device that is free, in GiB."""
        return torch.cuda.mem_get_info(self.device)[0] / 2 ** 30

    def check_thread(self) -> None:
        """Raise `RuntimeError` in any thread but the first that asked."""
        self.owner = self.owner or threading.get_ident()
        if self.owner != threading.get_ident():
            raise RuntimeError('the graphs of an engine belong to the thread that ran it first')


class Stages:
    """The stages of one set of buffers, by key; each is captured when it has run once."""

    def __init__(self, pool: GraphPool, name: str):
        self.pool, self.name = pool, name
        self.graphs: dict[tuple, torch.cuda.CUDAGraph] = {}

    def run(self, key: tuple, stage: Stage) -> None:
        """Replay what was captured under `key`; the first time, call `stage` and capture it."""
        pool = self.pool
        if not pool.enabled:
            stage()
            return
        pool.check_thread()
        graph = self.graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        stage()
        self.graphs[key] = pool.capture(stage, f'{self.name} {key}')

    def prepare(self, key: tuple, stage: Stage) -> bool:
        """Capture `stage`, and say so, unless it was; what it writes must not matter now."""
        due = self.pool.enabled and key not in self.graphs
        if due:
            self.run(key, stage)
        return due

    def destroy(self) -> None:
        """Drop all graphs; the next run of a stage captures it again."""
        self.graphs.clear()
