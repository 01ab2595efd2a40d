"""
Memory of a model on a GPU, by setting: told before anything is loaded.

Weights and cache are counted; what a step works with is an estimate of its largest
temporaries, and of what CUDA and the captured graphs take for themselves.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .. import checkpoint
from ..config import CheckpointError, EngineConfig, ModelConfig
from ..model import Alpamayo
from . import paro, stored, swap
from .int4 import GROUP, padded
from .swap import QuantizationConfig

GIB = 2 ** 30
CAMERAS = 4
CUDA_BYTES = 1.2 * GIB
"""Of the CUDA context, of the libraries' workspaces and of graphs' pools."""
IMAGE_TEXT_SLOTS = 10
"""Slots around the tokens of an image, its label included."""
TEXT_SLOTS = 256
"""Slots of a prompt's text, with room for a navigation instruction."""
SETTINGS = (('none', False), ('fp8', False), ('w4a8', False), ('w4a16', False),
            ('fp8', True), ('w4a8', True), ('w4a16', True))
CARDS_GIB = (24, 32, 48, 96)


@dataclass(frozen=True)
class Footprint:
    """Bytes of weights, of keys and values, and of what a step works with."""

    weights: float
    cache: float
    work: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.cache + self.work

    def __str__(self) -> str:
        return (f'{self.total / GIB:.1f} GiB (weights {self.weights / GIB:.1f}, cache '
                f'{self.cache / GIB:.1f}, work {self.work / GIB:.1f})')


def memory_needed(model: ModelConfig, config: EngineConfig, dtype: torch.dtype = torch.bfloat16,
                  made: QuantizationConfig | None = None, drafter: bool = False) -> Footprint:
    """
    What a model needs with these settings, with `CAMERAS` cameras.

    `made`: what is quantised in the checkpoint already; `drafter`: a drafter of two
    layers comes with it.
    """
    with torch.device('meta'):
        network = Alpamayo(model)
    size = dtype.itemsize
    low: dict[str, QuantizationConfig] = {}
    for quantization in (made, swap.asked_for(config)):
        if quantization is not None:
            low = {**dict.fromkeys(swap.target_names(network, quantization), quantization), **low}
    weights, scratch = 0.0, 0
    for name, parameter in network.named_parameters():
        quantization = low.get(name.removesuffix('.weight'))
        if quantization is None:
            weights += parameter.numel() * size
        else:
            weights += low_bit_bytes(*parameter.shape, quantization.kind)
            if quantization.kind != 'fp8':
                byte = 1 if quantization.kind == 'w4a8' else 2
                scratch = max(scratch, parameter.numel() * byte)
    if drafter:
        weights += _drafter_parameters(model) * size
    streams = 2 if config.nav_guidance_weight != 1 else 1
    return Footprint(weights, streams * _cache_bytes(model, config, size),
                     CUDA_BYTES + scratch + 1.25 * _step_values(model, config) * size)


def low_bit_bytes(n: int, k: int, kind: str) -> int:
    """Bytes of low-bit weights [n, k] with their scales, as a GPU keeps them."""
    if kind == 'fp8':
        return n * k + 4 * n
    return n * padded(k) // 2 + n * padded(k) // GROUP * 4 + 4 * n


def prompt_slots(model: ModelConfig) -> int:
    """Slots of a prompt with `CAMERAS` cameras at the largest images."""
    vision, prompt = model.vision, model.prompt
    tokens = prompt.max_pixels // (vision.patch_size * vision.spatial_merge_size) ** 2
    return CAMERAS * prompt.frames_per_camera * (tokens + IMAGE_TEXT_SLOTS) + TEXT_SLOTS


def _cache_bytes(model: ModelConfig, config: EngineConfig, size: int) -> int:
    """Keys and values: before rotation, the working copy, and the action tokens of K samples."""
    text, slots = model.text, prompt_slots(model)
    slot = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * size
    tail = max(config.max_new_tokens, config.max_primitive_tokens if config.primitives else 0)
    actions = config.num_trajectories * model.action.n_waypoints
    if config.separate_reasonings:
        tail *= config.num_trajectories
    return slot * (2 * slots + tail + actions)


def _step_values(model: ModelConfig, config: EngineConfig) -> int:
    """Numbers of the largest temporaries of one layer, when a whole window is computed."""
    text, vision, expert = model.text, model.vision, model.expert
    images = CAMERAS * model.prompt.frames_per_camera
    patches = images * model.prompt.max_pixels // vision.patch_size ** 2
    rows = config.num_trajectories * model.action.n_waypoints
    return max(prompt_slots(model) * (4 * text.hidden_size + 4 * text.intermediate_size),
               patches * (8 * vision.hidden_size + 2 * vision.intermediate_size),
               rows * (4 * expert.hidden_size + 4 * expert.intermediate_size))


def _drafter_parameters(model: ModelConfig) -> int:
    from ..drafter import Drafter, DrafterConfig
    with torch.device('meta'):
        drafter = Drafter(DrafterConfig.for_target(model))
    return sum(p.numel() for p in drafter.parameters())


def fitting(model: ModelConfig, config: EngineConfig, available: float,
            dtype: torch.dtype = torch.bfloat16, drafter: bool = False) -> dict[str, Footprint]:
    """Settings with which a model fits into `available` bytes, by name."""
    found = {}
    for quantization, expert in SETTINGS:
        needed = memory_needed(model, replace(config, quantization=quantization,
                                              quantize_expert=expert), dtype, drafter=drafter)
        if needed.total <= available:
            found[quantization + (' with quantize_expert' if expert else '')] = needed
    return found


def refuse_too_large(name: str, config: EngineConfig, dtype: torch.dtype,
                     device: torch.device) -> None:
    """
    Raise `CheckpointError` when the checkpoint `name` does not fit onto `device`.

    It says what is needed, what is free, and which settings would fit.
    """
    directory = checkpoint.find(name)
    model, _ = checkpoint.read_config(directory)
    made = None
    if model.random_weights_seed is None:
        made = stored.described(directory)
        if made is None and paro.is_paro(stored.stored_keys(directory)):
            made = QuantizationConfig('w4a8', high=())
    drafter = config.drafting != 'off' and _has_drafter(directory)
    needed = memory_needed(model, config, dtype, made, drafter)
    total = needed.total
    if model.random_weights_seed is not None:  # drawn plain, quantised afterwards
        plain = replace(config, quantization='none', quantize_expert=False)
        total = max(total, memory_needed(model, plain, dtype).weights)
    free, size = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if total <= free:
        return
    settings = ', '.join(f'{text} ({f.total / GIB:.1f})' for text, f in
                         fitting(model, config, free, dtype, drafter).items())
    advice = f'quantization that fits: {settings}' if made is None and settings else \
        'no quantization fits'
    raise CheckpointError(f'{model.name} needs about {needed} on {device}, where '
                          f'{free / GIB:.1f} of {size / GIB:.1f} GiB are free; {advice}')


def _has_drafter(directory: Path) -> bool:
    name = directory.name.removesuffix(checkpoint.PARO_SUFFIX) + checkpoint.DRAFTER_SUFFIX
    return directory.with_name(name).is_dir()
