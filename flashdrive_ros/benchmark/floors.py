"""
What a card can do at best, and how long each stage would take at that.

A stage's floor is the larger of its bytes over the copy rate and its operations over the
matrix rate; each weight is read once a pass (spec `gpu_baseline.md` section 5).
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ..core.config import DecoderConfig, ModelConfig, VisionConfig
from ..core.drafter import DrafterConfig
from .measure import synchronise

WEIGHT_BYTES = {'none': 2.0, 'fp8': 1.0, 'w4a8': 0.5 + 4 / 128, 'w4a16': 0.5 + 4 / 128}
"""Bytes of a weight; 4-bit ones have a 16-bit scale and zero for every 128."""
EIGHT_BIT = ('fp8', 'w4a8')
"""Kinds whose products run at the 8-bit rate."""


@dataclass(frozen=True)
class Ceilings:
    """Measured rates: bytes/s of a copy (read + written), operations/s of matrix products."""

    copy: float
    matmul: float
    matmul_8bit: float | None = None

    def as_json(self) -> dict:
        """In TB/s and TFLOP/s."""
        return {'copy_tb_s': self.copy / 1e12, 'matmul_tflop_s': self.matmul / 1e12,
                'matmul_8bit_tflop_s': self.matmul_8bit and self.matmul_8bit / 1e12}


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure a large copy and large matrix products."""
    cuda = device.type == 'cuda'
    source = torch.empty((1 << 30) if cuda else (1 << 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * source.numel() / _seconds(partial(target.copy_, source), device)
    size = 8192 if cuda else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    operations = 2 * size ** 3
    matmul = operations / _seconds(lambda: a @ b, device)
    eight = None
    if cuda and torch.cuda.get_device_capability(device) >= (8, 9):
        a8, b8 = (x.to(torch.float8_e4m3fn) for x in (a, b))
        one = torch.ones((), device=device)
        eight = operations / _seconds(lambda: torch._scaled_mm(
            a8, b8.t(), scale_a=one, scale_b=one, out_dtype=dtype, use_fast_accum=True), device)
    return Ceilings(copy, matmul, eight)


def _seconds(run: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    times = []
    for _ in range(repeats + 3):
        synchronise(device)
        begin = time.perf_counter()
        run()
        synchronise(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[3:])


def linear_weights(decoder: DecoderConfig) -> int:
    """Weights of the matrices of all layers."""
    heads, kv = decoder.num_attention_heads, decoder.num_key_value_heads
    attention = decoder.hidden_size * decoder.head_dim * (2 * heads + 2 * kv)
    mlp = 3 * decoder.hidden_size * decoder.intermediate_size
    return decoder.num_hidden_layers * (attention + mlp)


def attention_operations(decoder: DecoderConfig, pairs: float) -> float:
    """Operations of all layers for `pairs` of query and key."""
    return 4 * decoder.num_attention_heads * decoder.head_dim * pairs * decoder.num_hidden_layers


def vision_operations(vision: VisionConfig, patches: int) -> float:
    """Operations for one image of `patches` patches."""
    h, i, group = vision.hidden_size, vision.intermediate_size, vision.spatial_merge_size ** 2
    layer = 2 * patches * (4 * h * h + 2 * h * i) + 4 * patches ** 2 * h
    wide = group * h
    merger = 2 * patches / group * (wide * wide + wide * vision.out_hidden_size)
    return (vision.depth * layer + 2 * patches * vision.patch_dim * h
            + (1 + len(vision.deepstack_visual_indexes)) * merger)


def vision_weights(vision: VisionConfig) -> int:
    """Weights of the vision tower's matrices."""
    h, wide = vision.hidden_size, vision.spatial_merge_size ** 2 * vision.hidden_size
    layer = 4 * h * h + 2 * h * vision.intermediate_size
    return (vision.depth * layer + vision.patch_dim * h
            + (1 + len(vision.deepstack_visual_indexes)) * wide * (wide + vision.out_hidden_size))


@dataclass(frozen=True)
class Work:
    """
    What a step does: `slots` are those it computes of a prompt of `prompt`.

    `passes` of the language model over `tokens_a_pass` tokens, `drafts` of the drafter and
    `evaluations` of the expert for `samples` trajectories that share the prompt.
    """

    images: int
    patches: int
    prompt: int
    slots: np.ndarray
    passes: int
    tokens_a_pass: int
    drafts: int
    evaluations: int
    samples: int
    quantization: str = 'none'
    quantize_expert: bool = False


def floors(config: ModelConfig, drafter: DrafterConfig | None, work: Work, ceilings: Ceilings,
           element: int = 2) -> dict[str, float]:
    """
    Least time in ms of every stage, and of all.

    `element` is the size in bytes of what is not quantised; the head never is.
    """
    text, expert, kind = config.text, config.expert, work.quantization
    expert_kind = kind if work.quantize_expert else 'none'

    def least(bytes_: float, products: float = 0, attention: float = 0, kind: str = 'none'):
        rate = ceilings.matmul_8bit if kind in EIGHT_BIT and ceilings.matmul_8bit else \
            ceilings.matmul
        return 1e3 * max(bytes_ / ceilings.copy, products / rate + attention / ceilings.matmul)

    def size(weights: int, kind: str) -> float:
        return weights * (element if kind == 'none' else WEIGHT_BYTES[kind])
    llm, head = linear_weights(text), config.vocab_size * text.hidden_size
    keys = 2 * text.num_key_value_heads * text.head_dim * text.num_hidden_layers * element
    context = keys * work.prompt
    vision = config.vision
    encode = least(vision_weights(vision) * element,
                   work.images * vision_operations(vision, work.patches))
    prefill = least(size(llm, kind), 2 * llm * len(work.slots),
                    attention_operations(text, float(np.sum(work.slots + 1))), kind)
    tokens = work.tokens_a_pass
    decode = work.passes * least(
        size(llm, kind) + head * element + context, 2 * (llm + head) * tokens,
        attention_operations(text, tokens * work.prompt), kind)
    if work.drafts:
        own = linear_weights(drafter) + (len(drafter.target_layer_ids) * drafter.hidden_size ** 2)
        decode += work.drafts * least(size(own, 'none') + head * element)
    waypoints = work.samples * config.action.n_waypoints
    action = work.evaluations * least(
        size(linear_weights(expert), expert_kind) + context,
        2 * linear_weights(expert) * waypoints,
        attention_operations(expert, waypoints * (work.prompt + config.action.n_waypoints)),
        expert_kind)
    stages = {'encode': encode, 'prefill': prefill, 'decode': decode, 'action': action}
    return stages | {'total': sum(stages.values())}
