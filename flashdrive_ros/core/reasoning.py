"""
Chain-of-causation text: one token at a time until the trajectory may start.

The trajectory-start token is forwarded too: the action expert attends to it
(spec `alpamayo.md` sections 7 and 8).
"""
from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .branches import BranchTails
from .config import EngineConfig
from .model import Alpamayo
from .sampling import choose, draw_uniforms, next_logits
from .speculative import Draft, Generation, speculate_one, speculate_separately
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


def reason(stream: PromptStream, tokenizer: Tokenizer, hidden: Tensor, config: EngineConfig,
           generator: torch.Generator, draft: Draft | None = None,
           accept: int | None = None) -> Reasoned:
    """
    One reasoning after the prompt whose last hidden state [hidden] is given.

    With `accept`, that many proposals of every round count as right and only the
    limit ends the text: to measure times with.
    """
    row = Generation(_ends(tokenizer) if accept is None else {}, config.max_new_tokens)
    write(stream, row, hidden, config, generator,
          stream.model.allowed_tokens(trajectory_tokens=False), draft, accept)
    end = stream.layout.size + len(row.ids)
    visible = end if row.stop == 'end_token' else end - 1
    if stream.length < visible:
        stream.extend(torch.tensor(row.ids[-1:], device=stream.model.device))
    stream.truncate(visible)
    return Reasoned((_reasoning(tokenizer, row),), (end,), (visible,))


def _ends(tokenizer: Tokenizer) -> dict[int, str]:
    """Tokens that end a reasoning, and what `Reasoning.stop_reason` calls them."""
    return {tokenizer.id('traj_future_start'): 'end_token', tokenizer.id('im_end'): 'im_end'}


def generate(stream: PromptStream, hidden: Tensor, config: EngineConfig,
             generator: torch.Generator, allowed: Tensor, *, last: int,
             end: int) -> tuple[list[int], str]:
    """
    Tokens until `last` or `end` was chosen, or `max_new_tokens`; the final one is not forwarded.

    Returns the ids and 'end_token' (`last`), 'im_end' (`end`) or 'length'.
    """
    row = Generation({end: 'im_end', last: 'end_token'}, config.max_new_tokens)
    write(stream, row, hidden, config, generator, allowed)
    return row.ids, row.stop


def write(stream: PromptStream, row: Generation, hidden: Tensor, config: EngineConfig,
          generator: torch.Generator, allowed: Tensor, draft: Draft | None = None,
          accept: int | None = None) -> None:
    """
    Fill `row` with the tokens after the prompt whose last hidden state is given.

    Afterwards the stream holds all but the last of them; drafted, it may hold that too.
    """
    draws = draw_uniforms(row.limit, generator=generator)
    if stream.decoding is not None:
        stream.decoding.write(row, hidden, config, draws, allowed, draft, accept)
        return
    row.take(int(choose(next_logits(stream.model, hidden, allowed), config, draws[0])))
    if draft is not None:
        speculate_one(stream, draft, row, config, draws[None], allowed, accept)
        return
    while not row.stop:
        token = torch.tensor(row.ids[-1:], device=hidden.device)
        logits = next_logits(stream.model, stream.extend(token)[-1], allowed)
        row.take(int(choose(logits, config, draws[len(row.ids)])))


def reason_separately(stream: PromptStream, tokenizer: Tokenizer, hidden: Tensor,
                      config: EngineConfig, generator: torch.Generator,
                      draft: Draft | None = None) -> Reasoned:
    """K reasonings of their own after one shared prompt, decoded as a batch."""
    model, samples, limit = stream.model, config.num_trajectories, config.max_new_tokens
    tails = BranchTails(stream.cache, samples, limit + (draft.block_size if draft else 0))
    allowed = model.allowed_tokens(trajectory_tokens=False)
    draws = draw_uniforms(samples, limit, generator=generator)
    rows = [Generation(_ends(tokenizer), limit) for _ in range(samples)]
    tokens = choose(next_logits(model, hidden.expand(samples, -1), allowed), config, draws[:, 0])
    for row, token in zip(rows, tokens.tolist()):
        row.take(token)
    if draft is not None:
        speculate_separately(tails, model, draft, rows, config, draws, allowed)
    else:
        _one_by_one(tails, model, rows, tokens, config, draws, allowed)
    size = stream.layout.size
    lengths = [len(row.ids) for row in rows]
    visible = tuple(size + n - (row.stop != 'end_token') for n, row in zip(lengths, rows))
    return Reasoned(tuple(_reasoning(tokenizer, row) for row in rows),
                    tuple(size + n for n in lengths), visible, tails)


def _one_by_one(tails: BranchTails, model: Alpamayo, rows: list[Generation], tokens: Tensor,
                config: EngineConfig, draws: Tensor, allowed: Tensor) -> None:
    """Continue `rows`, whose first `tokens` [K] are known, a token each per pass."""
    while True:
        hidden = model.language_model(model.embed_tokens(tokens)[:, None], tails.attend)[:, 0]
        tails.length += 1
        if all(row.stop for row in rows):
            return
        tokens = choose(next_logits(model, hidden, allowed), config, draws[:, tails.length])
        for row, token in zip(rows, tokens.tolist()):
            if not row.stop:
                row.take(token)


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


def settle(stream: PromptStream, reasoned: Reasoned) -> Reasoned:
    """
    Compute the keys of reasonings again, all tokens of each in one pass.

    A matrix product rounds otherwise for one token than for a block of them; what is computed
    in one shape depends on the tokens alone.
    """
    stream.truncate(stream.layout.size)
    again = follow(stream, reasoned)
    stream.truncate(reasoned.visible[0] if again.tails is None else stream.layout.size)
    return replace(reasoned, tails=again.tails)


def written(tokenizer: Tokenizer, ids: list[int], stop: str) -> Reasoning:
    """Reasoning of generated `ids`, which ended as `stop` says."""
    text = without_markers(between(tokenizer.decode(ids), 'cot'))
    return Reasoning(text=text, token_ids=tuple(ids), rounds=len(ids), stop_reason=stop)


def _reasoning(tokenizer: Tokenizer, row: Generation) -> Reasoning:
    """Reasoning of a finished row, with what drafting did for it."""
    plain = written(tokenizer, row.ids, row.stop)
    rounds = row.accepted_by_round
    if not rounds:
        return plain
    return replace(plain, drafted=row.drafted, accepted=sum(rounds), rounds=len(rounds),
                   accepted_by_round=tuple(rounds))
