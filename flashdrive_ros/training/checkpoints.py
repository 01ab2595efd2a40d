"""
What a run leaves behind: a checkpoint that the engine loads, and the state to go on from.

The checkpoint holds the averaged weights in bfloat16 under the public names, with
the fitted action normalisation in its `config.json`.  The state is everything else.
"""
from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..core import checkpoint
from ..core.config import ActionConfig, CheckpointError
from ..core.drafter import Drafter
from ..core.drafter import save as save_drafter
from ..core.model import Alpamayo
from ..core.tokenizer import Tokenizer
from .initialise import initialise

FITTED = ('accel_mean', 'accel_std', 'curvature_mean', 'curvature_std')


def load_model(name: str, device: torch.device, seed: int,
               fresh: bool = False) -> tuple[Alpamayo, Tokenizer, bool]:
    """
    Model in float32 to train from the checkpoint `name`, its tokenizer, whether it has weights.

    Without weights (or with those of `random_weights_seed`), and when it shall
    be `fresh`, it is initialised.
    """
    directory = checkpoint.find(name)
    config, tokenizer_file = checkpoint.read_config(directory)
    tokenizer = Tokenizer.from_file(tokenizer_file, config)
    model = Alpamayo(config).to(device)
    has_weights = config.random_weights_seed is None and any(directory.glob('*.safetensors'))
    has_weights = has_weights and not fresh
    if has_weights:
        checkpoint.fill(model, directory)
    else:
        initialise(model, tokenizer, seed)
    return model, tokenizer, has_weights


def set_action(model: Alpamayo, action: ActionConfig) -> None:
    """Give the model another action normalisation."""
    model.config = replace(model.config, action=action)


def export(model: Alpamayo, weights: Mapping[str, Tensor], source: str, out: Path,
           training: dict, shard_mib: float) -> Path:
    """Write the checkpoint directory `out` with `weights` (by parameter name); returns it."""
    directory = checkpoint.find(source)
    with whole(out) as fresh:
        _export(model, weights, directory, fresh, training, shard_mib)
    return out


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Give a folder to write to that becomes `out` when it is complete."""
    fresh = out.with_name(out.name + '.new')
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    yield fresh
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)


def _export(model: Alpamayo, weights: Mapping[str, Tensor], directory: Path, fresh: Path,
            training: dict, shard_mib: float) -> None:
    raw = json.loads((directory / 'config.json').read_text(encoding='utf-8'))
    vlm = str(raw.get('vlm_name_or_path', 'vlm'))
    for name in ('tokenizer.json', f'{vlm}/config.json', f'{vlm}/tokenizer.json'):
        if (directory / name).is_file():
            (fresh / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(directory / name, fresh / name)
    action = model.config.action
    raw['action_space_cfg'] = {**raw.get('action_space_cfg', {}),
                               **{key: getattr(action, key) for key in FITTED}}
    own = dict(raw.get('flashdrive', {}), trained=True, training=training)
    own.pop('random_weights_seed', None)
    raw['flashdrive'] = own
    (fresh / 'config.json').write_text(json.dumps(raw, indent=1) + '\n', encoding='utf-8')
    averaged = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in averaged.named_parameters():
            parameter.copy_(weights[name])
    checkpoint.save(averaged.to(torch.bfloat16), fresh, int(shard_mib * 2 ** 20))


def export_drafter(drafter: Drafter, weights: Mapping[str, Tensor], out: Path,
                   training: dict) -> None:
    """Write the `-DFlash` directory `out` with `weights` (by parameter name) in bfloat16."""
    averaged = copy.deepcopy(drafter)
    averaged.load_state_dict(weights)
    with whole(out) as fresh:
        save_drafter(averaged.to(torch.bfloat16), fresh, flashdrive={'training': training})


def save_state(path: Path, state: dict) -> None:
    """Write the state of a run; the old one stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix('.new')
    torch.save(state, fresh)
    os.replace(fresh, path)


def load_state(path: Path, device: torch.device) -> dict:
    """Read the state of a run; raises `CheckpointError` naming the file."""
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f'{path} does not exist: there is nothing to resume') from None


class AveragedWeights:
    """Exponential moving average of parameters; its past weighs less while it is young."""

    def __init__(self, model: torch.nn.Module, decay: float):
        self.decay, self.count = decay, 0
        self.names = [name for name, _ in model.named_parameters()]
        self.live = [p.detach() for _, p in model.named_parameters()]
        self.weights = [p.clone() for p in self.live]

    def update(self) -> None:
        """Take the parameters of now into the average."""
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        torch._foreach_lerp_(self.weights, self.live, 1 - decay)

    def by_name(self) -> dict[str, Tensor]:
        """Averaged weights."""
        return dict(zip(self.names, self.weights))

    def swap(self) -> None:
        """Exchange the averages with the model's parameters; the second call undoes it."""
        for mine, live in zip(self.weights, self.live):
            kept = live.clone()
            live.copy_(mine)
            mine.copy_(kept)

    def state(self) -> dict:
        """What `restore` needs."""
        return {'count': self.count, 'weights': self.weights}

    def restore(self, state: dict) -> None:
        """Go on from a saved average."""
        self.count = state['count']
        for mine, saved in zip(self.weights, state['weights']):
            mine.copy_(saved)
