"""Everything that can be set about a training run, with its defaults and what it means."""
from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line shall not wait for torch
    from .losses import LossConfig
    from .samples import ClipConfig

STAGES = ('full', 'streaming-expert', 'streaming-vlm')


def setting(default, text: str):
    """Return a field with its default and what it means."""
    return dataclasses.field(default=default, metadata={'help': text})


@dataclass(frozen=True)
class RunSettings:
    """Any run; `steps` or `minutes` ends it, whichever comes first (0: not limited by it)."""

    model: str = setting('small', 'checkpoint to begin from: a name or a directory; without '
                                  'weights it begins from random ones')
    out: str = setting('out/train', 'folder for checkpoint, state, log and curves')
    steps: int = setting(0, 'number of steps; 0: no limit')
    minutes: float = setting(0.0, 'time for training, waiting for the first clips left out; '
                                  '0: no limit')
    batch: int = setting(256, 'windows per step and process')
    learning_rate: float = setting(1e-3, 'highest learning rate')
    warmup_steps: int = setting(200, 'steps in which the learning rate rises')
    decay_share: float = setting(0.4, 'last share of the run in which it falls linearly')
    final_rate: float = setting(0.03, 'share of the learning rate that is left at the end')
    weight_decay: float = setting(0.05, 'AdamW, on matrices only')
    clip_norm: float = setting(1.0, 'largest norm of the gradient')
    ema: float = setting(0.998, 'weight of the past in the averaged weights that are saved')
    workers: int = setting(0, 'processes that draw clips; 0: draw in this process')
    ray_workers: int = setting(0, 'the same as tasks on a Ray cluster instead')
    image: str = setting('320x180', 'width x height of the cameras')
    clip_frames: int = setting(4, 'frames of a clip: the more, the more windows that are alike; '
                                  'streaming stages need 19')
    clips_per_episode: int = setting(20, 'clips drawn of one episode')
    augment: float = setting(1.0, 'how much colours and grain change each time; 0: not')
    long_paths: float = setting(0.0, 'share of the paths asked for that have 64 points: their '
                                     'answers are longer than all others')
    episode_seconds: float = setting(60.0, 'length of an episode')
    store_gib: float = setting(2.0, 'memory for clips on the training device')
    first_clips: int = setting(64, 'clips that must be there before the first step')
    clips_per_step: float = setting(0.0, 'take exactly so many clips per step (repeatable); '
                                         '0: take what is there')
    precision: str = setting('auto', 'float32, bfloat16, or auto (bfloat16 on CUDA)')
    compile: bool = setting(False, 'torch.compile everything around the attention')
    device: str = setting('auto', 'device to train on')
    seed: int = setting(0, 'seed of weights, clips and noise')
    validation_clips: int = setting(128, 'held-out clips; 0: no validation')
    validation_frames: int = setting(19, 'frames of a held-out clip; its last window counts')
    validation_workers: int = setting(2, 'processes that draw them; 0: draw in this process')
    validate_every: float = setting(90.0, 'seconds between validations (there is one at the end)')
    validate_steps: int = setting(0, 'steps between validations instead')
    save_every: float = setting(180.0, 'seconds between saves of checkpoint and state')
    log_every: int = setting(20, 'steps between log lines')
    keep_state: bool = setting(True, 'save the whole state for --resume (16 bytes a parameter)')
    resume: bool = setting(False, 'go on from the state in the output folder')

    def __post_init__(self):
        """Refuse what does not fit together, naming the setting."""
        for name, holds in self.checks().items():
            if not holds:
                raise ValueError(f'{name} = {getattr(self, name)!r} does not fit (neither steps '
                                 'nor minutes limit the run)' if name == 'steps' else
                                 f'{name} = {getattr(self, name)!r} does not fit')

    def checks(self) -> dict[str, bool]:
        """Name of a setting -> whether its value fits."""
        return {'steps': self.steps > 0 or self.minutes > 0, 'batch': self.batch > 0,
                'precision': self.precision in ('auto', 'float32', 'bfloat16'),
                'clip_frames': self.clip_frames >= 1, 'long_paths': 0 <= self.long_paths <= 1}

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the cameras."""
        width, _, height = self.image.partition('x')
        return int(width), int(height)

    def clips(self, rank: int = 0) -> ClipConfig:
        """Clips to train on."""
        from .samples import LONG_ANSWER, ClipConfig
        base = ClipConfig(seed=self.seed * 1000 + rank, frames=self.clip_frames,
                          clips_per_episode=self.clips_per_episode)
        if self.long_paths:
            base = dataclasses.replace(base, long_paths=self.long_paths,
                                       answer_tokens=LONG_ANSWER)
        width, height = self.image_size
        return dataclasses.replace(base, episode=dataclasses.replace(
            base.episode, seconds=self.episode_seconds, width=width, height=height))

    def validation(self) -> ClipConfig:
        """Held-out clips: nominal cameras, no pushes, the navigation always speaks."""
        base = self.clips()
        return dataclasses.replace(
            base, seed=0, validation=True, silent_share=0.0, clips_per_episode=4,
            frames=self.validation_frames,
            episode=dataclasses.replace(base.episode, push_every_s=0.0, jitter_cameras=0.0,
                                        balanced=False))


@dataclass(frozen=True)
class TrainSettings(RunSettings):
    """Training of the model itself."""

    stage: str = setting('full', f'what is trained: {", ".join(STAGES)}')
    fresh: bool = setting(False, 'begin from random weights whatever the checkpoint has')
    draws: int = setting(4, 'noises per window in flow matching')
    reason_weight: float = setting(0.5, 'weight of the reasoning text')
    answer_weight: float = setting(0.5, 'weight of the answers to questions')
    seeing_weight: float = setting(1.0, 'weight of the dense lesson on what the images show; '
                                        '0: without it')
    wrong_reason_share: float = setting(0.15, 'windows whose expert is told a wrong reason')
    rollout: str = setting('4,16', 'fewest and most windows of a streaming rollout')
    shard_mib: float = setting(15.0, 'largest file of the checkpoint, MiB')

    def checks(self) -> dict[str, bool]:
        """Name of a setting -> whether its value fits."""
        return {**super().checks(), 'stage': self.stage in STAGES,
                'rollout': 1 <= self.rollout_range[0] <= self.rollout_range[1]}

    @property
    def rollout_range(self) -> tuple[int, int]:
        """Fewest and most windows of a rollout."""
        low, _, high = self.rollout.partition(',')
        return int(low), int(high or low)

    @property
    def streaming(self) -> bool:
        """Whether windows are learned on top of a rollout."""
        return self.stage != 'full'

    @property
    def losses(self) -> LossConfig:
        """Loss settings of the stage: as in the paper only flow matching trains the expert."""
        from .losses import LossConfig
        if self.stage == 'full':
            return LossConfig(draws=self.draws, reason_weight=self.reason_weight,
                              answer_weight=self.answer_weight,
                              seeing_weight=self.seeing_weight,
                              wrong_reason_share=self.wrong_reason_share)
        reason = self.reason_weight if self.stage == 'streaming-vlm' else 0.0
        return LossConfig(draws=self.draws, flow_time='uniform', reason_weight=reason,
                          answer_weight=0.0, seeing_weight=0.0,
                          wrong_reason_share=self.wrong_reason_share)


def add_arguments(parser: argparse.ArgumentParser, kind: type[RunSettings], **defaults) -> None:
    """Add an option for every setting of `kind`; `defaults` for some of them."""
    for field in dataclasses.fields(kind):
        default = defaults.get(field.name, field.default)
        name = '--' + field.name.replace('_', '-')
        text = f"{field.metadata['help']} (default: {default})".replace('%', '%%')
        if isinstance(default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction,
                                default=default, help=text)
        else:
            parser.add_argument(name, type=type(default), default=default, help=text)


def from_arguments(arguments: argparse.Namespace, kind: type[RunSettings]) -> RunSettings:
    """Return the settings that `add_arguments` asked for."""
    return kind(**{field.name: getattr(arguments, field.name)
                   for field in dataclasses.fields(kind)})
