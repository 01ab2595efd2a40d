"""
Scales of input channels that make 4-bit weights err less where activations are large (AWQ).

A channel's weights are multiplied by s and its activations divided by it, for s =
(mean |x|) ** alpha; the alpha of least error on recorded activations is kept.  Division
costs nothing: it goes into the norm before q|k|v and before gate|up, and into the rows of
`up` before `down`.  `o` keeps its scale: its input is made of values that the action expert
reads from the cache as well.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .swap import QuantizationConfig, quantized, target_names

GRID = tuple(i / 10 for i in range(11))
ROWS_KEPT = 512
"""Rows of activations kept of each projection, to compare products on."""
ROWS_A_CALL = 32
SCALED = ('self_attn.qkv_proj', 'mlp.gate_up_proj', 'mlp.down_proj')


class Recorder:
    """What a projection reads: the mean magnitude of each channel, and some rows as they are."""

    def __init__(self):
        self.count, self.magnitude, self.rows = 0, 0.0, []

    def see(self, x: Tensor) -> None:
        """Note activations [..., k]."""
        x = x.detach().reshape(-1, x.shape[-1])
        self.magnitude = self.magnitude + x.abs().float().sum(0)
        self.count += len(x)
        if sum(map(len, self.rows)) < ROWS_KEPT:
            step = max(1, len(x) // ROWS_A_CALL)
            self.rows.append(x[::step][:ROWS_A_CALL].clone())

    @property
    def mean(self) -> Tensor:
        """Mean magnitude [k]."""
        return self.magnitude / max(self.count, 1)

    @property
    def sample(self) -> Tensor:
        """Some rows [m, k]."""
        return torch.cat(self.rows)[:ROWS_KEPT]


@contextmanager
def recording(model: nn.Module, config: QuantizationConfig) -> Iterator[dict[str, Recorder]]:
    """Record the inputs of the projections that can be scaled, by name, inside the block."""
    names = [name for name in target_names(model, config) if name.endswith(SCALED)]
    found = {name: Recorder() for name in names}
    hooks = [model.get_submodule(name).register_forward_pre_hook(
        lambda _, args, recorder=found[name]: recorder.see(args[0])) for name in names]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class Scaled:
    """Best `alpha` of a projection; relative squared errors of its products without and with."""

    alpha: float
    before: float
    after: float


@torch.no_grad()
def scale(model: nn.Module, config: QuantizationConfig, recorded: dict[str, Recorder],
          progress: Callable[[str, Scaled], None] = lambda *_: None) -> dict[str, Scaled]:
    """
    Fold the best scales into the plain weights of `model`; the network stays what it was.

    `down` of a layer comes first, because its scales change rows of `up`.
    """
    found = {}
    for name in sorted(recorded, key=lambda name: 'gate_up' in name):
        recorder = recorded[name]
        if not recorder.count:
            continue
        weight = model.get_submodule(name).weight
        scales, found[name] = best_scales(weight, recorder, config.kind)
        scales = scales.to(weight.dtype)
        weight.mul_(scales)
        _divide_producer(model, name, scales)
        progress(name, found[name])
    return found


def best_scales(weight: Tensor, recorder: Recorder, kind: str) -> tuple[Tensor, Scaled]:
    """Scales [k] in float32 out of the grid, for weights [n, k]."""
    x = recorder.sample.to(weight.device)
    expected = x.float() @ weight.float().T
    norm = expected.square().sum().clamp_min(1e-20)
    mean = recorder.mean.to(weight.device).clamp_min(1e-6)
    errors, tried = [], []
    for alpha in GRID:
        scales = mean ** alpha
        scales = scales / (scales.amax() * scales.amin()).sqrt()
        matrix = quantized(weight.float() * scales, kind)
        product = matrix.reference(matrix.activate(x.float() / scales)).apply()
        errors.append(float((product - expected).square().sum() / norm))
        tried.append(scales)
    best = min(range(len(GRID)), key=errors.__getitem__)
    return tried[best], Scaled(GRID[best], errors[0], errors[best])


def _divide_producer(model: nn.Module, name: str, scales: Tensor) -> None:
    """Divide what comes before the projection `name` by its scales."""
    layer, _, projection = name.rpartition('.layers.')[2].partition('.')
    layer = model.get_submodule(name.partition('.layers.')[0]).layers[int(layer)]
    if projection == 'self_attn.qkv_proj':
        layer.input_layernorm.weight.div_(scales)
    elif projection == 'mlp.gate_up_proj':
        layer.post_attention_layernorm.weight.div_(scales)
    else:
        up = layer.mlp.gate_up_proj.weight[len(scales):]
        up.div_(scales[:, None])
