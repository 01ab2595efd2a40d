"""Engines of the checkpoints that are measured, loaded once a process."""
from __future__ import annotations

import hashlib
from functools import lru_cache

from ..core import checkpoint
from ..core.config import EngineConfig
from ..core.engine import Engine


@lru_cache(maxsize=4)
def engine_of(name: str, device: str, dtype: str) -> Engine:
    """Return the engine of a checkpoint; the last few stay loaded."""
    return Engine.from_checkpoint(name, EngineConfig(device=device, dtype=dtype))


def fingerprint(name: str) -> str:
    """Short digest of a checkpoint's files: figures of other weights are not to be mixed up."""
    directory, digest = checkpoint.find(name), hashlib.sha256()
    for path in sorted(p for p in directory.rglob('*') if p.is_file()):
        digest.update(path.relative_to(directory).as_posix().encode())
        with path.open('rb') as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]
