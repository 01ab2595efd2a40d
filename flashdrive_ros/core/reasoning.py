"""
Chain-of-causation text: one token at a time until the trajectory may start.

The trajectory-start token is forwarded too: the action expert attends to it
(spec `alpamayo.md` sections 7 and 8).
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .branches import BranchTails
from .config import EngineConfig
from .model import Alpamayo
from .sampling import choose
from .stream import PromptStream
from .text import between, without_markers
from .tokenizer import Tokenizer
from .types import Reasoning


@dataclass(frozen=True)
class Reasoned:
    """
    One or K reasonings and where their action tokens start.

    Action tokens begin at `first_action_slot` and attend to the slots before
    `visible`; one less when the last token was never forwarded, as in the
    release.  `tails` is None when one reasoning, stored in the stream itself,
    serves all samples.
    """

    texts: tuple[Reasoning, ...]
    first_action_slot: tuple[int, ...]
    visible: tuple[int, ...]
    tails: BranchTails | None = None


def next_logits(model: Alpamayo, hidden: Tensor, allowed: Tensor) -> Tensor:
    """Logits [..., padded vocabulary] in float32 with forbidden tokens at -inf."""
    return model.lm_head(hidden).float().masked_fill(~allowed, -torch.inf)


def reason(stream: PromptStream, tokenizer: Tokenizer, hidden: Tensor, config: EngineConfig,
           generator: torch.Generator) -> Reasoned:
    """One reasoning after the prompt whose last hidden state [hidden] is given."""
    ids, stop = generate(stream, hidden, config, generator,
                         stream.model.allowed_tokens(trajectory_tokens=False),
                         last=tokenizer.id('traj_future_start'), end=tokenizer.id('im_end'))
    if stop == 'end_token':
        stream.extend(torch.tensor(ids[-1:], device=stream.model.device))
    return Reasoned((written(tokenizer, ids, stop),), (stream.layout.size + len(ids),),
                    (stream.length,))


def generate(stream: PromptStream, hidden: Tensor, config: EngineConfig,
             generator: torch.Generator, allowed: Tensor, *, last: int,
             end: int) -> tuple[list[int], str]:
    """
    Tokens until `last` or `end` was chosen, or `max_new_tokens`; the final one is not forwarded.

    Returns the ids and 'end_token' (`last`), 'im_end' (`end`) or 'length'.
    """
    ids: list[int] = []
    while True:
        token = choose(next_logits(stream.model, hidden, allowed), config, generator)
        ids.append(int(token))
        if ids[-1] in (last, end):
            return ids, 'end_token' if ids[-1] == last else 'im_end'
        if len(ids) >= config.max_new_tokens:
            return ids, 'length'
        hidden = stream.extend(token.view(1))[-1]


def reason_separately(stream: PromptStream, tokenizer: Tokenizer, hidden: Tensor,
                      config: EngineConfig, generator: torch.Generator) -> Reasoned:
    """K reasonings of their own after one shared prompt, decoded as a batch."""
    model, samples = stream.model, config.num_trajectories
    tails = BranchTails(stream.cache, samples, config.max_new_tokens)
    allowed = model.allowed_tokens(trajectory_tokens=False)
    stop_names = {tokenizer.id('traj_future_start'): 'end_token', tokenizer.id('im_end'): 'im_end'}
    hidden = hidden.expand(samples, -1)
    ids: list[list[int]] = [[] for _ in range(samples)]
    stops = [''] * samples
    while not all(stops):
        tokens = choose(next_logits(model, hidden, allowed), config, generator)
        for k, token in enumerate(tokens.tolist()):
            if not stops[k]:
                ids[k].append(token)
                at_limit = 'length' if len(ids[k]) == config.max_new_tokens else ''
                stops[k] = stop_names.get(token, at_limit)
        hidden = model.language_model(model.embed_tokens(tokens)[:, None], tails.attend)[:, 0]
        tails.length += 1
    size = stream.layout.size
    visible = tuple(size + len(i) - (stop != 'end_token') for i, stop in zip(ids, stops))
    return Reasoned(tuple(written(tokenizer, i, stop) for i, stop in zip(ids, stops)),
                    tuple(size + len(i) for i in ids), visible, tails)


def follow(stream: PromptStream, reasoned: Reasoned) -> Reasoned:
    """Feed the same reasonings to another prompt (that without navigation text)."""
    model, rows = stream.model, [text.token_ids for text in reasoned.texts]
    ends = tuple(stream.layout.size + len(row) for row in rows)
    if len(rows) == 1:
        stream.extend(torch.tensor(rows[0], device=model.device))
        return Reasoned(reasoned.texts, ends, ends)
    longest = max(map(len, rows))
    padded = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in rows],
                          device=model.device)
    tails = BranchTails(stream.cache, len(rows), longest)
    model.language_model(model.embed_tokens(padded), tails.attend)
    tails.length = longest
    return Reasoned(reasoned.texts, ends, ends, tails)


def written(tokenizer: Tokenizer, ids: list[int], stop: str) -> Reasoning:
    """Reasoning of generated `ids`, which ended as `stop` says."""
    text = without_markers(between(tokenizer.decode(ids), 'cot'))
    return Reasoning(text=text, token_ids=tuple(ids), rounds=len(ids), stop_reason=stop)
