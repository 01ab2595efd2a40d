"""
Next-token choice: greedy, or temperature and nucleus (top-p) sampling.

One uniform number per token, drawn before the first: whichever way a token is
computed, alone or in a drafted block, the same number chooses it.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .config import EngineConfig
from .model import Alpamayo


def next_logits(model: Alpamayo, hidden: Tensor, allowed: Tensor) -> Tensor:
    """Logits [..., padded vocabulary] in float32 with forbidden tokens at -inf."""
    return model.lm_head(hidden).float().masked_fill(~allowed, -torch.inf)


def probabilities(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """
    Distribution [..., vocab] after temperature, then nucleus filtering.

    The nucleus is the smallest set of likeliest tokens whose probability reaches
    `top_p`; it always holds at least one.
    """
    probs = torch.softmax(logits.float() / temperature, -1)
    if top_p >= 1:
        return probs
    ordered, index = probs.sort(-1, descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    ordered = ordered.masked_fill(beyond, 0)
    return torch.zeros_like(probs).scatter_(-1, index, ordered / ordered.sum(-1, keepdim=True))


def draw_uniforms(*shape: int, generator: torch.Generator) -> Tensor:
    """Numbers in [0, 1) that choose tokens, one each, on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device)


def choose(logits: Tensor, config: EngineConfig, draws: Tensor) -> Tensor:
    """
    Token ids [...] for `logits` [..., vocab]; forbidden tokens are already -inf.

    Unless greedy, `draws` [...] choose by the inverse of the distribution function.
    """
    if config.greedy:
        return logits.argmax(-1)
    reached = probabilities(logits, config.temperature, config.top_p).cumsum(
        -1, dtype=torch.float64)
    wanted = draws[..., None] * reached[..., -1:]
    return torch.searchsorted(reached, wanted, right=True).squeeze(-1)
