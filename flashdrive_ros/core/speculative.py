"""
Draft and verify: several tokens of a text for one pass of the target.

A drafter proposes a block, the target runs over it once and chooses its own
token at every position.  What is kept is the longest run of proposals that the
target chose too, and its next token: the target's own tokens, whatever was
proposed (spec `alpamayo.md` sections 11 and 16).

The newest token, the anchor, is not in the cache until the block that it opens
is verified.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from .branches import BranchTails
from .config import EngineConfig
from .drafter import Drafter, Taps
from .model import Alpamayo
from .sampling import choose, next_logits
from .stream import PromptStream

Verify = Callable[[Tensor, list[int], Taps], Tensor]
"""(block [K, B], first slot of each row behind the prompt, taps) -> hidden states [K, B, h]."""


@dataclass
class Generation:
    """
    The tokens of one sequence, until one of `stops` or `limit` of them.

    `stop` is the name of what ended it, 'length' for the limit, '' before.
    `cached` counts the tokens whose keys are known to be in the cache;
    `drafted` is as in `types.Reasoning`, `accepted_by_round` too.
    """

    stops: Mapping[int, str]
    limit: int
    ids: list[int] = field(default_factory=list)
    stop: str = ''
    cached: int = 0
    drafted: int = 0
    accepted_by_round: list[int] = field(default_factory=list)

    def take(self, token: int) -> None:
        """Append the next token."""
        self.ids.append(token)
        self.stop = self.stops.get(token, 'length' if len(self.ids) >= self.limit else '')

    def commit(self, tokens: Sequence[int], accepted: int) -> None:
        """Append a round's tokens: `accepted` proposals and the one after; nothing if stopped."""
        if self.stop:
            return
        before = len(self.ids)
        self.cached = before + accepted
        for token in tokens[:accepted + 1]:
            self.take(token)
            if self.stop:
                break
        self.drafted += len(tokens) - 1
        self.accepted_by_round.append(min(accepted, len(self.ids) - before))


@dataclass(frozen=True)
class Draft:
    """
    A drafter, and the fused features [n, hidden] of the prompt's last tokens.

    `forced` maps a token to the one that a block always proposes behind it: that
    which ends a text, so that it is in the cache when it is accepted.
    """

    drafter: Drafter
    context: Tensor
    forced: Mapping[int, int] = field(default_factory=dict)

    @property
    def block_size(self) -> int:
        """Tokens of a block: the anchor and the proposals."""
        return self.drafter.config.block_size

    def propose(self, model: Alpamayo, anchors: Tensor, context: Tensor,
                allowed: Tensor) -> Tensor:
        """Blocks [K, B] behind `anchors` [K], their likeliest tokens given `context` [K, n, h]."""
        size = self.block_size
        x = self.drafter.block(model.embed_tokens(anchors), size)
        positions = torch.arange(context.shape[1] + size, device=x.device)[None]
        states = self.drafter(x, context, positions)[:, 1:]
        block = torch.cat((anchors[:, None], next_logits(model, states, allowed).argmax(-1)), 1)
        for token, following in self.forced.items():
            block[:, 1:].masked_fill_(block[:, :-1] == token, following)
        return block


def speculate(model: Alpamayo, draft: Draft, verify: Verify, rows: Sequence[Generation],
              config: EngineConfig, draws: Tensor, allowed: Tensor,
              accept: int | None = None) -> None:
    """
    Continue `rows`, each of which has its first token, until all have stopped.

    `draws` [K, limit] choose the tokens, `allowed` [vocabulary] says which may
    be.  One round is one pass of the drafter, one of the target, and one wait for the
    device.  With `accept`, that many proposals of every round count as right.
    """
    size = draft.block_size
    draws, steps = F.pad(draws, (0, size)), torch.arange(size, device=draws.device)
    context = draft.context.expand(len(rows), -1, -1)
    seen = torch.arange(context.shape[1], device=draws.device)
    while not all(row.stop for row in rows):
        state = torch.tensor([(row.ids[-1], len(row.ids)) for row in rows], device=draws.device)
        anchors, counts = state.unbind(1)
        block = draft.propose(model, anchors, context, allowed)
        taps = Taps(draft.drafter.config)
        hidden = verify(block, [len(row.ids) - 1 for row in rows], taps)
        tokens = choose(next_logits(model, hidden, allowed), config,
                        draws.gather(1, counts[:, None] + steps))
        accepted = (block[:, 1:] == tokens[:, :-1]).long().cumprod(1).sum(1, keepdim=True)
        if accept is not None:
            accepted = torch.full_like(accepted, accept)
        known = torch.cat((context, draft.drafter.fuse(taps.chosen())), 1)
        newest = (accepted + 1 + seen)[..., None].expand(-1, -1, known.shape[2])
        context = known.gather(1, newest)
        for row, (*chosen, count) in zip(rows, torch.cat((tokens, accepted), 1).tolist()):
            row.commit(chosen, count)


def speculate_one(stream: PromptStream, draft: Draft, row: Generation, config: EngineConfig,
                  draws: Tensor, allowed: Tensor, accept: int | None = None) -> None:
    """
    Continue `row` behind the prompt of `stream`.

    Afterwards the stream holds all tokens but the last, and that too where it is
    known to be in the cache (`row.cached`).
    """
    size = stream.layout.size

    def verify(block: Tensor, starts: list[int], taps: Taps) -> Tensor:
        stream.truncate(size + starts[0])
        return stream.extend(block[0], taps)[None]
    speculate(stream.model, draft, verify, [row], config, draws, allowed, accept)
    stream.truncate(size + max(len(row.ids) - 1, min(row.cached, len(row.ids))))


def speculate_separately(tails: BranchTails, model: Alpamayo, draft: Draft,
                         rows: Sequence[Generation], config: EngineConfig, draws: Tensor,
                         allowed: Tensor) -> None:
    """Continue K rows behind their shared prompt, as one batch, into `tails`."""
    def run(tokens: Tensor, starts: list[int], taps: Taps | None) -> Tensor:
        count = tokens.shape[1]
        first = torch.tensor(starts, device=tokens.device)
        attend = tails.block(first, max(starts) + count, count)
        return model.language_model(model.embed_tokens(tokens), attend, taps=taps)
    speculate(model, draft, run, rows, config, draws, allowed)
    if any(row.stop == 'end_token' and row.cached < len(row.ids) for row in rows):
        last = torch.tensor([row.ids[-1:] for row in rows], device=draws.device)
        run(last, [len(row.ids) - 1 for row in rows], None)
    tails.length = max(len(row.ids) for row in rows)
