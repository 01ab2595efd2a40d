"""
Action head: flow matching over a chunk of 20 actions that cross-attends to plan features.

`x_t = (1 - t) noise + t action`, the head gives the velocity `action - noise`; joints count
from those of now (spec `vflash.md` sections 4.2 and 4.3).
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .timing import CHUNK

WIDTH, HEADS, BLOCKS, STEPS, SEGMENTS = 96, 4, 3, 8, 4
AGES = 3
"""A plan serves so many chunks."""


def waves(x: Tensor, width: int, most: float = 1000.0) -> Tensor:
    """Sines and cosines [..., width] of `x` [...]."""
    rates = most ** -(torch.arange(width // 2, device=x.device) / (width // 2))
    return torch.cat(((x[..., None] * rates).sin(), (x[..., None] * rates).cos()), -1)


class Block(nn.Module):
    """Self-attention, cross-attention and MLP, pre-normed."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.own = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.cross = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, memory: Tensor, absent: Tensor) -> Tensor:
        """Keep the shape of `x` [B, n, width]."""
        y = self.norms[0](x)
        x = x + self.own(y, y, y, need_weights=False)[0]
        x = x + self.cross(self.norms[1](x), memory, memory, key_padding_mask=absent,
                           need_weights=False)[0]
        return x + self.mlp(self.norms[2](x))


class ActionHead(nn.Module):
    """Velocity of noisy chunks [B, 20, 5] given the arm's state and features [B, K, hidden]."""

    def __init__(self, hidden: int):
        super().__init__()
        self.noisy = nn.Linear(5, WIDTH)
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.state = nn.Sequential(nn.Linear(5, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.age = nn.Embedding(AGES, WIDTH)
        self.feature = nn.Linear(hidden, WIDTH)
        self.segment = nn.Embedding(2 * SEGMENTS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)
        self.register_buffer('scale', torch.ones(5))

    def memory(self, look, plan) -> tuple[Tensor, Tensor]:
        """Context [B, K, width] and what of it is absent, of (features, segments) pairs."""
        parts, absent = [], []
        for offset, pair in ((0, look), (SEGMENTS, plan)):
            if pair is None:
                continue
            features, segments = pair
            index = torch.arange(features.shape[1], device=features.device).float()
            parts.append(self.feature(features) + self.segment(segments.clamp(min=0) + offset)
                         + waves(index, WIDTH))
            absent.append(segments < 0)
        return torch.cat(parts, 1), torch.cat(absent, 1)

    def velocity(self, x: Tensor, t: Tensor, state: Tensor, age: Tensor, memory) -> Tensor:
        """Velocity [B, 20, 5] at times `t` [B]."""
        steps = torch.arange(CHUNK, device=x.device).float()
        tokens = self.noisy(x) + waves(steps, WIDTH) + (
            self.time(waves(1000 * t, WIDTH)) + self.state(state) + self.age(age))[:, None]
        for block in self.blocks:
            tokens = block(tokens, *memory)
        return self.out(self.norm(tokens))

    def loss(self, actions: Tensor, state: Tensor, age: Tensor, memory) -> Tensor:
        """Flow-matching loss for clean `actions` [B, 20, 5]."""
        clean, noise = self.normal(actions, state), torch.randn_like(actions)
        t = 0.999 * (1 - torch.distributions.Beta(1.5, 1.0).sample((len(actions),)))
        t = t.to(actions.device)
        x = torch.lerp(noise, clean, t[:, None, None])
        return F.mse_loss(self.velocity(x, t, state, age, memory), clean - noise)

    def normal(self, actions: Tensor, state: Tensor) -> Tensor:
        """Actions as the head sees them."""
        joints = actions[..., :4] - state[:, None, :4]
        return torch.cat((joints, 2 * actions[..., 4:] - 1), -1) / self.scale

    @torch.no_grad()
    def act(self, state: Tensor, age: Tensor, memory, generator=None) -> Tensor:
        """Chunk [B, 20, 5]: absolute joint targets (rad) and gripper (0 to 1)."""
        x = torch.randn(len(state), CHUNK, 5, generator=generator, device=state.device)
        for i in range(STEPS):
            t = torch.full((len(state),), i / STEPS, device=state.device)
            x = x + self.velocity(x, t, state, age, memory) / STEPS
        x = x * self.scale
        joints = x[..., :4] + state[:, None, :4]
        return torch.cat((joints, ((x[..., 4:] + 1) / 2).clamp(0, 1)), -1)
