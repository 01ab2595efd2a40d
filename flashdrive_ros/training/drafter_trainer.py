"""
Training of a drafter for a frozen target: `flashdrive train drafter` and `train primitives`.

The run is that of `trainer.py`; what is trained, measured and written is the drafter.
"""
from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path

import torch

from ..core import drafter as drafters
from ..core.drafter import Drafter, DrafterConfig
from . import checkpoints
from .drafter_settings import DrafterSettings
from .drafting import DraftLoss, tokens_per_round
from .store import Batch, ClipStore
from .trainer import Trainer

log = logging.getLogger(__name__)
EXAMINED_AT_ONCE = 32


class DrafterTrainer(Trainer):
    """One training run of a drafter."""

    settings: DrafterSettings

    def _load(self):
        return checkpoints.load_model(self.settings.model, self.device, self.settings.seed)

    def _make_loss(self):
        settings = self.settings
        if not self.has_weights:
            raise ValueError(f'model {settings.model} has no weights: a drafter learns from a '
                             'target that can speak')
        self.model.requires_grad_(False)
        if settings.drafter:
            network = drafters.load(Path(settings.drafter), self.model)
            network = network.train().requires_grad_(True)
        else:
            config = DrafterConfig.for_target(
                self.model.config, num_hidden_layers=settings.layers, block_size=settings.block,
                context_len=settings.context, window_context=True,
                target_layer_ids=tuple(int(n) for n in settings.taps.split(',')))
            drafters.check_fit(config, self.model.config, self.out)
            network = Drafter.random(config, settings.seed).to(self.device)
        network.train()
        return network, DraftLoss(self.model, self.geometry, self.tokenizer, network,
                                  settings.losses)

    def _begin(self) -> None:
        """Nothing is fitted."""

    def train_step(self) -> dict[str, torch.Tensor]:
        """One step on windows of the store; returns its losses, still on the device."""
        drawn, noise = self._generators()
        batch, = self._lit(self._draw(drawn), noise)
        with self.autocast():
            losses = self.module(batch, noise)
        self._update(losses)
        self.step += 1
        return losses

    @torch.no_grad()
    def examine(self, held_out: ClipStore) -> dict[str, float]:
        """Figures of the drafter as it is, on the last window of each clip."""
        everything = torch.arange(held_out.filled, device=self.device)
        batch = held_out.batch(everything, torch.full_like(everything, held_out.windows - 1))
        parts = batch.split(EXAMINED_AT_ONCE)
        found = [self._examine(part) for part in parts]
        figures = {name: sum(f[name] * len(p) for f, p in zip(found, parts)) / len(batch)
                   for name in found[0]}
        log.info('step %d  %s', self.step, '  '.join(f'{name} {value:.3f}'
                                                     for name, value in figures.items()))
        return figures

    def _examine(self, batch: Batch) -> dict[str, float]:
        plan, asked, features = self.loss.look(batch, None)
        allowed = self.model.allowed_tokens(trajectory_tokens=False)
        figures = {f'tokens_per_round_B{size}': tokens_per_round(
            self.loss, plan, features.plan, batch.prompt_length, size, allowed)[0]
            for size in self.settings.losses.block_sizes}
        return figures | {name: float(value) for name, value in
                          self.loss.primitives(asked, features).items()}

    def tell(self, means: dict[str, float]) -> str:
        """Losses of a line of the log, in words."""
        return (f"text {means['text']:.3f} ({100 * means['text_right']:.0f} %)  primitives "
                f"{means['primitives']:.3f} ({100 * means['primitives_right']:.0f} %, "
                f"{means['bins_off']:.0f} bins off)")

    def _export(self, training: dict) -> None:
        out = self.out / 'checkpoint'
        fresh = out.with_name(out.name + '.new')
        shutil.rmtree(fresh, ignore_errors=True)
        averaged = Drafter(self.network.config).to(torch.bfloat16)
        with torch.no_grad():
            for name, parameter in averaged.named_parameters():
                parameter.copy_(self.averaged.by_name()[name])
        notes = {'target': self.model.config.name,
                 'training': dict(training, **dataclasses.asdict(self.settings.losses))}
        drafters.save(averaged, fresh, flashdrive=notes)
        shutil.rmtree(out, ignore_errors=True)
        fresh.rename(out)
