"""Find the primitives in the tokens of an answer, whoever wrote them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..tokenizer import Tokenizer
from . import digits, layouts
from .acceptance import Schema
from .coordinates import MARKERS
from .digits import Frame, FrameSchema
from .layouts import FIXED, Layout


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
    def type(self) -> str:
        """Type that a call declares, or that of a box or point."""
        return self.layout.type

    @property
    def is_absent(self) -> bool:
        """Say that its class was looked for and not found (boxes)."""
        return self.layout.is_box and bool(self.symbols[0] < 0)

    @property
    def values(self) -> np.ndarray:
        """Rows [n, d], those of the parts side by side; NaN out of view, none when absent."""
        return np.concatenate(self.layout.read(self.symbols), 1)[self.is_absent:]


class Reader:
    """Knows the tokens that announce, open and close primitives."""

    def __init__(self, tokenizer: Tokenizer, device: torch.device | str = 'cpu'):
        self.tokenizer, self.device = tokenizer, device
        self.kinds = {tokenizer.id(start): kind for kind, (start, _) in MARKERS.items()}
        self.call, = tokenizer.encode('<tool_call>')
        self.call_end, = tokenizer.encode('</tool_call>')
        self.label, self.label_end = (tokenizer.id(f'object_ref_{end}') for end in
                                      ('start', 'end'))
        self.separator = tokenizer.encode(digits.SEPARATOR)[-1]
        self.schemas: dict[Layout, Schema | FrameSchema] = {}

    def schema(self, layout: Layout) -> Schema | FrameSchema:
        """Return the layout in this tokenizer's ids."""
        if layout not in self.schemas:
            kind = FrameSchema if isinstance(layout, Frame) else Schema
            self.schemas[layout] = kind(layout, self.tokenizer, self.device)
        return self.schemas[layout]

    def opened(self, ids: Sequence[int]) -> Schema | FrameSchema | None:
        """
        Schema of the block that the last of `ids` opens; None when it opens none.

        Boxes and points have one size; any other needs a call right before it that declares
        its type and length.  Frames of digits follow their call one after the other, and the
        first one tells the stamp that the others count on from.
        """
        kind = self.kinds.get(ids[-1])
        if ids[-1] == self.separator:
            return self._next_frame(ids[:-1])
        if kind is None:
            return None
        layout = FIXED[kind]() if kind in FIXED else self._called(ids[:-1])
        if layout is None or self.schema(layout).start != ids[-1]:
            return None
        return self.schema(layout)

    def _called(self, ids: Sequence[int]) -> Layout | None:
        """Layout that the call at the end of `ids` declares."""
        if not ids or ids[-1] != self.call_end or self.call not in ids:
            return None
        first = len(ids) - 1 - ids[::-1].index(self.call)
        return self._declared(ids[first + 1:-1])

    def _declared(self, ids: Sequence[int]) -> Layout | None:
        call = self.tokenizer.decode(ids)
        return layouts.declared(call) or digits.declared(call)

    def _next_frame(self, ids: Sequence[int]) -> FrameSchema | None:
        """Schema of the frame after the one that `ids` end with; None when they do not."""
        ids = list(ids)
        if self.call_end not in ids:
            return None
        end = len(ids) - ids[::-1].index(self.call_end)
        layout, last = self._called(ids[:end]), ids[end:]
        if not isinstance(layout, Frame) or self.separator not in last:
            return None
        schema = self.schema(layout)
        found = schema.read(last[-1 - last[::-1].index(self.separator):])
        return found and schema.at(found[0] + 1)

    def read(self, ids: Sequence[int]) -> tuple[tuple[Block, ...], tuple[str, ...]]:
        """
        Return the well-formed primitives in order, and what was wrong with others.

        Those are left out: a wrong or missing call, a block that is not the declared one or
        not closed, half a point out of view, a box without area.  What follows a class that
        is not closed has no label.
        """
        ids, blocks, problems, label, i = list(ids), [], [], '', 0
        while i < len(ids):
            at, i = i, i + 1
            if ids[at] == self.label:
                i = self._end_of_text(ids, i)
                name = self.tokenizer.decode(ids[at + 1:i])
                label = name if ids[i:i + 1] == [self.label_end] else ''
                if not label:
                    problems.append(f'the class {name!r} is not closed')
            elif ids[at] == self.call or ids[at] in self.kinds:
                layout, i = self._announced(ids, at)
                if layout is None:
                    what = (self.tokenizer.decode(ids[at:i]) if ids[at] == self.call
                            else f'{self.kinds[ids[at]]} without a call')
                    problems.append(f'nothing begins at token {at}: {what}')
                    continue
                schema = self.schema(layout)
                if isinstance(schema, FrameSchema):
                    i = self._read_frames(ids, i, schema, label, blocks, problems)
                    continue
                found = schema.read(ids[i:])
                if found is None:
                    problems.append(f'{layout.type} at token {i} {schema.problem(ids[i:])}')
                    i += ids[i:i + 1] == [schema.start]
                    continue
                symbols, size = found
                blocks.append(Block(layout, label, i, tuple(ids[i:i + size]), symbols))
                i += size
        return tuple(blocks), tuple(problems)

    def _announced(self, ids: Sequence[int], at: int) -> tuple[Layout | None, int]:
        """Layout that a call or a marker at `at` announces, and where its block is to begin."""
        if ids[at] != self.call:
            kind = self.kinds[ids[at]]
            return (FIXED[kind](), at) if kind in FIXED else (None, at + 1)
        end = self._end_of_text(ids, at + 1)
        if ids[end:end + 1] != [self.call_end]:
            return None, end
        return self._declared(ids[at + 1:end]), end + 1

    def _read_frames(self, ids: Sequence[int], at: int, schema: FrameSchema, label: str,
                     blocks: list[Block], problems: list[str]) -> int:
        """Read the frames that follow one another from `at` on; returns where they end."""
        while ids[at:at + 1] == [self.separator]:
            end = next((i for i in range(at + 1, len(ids)) if ids[i] not in schema.text), len(ids))
            found = schema.read(ids[at:end])
            if found is None:
                problems.append(f'{schema.layout.type} at token {at} is no frame: '
                                f'{self.tokenizer.decode(ids[at:end])}')
                return end
            blocks.append(Block(schema.layout, label, at, tuple(ids[at:end]), found[1]))
            at = end
        return at

    def _end_of_text(self, ids: Sequence[int], at: int) -> int:
        """Index of the first marker from `at` on."""
        markers = {self.call, self.call_end, self.label, self.label_end, *self.kinds}
        return next((i for i in range(at, len(ids)) if ids[i] in markers), len(ids))
