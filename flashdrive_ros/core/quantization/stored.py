"""
From a checkpoint's files to low-bit weights in a model, whatever form they are stored in.

Plain checkpoints are quantised while they are loaded; those of `flashdrive convert` say in
config.json (`quantization_config`) what is quantised; those of ParoQuant show it in their keys.
"""
from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

from .. import checkpoint
from ..config import CheckpointError, read_json
from . import paro, swap
from .linear import QuantLinear
from .matrices import Matrix
from .rotations import StackedMatrix
from .swap import QuantizationConfig

log = logging.getLogger(__name__)
SECTION, METHOD = 'quantization_config', 'flashdrive'


def section(config: QuantizationConfig, **about) -> dict:
    """`quantization_config` of a config.json, with notes on how it came about."""
    bits = {'bits': 8} if config.kind == 'fp8' else {'bits': 4, 'group_size': 128}
    return {'quant_method': METHOD, **asdict(config), 'high': list(config.high), **bits, **about}


def described(directory: Path) -> QuantizationConfig | None:
    """What config.json of a converted checkpoint says; None for others."""
    raw = read_json(directory / 'config.json').get(SECTION)
    if not isinstance(raw, dict) or raw.get('quant_method') != METHOD:
        return None
    try:
        return QuantizationConfig(str(raw['kind']), bool(raw['expert']), tuple(raw['high']))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{directory / 'config.json'}: {SECTION} needs kind, expert and "
                              f'high ({error})') from None


def fill(model: nn.Module, directory: Path, device: torch.device,
         asked: QuantizationConfig | None) -> None:
    """
    Bring the checkpoint's weights into `model` (on no device yet), and that onto `device`.

    `asked` quantises what is stored plain.  Raises `CheckpointError` when it asks for
    another number type than the one stored.
    """
    made = described(directory)
    if made is not None:
        _agree(directory, made, asked)
        activations = asked if asked is not None else made
        for name in list(swap.target_names(model, made)):
            linear = model.get_submodule(name)
            model.set_submodule(name, QuantLinear(swap.empty(
                linear.out_features, linear.in_features, activations.kind, device)))
        model.to_empty(device=device)
        checkpoint.fill(model, directory)
        _seal(model)
    elif paro.is_paro(keys := stored_keys(directory)):
        made = QuantizationConfig('w4a8')
        _agree(directory, made, asked)
        _fill_paro(model, directory, device, keys, (asked or made).kind)
    else:
        _fill_plain(model, directory, device, asked)
    if asked is not None:
        quantize(model, asked)


def quantize(model: nn.Module, config: QuantizationConfig) -> None:
    """Quantise what is still plain, for good: the plain weights are freed."""
    replaced = swap.quantize(model, config)
    if replaced:
        log.info('%d projections quantised: %s', len(replaced), config.kind)


def stored_keys(directory: Path) -> dict[str, Path]:
    """Every key of a checkpoint and the file that holds it."""
    found = {}
    for shard in checkpoint.shards(directory):
        with checkpoint.opened(shard) as file:
            found |= dict.fromkeys(file.keys(), shard)
    return found


def _agree(directory: Path, made: QuantizationConfig, asked: QuantizationConfig | None) -> None:
    """4-bit weights serve both kinds of activations; anything else must be as stored."""
    if asked is not None and made.kind != asked.kind and 'fp8' in (made.kind, asked.kind):
        raise CheckpointError(f'{directory} is quantised as {made.kind!r} already, quantization '
                              f'asks for {asked.kind!r}')


def _seal(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, QuantLinear):
            module.matrix.seal()


def _fill_plain(model: nn.Module, directory: Path, device: torch.device,
                asked: QuantizationConfig | None) -> None:
    """Weights that will be quantised wait in main memory, so that a GPU never holds them plain."""
    names = () if asked is None else tuple(swap.target_names(model, asked))
    waiting = {model.get_submodule(name) for name in names}
    for module in model.modules():
        module.to_empty(device='cpu' if module in waiting else device, recurse=False)
    checkpoint.fill(model, directory)


def _fill_paro(model: nn.Module, directory: Path, device: torch.device, keys: dict[str, Path],
               kind: str) -> None:
    linears: dict[str, dict[str, str]] = {}
    for key in keys:
        if parts := paro.split_key(key):
            linears.setdefault(parts[0], {})[parts[1]] = key
    everything = replace(QuantizationConfig(kind), expert=True, high=())
    with ExitStack() as stack:
        files = {shard: stack.enter_context(checkpoint.opened(shard))
                 for shard in set(keys.values())}
        for name in list(swap.target_names(model, everything)):
            public = dict(_public_parts(model, name))
            found = [linear for linear in public if linear in linears]
            if not found:
                continue
            if len(found) < len(public):
                raise CheckpointError(
                    f'{directory}: {found} are quantised, {sorted(set(public) - set(found))} are '
                    'not: what is one projection here must be all of a kind')
            matrices = [
                _read_paro(directory, linear, shape, {
                    t: files[keys[key]].get_tensor(key).to(device)
                    for t, key in linears.pop(linear).items()}, kind, device)
                for linear, shape in public.items()]
            matrix = matrices[0] if len(matrices) == 1 else StackedMatrix(matrices)
            model.set_submodule(name, QuantLinear(matrix))
    if linears:
        raise CheckpointError(f'{directory}: unexpected quantised linears '
                              f'{sorted(linears)[:6]}, expected projections of the decoders')
    for module in model.modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(tensor.is_meta for tensor in own):
            module.to_empty(device=device, recurse=False)
    checkpoint.fill(model, directory, elsewhere=paro.split_key)
    _seal(model)


def _read_paro(directory, linear, shape, tensors, kind, device) -> Matrix:
    try:
        return paro.read_linear(linear, tensors, shape, swap.activation_dtype(kind, device))
    except CheckpointError as error:
        raise CheckpointError(f'{directory}: {error}') from None


def _public_parts(model: nn.Module, name: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Public linears that our projection `name` is fused of, and their shapes."""
    decoder = model.config.expert if name.startswith('expert.') else model.config.text
    weight = model.get_submodule(name).weight
    for key, view in checkpoint.unfused(checkpoint.public_name(f'{name}.weight'), weight, decoder):
        yield key.removesuffix('.weight'), tuple(view.shape)
