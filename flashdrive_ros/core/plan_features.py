"""
The hidden states of a plan's tokens, for action models (spec `vflash.md` sections 1.3 and 4.7).

A stream keeps, slot by slot, what the target computed in its own passes: prefill,
verification and the pass that commits a primitive.  Nothing is computed for the feed,
so a slot that slid along with its image has the state of the window that computed it.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .config import EngineConfig, ModelConfig
from .decoder import TapList
from .primitives.layouts import FIXED
from .prompt import PromptLayout
from .types import FEATURE_DTYPES, SEGMENTS, InputError, PlanFeatures

if TYPE_CHECKING:
    from .primitives.flash import Answer

EPSILON = 1e-8
"""Added to the standard deviation, as Cosmos does."""


@dataclass(frozen=True)
class FeatureChoice:
    """
    Which hidden states are kept and how they are handed out.

    layers       ascending, counted as in transformers: 0 is the embedding output, i the
                 output of layer i, the number of layers that behind the final norm
    segments     names, see `types.SEGMENTS`
    dtype        'float32', 'float16' or 'bfloat16'
    standardise  bring each vector to mean 0 and standard deviation 1 over its channels
    """

    layers: tuple[int, ...]
    segments: tuple[str, ...] = ('question', 'subtask', 'trajectory')
    dtype: str = 'float32'
    standardise: bool = False

    def __post_init__(self):
        """Refuse what can not be chosen, naming the field of `EngineConfig`."""
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise InputError(f'feature_layers = {self.layers!r}: expected different layers from 0')
        unknown = [s for s in self.segments if s not in SEGMENTS]
        if unknown or not self.segments:
            raise InputError(f'feature_segments = {self.segments!r}: expected some of '
                             f'{", ".join(SEGMENTS)}')
        if self.dtype not in FEATURE_DTYPES:
            raise InputError(f'feature_dtype = {self.dtype!r}: expected one of '
                             f'{", ".join(FEATURE_DTYPES)}')

    @classmethod
    def of(cls, config: EngineConfig, model: ModelConfig) -> FeatureChoice | None:
        """What `config` asks for; None when features are off.  Negative layers count back."""
        if config.features == 'off':
            return None
        if config.separate_reasonings and config.num_trajectories > 1:
            raise InputError('features are those of one reasoning: set separate_reasonings off '
                             'or num_trajectories to 1')
        deepest = model.text.num_hidden_layers
        layers = [n + deepest + 1 if n < 0 else n for n in config.feature_layers]
        for asked, layer in zip(config.feature_layers, layers):
            if not 0 <= layer <= deepest:
                raise InputError(f'feature_layers has {asked}, {model.name} has 0 (embedding) to '
                                 f'{deepest} (behind the final norm), or -1 to {-deepest - 1}')
        return cls(tuple(sorted(set(layers))), config.feature_segments, config.feature_dtype,
                   config.standardise_features)

    @property
    def kept(self) -> tuple:
        """What a stream's buffers depend on."""
        return self.layers, sorted(self.codes)

    @property
    def codes(self) -> list[int]:
        """Segment ids that are wanted."""
        return [SEGMENTS[s] for s in self.segments]

    def store(self, layout: PromptLayout, capacity: int, model) -> KeptStates:
        """Room for the states of a stream of `capacity` slots."""
        return KeptStates(self, layout, capacity, model)


class LayerTaps:
    """Collects the states at chosen depths of one pass (see `Decoder.forward`)."""

    def __init__(self, layers: Sequence[int]):
        self.layers, self.seen, self.kept = layers, 0, {}

    def append(self, x: Tensor) -> None:
        """Take the states [1, n, hidden] before the next layer."""
        if self.seen in self.layers:
            self.kept[self.seen] = x[0]
        self.seen += 1


class KeptStates:
    """
    States of the tokens that a stream holds: of its prompt by cache row, then by slot.

    The rows of wanted prompt slots never change their kind, for images slide onto images;
    so `places` fixes where each row's states are kept.  Buffers keep their addresses.
    """

    def __init__(self, choice: FeatureChoice, layout: PromptLayout, capacity: int, model):
        self.layers, self.first = choice.layers, layout.suffix
        self.deepest = model.config.text.num_hidden_layers
        self.wanted = np.isin(prompt_segments(layout), choice.codes)
        places = np.where(self.wanted, np.cumsum(self.wanted) - 1, -1)
        self.places = torch.from_numpy(places).to(model.device)
        shape, like = (len(choice.layers), model.config.text.hidden_size), {
            'dtype': model.dtype, 'device': model.device}
        self.prompt = torch.zeros(shape[0], int(self.wanted.sum()), shape[1], **like)
        self.behind = torch.zeros(shape[0], capacity - layout.suffix, shape[1], **like)

    def taps(self) -> LayerTaps | None:
        """Collector for a pass; None when its result, the normed states, is all that is kept."""
        below = [n for n in self.layers if n < self.deepest]
        return LayerTaps(below) if below else None

    def rows_needed(self, slots: np.ndarray) -> int:
        """Of the last layer, so many states from the end of a pass over these prompt slots."""
        wanted = np.flatnonzero(self.wanted[slots])
        needed = self.deepest in self.layers and len(wanted)
        return len(slots) - int(wanted[0]) if needed else 1

    def keep_prompt(self, rows: Tensor, indexes: Tensor, taps: LayerTaps | None,
                    final: Tensor, count: int) -> None:
        """
        Keep states of a pass over `count` prompt slots.

        `indexes` [m] are those of the wanted slots in the pass, `rows` [m] their cache rows;
        `final` [<= count, hidden] are the normed states of its last slots.
        """
        places = self.places[rows]
        for into, layer in zip(self.prompt, self.layers):
            if layer == self.deepest:
                states = final[indexes - (count - len(final))]
            else:
                states = taps.kept[layer][indexes]
            into.index_copy_(0, places, states)

    def keep_behind(self, slots: Tensor, taps: LayerTaps | None, final: Tensor) -> None:
        """Keep the states of tokens at `slots` [n], from the prompt's suffix on."""
        for into, layer in zip(self.behind, self.layers):
            states = final if layer == self.deepest else taps.kept[layer]
            into.index_copy_(0, slots - self.first, states)

    def of_prompt(self, table: Tensor, slots: Tensor) -> Tensor:
        """States [layers, n, hidden] of wanted prompt slots [n]; `table` is the cache's."""
        return self.prompt[:, self.places[table[slots]]]

    def of_behind(self, slots: Tensor) -> Tensor:
        """States [layers, n, hidden] of the tokens at `slots` [n] behind the prompt's images."""
        return self.behind[:, slots - self.first]


def prompt_segments(layout: PromptLayout) -> np.ndarray:
    """Segment id [S] of each slot of a prompt."""
    segments = np.full(layout.size, SEGMENTS['question'], np.uint8)
    for view in (*layout.labels, *layout.images):
        for first, end in view:
            segments[first:end] = SEGMENTS['other']
    for view in layout.images:
        for first, end in view:
            segments[first + 1:end - 1] = SEGMENTS['image']
    return segments


def answer_segments(answer: Answer) -> np.ndarray:
    """Segment id [n] of each token of an answer."""
    segments = np.full(len(answer.token_ids), SEGMENTS['subtask'], np.uint8)
    for drawn in answer.primitives:
        block = drawn.block
        kind = 'other' if block.type in FIXED else 'trajectory'
        segments[block.start:block.start + len(block.token_ids)] = SEGMENTS[kind]
    return segments


class FeatureCollector:
    """
    Puts the features of one plan together, in the order in which they are given.

    `decode_path` tells how the text came about; that of the first primitive goes before.
    The stream must keep states (`PromptStream.states`).  What it holds is copied at once, so
    that a later pass may overwrite it.
    """

    def __init__(self, choice: FeatureChoice, decode_path: str = 'autoregressive'):
        self.choice, self.decode_path = choice, decode_path
        self.parts: list[tuple[Tensor, np.ndarray, np.ndarray, np.ndarray, int]] = []
        self.paths: list[str] = []

    def prompt(self, stream, history_ids: np.ndarray | None = None) -> None:
        """Take the wanted slots of a prompt; `history_ids` as in `PromptStream.prefill`."""
        layout, states = stream.layout, stream.states
        slots, ids = np.flatnonzero(states.wanted), layout.token_ids.copy()
        if history_ids is not None:
            ids[slice(*layout.history)] = history_ids
        kept = states.of_prompt(stream.cache.table, torch.from_numpy(slots).to(states.places))
        self._add(kept, ids[slots], layout.positions[0, slots], prompt_segments(layout)[slots],
                  len(slots))

    def text(self, stream, ids: Sequence[int], segment: str = 'subtask') -> None:
        """Take the tokens `ids` right behind the prompt, as far as the stream holds them."""
        self._behind(stream, stream.layout.size, ids, np.full(len(ids), SEGMENTS[segment]))

    def answer(self, stream, question_ids: Sequence[int], answer: Answer,
               slot: int | None = None) -> None:
        """
        Take a question at `slot` and its answer behind it, which the stream still holds.

        `slot` is the prompt's suffix when None (see `PromptStream.branch`).
        """
        asked = np.asarray(question_ids, dtype=np.int64)
        segments = np.concatenate((np.full(len(asked), SEGMENTS['question'], np.uint8),
                                   answer_segments(answer)))
        self._behind(stream, stream.layout.suffix if slot is None else slot,
                     (*asked.tolist(), *answer.token_ids), segments)
        self.paths += [d.decode_path for d in answer.primitives]

    def _behind(self, stream, first: int, ids: Sequence[int], segments: np.ndarray) -> None:
        layout = stream.layout
        wanted = np.flatnonzero(np.isin(segments, self.choice.codes))
        slots = first + wanted
        known = int((slots < stream.length).sum())
        states = stream.states
        kept = states.of_behind(torch.from_numpy(slots[:known]).to(states.places))
        # the prompt's positions behind its last image, and on from there
        positions = layout.positions[0, -1] + 1 - layout.size + slots
        self._add(kept, np.asarray(ids, dtype=np.int64)[wanted], positions, segments[wanted],
                  known)

    def _add(self, states: Tensor, ids, positions, segments, known: int) -> None:
        """Append tokens; `states` are those of the first `known` of them."""
        self.parts.append((states, ids, positions, segments, known))

    def finish(self) -> PlanFeatures:
        """Everything that was taken, off the device."""
        choice, parts = self.choice, self.parts
        states = torch.cat([p[0] for p in parts], 1)
        if choice.standardise:
            states = standardised(states)
        dtype = getattr(torch, choice.dtype)
        states = states.to(dtype)
        finite = states.isfinite().flatten(2).all(2).all(0)
        if dtype == torch.bfloat16:
            states = states.view(torch.int16)
        known = np.concatenate([np.arange(len(p[1])) < p[4] for p in parts])
        computed = states.cpu().numpy()
        values = np.zeros((len(choice.layers), len(known), computed.shape[2]), computed.dtype)
        values[:, known] = computed
        valid = known.copy()
        valid[known] = finite.cpu().numpy()
        joined = [np.concatenate([p[i] for p in parts]) for i in (1, 2, 3)]
        return PlanFeatures(
            values=values.view(np.uint16) if choice.dtype == 'bfloat16' else values,
            layer_ids=choice.layers, token_ids=joined[0].astype(np.uint32),
            positions=joined[1].astype(np.int32), segment_ids=joined[2].astype(np.uint8),
            valid=valid, standardised=choice.standardise, dtype=choice.dtype,
            decode_path=next(iter(self.paths), self.decode_path))


def standardised(states: Tensor) -> Tensor:
    """Vectors [..., hidden] with mean 0 and standard deviation 1 over channels, in float32."""
    states = states.float()
    return (states - states.mean(-1, keepdim=True)) / (states.std(-1, keepdim=True) + EPSILON)


def both(one: TapList | None, other: TapList | None) -> TapList | None:
    """Let the collectors that there are collect; None when there is none."""
    if one is None or other is None:
        return other if one is None else one
    return _Pair(one, other)


class _Pair:
    """Two collectors of the states of one pass."""

    def __init__(self, *taps: TapList):
        self.taps = taps

    def append(self, x: Tensor) -> None:
        for taps in self.taps:
            taps.append(x)
