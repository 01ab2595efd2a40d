"""
Action head: noise to normalised controls by flow matching (spec `alpamayo.md` section 7).

The network predicts the velocity data - noise; Euler steps run from t = 0 to 1.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch import Tensor, nn

from .config import ActionConfig

Velocity = Callable[[Tensor, Tensor], Tensor]
"""(x [K, N, 2], t []) -> velocity [K, N, 2]."""


def fourier_frequencies(config: ActionConfig, dtype: torch.dtype = torch.float32) -> Tensor:
    """
    Frequencies [feats / 2], float32.

    A checkpoint in bfloat16 uses frequencies rounded to bfloat16 (the released
    code casts its buffers); `dtype` is that of the checkpoint.
    """
    count = config.num_fourier_feats // 2
    return torch.logspace(0, math.log10(config.max_freq), count).to(dtype).float()


def held_constants(config: ActionConfig, dtype: torch.dtype) -> ActionConfig:
    """`config` with its normalisation constants rounded as a model in `dtype` holds them."""
    names = ('accel_mean', 'accel_std', 'curvature_mean', 'curvature_std')
    return replace(config, **{n: float(torch.tensor(getattr(config, n), dtype=dtype))
                              for n in names})


def fourier_features(x: Tensor, frequencies: Tensor) -> Tensor:
    """[...] -> [..., 2 * frequencies]: sines, then cosines, times sqrt(2)."""
    angles = x[..., None] * frequencies * (2 * math.pi)
    return torch.cat((angles.sin(), angles.cos()), -1) * math.sqrt(2)


class ActionInput(nn.Module):
    """Noisy controls and flow time -> expert tokens."""

    def __init__(self, config: ActionConfig, out_features: int):
        super().__init__()
        self.config = config
        width = [3 * config.num_fourier_feats] + [config.proj_hidden_size] * config.proj_layers
        trunk: list[nn.Module] = []
        for before, after in zip(width, width[1:]):
            trunk += [nn.Linear(before, after), nn.SiLU(), nn.RMSNorm(after, eps=1e-5)]
        self.encoder = nn.Module()
        self.encoder.trunk = nn.Sequential(*trunk, nn.Linear(width[-1], out_features))
        self.norm = nn.LayerNorm(out_features, eps=1e-5)

    def forward(self, x: Tensor, t: Tensor, frequencies: Tensor) -> Tensor:
        """`x` [K, N, 2] and `t` [] or [K, 1] in float32 -> [K, N, hidden] in the model's dtype."""
        per_axis = fourier_features(x, frequencies).flatten(-2)
        time = fourier_features(t, frequencies).expand(*x.shape[:-1], -1)
        features = torch.cat((per_axis, time), -1)
        return self.norm(self.encoder.trunk(features.to(self.norm.weight.dtype)))


def guide(guided: Tensor, unguided: Tensor, weight: float) -> Tensor:
    """Classifier-free guidance of velocities: (1 - weight) * unguided + weight * guided."""
    return (1 - weight) * unguided + weight * guided


def integrate(velocity: Velocity, noise: Tensor, steps: int, trace: list | None = None,
              reuse: Collection[int] = ()) -> Tensor:
    """
    Euler steps of `velocity(x, t)` from `noise` [K, N, 2] at t = 0 to t = 1, in float32.

    `trace`, when given, collects (t, x, v) of every step.  Steps in `reuse`
    take the velocity of the step before them instead of asking the network
    (spec `alpamayo.md` section 14); see `check_reuse`.
    """
    x, v = noise, None
    times = torch.linspace(0, 1, steps + 1, device=noise.device)
    for step, (now, then) in enumerate(zip(times, times[1:])):
        if step not in reuse:
            v = velocity(x, now).float()
        if trace is not None:
            trace.append((now, x, v))
        x = x + (then - now) * v
    return x


def check_reuse(reuse: Collection[int], steps: int) -> str:
    """Say what is wrong with a schedule of reused velocities; '' when it can be followed."""
    wrong = sorted(step for step in reuse if not 1 <= step < steps)
    if wrong:
        return (f'velocity_reuse holds {wrong}: of {steps} flow steps, 1 to {steps - 1} can take '
                'the velocity of the step before them')
    return ''
