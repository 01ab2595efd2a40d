"""
The training run of a drafter: the frozen model looks at windows, the drafter learns from it.

    settings -> model, drafter, clips -> steps of one look and several updates -> checkpoint
"""
from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core import drafter as drafters
from ..core.config import CheckpointError
from ..core.drafter import Drafter, DrafterConfig, check_fit
from ..core.primitives.coordinates import MASK
from ..core.primitives.layouts import SLOT_KINDS
from . import checkpoints
from .blocks import Blocks, anchor_weights, room_for, text_blocks
from .decoding import greedy
from .drafter_settings import DrafterSettings
from .drafter_validation import validate
from .drafting import (
    PLAN,
    SAID,
    DraftLoss,
    Material,
    Rooms,
    Target,
    best_attention,
    half_greedy,
)
from .samples import QUESTIONS
from .store import Batch, ClipStore
from .trainer import Trainer

log = logging.getLogger(__name__)
ROUND_UP = 32
"""Columns and rooms are multiples of it, so that few shapes are seen."""


class DrafterTrainer(Trainer):
    """One training run of a drafter; needs a model with weights."""

    settings: DrafterSettings

    def _load(self):
        settings = self.settings
        model, tokenizer, has_weights = checkpoints.load_model(settings.model, self.device,
                                                               settings.seed)
        if model.config.trained and not has_weights:
            raise CheckpointError(f'{settings.model} has no weights to draft for')
        if self._bfloat16(settings.precision):
            model = model.to(torch.bfloat16)
        return model.eval(), tokenizer, has_weights

    def _make_loss(self) -> tuple[nn.Module, nn.Module]:
        settings, model = self.settings, self.model
        mask = self.tokenizer.id(MASK.strip('<|>'))
        config = DrafterConfig.for_target(
            model.config, num_hidden_layers=settings.layers, target_layer_ids=settings.layer_ids,
            block_size=settings.block_sizes[0], context_len=settings.context,
            window_context=settings.window_context, mask_token_id=mask,
            slot_kinds=SLOT_KINDS if settings.slots else 0)
        check_fit(config, model.config, Path(settings.out))
        if settings.drafter:
            drafter = drafters.load(Path(settings.drafter), model).float().requires_grad_(True)
        else:
            drafter = Drafter.random(config, settings.seed).to(self.device)
        kind = best_attention(drafter) if settings.attention == 'auto' else settings.attention
        self.target = Target(model, self.tokenizer, self.geometry, drafter)
        return drafter.train(), DraftLoss(drafter, self.target, kind, settings.text_weight,
                                          settings.primitive_weight, settings.near_share,
                                          settings.near_bins)

    def _compile(self) -> None:
        """Compile what repeats in the frozen model."""
        super()._compile()
        for layer in self.network.layers:
            layer.before, layer.after = torch.compile(layer.before), torch.compile(layer.after)

    def _begin(self) -> None:
        """Nothing of the model is fitted."""

    def train_step(self) -> dict[str, Tensor]:
        """One look of the model and the updates from it; returns the means of their losses."""
        drawn, noise = self._generators()
        sums: dict[str, Tensor] = {}
        with self.autocast():
            material = self.look(drawn, noise)
        updates = 0
        for blocks, chosen, room in self._parts(material, noise):
            with self.autocast():
                losses = self.module(material.rows(chosen), blocks.rows(chosen), room)
            self._update(losses)
            sums = {name: sums.get(name, 0) + value.detach() for name, value in losses.items()}
            updates += 1
        self.step += 1
        return {name: value / updates for name, value in sums.items()}

    def look(self, drawn: torch.Generator, noise: torch.Generator) -> Material:
        """Draw windows and let the model see them and speak."""
        settings = self.settings
        clips, windows = self.store.places(settings.batch, drawn)
        order = torch.rand(settings.batch, QUESTIONS, generator=drawn).argsort(1)
        asked = self.store.asked(clips, windows, order[:, :settings.questions].to(self.device))
        batch, = self._lit([self.store.batch(clips, windows)], noise)
        pick = half_greedy(settings.batch, settings.temperature, settings.top_p, noise) \
            if settings.text_tokens else None
        return self.target.study(batch, asked, self.rooms(settings.own_answer), pick)

    def rooms(self, own: int = 0) -> Rooms:
        """
        Room for every text that was seen so far, and for reasons of any length.

        The model's own answers may have `own` tokens; 0: as many as any.
        """
        def up(n):
            return -(-n // ROUND_UP) * ROUND_UP
        longest = self.longest
        most = self.fields['prompt_ids'].shape[-1], self.fields['question_ids'].shape[-1]
        return Rooms(min(up(longest['prompt']), most[0]), min(up(longest['question']), most[1]),
                     self.fields['reason_ids'].shape[-1], up(longest['answer']),
                     own or up(longest['answer']))

    def _parts(self, material: Material, noise) -> Iterator[tuple[Blocks, Tensor, int]]:
        """Blocks of all windows, the windows of an update and the room for its blocks."""
        settings, sizes = self.settings, self.settings.block_sizes
        for number in range(settings.passes):
            blocks = material.primitives.shuffled(noise)
            if not settings.primitive_tokens:
                blocks = blocks.take(torch.zeros_like(blocks.size[:, :0]))
            size = sizes[(self.step * settings.passes + number) % len(sizes)]
            if settings.text_tokens:
                blocks = Blocks.join([*self._texts(material, size, noise), blocks])
            room = room_for(1, settings.text_tokens, settings.primitive_tokens)
            shuffled = torch.randperm(len(material), generator=noise, device=self.device)
            for chosen in shuffled.split(settings.part):
                yield blocks, chosen, room

    def _texts(self, material: Material, size: int, noise) -> list[Blocks]:
        settings, branches = self.settings, material.branches
        count = settings.text_tokens // size
        said = round(settings.answer_share * count)
        found = []
        for number, anchors, inside in ((PLAN, count - said, None),
                                        (SAID, said, self.target.coordinates)):
            if anchors:
                weights = anchor_weights(branches, number, inside, settings.inside_weight)
                found.append(text_blocks(branches, number, size, weights, anchors, noise))
        return found

    def examine(self, held_out: ClipStore) -> dict[str, float]:
        """Figures of the drafter as it is, on the last window of each clip."""
        everything = torch.arange(held_out.filled, device=self.device)
        last = torch.full_like(everything, held_out.windows - 1)
        figures = validate(self.loss, self._held_out(held_out, everything, last),
                           self.settings.block_sizes)
        log.info('step %d  %s', self.step, '  '.join(
            f'{name} {value:.2f}' for name, value in figures.items()
            if name.startswith(('tokens_per_round', 'primitive', 'box', 'ade'))))
        return figures

    def _held_out(self, held_out: ClipStore, clips: Tensor, windows: Tensor
                  ) -> Iterator[tuple[Batch, Material]]:
        """Held-out windows in parts that the memory holds, with what the model says of them."""
        size = max(1, self.settings.part // 4)
        question = torch.arange(self.settings.questions, device=self.device)
        for name in self.longest:
            seen = held_out.arrays[f'{name}_length'][:held_out.filled].max()
            self.longest[name] = max(self.longest[name], int(seen))
        for c, w in zip(clips.split(size), windows.split(size)):
            batch = held_out.batch(c, w)
            asked = held_out.asked(c, w, question.expand(len(c), -1))
            yield batch, self.target.study(batch, asked, self.rooms(), greedy)

    def tell(self, means: dict[str, float]) -> str:
        """Losses of a line of the log, in words."""
        return '  '.join(f'{name} {means[name]:.3f} ({100 * means[f"{name}_right"]:.0f} %)'
                         for name in ('text', 'primitive'))

    def _export(self, training: dict) -> None:
        settings = self.settings
        checkpoints.export_drafter(self.network, self.averaged.by_name(), self.out / 'checkpoint',
                                   {'blocks': list(settings.block_sizes), **training})
