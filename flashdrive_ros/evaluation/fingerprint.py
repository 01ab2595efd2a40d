"""Which checkpoint was measured: a digest of its files."""
from __future__ import annotations

import hashlib

from ..core import checkpoint


def fingerprint(name: str) -> str:
    """Short digest of a checkpoint's files: figures of other weights are not to be mixed up."""
    directory, digest = checkpoint.find(name), hashlib.sha256()
    for path in sorted(p for p in directory.rglob('*') if p.is_file()):
        digest.update(path.relative_to(directory).as_posix().encode())
        with path.open('rb') as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]
