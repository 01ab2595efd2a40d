"""
How long a new process takes from its start to its first plan, the checkpoint in the page cache.

A model with random weights is written out as a checkpoint first, so that loading is what it
would be with a real one.
"""
from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ..core import checkpoint, drafter
from ..evaluation.record import SOURCES
from .measure import Driver, Load, warm_up
from .rows import ROWS

SHARD_BYTES = 4 << 30
TIMEOUT_S = 300


def time_first_plan(load: Load, row: str) -> dict[str, float]:
    """Seconds of each part of the start, and 'first_plan_s' from the start of the process."""
    with tempfile.TemporaryDirectory() as folder:
        model = _written(load, Path(folder))
        given = asdict(replace(load, model=str(model))) | {'device': str(load.device)}
        began = time.time()
        done = subprocess.run(
            [sys.executable, '-m', __name__, row, json.dumps(given)], cwd=SOURCES,
            capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f'the new process failed:\n{done.stderr[-2000:]}')
    times = json.loads(done.stdout.splitlines()[-1])
    return {'imports_s': times['imported'] - began, 'load_s': times['loaded'] - times['imported'],
            'warm_up_s': times['warm'] - times['loaded'],
            'step_s': times['planned'] - times['warm'], 'first_plan_s': times['planned'] - began}


def _written(load: Load, folder: Path) -> Path:
    """Directory of the model's checkpoint: its own, or one in `folder` if it is drawn."""
    source = checkpoint.find(load.model)
    target = folder / source.name
    if checkpoint.read_config(source)[0].random_weights_seed is None:
        return source
    model, _ = checkpoint.load(load.model, load.device, _bfloat16(load.device))
    companion = drafter.load_companion(load.model, model, 'auto')
    shutil.copytree(source, target)
    raw = json.loads((target / 'config.json').read_text(encoding='utf-8'))
    del raw['flashdrive']['random_weights_seed']
    (target / 'config.json').write_text(json.dumps(raw), encoding='utf-8')
    checkpoint.save(model, target, SHARD_BYTES)
    if companion is not None:
        drafter.save(companion, target.with_name(target.name + checkpoint.DRAFTER_SUFFIX))
    return target


def _bfloat16(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == 'cuda' else torch.float32


def main() -> None:
    """Load, warm up and plan once; print when each was done, in seconds since 1970."""
    times = {'imported': time.time()}
    row, given = sys.argv[1], json.loads(sys.argv[2])
    load = Load(**{**given, 'device': torch.device(given['device']),
                   'cameras': tuple(given['cameras']), 'size': tuple(given['size'])})
    engine = load.engine(ROWS[row])
    times['loaded'] = time.time()
    warm_up(engine, load)
    times['warm'] = time.time()
    Driver(engine, load, ROWS[row].streams).step()
    times['planned'] = time.time()
    print(json.dumps(times))


if __name__ == '__main__':
    main()
