"""One prompt that slides along in time: its layout, its cache, and how to advance both."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .attention import PromptAttention, TailAttention
from .decoder import TapList
from .drafter import Drafter, Taps
from .kv_cache import KVCache
from .model import Alpamayo
from .plan_features import FeatureChoice, both
from .prompt import PromptLayout
from .streaming import computed_slots, new_blocks, slide_table
from .vision import ImageFeatures

if TYPE_CHECKING:
    from .fast.decoding import Decoding


class PromptStream:
    """
    A prompt in a cache, with generated tokens behind it.

    `prefill` computes what a window needs and drops the generated tokens of the
    last one; `extend` appends tokens.  `length` counts the slots that are valid.
    With a `drafter` that sees the whole prompt, its features of every slot are kept
    as well, and slide along.  With a `choice`, so are the `states` that it chooses, of
    generated tokens too.  Where there is a `decoding`, that writes texts behind it.
    """

    decoding: Decoding | None = None

    def __init__(self, model: Alpamayo, layout: PromptLayout, tail_slots: int,
                 drafter: Drafter | None = None, choice: FeatureChoice | None = None):
        self.model, self.layout, self.drafter = model, layout, drafter
        self.cache = KVCache(model.config.text, layout.size, tail_slots, model.dtype, model.device)
        tail = layout.next_position + np.arange(tail_slots)
        positions = np.concatenate((layout.positions, np.broadcast_to(tail, (3, tail_slots))), 1)
        self.cache.set_positions(torch.from_numpy(positions).to(model.device))
        self.length = 0
        self.features = None if drafter is None else torch.zeros(
            layout.size, model.config.text.hidden_size, dtype=model.dtype, device=model.device)
        self.states = choice and choice.store(layout, self.cache.capacity, model)

    def prefill(self, features: Sequence[Sequence[ImageFeatures]], shift: int,
                history_ids: np.ndarray | None, labels: str = 'keep',
                taps: TapList | None = None) -> tuple[Tensor, int]:
        """
        Compute a window; returns the final hidden states [n, hidden] and n.

        `features[v][f]` is the image in place f of view v; only those that are
        computed are read: the newest `shift` places, all of them when `shift`
        is the number of frames.  `history_ids` [48] fill the history slots.
        """
        layout, cache, model = self.layout, self.cache, self.model
        if shift >= layout.frames:
            cache.reset()
        else:
            table = slide_table(layout, cache.table.cpu().numpy(), shift)
            cache.slide(torch.from_numpy(table).to(model.device))
            cache.begin()
        slots = computed_slots(layout, shift, labels)
        ids = layout.token_ids.copy()
        if history_ids is not None:
            ids[slice(*layout.history)] = history_ids
        blocks = new_blocks(layout, min(shift, layout.frames))
        images = ImageFeatures.cat([features[v][f] for v, f in blocks]) if blocks else None
        rows = np.searchsorted(slots, layout.image_token_slots(blocks)) if blocks else None
        own = None if self.drafter is None else Taps(self.drafter.config)
        kept = self.states and self.states.taps()
        hidden = self._forward(ids[slots], slots, images, rows, both(kept, both(own, taps)))
        if self.states is not None:
            wanted = np.flatnonzero(self.states.wanted[slots])
            indexes, at = (torch.from_numpy(a).to(model.device) for a in (wanted, slots[wanted]))
            self.states.keep_prompt(cache.table[at], indexes, kept, hidden, len(slots))
        if own is not None:
            self._keep_features(torch.from_numpy(slots).to(model.device), own)
        self.length = layout.size
        return hidden, len(slots)

    def _forward(self, ids, slots, images: ImageFeatures | None, rows, taps) -> Tensor:
        model = self.model
        x = model.embed_tokens(torch.from_numpy(ids).to(model.device))
        deepstack = None
        if images is not None:
            rows = torch.from_numpy(rows).to(model.device)
            x = x.index_copy(0, rows, images.tokens.to(x.dtype))
            deepstack = images.deepstack[:, None]
        attend = PromptAttention(self.cache, torch.from_numpy(slots).to(model.device))
        return model.language_model(x[None], attend, deepstack, rows, taps)[0]

    def _keep_features(self, slots: Tensor, taps: Taps) -> None:
        fused = self.drafter.fuse(taps.chosen())[0]
        rows = self.cache.table[slots]
        self.features.index_copy_(0, rows, fused.to(self.features.dtype))

    def prompt_features(self) -> Tensor:
        """The drafter's features [S, hidden] of the prompt's slots, in slot order."""
        return self.features[self.cache.table]

    def extend(self, token_ids: Tensor, taps: TapList | None = None) -> Tensor:
        """Append `token_ids` [n] and return their final hidden states [n, hidden]."""
        attend = TailAttention(self.cache, self.length, len(token_ids))
        x = self.model.embed_tokens(token_ids)[None]
        kept = self.states and self.states.taps()
        hidden = self.model.language_model(x, attend, taps=both(kept, taps))[0]
        if self.states is not None:
            slots = self.length + torch.arange(len(token_ids), device=token_ids.device)
            self.states.keep_behind(slots, kept, hidden)
        self.length += len(token_ids)
        return hidden

    def truncate(self, length: int) -> None:
        """Drop the tokens from slot `length` on."""
        self.length = length

    def room_behind(self, slot: int) -> int:
        """Tokens that may be written from `slot` on."""
        return self.cache.capacity - slot

    @contextmanager
    def branch(self, slot: int) -> Iterator[None]:
        """
        Write something else from `slot` on; afterwards the stream is as it was.

        Positions depend on the slot alone, so what is written here is what a prompt
        that is equal up to `slot` would have there.
        """
        behind = slice(slot, None)
        keys, values = (t[:, :, behind].clone() for t in (self.cache.k, self.cache.v))
        length, self.length = self.length, slot
        try:
            yield
        finally:
            self.cache.k[:, :, behind], self.cache.v[:, :, behind] = keys, values
            self.length = length
