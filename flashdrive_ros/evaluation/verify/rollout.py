"""One row of a golden case through the engine's own stages: prefill, forced reasoning, flow."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ...core.action import held_constants, integrate
from ...core.branches import BranchTails
from ...core.config import ModelConfig
from ...core.model import Alpamayo
from ...core.prompt import PromptLayout, build_layout
from ...core.reasoning import Reasoned
from ...core.stream import PromptStream
from ...core.tokenizer import Tokenizer
from ...core.trajectories import ActionContext, VelocityField
from ...core.vision import ImageFeatures


@dataclass
class Row:
    """
    One batch element after its prefill.

    `hidden` [S, h] are final hidden states, `taps` the inputs of all layers and
    the output of the last, each [S, h]; `pad` slots of padding stand before it.
    """

    layout: PromptLayout
    stream: PromptStream
    hidden: Tensor
    taps: list[Tensor]
    pad: int
    features: list[list[ImageFeatures]]
    history_ids: np.ndarray | None

    @property
    def token_ids(self) -> np.ndarray:
        """Prompt ids [S] with the history in place."""
        ids = self.layout.token_ids.copy()
        if self.history_ids is not None:
            ids[slice(*self.layout.history)] = self.history_ids
        return ids

    def keys(self, values: bool, generated: int = 0) -> Tensor:
        """Cached keys or values [layers, kv_heads, S + generated, d] of prompt and extension."""
        cache = self.stream.cache
        return (cache.v if values else cache.k)[:, :, :self.layout.size + generated]


@dataclass
class Forced:
    """
    K given continuations after a prompt, forwarded like generated ones.

    `logits` [K, T, vocabulary] are raw; the last token of each is never
    forwarded, so the tails hold T - 1.
    """

    row: Row
    ids: np.ndarray
    logits: Tensor
    tails: BranchTails | None

    def keys(self, values: bool) -> Tensor:
        """Cached keys or values [layers, K, kv_heads, S + T - 1, d] that the expert sees."""
        if self.tails is None:
            return self.row.keys(values, self.ids.shape[1] - 1)[:, None]
        own = (self.tails.v if values else self.tails.k)[:, :, :, :self.tails.length]
        prompt = self.row.keys(values)[:, None].expand(-1, own.shape[1], -1, -1, -1)
        return torch.cat((prompt, own), 3)

    def reasoned(self, end: int) -> Reasoned:
        """Where action tokens begin after each row: one past `end`, or past the row's end."""
        size, steps = self.row.layout.size, self.ids.shape[1]
        first, visible = [], []
        for ids in self.ids.tolist():
            after = ids.index(end) + 1 if end in ids else steps
            first.append(size + after)
            visible.append(size + min(after, steps - 1))
        return Reasoned((), tuple(first), tuple(visible), self.tails)


def prefill(model: Alpamayo, tokenizer: Tokenizer, config: ModelConfig, camera_ids, grids,
            features, history_ids, *, nav_text: str = '', question: str | None = None,
            room: int = 0, pad_to: int = 0) -> Row:
    """Prefill one prompt whole; `room` tokens may follow, `pad_to` is the batch's length."""
    layout = build_layout(config, tokenizer, camera_ids, grids, nav_text=nav_text,
                          question=question)
    stream = PromptStream(model, layout, room + 1)
    taps: list[Tensor] = []
    hidden, _ = stream.prefill(features, layout.frames, history_ids, taps=taps)
    return Row(layout, stream, hidden, [t[0] for t in taps], max(0, pad_to - layout.size),
               features, history_ids)


def force(row: Row, ids: np.ndarray) -> Forced:
    """Forward continuations `ids` [K, T], one token at a time as in decoding."""
    model, stream = row.stream.model, row.stream
    samples, steps = ids.shape
    stream.truncate(row.layout.size)
    tails = BranchTails(stream.cache, samples, steps) if samples > 1 else None
    hidden = row.hidden[-1].expand(samples, -1)
    logits = []
    for step in range(steps):
        logits.append(raw_logits(model, hidden))
        if step + 1 < steps:
            tokens = torch.from_numpy(ids[:, step])
            if tails is None:
                hidden = stream.extend(tokens)
            else:
                hidden = model.language_model(model.embed_tokens(tokens)[:, None],
                                              tails.attend)[:, 0]
                tails.length += 1
    return Forced(row, ids, torch.stack(logits, 1), tails)


def raw_logits(model: Alpamayo, hidden: Tensor) -> Tensor:
    """Logits over the real vocabulary, without the padding rows."""
    return model.lm_head(hidden)[..., :model.config.vocab_size]


@dataclass
class RecordingField:
    """`VelocityField` that keeps the guided and the unguided velocity of every step."""

    field: VelocityField
    guided: list[Tensor] = field(default_factory=list)
    unguided: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """Velocity as the engine computes it, with its parts recorded."""
        inner = self.field
        tokens = inner.model.action_in_proj(x, t, inner.frequencies)
        self.guided.append(inner.velocity(tokens, inner.context))
        if inner.unguided is not None:
            self.unguided.append(inner.velocity(tokens, inner.unguided))
        return inner(x, t)


@dataclass
class Flowed:
    """Everything of one flow: states and velocities [steps, K, N, 2] and the final controls."""

    t: Tensor
    x: Tensor
    guided: Tensor
    unguided: Tensor | None
    actions: Tensor
    tokens: Tensor
    hidden: Tensor


def run_flow(model: Alpamayo, context: ActionContext, noise: Tensor, steps: int,
             unguided: ActionContext | None = None, weight: float = 1.0,
             constants: torch.dtype = torch.float32) -> Flowed:
    """Integrate from `noise` [K, N, 2]; Fourier frequencies rounded to `constants`."""
    inner = VelocityField(model, context, unguided, weight)
    inner.frequencies = inner.frequencies.to(constants).float()
    recorded, trace = RecordingField(inner), []
    actions = integrate(recorded, noise, steps, trace)
    tokens = model.action_in_proj(noise, trace[0][0], inner.frequencies)
    return Flowed(torch.stack([t for t, _, _ in trace]), torch.stack([x for _, x, _ in trace]),
                  torch.stack(recorded.guided),
                  torch.stack(recorded.unguided) if recorded.unguided else None,
                  actions, tokens, model.expert(tokens, context))


def action_constants(config: ModelConfig, dtype: torch.dtype):
    """Action space with constants as held in `dtype`."""
    return held_constants(config.action, dtype)
