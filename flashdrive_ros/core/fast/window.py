"""A prompt stream whose every pass is a stage of static shape."""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ..attention import runs
from ..config import EngineConfig
from ..decoder import TapList
from ..drafter import Drafter, Taps
from ..graphs import GraphPool, Stages
from ..kv_cache import KVCache
from ..model import Alpamayo
from ..plan_features import FeatureChoice, both
from ..prompt import PromptLayout
from ..quantization.products import Product
from ..speculative import Draft
from ..stream import PromptStream
from ..streaming import computed_slots, new_blocks, slide_table
from ..vision import ImageFeatures
from .decoding import Decoding
from .flow import Flow
from .reference import Ahead, HeadNorms, Rotation, Store
from .stack import Stack

MAX_EXTENSION = 64
"""Longest run of tokens behind the prompt that gets a stage of its own."""


class FastStream(PromptStream):
    """
    A `PromptStream` that computes the same with fused operations and in graphs.

    Its cache is an ordinary one, so whatever has no stage works on it as before.
    `drafter` is the engine's, which reads the prompt's end; `window_drafter` the one
    that sees the whole prompt.
    """

    def __init__(self, model: Alpamayo, layout: PromptLayout, tail_slots: int,
                 operations: ModuleType, pool: GraphPool, drafter: Drafter | None = None,
                 window_drafter: Drafter | None = None, choice: FeatureChoice | None = None):
        super().__init__(model, layout, tail_slots, window_drafter, choice)
        self.ops, self.stack = operations, Stack(model.language_model, operations)
        self.stages = Stages(pool, f'prompt of {layout.size} slots')
        self.reader = drafter
        device, width = model.device, model.config.text.hidden_size
        self.ids = torch.zeros(layout.size, dtype=torch.long, device=device)
        self.written: PromptLayout | None = None
        self.hidden = torch.zeros(width, dtype=model.dtype, device=device)
        self.images: dict[int, ImageFeatures] = {}
        self.constants: dict[tuple, Tensor] = {}
        self.first = torch.zeros((), dtype=torch.long, device=device)
        self.block = torch.zeros(MAX_EXTENSION, dtype=torch.long, device=device)
        self.extended = torch.zeros(MAX_EXTENSION, width, dtype=model.dtype, device=device)
        self.tapped: dict[str, Tensor] = {}
        self.decoding = Decoding(self)
        self.flow = Flow(self)

    def prefill(self, features: Sequence[Sequence[ImageFeatures]], shift: int,
                history_ids: np.ndarray | None, labels: str = 'keep',
                taps: Taps | None = None) -> tuple[Tensor, int]:
        """Compute a window; as in `PromptStream`, but only the last hidden state [1, hidden]."""
        layout = self.layout
        shift = min(shift, layout.frames)
        if self.written is not layout:
            self.ids.copy_(torch.from_numpy(layout.token_ids))
            self.written = layout
        if history_ids is not None:
            self.ids[slice(*layout.history)] = torch.from_numpy(history_ids).to(self.ids.device)
        if shift:
            self._fill_images(features, shift)
        self.stages.run(('window', shift, labels), partial(self._window, shift, labels))
        self.length = layout.size
        self._show('window', taps)
        return self.hidden[None], len(computed_slots(layout, shift, labels))

    def _fill_images(self, features: Sequence[Sequence[ImageFeatures]], shift: int) -> None:
        """Copy the new images' features to their buffers."""
        parts = [features[v][f] for v, f in new_blocks(self.layout, shift)]
        if shift not in self.images:
            self.images[shift] = ImageFeatures.cat(parts)
            return
        buffer = self.images[shift]
        torch.cat([p.tokens for p in parts], out=buffer.tokens)
        torch.cat([p.deepstack for p in parts], 1, out=buffer.deepstack)

    def prepare(self, config: EngineConfig, flow_steps: int, draft: Draft | None,
                accept: int | None) -> bool:
        """
        Capture all stages that a step may need with these settings and have not run yet.

        Says whether the window that the stream holds was lost by this.  `accept` is as in
        `Decoding.write`.
        """
        layout, stages, labels = self.layout, self.stages, config.recompute_labels
        lost = False
        for shift in range(1, layout.frames + 1):
            if shift not in self.images:
                count = len(layout.image_token_slots(new_blocks(layout, shift)))
                taps = len(self.model.config.vision.deepstack_visual_indexes)
                self.images[shift] = ImageFeatures(
                    self.hidden.new_zeros(count, len(self.hidden)),
                    self.hidden.new_zeros(taps, count, len(self.hidden)))
            lost |= stages.prepare(('window', shift, labels),
                                   partial(self._window, shift, labels))
        self.first.fill_(layout.size)
        stages.prepare(('extend', 1), partial(self._extend, 1))
        self.decoding.prepare(config.greedy, draft, accept)
        self.flow.prepare(config.num_trajectories, flow_steps, config.velocity_reuse)
        return lost

    def _window(self, shift: int, labels: str) -> None:
        """Stage: slide, rotate the cache, compute what is new; fills `hidden`."""
        layout, cache, model = self.layout, self.cache, self.model
        if shift < layout.frames:
            if shift:
                cache.slide(cache.table[self._constant(('slide', shift), lambda: slide_table(
                    layout, np.arange(layout.size), shift))])
            p = cache.prompt_slots
            self.ops.gather_rotate(cache.master_k, cache.master_v, cache.table, cache.cos[:p],
                                   cache.sin[:p], cache.k, cache.v)
        else:
            cache.reset()
        computed = computed_slots(layout, shift, labels)
        slots = self._constant(('slots', shift, labels), lambda: computed)
        x = model.embed_tokens(self.ids[slots])
        deepstack = rows = None
        if shift:
            rows = self._constant(('rows', shift, labels), lambda: np.searchsorted(
                computed, layout.image_token_slots(new_blocks(layout, shift))))
            x = x.index_copy(0, rows, self.images[shift].tokens.to(x.dtype))
            deepstack = self.images[shift].deepstack
        own = None if self.drafter is None else Taps(self.drafter.config)
        ends, last = self._end_taps(), 1
        final = model.config.text.num_hidden_layers - 1
        if ends is not None and final in ends.wanted:
            last = None if own is not None else ends.last
        states = self.states
        kept = states and states.taps()
        if states is not None and last is not None:
            last = max(last, states.rows_needed(computed))
        attend = WindowAttention(self.ops, cache, slots, runs(computed))
        hidden = self.stack(x, attend, deepstack, rows, both(kept, both(own, ends)), last)
        self.hidden.copy_(hidden[-1])
        if states is not None:
            indexes = self._constant(('states', shift, labels), lambda: np.flatnonzero(
                states.wanted[computed]))
            states.keep_prompt(cache.table[slots[indexes]], indexes, kept, hidden, len(computed))
        if own is not None:
            self._keep_features(slots, own)
        if ends is not None:
            self._keep('window', ends)

    def _end_taps(self) -> Taps | None:
        """Collector of what the drafter reads of the prompt's end."""
        if self.reader is None:
            return None
        config = self.reader.config
        return Taps(config, min(config.context_len, self.layout.size - self.layout.suffix))

    def _constant(self, key, make) -> Tensor:
        """Array of this layout on the device, made once."""
        if key not in self.constants:
            self.constants[key] = torch.from_numpy(make()).to(self.model.device)
        return self.constants[key]

    def _keep(self, name: str, taps: Taps) -> None:
        """Copy what `taps` collected to a buffer."""
        if name not in self.tapped:
            self.tapped[name] = torch.stack(taps.chosen())
        else:
            torch.stack(taps.chosen(), out=self.tapped[name])

    def _show(self, name: str, taps: TapList | None, count: int | None = None) -> None:
        """Let `taps` hold what the stage `name` kept, of its first `count` tokens."""
        if taps is not None:
            taps.kept = dict(zip(taps.wanted, self.tapped[name][:, :, :count].clone()))

    def extend(self, token_ids: Tensor, taps: Taps | None = None) -> Tensor:
        """Append `token_ids` [n] and return their final hidden states [n, hidden]."""
        count = len(token_ids)
        if count > MAX_EXTENSION or (taps is not None and (
                self.reader is None or taps.last is not None)):
            return super().extend(token_ids, taps)
        padded = 1 << (count - 1).bit_length()
        if padded > self.room_behind(self.length):
            padded = count
        self.block[:count] = token_ids
        self.first.fill_(self.length)
        self.stages.run(('extend', padded), partial(self._extend, padded))
        self.length += count
        self._show(f'extend {padded}', taps, count)
        return self.extended[:count].clone()

    def _extend(self, count: int) -> None:
        """
        Stage: pass the first `count` tokens of `block` through the model, behind `first`.

        What pads them is in slots behind those that count, where nothing looks.
        """
        taps = None if self.reader is None else Taps(self.reader.config)
        self.extended[:count] = self.behind(self.block[:count], self.first, taps)
        if taps is not None:
            self._keep(f'extend {count}', taps)

    def behind(self, tokens: Tensor, first: Tensor, taps: Taps | None = None) -> Tensor:
        """Hidden states [n, hidden] of `tokens` [n] in the slots from `first` [] on."""
        slots = first + torch.arange(len(tokens), device=tokens.device)
        kept = self.states and self.states.taps()
        hidden = self.stack(self.model.embed_tokens(tokens),
                            TailAttention(self.ops, self.cache, slots), taps=both(kept, taps))
        if self.states is not None:
            self.states.keep_behind(slots, kept, hidden)
        return hidden


class WindowAttention:
    """Computed prompt slots: their keys go to the master and to the working copy."""

    def __init__(self, operations: ModuleType, cache: KVCache, slots: Tensor,
                 slot_runs: list[tuple[int, int, int]]):
        self.ops, self.cache, self.slots, self.runs = operations, cache, slots, slot_runs
        self.rows = cache.table[slots]

    def __call__(self, layer: int, product: Product, norms: HeadNorms, last: int,
                 ahead: Ahead | None) -> Tensor:
        """Store and attend; see `stack.Attend`."""
        cache = self.cache
        q = self.ops.store_heads(
            product, norms, Rotation(cache.cos, cache.sin, self.slots),
            Store(cache.k[layer], cache.v[layer], self.slots),
            Store(cache.master_k[layer], cache.master_v[layer], self.rows), ahead)
        if last < len(q):
            return self.ops.attention(q[-last:], cache.k[layer], cache.v[layer],
                                      self.slots[-last:])
        return self.ops.window_attention(q, cache.k[layer], cache.v[layer], self.slots, self.runs)


class TailAttention:
    """Tokens at consecutive `slots` [n] behind the prompt, wherever these begin."""

    def __init__(self, operations: ModuleType, cache: KVCache, slots: Tensor):
        self.ops, self.cache, self.slots = operations, cache, slots

    def __call__(self, layer: int, product: Product, norms: HeadNorms, last: int,
                 ahead: Ahead | None) -> Tensor:
        """Store and attend; see `stack.Attend`."""
        cache = self.cache
        k, v = cache.k[layer], cache.v[layer]
        q = self.ops.store_heads(product, norms, Rotation(cache.cos, cache.sin, self.slots),
                                 Store(k, v, self.slots), ahead=ahead)
        return self.ops.attention(q[-last:], k, v, self.slots[-last:])
