"""
Cosine noise schedule and DDIM sampling in a few steps, plain or as a chain of Gaussian draws.

The network says what is clean (of standardised waypoints, unit variance), which is
well-conditioned at every noise.  With `eta` 0 a chain is a function of its first noise; with
`eta` 1 each step is drawn, so that a policy gradient can weigh it (DiffGRPO).
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Denoise = Callable[[Tensor, Tensor], Tensor]
"""(noisy [B, R, N, 3], t [B, R] in [0, 1]) -> clean [B, R, N, 3]."""
LEAST_STD = 0.02
"""A step that is drawn with less is not; its likelihood would be all there is."""


class Schedule:
    """Share of signal left after each of `steps` steps of noise, and which steps are taken."""

    def __init__(self, steps: int = 100, taken: int = 5):
        at = torch.arange(steps + 1, dtype=torch.float64) / steps
        signal = torch.cos((at + 0.008) / 1.008 * math.pi / 2) ** 2
        self.steps = steps
        self.signal = (signal / signal[0]).clamp(1e-4, 1.0).float()
        """[steps + 1] alpha-bar; 1 at step 0."""
        self.taken = torch.linspace(steps, 0, taken + 1).round().long().tolist()

    def noised(self, clean: Tensor, step: Tensor, noise: Tensor) -> Tensor:
        """`clean` [B, R, N, 3] after `step` [B, R] steps of noise."""
        kept = self.signal.to(clean.device)[step][..., None, None]
        return kept.sqrt() * clean + (1 - kept).sqrt() * noise

    def transition(self, noisy: Tensor, clean: Tensor, now: int, then: int,
                   eta: float) -> tuple[Tensor, float]:
        """Mean and standard deviation of what is noisy at step `then`, given that at `now`."""
        a, b = float(self.signal[now]), float(self.signal[then])
        noise = (noisy - math.sqrt(a) * clean) / math.sqrt(1 - a)
        std = eta * math.sqrt((1 - b) / (1 - a)) * math.sqrt(max(1 - a / b, 0.0))
        std = 0.0 if std < LEAST_STD else std
        rest = math.sqrt(max(1 - b - std ** 2, 0.0))
        return math.sqrt(b) * clean + rest * noise, std


@dataclass(frozen=True)
class Chain:
    """States of a sampled chain, noisiest first ([B, R, N, 3] each), and its last, clean one."""

    states: tuple[Tensor, ...]

    @property
    def clean(self) -> Tensor:
        """Waypoints at the end, standardised."""
        return self.states[-1]


def sample(denoise: Denoise, noise: Tensor, schedule: Schedule, eta: float = 0.0,
           generator: torch.Generator | None = None) -> Chain:
    """Take the steps of the schedule from `noise` [B, R, N, 3]."""
    states = [noise]
    for now, then in zip(schedule.taken, schedule.taken[1:]):
        x = states[-1]
        t = torch.full(x.shape[:2], now / schedule.steps, device=x.device)
        mean, std = schedule.transition(x, denoise(x, t), now, then, eta)
        if std:
            mean = mean + std * torch.randn(x.shape, generator=generator,
                                            device=x.device, dtype=x.dtype)
        states.append(mean)
    return Chain(tuple(states))


def log_likelihoods(denoise: Denoise, chain: Chain, schedule: Schedule,
                    eta: float = 1.0) -> list[Tensor]:
    """
    Mean log density [B, R] of each step of `chain` that was drawn, in the order they were taken.

    The mean is over waypoints and coordinates; constants are left out.
    """
    found = []
    pairs = list(zip(schedule.taken, schedule.taken[1:]))
    for x, after, (now, then) in zip(chain.states, chain.states[1:], pairs):
        t = torch.full(x.shape[:2], now / schedule.steps, device=x.device)
        mean, std = schedule.transition(x, denoise(x, t), now, then, eta)
        if std:
            found.append(-((after - mean) ** 2).mean((-1, -2)) / (2 * std ** 2))
    return found
