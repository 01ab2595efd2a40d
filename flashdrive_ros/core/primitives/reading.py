"""Find the primitives in the tokens of an answer, whoever wrote them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..tokenizer import Tokenizer
from .acceptance import Schema
from .coordinates import MARKERS
from .layouts import FIXED, Layout, declared


@dataclass(frozen=True)
class Block:
    """
    A well-formed primitive of an answer.

    `start` is the index of its start token, `token_ids` are its tokens, `symbols` [M] its
    coordinates (bins, -1 out of view).
    """

    layout: Layout
    label: str
    start: int
    token_ids: tuple[int, ...]
    symbols: np.ndarray

    @property
    def is_absent(self) -> bool:
        """Say that its class was looked for and not found (boxes)."""
        return self.layout.is_box and self.symbols[0] < 0


class Reader:
    """Knows the tokens that announce, open and close primitives."""

    def __init__(self, tokenizer: Tokenizer, device: torch.device | str = 'cpu'):
        self.tokenizer, self.device = tokenizer, device
        self.kinds = {tokenizer.id(start): kind for kind, (start, _) in MARKERS.items()}
        self.call, = tokenizer.encode('<tool_call>')
        self.call_end, = tokenizer.encode('</tool_call>')
        self.label, self.label_end = (tokenizer.id(f'object_ref_{end}') for end in
                                      ('start', 'end'))
        self.schemas: dict[Layout, Schema] = {}

    def schema(self, layout: Layout) -> Schema:
        """Return the layout in this tokenizer's ids."""
        if layout not in self.schemas:
            self.schemas[layout] = Schema(layout, self.tokenizer, self.device)
        return self.schemas[layout]

    def opened(self, ids: Sequence[int]) -> Schema | None:
        """
        Schema of the block that the last of `ids` opens; None when it opens none.

        Boxes and points have one size; any other needs a call right before it that declares
        its type and length.
        """
        kind = self.kinds.get(ids[-1])
        if kind is None:
            return None
        layout = FIXED[kind]() if kind in FIXED else self._declared(ids[:-1])
        if layout is None or self.schema(layout).start != ids[-1]:
            return None
        return self.schema(layout)

    def _declared(self, ids: Sequence[int]) -> Layout | None:
        if not ids or ids[-1] != self.call_end or self.call not in ids:
            return None
        first = len(ids) - 1 - ids[::-1].index(self.call)
        return declared(self.tokenizer.decode(ids[first + 1:-1]))

    def read(self, ids: Sequence[int]) -> tuple[tuple[Block, ...], tuple[str, ...]]:
        """Return the well-formed primitives in order, and what was wrong with others."""
        ids, blocks, problems = list(ids), [], []
        label, labelled_from, i = '', None, 0
        while i < len(ids):
            if ids[i] == self.label:
                labelled_from = i + 1
            elif ids[i] == self.label_end and labelled_from is not None:
                label = self.tokenizer.decode(ids[labelled_from:i]).strip()
            elif ids[i] in self.kinds:
                schema = self.opened(ids[:i + 1])
                found = schema and schema.read(ids[i:])
                if found is not None:
                    symbols, size = found
                    blocks.append(Block(schema.layout, label, i, tuple(ids[i:i + size]), symbols))
                    i += size
                    continue
                problems.append(f'{self.kinds[ids[i]]} at token {i} ' + (
                    'was not declared' if schema is None else 'is cut short or malformed'))
            i += 1
        return tuple(blocks), tuple(problems)
