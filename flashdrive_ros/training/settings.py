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


def _setting(default, text: str):
    return dataclasses.field(default=default, metadata={'help': text})


@dataclass(frozen=True)
class RunSettings:
    """Any run; `steps` or `minutes` ends it, whichever comes first (0: not limited by it)."""

    model: str = _setting('small', 'checkpoint to begin from: a name or a directory; without '
                                   'weights it begins from random ones')
    out: str = _setting('out/train', 'folder for checkpoint, state, log and curves')
    steps: int = _setting(0, 'number of steps; 0: no limit')
    minutes: float = _setting(0.0, 'time for training, waiting for the first clips left out; '
                                   '0: no limit')
    batch: int = _setting(256, 'windows per step and process')
    learning_rate: float = _setting(1e-3, 'highest learning rate')
    warmup_steps: int = _setting(200, 'steps in which the learning rate rises')
    decay_share: float = _setting(0.4, 'last share of the run in which it falls linearly')
    final_rate: float = _setting(0.03, 'share of the learning rate that is left at the end')
    weight_decay: float = _setting(0.05, 'AdamW, on matrices only')
    clip_norm: float = _setting(1.0, 'largest norm of the gradient')
    ema: float = _setting(0.998, 'weight of the past in the averaged weights that are saved')
    workers: int = _setting(0, 'processes that draw clips; 0: draw in this process')
    ray_workers: int = _setting(0, 'the same as tasks on a Ray cluster instead')
    image: str = _setting('320x180', 'width x height of the cameras')
    clip_frames: int = _setting(4, 'frames of a clip: the more, the more windows that are alike; '
                                   'streaming stages need 19')
    clips_per_episode: int = _setting(20, 'clips drawn of one episode')
    augment: float = _setting(1.0, 'how much colours and grain change each time; 0: not')
    episode_seconds: float = _setting(60.0, 'length of an episode')
    store_gib: float = _setting(2.0, 'memory for clips on the training device')
    first_clips: int = _setting(64, 'clips that must be there before the first step')
    clips_per_step: float = _setting(0.0, 'take exactly so many clips per step (repeatable); '
                                          '0: take what is there')
    precision: str = _setting('auto', 'float32, bfloat16, or auto (bfloat16 on CUDA)')
    compile: bool = _setting(False, 'torch.compile everything around the attention')
    device: str = _setting('auto', 'device to train on')
    seed: int = _setting(0, 'seed of weights, clips and noise')
    validation_clips: int = _setting(128, 'held-out clips; 0: no validation')
    validation_frames: int = _setting(19, 'frames of a held-out clip; its last window counts')
    validation_workers: int = _setting(2, 'processes that draw them; 0: draw in this process')
    validate_every: float = _setting(90.0, 'seconds between validations (there is one at the end)')
    validate_steps: int = _setting(0, 'steps between validations instead')
    save_every: float = _setting(180.0, 'seconds between saves of checkpoint and state')
    log_every: int = _setting(20, 'steps between log lines')
    keep_state: bool = _setting(True, 'save the whole state for --resume (16 bytes a parameter)')
    resume: bool = _setting(False, 'go on from the state in the output folder')

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
                'clip_frames': self.clip_frames >= 1}

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the cameras."""
        width, _, height = self.image.partition('x')
        return int(width), int(height)

    def clips(self, rank: int = 0) -> ClipConfig:
        """Clips to train on."""
        from .samples import ClipConfig
        base = ClipConfig(seed=self.seed * 1000 + rank, frames=self.clip_frames,
                          clips_per_episode=self.clips_per_episode)
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

    stage: str = _setting('full', f'what is trained: {", ".join(STAGES)}')
    fresh: bool = _setting(False, 'begin from random weights whatever the checkpoint has')
    draws: int = _setting(4, 'noises per window in flow matching')
    reason_weight: float = _setting(0.5, 'weight of the reasoning text')
    answer_weight: float = _setting(0.5, 'weight of the answers to questions')
    seeing_weight: float = _setting(1.0, 'weight of the dense lesson on what the images show; '
                                         '0: without it')
    wrong_reason_share: float = _setting(0.15, 'windows whose expert is told a wrong reason')
    rollout: str = _setting('4,16', 'fewest and most windows of a streaming rollout')
    shard_mib: float = _setting(15.0, 'largest file of the checkpoint, MiB')

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


@dataclass(frozen=True)
class DrafterSettings(RunSettings):
    """
    Training of a drafter for a frozen model.

    A step is one pass of the model over `batch` windows and `passes` times as many updates
    as there are `part` windows in them.
    """

    model: str = _setting('small', 'checkpoint to draft for: a name or a directory')
    out: str = _setting('out/drafter', 'folder for the drafter, state, log and curves')
    batch: int = _setting(256, 'windows that the model looks at in a step, per process')
    learning_rate: float = _setting(1.5e-3, 'highest learning rate')
    warmup_steps: int = _setting(10, 'steps in which the learning rate rises')
    weight_decay: float = _setting(0.01, 'AdamW, on matrices only')
    ema: float = _setting(0.99, 'weight of the past in the averaged weights that are saved')
    validation_frames: int = _setting(4, 'frames of a held-out clip; its last window counts')
    validation_clips: int = _setting(96, 'held-out clips; 0: no validation')
    log_every: int = _setting(5, 'steps between log lines')
    part: int = _setting(64, 'windows of an update')
    passes: int = _setting(2, 'times that each window is used, with other anchors')
    layers: int = _setting(2, 'layers of the drafter')
    taps: str = _setting('1,3,5,7', 'layers of the model whose outputs the drafter reads: behind '
                                    'the last image features, then every second to the last')
    blocks: str = _setting('8,16', 'lengths of the blocks of text in turn; the first is the '
                                   "drafter's own")
    context: int = _setting(8, 'tokens that a block of text sees')
    window_context: bool = _setting(True, 'blocks of primitives see the whole window')
    questions: int = _setting(3, 'annotated answers of a window in a step')
    text_tokens: int = _setting(192, 'tokens of the blocks of text of a window; 0: none')
    primitive_tokens: int = _setting(192, 'room for its primitives; 0: none')
    answer_share: float = _setting(0.4, 'share of the blocks of text that are in answers')
    inside_weight: float = _setting(0.2, 'how likely an anchor is inside a primitive, to 1 '
                                         'outside')
    temperature: float = _setting(0.6, 'of the texts that are sampled; the other half is greedy')
    top_p: float = _setting(0.98, 'nucleus of the texts that are sampled')
    attention: str = _setting('auto', 'flex (block-sparse), plain, or auto (flex where CUDA '
                                       'compiles it)')

    def checks(self) -> dict[str, bool]:
        """Name of a setting -> whether its value fits."""
        return {**super().checks(), 'part': self.part >= 1, 'passes': self.passes >= 1,
                'blocks': min(self.block_sizes) >= 2, 'questions': 1 <= self.questions <= 6,
                'text_tokens': self.text_tokens == 0 or self.text_tokens >= max(self.block_sizes),
                'primitive_tokens': self.primitive_tokens > 0 or self.text_tokens > 0,
                'attention': self.attention in ('auto', 'flex', 'plain')}

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Layers of the model that are read."""
        return tuple(int(n) for n in self.taps.split(','))

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Lengths of the blocks of text."""
        return tuple(int(n) for n in self.blocks.split(','))


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
