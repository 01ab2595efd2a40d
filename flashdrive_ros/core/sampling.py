"""Next-token choice: greedy, or temperature and nucleus (top-p) sampling."""
from __future__ import annotations

import torch
from torch import Tensor

from .config import EngineConfig


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


def choose(logits: Tensor, config: EngineConfig, generator: torch.Generator) -> Tensor:
    """Token ids [...] for `logits` [..., vocab]; forbidden tokens are already -inf."""
    if config.greedy:
        return logits.argmax(-1)
    probs = probabilities(logits, config.temperature, config.top_p)
    rows = probs.view(-1, probs.shape[-1])
    return torch.multinomial(rows, 1, generator=generator).view(probs.shape[:-1])
