"""One prompt that slides along in time: its layout, its cache, and how to advance both."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .attention import PromptAttention, TailAttention
from .decoder import TapList
from .kv_cache import KVCache
from .model import Alpamayo
from .prompt import PromptLayout
from .streaming import computed_slots, new_blocks, slide_table
from .vision import ImageFeatures


class PromptStream:
    """
    A prompt in a cache, with generated tokens behind it.

    `prefill` computes what a window needs and drops the generated tokens of the
    last one; `extend` appends tokens.  `length` counts the slots that are valid.
    """

    def __init__(self, model: Alpamayo, layout: PromptLayout, tail_slots: int):
        self.model, self.layout = model, layout
        self.cache = KVCache(model.config.text, layout.size, tail_slots, model.dtype, model.device)
        tail = layout.next_position + np.arange(tail_slots)
        positions = np.concatenate((layout.positions, np.broadcast_to(tail, (3, tail_slots))), 1)
        self.cache.set_positions(torch.from_numpy(positions).to(model.device))
        self.length = 0

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
        hidden = self._forward(ids[slots], slots, images, rows, taps)
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

    def extend(self, token_ids: Tensor, taps: TapList | None = None) -> Tensor:
        """Append `token_ids` [n] and return their final hidden states [n, hidden]."""
        attend = TailAttention(self.cache, self.length, len(token_ids))
        x = self.model.embed_tokens(token_ids)[None]
        hidden = self.model.language_model(x, attend, taps=taps)[0]
        self.length += len(token_ids)
        return hidden

    def truncate(self, length: int) -> None:
        """Drop the tokens from slot `length` on."""
        self.length = length
