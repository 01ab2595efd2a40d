"""
The training run: clips come in, steps go by, now and then it validates and saves.

    settings -> model, clips, losses -> steps -> checkpoint directory, log, curves

With `--clips-per-step` the run repeats exactly, also across `--resume`: every
random number is drawn from (seed, step), and the store is filled again with the
clips that were in it.
"""
from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from ..core import checkpoint
from ..core.checkpoint import resolve_device
from ..core.config import CheckpointError
from ..core.tokenizer import Tokenizer
from . import checkpoints, curves
from . import forward as window_forward
from .augment import Light
from .forward import Geometry
from .initialise import fit_actions
from .losses import DrivingLoss, widths_of
from .monitors import Examiner, Meter
from .parallel import Workgroup
from .producers import InProcess, Producers, RayProducers
from .samples import ClipConfig, ClipMaker, clip_fields
from .settings import TrainSettings
from .store import Batch, ClipStore
from .validation import ValidationConfig, validate

log = logging.getLogger(__name__)
CAMERAS = (0, 1, 2, 6)
CLIPS_AT_A_TIME = 64
"""New clips taken at most between two steps."""
EXPERT = ('expert.', 'action_in_proj.', 'action_out_proj.')
TEXTS = ('prompt', 'reason', 'question', 'answer')


class Trainer:
    """One training run."""

    cameras = CAMERAS

    def __init__(self, settings: TrainSettings):
        self.settings, self.out = settings, Path(settings.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.group = Workgroup(settings.device)
        self.device = self.group.device or resolve_device(settings.device, 'float32')[0]
        self.model, self.tokenizer, self.has_weights = self._load()
        clips = settings.clips(self.group.rank)
        self.fields = clip_fields(clips, self.model.config, len(CAMERAS))
        self.store = self.make_store(self.fields, settings.store_gib)
        self.geometry = Geometry(self.model, self.tokenizer, CAMERAS, self.store.size)
        self.network, self.loss = self._make_loss()
        self.averaged = checkpoints.AveragedWeights(self.network, settings.ema)
        self.module = self.group.wrap(self.loss)
        self.trained = [p for p in self.loss.parameters() if p.requires_grad]
        self.optimiser = self._optimiser()
        self.step, self.taken, self.seconds, self.longest = 0, 0, 0.0, dict.fromkeys(TEXTS, 1)
        self.progress = 0.0
        self.autocast = partial(torch.autocast, self.device.type, torch.bfloat16,
                                enabled=self._bfloat16(settings.precision))
        if settings.resume:
            self._restore()
        if settings.compile:
            self._compile()

    def _load(self):
        settings = self.settings
        return checkpoints.load_model(settings.model, self.device, settings.seed, settings.fresh)

    def _make_loss(self) -> tuple[nn.Module, nn.Module]:
        """Return the network that is trained and saved, and the loss that holds it."""
        settings, store = self.settings, self.store
        if settings.streaming and store.windows < settings.rollout_range[1]:
            raise ValueError(f'rollouts of {settings.rollout_range[1]} windows need --clip-frames '
                             f'{settings.rollout_range[1] + store.frames - 1}')
        self._choose_parameters()
        return self.model, DrivingLoss(self.model, self.geometry, settings.losses)

    def make_store(self, fields, gib: float) -> ClipStore:
        """Room for clips in the memory of the device."""
        each = ClipStore.clip_bytes(fields, self.model.config)
        capacity = max(int(gib * 2 ** 30 / each), 1)
        return ClipStore(fields, self.model.config, capacity, self.device)

    def _bfloat16(self, precision: str) -> bool:
        return precision == 'bfloat16' or (precision == 'auto' and self.device.type == 'cuda')

    def _choose_parameters(self) -> None:
        stage = self.settings.stage
        for name, parameter in self.model.named_parameters():
            in_expert = name.startswith(EXPERT)
            parameter.requires_grad_(stage == 'full' or in_expert == (stage == 'streaming-expert'))

    def _optimiser(self) -> torch.optim.AdamW:
        groups = [{'params': [p for p in self.trained if p.dim() > 1],
                   'weight_decay': self.settings.weight_decay},
                  {'params': [p for p in self.trained if p.dim() < 2], 'weight_decay': 0.0}]
        return torch.optim.AdamW(groups, lr=self.settings.learning_rate, betas=(0.9, 0.95),
                                 fused=self.device.type == 'cuda')

    def _compile(self) -> None:
        """Compile what repeats: one graph serves all layers of a kind."""
        torch._dynamo.config.cache_size_limit = 64
        for block in self.model.visual.blocks:
            block.compile()
        for decoder in (self.model.language_model, self.model.expert):
            for layer in decoder.layers:
                layer.before, layer.after = (torch.compile(layer.before),
                                             torch.compile(layer.after))
        window_forward.turn = torch.compile(window_forward.turn)

    # -- the run ------------------------------------------------------------------------

    def run(self, stop_at: int | None = None) -> dict:
        """
        Train until the end, or to step `stop_at` of the same run (to be resumed).

        Returns the last validation's figures.  Ctrl-C saves before it ends.
        """
        settings = self.settings
        exact = settings.clips_per_step > 0  # else new clips do as well as those of before
        first = max(0, self.taken - self.store.capacity) if exact else self.taken
        producers = self.make_producers(settings.clips(self.group.rank), settings.workers, first)
        examiner = Examiner(self) if settings.validation_clips and self.group.is_main else None
        try:
            self._fill(producers, first)
            if not settings.resume:
                self._begin()
            self._loop(producers, examiner, stop_at)
            figures = examiner.examine() if examiner else {}
            self._save(figures)
            return figures
        except KeyboardInterrupt:
            log.info('interrupted in step %d: saving', self.step)
            self._save({})
            raise
        finally:
            producers.close()
            if examiner:
                examiner.close()

    def make_producers(self, clips: ClipConfig, workers: int, first: int = 0,
                   limit: int | None = None):
        """Clips from processes, from a Ray cluster or from this process."""
        maker = partial(make_maker, self.settings.model, clips)
        each = clips.clips_per_episode
        if self.settings.ray_workers:
            return RayProducers(maker, self.settings.ray_workers, each, first, limit)
        if workers:
            fields = clip_fields(clips, self.model.config, len(CAMERAS))
            return Producers(maker, fields, workers, each, first, limit)
        return InProcess(maker, each, first, limit)

    def _fill(self, producers, first: int) -> None:
        """Put every clip where it was, or would be, in the ring."""
        self.store.at = first % self.store.capacity
        for _ in range(self.taken - first):
            self.add(producers.take())
        while self.store.filled < min(self.settings.first_clips, self.store.capacity):
            self.add(producers.take())
        self.taken = producers.taken

    def add(self, clip) -> None:
        """Put a clip into the store."""
        self.store.add(clip)
        for name in TEXTS:
            self.longest[name] = max(self.longest[name], int(clip[f'{name}_length'].max()))

    def _begin(self) -> None:
        """Normalise the actions of a new model by what is in the store."""
        if self.has_weights:
            return
        controls = self.store.arrays['controls'][:self.store.filled].flatten(0, 1)
        action = fit_actions(controls, self.model.config.action)
        checkpoints.set_action(self.model, action)
        log.info('actions: acceleration %.3f +- %.3f m/s^2, curvature %.5f +- %.5f 1/m',
                 action.accel_mean, action.accel_std, action.curvature_mean,
                 action.curvature_std)

    def _loop(self, producers, examiner, stop_at) -> None:
        settings = self.settings
        began = previous = time.monotonic()
        meter = Meter(self)
        examined = saved = began
        while self._agree_on_progress() < 1 and self.step != stop_at:
            self._ingest(producers)
            if examiner:
                examiner.poll()
            meter.add(self.train_step())
            now = time.monotonic()
            self.seconds += now - previous
            previous = now
            if self.step % settings.log_every == 0:
                meter.write()
            due = (self.step % settings.validate_steps == 0 if settings.validate_steps
                   else now - examined > settings.validate_every)
            if examiner and due and examiner.ready:
                meter.note(examiner.examine())
                examined = previous = time.monotonic()
            if now - saved > settings.save_every:
                self._save({})
                saved = previous = time.monotonic()

    def _agree_on_progress(self) -> float:
        """Share of the run that is done; every process must ask for it, and equally often."""
        settings = self.settings
        by_steps = self.step / settings.steps if settings.steps else 0.0
        by_time = self.seconds / (60 * settings.minutes) if settings.minutes else 0.0
        self.progress = self.group.agree(max(by_steps, by_time))
        return self.progress

    def rate(self) -> float:
        """Learning rate of the next step: up, flat, down."""
        settings = self.settings
        up = min(1.0, (self.step + 1) / max(settings.warmup_steps, 1))
        left = (1 - self.progress) / max(settings.decay_share, 1e-9)
        return settings.learning_rate * up * max(min(1.0, left), settings.final_rate)

    def _ingest(self, producers) -> None:
        fixed = self.settings.clips_per_step
        if fixed:
            due = math.floor((self.step + 1) * fixed) - math.floor(self.step * fixed)
            clips = (producers.take() for _ in range(due))
        elif isinstance(producers, InProcess):
            clips = iter(())  # nothing to wait for: the first clips are all there is
        else:
            clips = iter(partial(producers.take, False), None)
        for _, clip in zip(range(CLIPS_AT_A_TIME), clips):
            self.add(clip)
        self.taken = producers.taken

    def train_step(self) -> dict[str, torch.Tensor]:
        """One step on windows of the store; returns its losses, still on the device."""
        drawn, noise = self._generators()
        batch, *rolled = self._lit(self._draw(drawn), noise)
        with self.autocast():
            losses = self.module(batch, widths_of(self.longest), noise, rolled)
        self._update(losses)
        self.step += 1
        return losses

    def _generators(self) -> tuple[torch.Generator, torch.Generator]:
        """Random numbers of this step, on the CPU and on the device."""
        seed = ((self.settings.seed * 1_000_003 + self.step) * 4099 + self.group.rank) % 2 ** 62
        return torch.Generator().manual_seed(seed), torch.Generator(self.device).manual_seed(seed)

    def _lit(self, windows: list[Batch], noise: torch.Generator) -> list[Batch]:
        """Windows that belong together, in another light."""
        if not self.settings.augment:
            return windows
        light = Light.draw(len(windows[0]), len(CAMERAS), self.settings.augment, noise)
        return [replace(b, images=light.on(b.images, noise)) for b in windows]

    def _update(self, losses: dict[str, torch.Tensor]) -> None:
        """Change the parameters for `losses`, to which the gradient's norm is added."""
        for group in self.optimiser.param_groups:
            group['lr'] = self.rate()
        losses['loss'].backward()
        losses['gradient'] = torch.nn.utils.clip_grad_norm_(self.trained, self.settings.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.averaged.update()

    def _draw(self, generator) -> list[Batch]:
        """Windows to learn from, then those that they are streamed after, oldest first."""
        if not self.settings.streaming:
            return [self.store.sample(self.settings.batch, generator)]
        low, high = self.settings.rollout_range
        length = int(torch.randint(low, high + 1, (), generator=generator))
        *rolled, batch = self.store.rollouts(self.settings.batch, length, generator)
        return [batch, *rolled]

    def examine(self, held_out: ClipStore) -> dict[str, float]:
        """Figures of the network as it is, on the last window of each clip."""
        last = held_out.windows - 1
        length = held_out.windows if self.settings.streaming else 1
        everything = torch.arange(held_out.filled, device=self.device)
        *rolled, batch = [held_out.batch(everything, torch.full_like(everything, last - k))
                          for k in reversed(range(length))]
        figures = validate(self.model, self.geometry, self.tokenizer, batch, ValidationConfig(),
                           rolled=tuple(rolled))
        log.info('step %d  minADE1 %.2f m  minADE6 %.2f m  (constant velocity %.2f m)  cause '
                 'right %.0f %%', self.step, figures['minADE1'], figures['minADE6'],
                 figures['constant_velocity'], 100 * figures['cause_right'])
        return figures

    def tell(self, means: dict[str, float]) -> str:
        """Losses of a line of the log, in words."""
        return (f"action {means['action']:.3f}  reason {means['reason']:.3f} "
                f"({100 * means['reason_right']:.0f} %)  answer {means['answer']:.3f} "
                f"({100 * means['answer_right']:.0f} %)")

    # -- what it leaves behind ----------------------------------------------------------

    def _save(self, figures: dict) -> None:
        if not self.group.is_main:
            return
        settings = self.settings
        self._export({
            'steps': self.step, 'seed': settings.seed,
            'windows': self.step * settings.batch * self.group.size,
            'clips': self.taken * self.group.size, 'minutes': round(self.seconds / 60, 2),
            'from': settings.model, 'validation': figures})
        if settings.keep_state:
            checkpoints.save_state(self.out / 'state.pt', {
                'step': self.step, 'taken': self.taken, 'seconds': self.seconds,
                'longest': self.longest, 'action': asdict(self.model.config.action),
                'loss': self.loss.state_dict(), 'averaged': self.averaged.state(),
                'optimiser': self.optimiser.state_dict()})
        curves.draw(self.out / 'log.jsonl', self.out / 'curves.png')

    def _export(self, training: dict) -> None:
        """Write what the engine loads; `training` says how it came about."""
        settings = self.settings
        checkpoints.export(self.model, self.averaged.by_name(), settings.model,
                           self.out / 'checkpoint', {'stage': settings.stage, **training},
                           settings.shard_mib)

    def _restore(self) -> None:
        state = checkpoints.load_state(self.out / 'state.pt', self.device)
        self.step, self.taken, self.seconds = state['step'], state['taken'], state['seconds']
        self.longest = state['longest']
        action = type(self.model.config.action)(**state['action'])
        checkpoints.set_action(self.model, action)
        try:
            self.loss.load_state_dict(state['loss'])
        except RuntimeError as error:
            raise CheckpointError(
                f"{self.out / 'state.pt'} is of another model: {error}") from None
        self.averaged.restore(state['averaged'])
        self.optimiser.load_state_dict(state['optimiser'])


def make_maker(model: str, clips: ClipConfig) -> ClipMaker:
    """Clip maker for the model's vocabulary; what a worker process begins with."""
    config, tokenizer_file = checkpoint.read_config(checkpoint.find(model))
    return ClipMaker(clips, config, Tokenizer.from_file(tokenizer_file, config), CAMERAS)
