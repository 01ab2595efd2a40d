"""
Flash primitive decoding: a whole primitive from one pass of a drafter (spec `vflash.md` 1.3).

Text is the target's, verified in blocks of `text_block` where a drafter is there.  When
the target commits the start token of a primitive whose size is declared, the drafter
fills all of its block at once; what the schema accepts is passed through the target
once, start token included, which stores its keys and gives the next token.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..config import EngineConfig
from ..sampling import choose, draw_uniforms
from ..tokenizer import Tokenizer
from .acceptance import Confidence, Schema
from .digits import Frame, FrameSchema
from .reading import Block, Reader
from .writer import Writer

MODES = ('autoregressive', 'verified', 'direct', 'fallback')


@dataclass(frozen=True)
class FlashSettings:
    """
    How answers are decoded.

    mode         'autoregressive' (no drafter), 'verified' (drafts of coordinates too are
                 only proposals to the target), 'direct' (drafts count when the schema holds)
                 or 'fallback' (and boxes pass the spatial check)
    constrained  autoregressive coordinates keep to the schema
    text_block   tokens of a verified block of text; 1: text is not drafted, 0: as many as the
                 drafter was trained for
    max_tokens   most tokens of an answer
    confidence   thresholds of the spatial check
    """

    mode: str = 'fallback'
    constrained: bool = True
    text_block: int = 0
    max_tokens: int = 512
    confidence: Confidence = field(default_factory=Confidence)

    def __post_init__(self):
        """Refuse an unknown mode."""
        if self.mode not in MODES:
            raise ValueError(f'mode is {self.mode!r}, expected one of {", ".join(MODES)}')


@dataclass(frozen=True)
class Drawn:
    """
    A primitive of an answer and how it came about.

    `confidences` [M] are the probabilities of its coordinates: the drafter's for those it
    filled, the target's for others.  `draft_passes` and `target_passes` count from the
    start token's decision to that of the token after the block, whose pass stores the last one.
    """

    block: Block
    decode_path: str
    confidences: np.ndarray
    draft_passes: int = 0
    target_passes: int = 0


@dataclass(frozen=True)
class Answer:
    """
    Tokens of an answer and the primitives in it.

    `stop` is 'end', 'im_end' or 'length'; `problems` say what kept other primitives from
    being read.
    """

    token_ids: tuple[int, ...]
    primitives: tuple[Drawn, ...]
    stop: str
    problems: tuple[str, ...]
    draft_passes: int
    target_passes: int


class FlashDecoder:
    """Decodes answers behind a prompt; `drafter` may be None unless the mode drafts."""

    def __init__(self, model, tokenizer: Tokenizer, settings: FlashSettings, drafter=None):
        if drafter is None and settings.mode != 'autoregressive':
            raise ValueError(f'mode {settings.mode!r} needs a drafter')
        self.model, self.settings = model, settings
        self.drafter = None if settings.mode == 'autoregressive' else drafter
        self.reader = Reader(tokenizer, model.device)
        self.allowed = model.allowed_tokens(trajectory_tokens=True)
        self.stops = {tokenizer.id('answer_end'): 'end', tokenizer.id('im_end'): 'im_end'}

    def decode(self, stream, question_ids: Tensor, config: EngineConfig,
               generator: torch.Generator | None = None) -> Answer:
        """
        Answer the question `question_ids` [n], which is appended to `stream` as it stands.

        `config` says how tokens are chosen (greedy, temperature, top_p).
        """
        settings = self.settings
        draws = None if config.greedy else draw_uniforms(settings.max_tokens, generator=generator)
        writer = Writer(stream, self.drafter, self.allowed, lambda logits, at: choose(
            logits, config, None if draws is None else draws[at]))
        writer.begin(question_ids)
        limit = min(settings.max_tokens, writer.room)
        block = settings.text_block or (self.drafter.config.block_size if self.drafter else 1)
        in_blocks = settings.mode in ('direct', 'fallback') or (
            settings.mode == 'autoregressive' and settings.constrained)
        paths: dict[int, str] = {}
        stop = 'length'
        while len(writer.ids) < limit:
            token = writer.text(min(block, limit - len(writer.ids)))
            if token in self.stops:
                stop = self.stops[token]
                break
            schema = self.reader.opened(writer.ids) if in_blocks else None
            if schema is not None:
                start, room = len(writer.ids) - 1, limit - len(writer.ids)
                if isinstance(schema, FrameSchema):
                    paths[start] = self._frame(writer, schema, room)
                elif schema.layout.size - 1 > room:
                    break
                else:
                    paths[start] = self._block(writer, schema)
        writer.rewind(len(writer.ids))
        blocks, problems = self.reader.read(writer.ids)
        default = 'verified' if settings.mode == 'verified' else 'autoregressive'
        return Answer(tuple(writer.ids), tuple(
            _drawn(b, writer, paths.get(b.start, default))
            for b in blocks), stop, problems, writer.draft_passes, writer.target_passes)

    def _block(self, writer: Writer, schema: Schema) -> str:
        """Write the block that the last token opened; returns how."""
        writer.rewind(len(writer.ids) - 1)  # whatever was verified beyond the start token
        taken, path = 0, 'autoregressive'
        if self.drafter is not None:
            confidence = self.settings.confidence if self.settings.mode == 'fallback' else None
            symbols, chances, taken = schema.accept(
                writer.draft(len(schema.template), schema), confidence)
            path = 'direct' if taken == len(symbols) else 'fallback'
        written: list[int] = []
        ended = False
        for m in range(len(schema.first)):
            writer.push(schema.before(m))
            if m < taken:
                symbol, chance = int(symbols[m]), float(chances[m])
            else:
                symbol, chance = writer.constrained(schema, written)
            writer.push([int(schema.choices[symbol])], [chance])
            written.append(symbol)
            ended = schema.layout.is_box and symbol < 0
            if ended:
                break
        writer.push(schema.template[-1:] if ended else schema.before(len(schema.first)))
        writer.look()
        return path


    def _frame(self, writer: Writer, schema: FrameSchema, room: int) -> str:
        """
        Write the frame of digits that the last token opened; returns how.

        One that is not well-formed, or has no room, is left to the target's text.
        """
        if self.drafter is None:
            return 'autoregressive'
        writer.rewind(len(writer.ids) - 1)
        found = schema.accept(writer.draft(schema.layout.size, schema))
        if found is None:
            return 'fallback'
        ids = schema.token_ids(found[0])[1:]
        if len(ids) > room:
            return 'fallback'
        writer.push(ids, [found[1]] * len(ids))
        writer.look()
        return 'direct'


def _drawn(block: Block, writer: Writer, path: str) -> Drawn:
    if isinstance(block.layout, Frame):  # as many as it has values
        places = [1] * block.values.size
    else:
        places = [1] if block.is_absent else block.layout.coordinates
    chances = np.array([writer.chances[block.start + p] for p in places], np.float32)
    passes = [*writer.passes, (writer.draft_passes, writer.target_passes)]
    first, after = passes[block.start], passes[block.start + len(block.token_ids)]
    return Drawn(block, path, chances, after[0] - first[0], after[1] - first[1])
