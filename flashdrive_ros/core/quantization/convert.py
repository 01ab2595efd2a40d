"""A plain checkpoint -> one with low-bit weights, in a directory of its own."""
from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from .. import checkpoint
from ..config import CheckpointError, EngineConfig, read_json
from ..ego import EgoHistory
from ..engine import Engine
from ..types import FrameSet, InputError
from . import paro, scaling, stored, swap
from .linear import QuantLinear
from .swap import QuantizationConfig

log = logging.getLogger(__name__)
SHARD_BYTES = 4 << 30
CALIBRATION_TOKENS = 24
"""Most reasoning tokens of a calibration window."""


@dataclass(frozen=True)
class CalibrationWindow:
    """Arguments of one step of an engine; `fresh` when it does not follow the one before."""

    frames: FrameSet
    ego: EgoHistory
    nav_text: str = ''
    history: tuple[FrameSet, ...] = ()
    fresh: bool = True


def convert(name: str, out: Path, config: QuantizationConfig,
            windows: Iterable[CalibrationWindow] = (), device: str = 'auto',
            progress: Callable[[str], None] = lambda _: None) -> None:
    """
    Write the checkpoint `name` with low-bit weights to `out`, its drafter beside it.

    With `windows`, channels are scaled for what these show (`scaling.py`); 8-bit
    weights are rounded as they are.  Raises `CheckpointError` when `name` is no plain
    checkpoint or `out` exists.
    """
    source = checkpoint.find(name)
    check(source, out)
    place, dtype = checkpoint.resolve_device(device, 'auto')
    swap.check_device(config.kind, place)
    progress(f'loading {source.name}')
    model, tokenizer = checkpoint.load(str(source), place, dtype)
    about = {}
    if config.kind != 'fp8':
        engine = Engine(model, tokenizer, EngineConfig(
            device=str(place), drafting='off', max_new_tokens=CALIBRATION_TOKENS))
        about = _scale(engine, config, windows, progress)
    names = list(swap.target_names(model, config))
    for number, target in enumerate(names, 1):
        matrix = swap.quantized(model.get_submodule(target).weight, config.kind)
        model.set_submodule(target, QuantLinear(matrix))
        if number % 20 == 0 or number == len(names):
            progress(f'{number} of {len(names)} projections quantised')
    _write(model, source, out, config, about)
    _copy_drafter(source, out)
    size = sum(file.stat().st_size for file in out.glob('*.safetensors'))
    progress(f'{out}: {size / 2 ** 30:.2f} GiB')


def check(source: Path, out: Path) -> None:
    """Refuse what can't be converted, before anything is loaded."""
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise CheckpointError(f'{out} exists already')
    config, _ = checkpoint.read_config(source)
    if config.random_weights_seed is not None:
        raise CheckpointError(f'{source} has no weights of its own, they are drawn: quantize them '
                              'while loading instead')
    if stored.described(source) is not None or paro.is_paro(stored.stored_keys(source)):
        raise CheckpointError(f'{source} is quantised already')


def _scale(engine: Engine, config: QuantizationConfig, windows: Iterable[CalibrationWindow],
           progress: Callable[[str], None]) -> dict:
    """Run the windows, then fold the best scales into the weights; notes for config.json."""
    with scaling.recording(engine.model, config) as recorded:
        count = run_windows(engine, windows, progress)
    if not count:
        log.warning('no calibration windows: weights are rounded without scaling')
        return {'calibration_windows': 0}

    def tell(name: str, found: scaling.Scaled) -> None:
        progress(f'{name}: alpha {found.alpha:.1f}, squared error {found.before:.2e} -> '
                 f'{found.after:.2e}')
    found = scaling.scale(engine.model, config, recorded, tell)
    return {'calibration_windows': count,
            'alpha': {name: scaled.alpha for name, scaled in found.items()}}


def run_windows(engine: Engine, windows: Iterable[CalibrationWindow],
                progress: Callable[[str], None] = lambda _: None) -> int:
    """Step an engine through calibration windows; how many it took."""
    count = 0
    for window in windows:
        if window.fresh:
            engine.reset('another recording')
        try:
            engine.step(window.frames, window.ego, window.nav_text, window.history)
        except InputError as error:
            progress(f'a window is left out: {error}')
            continue
        count += 1
        progress(f'window {count}')
    return count


def _write(model: nn.Module, source: Path, out: Path, config: QuantizationConfig,
           about: dict) -> None:
    """Weights under their public names; the configuration files are the source's."""
    out.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, model.config.weights_dtype)
    for parameter in model.parameters():
        parameter.data = parameter.data.to('cpu', dtype)
    checkpoint.save(model, out, SHARD_BYTES)
    for file in source.iterdir():
        if file.name != 'vlm' and (file.suffix in ('.safetensors', '.md') or file.is_dir()
                                   or file.name.endswith('.safetensors.index.json')):
            continue
        (shutil.copytree if file.is_dir() else shutil.copyfile)(file, out / file.name)
    raw = read_json(out / 'config.json') | {stored.SECTION: stored.section(config, **about)}
    if isinstance(raw.get('flashdrive'), dict):
        raw['flashdrive']['name'] = out.name
    (out / 'config.json').write_text(json.dumps(raw, indent=1) + '\n')


def _copy_drafter(source: Path, out: Path) -> None:
    """The drafter reads the same layers of the quantised model."""
    drafter = source.with_name(source.name + checkpoint.DRAFTER_SUFFIX)
    if drafter.is_dir():
        shutil.copytree(drafter, out.with_name(out.name + checkpoint.DRAFTER_SUFFIX),
                        dirs_exist_ok=True)
