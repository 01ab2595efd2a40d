"""What watches a training run: held-out clips that it is examined on, and the log."""
from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

import torch

from .producers import InProcess
from .samples import clip_fields
from .store import ClipStore

if TYPE_CHECKING:
    from .trainer import Trainer

log = logging.getLogger(__name__)


class Examiner:
    """Collects held-out clips while training goes on; examines the averaged weights on them."""

    def __init__(self, trainer: Trainer):
        settings = trainer.settings
        self.trainer, clips = trainer, settings.validation()
        fields = clip_fields(clips, trainer.model.config, len(trainer.cameras))
        each = ClipStore.clip_bytes(fields, trainer.model.config)
        self.wanted = settings.validation_clips
        self.store = trainer.make_store(fields, (self.wanted + 0.5) * each / 2 ** 30)
        self.producers = trainer.make_producers(clips, settings.validation_workers,
                                            limit=self.wanted)

    @property
    def ready(self) -> bool:
        """Whether all clips are there."""
        return self.store.filled == self.wanted

    def poll(self) -> None:
        """Take in a clip if there is one."""
        if self.ready or isinstance(self.producers, InProcess):
            return
        clip = self.producers.take(wait=False)
        if clip is not None:
            self.store.add(clip)

    def examine(self) -> dict[str, float]:
        """Figures of the averaged weights; waits for clips that are still missing."""
        while not self.ready:
            self.store.add(self.producers.take())
        trainer = self.trainer
        trainer.averaged.swap()
        began = time.monotonic()
        try:
            with trainer.autocast():
                figures = trainer.examine(self.store)
        finally:
            trainer.averaged.swap()
        figures['validation_seconds'] = time.monotonic() - began
        return figures

    def close(self) -> None:
        """End the workers."""
        self.producers.close()


class Meter:
    """Means over the steps since the last line, written to the log."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.path = trainer, trainer.out / 'log.jsonl'
        self._begin()

    def _begin(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.count, self.began, self.clips = 0, time.monotonic(), self.trainer.taken

    def add(self, losses: dict[str, torch.Tensor]) -> None:
        """Take in the losses of a step, without waiting for the device."""
        self.count += 1
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, 0) + value.detach().float()

    def write(self) -> None:
        """Write the means."""
        trainer = self.trainer
        means = {name: float(value) / self.count for name, value in self.sums.items()}
        lasted = time.monotonic() - self.began
        batch = trainer.settings.batch * trainer.group.size
        line = {'step': trainer.step, 'minutes': trainer.seconds / 60, 'rate': trainer.rate(),
                **means, 'windows_per_s': self.count * batch / lasted,
                'clips_per_s': (trainer.taken - self.clips) * trainer.group.size / lasted,
                'clips': trainer.taken * trainer.group.size}
        self.note(line)
        if trainer.group.is_main:
            log.info('step %d  %.1f min  loss %.3f  %s  %.0f windows/s  %.1f clips/s',
                     trainer.step, line['minutes'], means['loss'], trainer.tell(means),
                     line['windows_per_s'], line['clips_per_s'])
        self._begin()

    def note(self, figures: dict) -> None:
        """Append a line to the log file."""
        if self.trainer.group.is_main:
            with self.path.open('a', encoding='utf-8') as file:
                file.write(json.dumps({'step': self.trainer.step, **figures}) + '\n')
