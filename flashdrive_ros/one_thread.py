"""Worker processes that compute on one thread each."""
from __future__ import annotations

import os
from contextlib import contextmanager

THREADS = 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'
"""Read by linear algebra libraries when they are loaded, before a worker could tell them."""


@contextmanager
def single_threaded_children():
    """Let processes that are started meanwhile do linear algebra on one thread each."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, '1'))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
