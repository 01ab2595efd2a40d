"""Settings of `flashdrive train drafter` and `flashdrive train primitives`."""
from __future__ import annotations

from dataclasses import dataclass

from .settings import RunSettings, setting

LONGEST = 260
"""Tokens of a path of 64 points in image and metres."""


@dataclass(frozen=True)
class DrafterSettings(RunSettings):
    """
    Training of a drafter for a frozen model.

    A step is one pass of the model over `batch` windows and `passes` times as many updates
    as there are `part` windows in them.
    """

    model: str = setting('small', 'checkpoint to draft for: a name or a directory')
    out: str = setting('out/drafter', 'folder for the drafter, state, log and curves')
    batch: int = setting(256, 'windows that the model looks at in a step, per process')
    learning_rate: float = setting(1.5e-3, 'highest learning rate')
    warmup_steps: int = setting(10, 'steps in which the learning rate rises')
    weight_decay: float = setting(0.01, 'AdamW, on matrices only')
    ema: float = setting(0.995, 'weight of the past in the averaged weights that are saved')
    validation_frames: int = setting(4, 'frames of a held-out clip; its last window counts')
    validation_clips: int = setting(96, 'held-out clips; 0: no validation')
    log_every: int = setting(5, 'steps between log lines')
    part: int = setting(64, 'windows of an update')
    passes: int = setting(4, 'times that each window is used, with other anchors')
    drafter: str = setting('', 'drafter directory to go on from')
    layers: int = setting(4, 'layers of the drafter')
    slots: bool = setting(True, 'masks of a primitive say which coordinate they stand for')
    taps: str = setting('1,3,5,6,7', 'layers of the model whose outputs the drafter reads: behind '
                                     'the last image features, then more and more of them')
    blocks: str = setting('8,16', 'lengths of the blocks of text in turn; the first is the '
                                 "drafter's own")
    context: int = setting(8, 'tokens that a block of text sees')
    window_context: bool = setting(True, 'blocks of primitives see the whole window')
    questions: int = setting(4, 'annotated answers of a window in a step')
    text_tokens: int = setting(192, 'tokens of the blocks of text of a window; 0: none')
    primitive_tokens: int = setting(256, 'room for its primitives; 0: none')
    answer_share: float = setting(0.4, 'share of the blocks of text that are in answers')
    own_answer: int = setting(48, "most tokens of the model's own answers: what comes later looks "
                                  'alike to blocks that see the last few tokens')
    text_weight: float = setting(1.0, 'weight of text')
    primitive_weight: float = setting(1.0, 'weight of primitives')
    near_share: float = setting(0.5, 'share of the label of a coordinate that lies around its bin')
    near_bins: float = setting(16.0, 'bins in which that share falls by e')
    inside_weight: float = setting(0.2, 'how likely an anchor is inside a primitive, to 1 '
                                       'outside')
    temperature: float = setting(0.6, 'of the texts that are sampled; the other half is greedy')
    top_p: float = setting(0.98, 'nucleus of the texts that are sampled')
    attention: str = setting('auto', 'flex (block-sparse), plain, or auto (flex where CUDA '
                                     'compiles it)')

    def checks(self) -> dict[str, bool]:
        """Name of a setting -> whether its value fits."""
        return {**super().checks(), 'part': self.part >= 1, 'passes': self.passes >= 1,
                'blocks': min(self.block_sizes) >= 2, 'questions': 1 <= self.questions <= 6,
                'text_tokens': self.text_tokens == 0 or self.text_tokens >= max(self.block_sizes),
                'primitive_tokens': (self.primitive_tokens > 0 or self.text_tokens > 0) and not (
                    self.long_paths and self.primitive_tokens < LONGEST),
                'own_answer': self.own_answer > 0, 'near_share': 0 <= self.near_share <= 1,
                'near_bins': self.near_bins > 0,
                'attention': self.attention in ('auto', 'flex', 'plain')}

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Layers of the model that are read."""
        return tuple(int(n) for n in self.taps.split(','))

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Lengths of the blocks of text."""
        return tuple(int(n) for n in self.blocks.split(','))
