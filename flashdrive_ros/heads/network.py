"""
A small diffusion transformer that cross-attends what the frozen model says of a window.

After ReCogDrive's head (spec `vflash.md` section 4.4): each token is a noisy waypoint beside
the embedded history and the mean of the features; odd blocks cross-attend all features, even
ones attend among waypoints; adaptive norms are steered by the diffusion time and the status.
"""
from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .status import HISTORY, STATUS

POSE = 3
PERIODS_S = 0.4, 40.0
"""Shortest and longest period of the waypoint times' embedding."""


@dataclass(frozen=True)
class HeadConfig:
    """
    Sizes of a head and what it sees (`inputs`, a key of `reading.INPUTS`).

    features     channels of the frozen model
    train_steps  steps of the noise schedule; sample_steps of them are taken
    """

    inputs: str = 'plan'
    features: int = 256
    hidden: int = 96
    blocks: int = 4
    heads: int = 4
    mlp: int = 3
    train_steps: int = 100
    sample_steps: int = 5

    def __post_init__(self):
        """Refuse sizes that do not fit, naming them."""
        from .reading import INPUTS
        if self.inputs not in INPUTS:
            raise ValueError(f'inputs must be one of {", ".join(INPUTS)}, got {self.inputs!r}')
        if self.hidden % self.heads or self.hidden % 2:
            raise ValueError(f'hidden = {self.hidden} does not divide into {self.heads} heads')
        if not 1 <= self.sample_steps <= self.train_steps:
            raise ValueError(f'sample_steps must be from 1 to {self.train_steps}, '
                             f'got {self.sample_steps}')

    def as_dict(self) -> dict:
        """Fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class Context:
    """
    What a plan is conditioned on, computed once a window.

    keys, values  a pair for each cross-attending block, [B, heads, L, hidden / heads]
    mask          [B, 1, 1, L], True for tokens that exist
    condition     [B, hidden], status
    token         [B, hidden], history and mean feature, added to every waypoint
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor
    condition: Tensor
    token: Tensor


def embed(values: Tensor, size: int, shortest: float, longest: float) -> Tensor:
    """Sines and cosines [..., size] of `values` with periods from `shortest` to `longest`."""
    half = size // 2
    periods = shortest * (longest / shortest) ** (
        torch.arange(half, device=values.device) / max(half - 1, 1))
    angles = values[..., None] * (2 * math.pi / periods)
    return torch.cat((angles.sin(), angles.cos()), -1)


def split(x: Tensor, heads: int) -> Tensor:
    """[B, n, hidden] as [B, heads, n, hidden / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Attention (among waypoints, or to the features) and an MLP, with adaptive norms."""

    def __init__(self, config: HeadConfig, cross: bool):
        super().__init__()
        hidden = config.hidden
        self.heads, self.cross = config.heads, cross
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.steer = nn.Linear(hidden, 6 * hidden)
        self.query = nn.Linear(hidden, hidden)
        self.key_value = nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, config.mlp * hidden), nn.GELU('tanh'),
                                 nn.Linear(config.mlp * hidden, hidden))
        nn.init.zeros_(self.steer.weight)
        nn.init.zeros_(self.steer.bias)

    def keys(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of projected features [B, L, hidden]."""
        k, v = self.key_value(features).chunk(2, -1)
        return split(k, self.heads), split(v, self.heads)

    def forward(self, x: Tensor, condition: Tensor, kv, mask) -> Tensor:
        """Waypoints x [B, R, N, hidden] under condition [B, R, hidden]."""
        steer = self.steer(F.silu(condition))[:, :, None]
        shift, scale, gate, shift2, scale2, gate2 = steer.chunk(6, -1)
        y = self.norm(x) * (1 + scale) + shift
        x = x + gate * self.out(self._attend(y, kv, mask))
        y = self.norm(x) * (1 + scale2) + shift2
        return x + gate2 * self.mlp(y)

    def _attend(self, y: Tensor, kv, mask) -> Tensor:
        batch, repeats = y.shape[:2]
        if self.cross:  # all noises of a window share its keys
            q = split(self.query(y.flatten(1, 2)), self.heads)
            seen = F.scaled_dot_product_attention(q, *kv, attn_mask=mask)
        else:
            rows = y.flatten(0, 1)
            q = split(self.query(rows), self.heads)
            seen = F.scaled_dot_product_attention(q, *self.keys(rows))
        return seen.transpose(1, 2).flatten(-2).reshape(batch, repeats, -1, y.shape[-1])


class HeadNetwork(nn.Module):
    """Says which waypoints noisy ones come from."""

    def __init__(self, config: HeadConfig):
        super().__init__()
        self.config = config
        hidden = config.hidden
        self.features = nn.Sequential(nn.LayerNorm(config.features),
                                      nn.Linear(config.features, hidden))
        self.history = nn.Sequential(nn.Linear(HISTORY, hidden), nn.GELU('tanh'),
                                     nn.Linear(hidden, hidden))
        self.status = nn.Sequential(nn.Linear(STATUS, hidden), nn.GELU('tanh'),
                                    nn.Linear(hidden, hidden))
        self.noisy = nn.Linear(POSE, hidden)
        self.join = nn.Linear(3 * hidden, hidden)
        self.when = nn.Linear(hidden, hidden)
        self.time = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(),
                                  nn.Linear(hidden, hidden))
        self.blocks = nn.ModuleList(Block(config, cross=bool(i % 2))
                                    for i in range(config.blocks))
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.steer = nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, POSE)
        for layer in (self.steer, self.out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def context(self, features: Tensor, mask: Tensor, history: Tensor,
                status: Tensor) -> Context:
        """
        Condition of B windows: features [B, L, channels], mask [B, L] (True: a token).

        `history` [B, 12] and `status` [B, 8] are standardised.  Every window needs a token.
        """
        projected = self.features(features)
        there = mask[..., None]
        mean = (projected * there).sum(1) / there.sum(1)
        pairs = [b.keys(projected) for b in self.blocks if b.cross]
        joined = torch.cat((self.history(history), mean), -1)
        return Context(tuple(k for k, _ in pairs), tuple(v for _, v in pairs),
                       mask[:, None, None], self.status(status), joined)

    def forward(self, noisy: Tensor, t: Tensor, times: Tensor, context: Context) -> Tensor:
        """
        Clean waypoints [B, R, N, 3] (standardised) from `noisy` ones of R noises a window.

        `t` [B, R] in [0, 1] is the share of the noise schedule; `times` [N] s of the waypoints.
        """
        hidden = self.config.hidden
        token = context.token[:, None, None].expand(*noisy.shape[:3], -1)
        x = self.join(torch.cat((token, self.noisy(noisy)), -1))
        x = x + self.when(embed(times, hidden, *PERIODS_S))
        condition = context.condition[:, None] + self.time(embed(t, hidden, 0.02, 4.0))
        pairs = iter(zip(context.keys, context.values))
        for block in self.blocks:
            kv = next(pairs) if block.cross else None
            x = block(x, condition, kv, context.mask)
        shift, scale = self.steer(F.silu(condition))[:, :, None].chunk(2, -1)
        return self.out(self.norm(x) * (1 + scale) + shift)
