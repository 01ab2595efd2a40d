"""
What a drafter learns: the target's own next words, and whole primitives at once.

Text blocks begin at random anchors and see the last few tokens before them; their
labels are what the target itself says.  Every annotated primitive is one block that
sees the whole branch before its start token; its labels are the annotation (specs
`alpamayo.md` section 11, `vflash.md` sections 1.3 and 3).
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.drafter import Drafter, Taps
from ..core.model import Alpamayo
from ..core.primitives.coordinates import BINS, MARKERS
from ..core.sampling import probabilities
from ..core.tokenizer import Tokenizer
from .forward import Geometry, aligned, forward
from .losses import IGNORE, Joined, join
from .store import Batch
from .validation import reason

BOX_SIZE = 6


@dataclass(frozen=True)
class Features:
    """
    Fused features of a batch: of the prompt `window` [B, P, h], and behind it.

    `plan` and `asked` [B, n, h] are those of the reasoning's and the question's branch.
    """

    window: Tensor
    plan: Tensor
    asked: Tensor


@dataclass(frozen=True)
class Blocks:
    """
    Primitives of B answers, their tokens side by side in L columns.

    `start` [B, L] is the column of the branch where the block begins (-1: nothing here),
    `place` [B, L] counts within the block, `labels` [B, L] are the coordinates to draft,
    `anchor` [B, L] the start tokens' ids.
    """

    start: Tensor
    place: Tensor
    labels: Tensor
    anchor: Tensor


class Markers:
    """Ids by which primitives are found in answers."""

    def __init__(self, tokenizer: Tokenizer, device: torch.device):
        def ids(*names):
            return torch.tensor([tokenizer.id(name) for name in names], device=device)
        self.box_start, self.box_end = ids(*MARKERS['box_2d'])
        pairs = [MARKERS[kind] for kind in ('trajectory_2d', 'trajectory_3d')]
        self.path_starts, self.path_ends = (ids(*names) for names in zip(*pairs))
        self.call_end = torch.tensor(tokenizer.encode('</tool_call>'), device=device)
        self.none = ids('none')
        self.first = tokenizer.id('0')

    def is_coordinate(self, ids: Tensor) -> Tensor:
        """Whether tokens are numbers or say that there is none."""
        return ((ids >= self.first) & (ids <= self.first + BINS)) | (ids == self.none)

    def blocks(self, ids: Tensor, learned: Tensor) -> Blocks:
        """
        Find the primitives in branches `ids` [B, n] of which `learned` [B, n] are answers.

        An absent box counts as a block of full size whose other coordinates nobody
        learns: its size must not tell what it holds.
        """
        before, after = F.pad(ids, (1, 0))[:, :-1], F.pad(ids, (0, 1))[:, 1:]
        a_path = torch.isin(ids, self.path_starts)
        opens = learned & ((ids == self.box_start) | (a_path & (before == self.call_end)))
        closes = (ids == self.box_end) | (
            torch.isin(ids, self.path_ends) & ~torch.isin(after, self.path_starts))
        number = opens.long().cumsum(1)
        ended = F.pad((closes & learned).long().cumsum(1), (1, 0))[:, :-1]
        inside = learned & (number > ended)
        column = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        start = torch.where(opens, column, -1).cummax(1).values
        absent = inside & (ids == self.none) & (column == start + 1) & (
            ids.gather(1, start.clamp(min=0)) == self.box_start)
        counts = inside.long() + absent * (BOX_SIZE - 3)
        ends = counts.cumsum(1)
        width = max(int(ends[:, -1].max()), 1)
        row = torch.arange(width, device=ids.device).expand(len(ids), -1).contiguous()
        source = torch.searchsorted(ends, row, right=True)
        there = source < ids.shape[1]
        source = source.clamp(max=ids.shape[1] - 1)
        copy = row - (ends - counts).gather(1, source)
        start = torch.where(there, start.gather(1, source), -1)
        is_end = source > start + 1
        of_absent = absent.gather(1, (start + 1).clamp(0, ids.shape[1] - 1))
        place = source - start + copy + torch.where(of_absent & is_end, BOX_SIZE - 3, 0)
        token = ids.gather(1, source)
        right = there & (place > 0) & (copy == 0) & self.is_coordinate(token)
        return Blocks(start, place, torch.where(right, token, IGNORE),
                      ids.gather(1, start.clamp(min=0)))


@dataclass(frozen=True)
class DraftLossConfig:
    """
    `anchors` text blocks a branch and window; labels k places behind the anchor weigh less.

    `sampled_share` of the target's texts are drawn at `temperature` and `top_p`, the others
    are its likeliest ones.
    """

    block_sizes: tuple[int, ...] = (8, 16)
    gammas: tuple[float, ...] = (4.0, 7.0)
    anchors: int = 6
    text_weight: float = 1.0
    primitive_weight: float = 1.0
    sampled_share: float = 0.5
    temperature: float = 0.6
    top_p: float = 0.98
    max_new_tokens: int = 32


class DraftLoss(nn.Module):
    """Losses of a drafter on a batch of windows, its `target` frozen."""

    def __init__(self, target: Alpamayo, geometry: Geometry, tokenizer: Tokenizer,
                 drafter: Drafter, config: DraftLossConfig):
        super().__init__()
        self.drafter, self.config = drafter, config
        self.frozen = (target, geometry, tokenizer)  # a tuple: not a part of this module
        self.markers = Markers(tokenizer, target.device)

    def forward(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the weighted 'loss' and its parts; `generator` lives on the batch's device."""
        config = self.config
        plan, asked, features = self.look(batch, generator)
        losses = {'text': features.window.new_zeros(()), 'text_right': features.window.new_zeros(
            ())}
        if config.text_weight:
            for size, gamma in zip(config.block_sizes, config.gammas):
                for branch, seen, share in ((plan, features.plan, 0.75),
                                            (asked, features.asked, 0.25)):
                    loss, right = self.text(branch, seen, size, gamma, generator)
                    share = share / len(config.block_sizes)
                    losses['text'] = losses['text'] + share * loss
                    losses['text_right'] = losses['text_right'] + share * right
        losses |= self.primitives(asked, features)
        losses['loss'] = (config.text_weight * losses['text']
                          + config.primitive_weight * losses['primitives'])
        return {name: value if name == 'loss' else value.detach()
                for name, value in losses.items()}

    def look(self, batch: Batch, generator: torch.Generator | None
             ) -> tuple[Joined, Joined, Features]:
        """
        Both branches with their features; the reasoning is the target's own.

        Without a `generator` it is the likeliest one everywhere.
        """
        (target, geometry, tokenizer), config = self.frozen, self.config
        window, behind = Taps(self.drafter.config), Taps(self.drafter.config)
        with torch.no_grad():
            keys = forward(target, geometry, batch.images, taps=window).keys
            said = reason(target, geometry, tokenizer, batch, keys, config.max_new_tokens,
                          self._sampler(len(batch), generator))
            plan = _joined(said.ids[:, :int(said.length.max())], batch.prompt_length, said.length)
            width = int((batch.question_length + batch.answer_length).max())
            asked = join(batch.question_ids, batch.question_length, batch.answer_ids,
                         batch.answer_length, width)
            forward(target, geometry, None, (plan.ids, asked.ids), keys, taps=behind)
        plan_features, asked_features = self.drafter.fuse(behind.chosen()).split(
            (plan.ids.shape[1], width), 1)
        return plan, asked, Features(self.drafter.fuse(window.chosen()), plan_features,
                                     asked_features)

    def _sampler(self, count: int, generator):
        """(logits [B, vocabulary]) -> tokens [B]: some rows likeliest, some drawn."""
        if generator is None:
            return None
        config = self.config
        drawn = torch.rand(count, generator=generator, device=generator.device) \
            < config.sampled_share

        def pick(logits: Tensor) -> Tensor:
            chances = probabilities(logits, config.temperature, config.top_p)
            sampled = torch.multinomial(chances, 1, generator=generator)[:, 0]
            return torch.where(drawn, sampled, logits.argmax(-1))
        return pick

    def text(self, branch: Joined, features: Tensor, size: int, gamma: float,
             generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Loss of text blocks of `size` at random anchors, and the share of right proposals."""
        learned = branch.labels != IGNORE
        learned = F.pad(learned, (1, 0))[:, :-1]  # a token that was said, not the prompt's last
        chance = torch.rand(learned.shape, generator=generator, device=learned.device)
        chance = chance.masked_fill(~learned, -1)
        count = min(self.config.anchors, chance.shape[1])
        score, anchor = chance.topk(count, 1)
        states, labels = self.drafted(branch, features, anchor, size)
        labels = torch.where((score >= 0)[..., None], labels, IGNORE)
        steps = torch.arange(size - 1, device=labels.device)
        weight = (-steps / gamma).exp() * (labels != IGNORE)
        logits = self._logits(states)
        each = F.cross_entropy(logits.flatten(0, -2), labels.flatten().long(),
                               ignore_index=IGNORE, reduction='none').view_as(labels)
        total = weight.sum().clamp(min=1e-6)
        right = ((logits.argmax(-1) == labels) * weight).sum() / total
        return (each * weight).sum() / total, right

    def drafted(self, branch: Joined, features: Tensor, anchor: Tensor,
                size: int) -> tuple[Tensor, Tensor]:
        """
        States [B, A, size - 1, h] behind text `anchor` columns [B, A], and what is right there.

        A block sees the last `context_len` tokens before its anchor.
        """
        target, drafter = self.frozen[0], self.drafter
        batch, count = anchor.shape
        n, context_len = branch.ids.shape[1], drafter.config.context_len
        before = anchor[..., None] + torch.arange(-context_len, 0, device=anchor.device)
        context = features.gather(1, before.clamp(min=0).flatten(1)[..., None].expand(
            -1, -1, features.shape[2])).view(batch * count, context_len, -1)
        x = drafter.block(target.embed_tokens(branch.ids.gather(1, anchor)).flatten(0, 1), size)
        positions = torch.arange(context_len + size, device=anchor.device)[None]
        states = drafter(x.to(context.dtype), context, positions)[:, 1:]
        ahead = anchor[..., None] + torch.arange(1, size, device=anchor.device)
        known = ahead < branch.length[:, None, None]
        labels = branch.ids.gather(1, ahead.clamp(max=n - 1).flatten(1)).view_as(ahead)
        return states.view(batch, count, size - 1, -1), torch.where(known, labels, IGNORE)

    def primitives(self, asked: Joined, features: Features) -> dict[str, Tensor]:
        """Loss of all annotated primitives, share of right tokens, mean error in bins."""
        learned = F.pad(asked.labels != IGNORE, (1, 0))[:, :-1]
        blocks = self.markers.blocks(asked.ids, learned)
        wanted = blocks.labels != IGNORE
        logits = self._logits(self.filled(blocks, features)[wanted])
        labels = blocks.labels[wanted].long()
        count = max(len(labels), 1)
        first = self.markers.first
        numbers = labels != self.markers.none
        guessed = logits[:, first:first + BINS + 1].argmax(-1) + first
        off = ((guessed - labels).abs() * numbers).sum() / numbers.sum().clamp(min=1)
        return {'primitives': F.cross_entropy(logits, labels, reduction='sum') / count,
                'primitives_right': (logits.argmax(-1) == labels).sum() / count,
                'bins_off': off.float()}

    def filled(self, blocks: Blocks, features: Features) -> Tensor:
        """States [B, L, h] of all blocks side by side, each seeing what stands before it."""
        target, drafter = self.frozen[0], self.drafter
        slots = features.window.shape[1]
        there, own = blocks.start >= 0, blocks.start[:, :, None] == blocks.start[:, None]
        if drafter.config.window_context:
            context = torch.cat((features.window, features.asked), 1)
            column = torch.arange(-slots, features.asked.shape[1], device=own.device)
        else:
            context, slots = features.asked, 0
            column = torch.arange(features.asked.shape[1], device=own.device)
        seen = column < blocks.start[..., None]
        if not drafter.config.window_context:
            seen &= column >= blocks.start[..., None] - drafter.config.context_len
        own &= there[:, :, None]
        own |= torch.eye(own.shape[1], dtype=torch.bool, device=own.device)  # no empty row
        masks = drafter.mask_embedding.expand(*blocks.place.shape, -1)
        x = torch.where((blocks.place == 0)[..., None], target.embed_tokens(blocks.anchor), masks)
        positions = torch.cat((column.expand(len(x), -1) + slots,
                               slots + blocks.start + blocks.place), 1)
        mask = aligned(torch.cat((seen, own), 2)[:, None]).to(context.dtype)
        return drafter(x.to(context.dtype), context, positions, mask)

    def _logits(self, states: Tensor) -> Tensor:
        target = self.frozen[0]
        weight = target.lm_head.weight[:target.config.vocab_size]
        return F.linear(states, weight).float()


def _joined(ids: Tensor, prompt_length: Tensor, length: Tensor) -> Joined:
    """Branches of `ids` [B, n] whose tokens from `prompt_length` [B] to `length` were said."""
    column = torch.arange(ids.shape[1], device=ids.device)
    following = torch.cat((ids[:, 1:], ids.new_zeros(len(ids), 1)), 1)
    learned = (column >= prompt_length[:, None] - 1) & (column < length[:, None] - 1)
    return Joined(ids, torch.where(learned, following, IGNORE), length)


@torch.no_grad()
def tokens_per_round(loss: DraftLoss, plan: Joined, features: Tensor, prompt_length: Tensor,
                     size: int, allowed: Tensor) -> tuple[float, int]:
    """
    What drafting the reasonings of `plan` would commit a round, and in how many rounds.

    The texts are known, so a round's proposals are compared with them; the first token
    comes from the prompt and is not counted.
    """
    at = prompt_length.clone()
    committed = rounds = 0
    while True:
        running = at < plan.length - 1
        if not running.any():
            return committed / max(rounds, 1), rounds
        states, wanted = loss.drafted(plan, features, at[:, None], size)
        weight = loss.frozen[0].lm_head.weight
        logits = F.linear(states[:, 0], weight).float().masked_fill(~allowed, -torch.inf)
        same = (logits.argmax(-1) == wanted[:, 0]).long().cumprod(1).sum(1)
        step = torch.minimum(same + 1, plan.length - 1 - at)
        committed += int(step[running].sum())
        rounds += int(running.sum())
        at = torch.where(running, at + step, at)
