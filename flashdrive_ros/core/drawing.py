"""
The stage of a step that draws: questions about the window, answered in visual primitives.

Each question is a branch behind the window's images (`PromptStream.branch`), so nothing
of the prompt is computed twice and the plan never notices.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from .config import EngineConfig
from .model import Alpamayo
from .plan_features import FeatureCollector
from .primitives.acceptance import Confidence
from .primitives.coordinates import EXTRA_TOKENS
from .primitives.flash import Answer, Drawn, FlashDecoder, FlashSettings
from .primitives.requests import PrimitiveRequest
from .prompt import question_ids
from .stream import PromptStream
from .tokenizer import Tokenizer
from .types import InputError, Primitive


class Drawing:
    """
    What a plan is asked to be drawn, and how.

    Raises `InputError` for a request that is malformed or that the model can not answer.
    """

    def __init__(self, model: Alpamayo, tokenizer: Tokenizer, config: EngineConfig, drafter=None):
        try:
            self.requests = tuple(PrimitiveRequest.parse(text) for text in config.primitives)
        except ValueError as error:
            raise InputError(str(error)) from None
        if tokenizer.lacks(EXTRA_TOKENS):
            raise InputError(f'{model.config.name} draws no primitives: its vocabulary lacks '
                             f'{tokenizer.lacks(EXTRA_TOKENS)[0]}')
        mode = decoding_mode(config.primitive_decoding, drafter)
        self.decoder = FlashDecoder(model, tokenizer, FlashSettings(
            mode=mode, max_tokens=config.max_primitive_tokens,
            confidence=Confidence(sure=config.box_confidence, spread=config.box_spread)), drafter)
        self.question_ids = [question_ids(model.config, tokenizer, r.question())
                             for r in self.requests]
        self.questions = [torch.tensor(ids, device=model.device) for ids in self.question_ids]
        self.config = replace(config, greedy=True)
        self.answers: tuple[Answer, ...] = ()
        """Answers to the last window's questions, with their token and pass counts."""

    def draw(self, stream: PromptStream, sizes: Mapping[int, tuple[int, int]],
             collector: FeatureCollector | None = None) -> tuple[Primitive, ...]:
        """
        Primitives in the window that `stream` holds; the stream is left as it was.

        `sizes` are (height, width) of the original images by camera; questions about other
        cameras are left out.  The likeliest tokens are taken whatever the plan's sampling.
        A `collector` is given the features of every question and answer.
        """
        primitives, answers = [], []
        suffix = stream.layout.suffix
        with stream.branch(suffix):
            for request, asked, question in zip(self.requests, self.question_ids, self.questions):
                if request.camera_id is None or request.camera_id in sizes:
                    stream.truncate(suffix)
                    answers.append(self.decoder.decode(stream, question, self.config))
                    if collector is not None:
                        collector.answer(stream, asked, answers[-1])
                    primitives += [p for drawn in answers[-1].primitives
                                   for p in _primitives(drawn, request, sizes)]
        self.answers = tuple(answers)
        return tuple(primitives)


def decoding_mode(wanted: str, drafter) -> str:
    """Mode of decoding; raises `InputError` when one is wanted that lacks its drafter."""
    if wanted == 'auto':
        if drafter is None:
            return 'autoregressive'
        return 'fallback' if drafter.config.window_context else 'verified'
    if drafter is None and wanted != 'autoregressive':
        raise InputError(f'primitive_decoding = {wanted!r} needs a drafter, there is none')
    return wanted


def _primitives(drawn: Drawn, request: PrimitiveRequest, sizes) -> list[Primitive]:
    """One primitive for each part of a block, in pixels or metres; none for an absent class."""
    block, found, at, seen = drawn.block, [], 0, 0
    if block.is_absent:
        return []
    for part, values in zip(block.layout.parts, block.layout.read(block.symbols)):
        chances = drawn.confidences[seen:seen + values.size].reshape(values.shape)
        alone = len(block.layout.parts) == 1
        tokens = block.token_ids if alone else block.token_ids[at:at + values.size + 2]
        at, seen = at + values.size + 2, seen + values.size
        camera, units = None, 'metre'
        if part.in_image:
            camera, units = request.camera_id, 'pixel'
            if camera is None:  # nobody asked for an image
                continue
            values = _pixels(part, values, sizes[camera])
        elif values.shape[1] == 3:  # in the frame of the camera
            camera = request.camera_id
        else:  # on the ground
            values = np.pad(values, ((0, 0), (0, 1)))
            values[np.isnan(values[:, 0])] = np.nan
            chances = np.pad(chances, ((0, 0), (0, 1)), constant_values=1)
        label = ' '.join(filter(None, (
            block.label or ('ego' if request.kind.startswith('trajectory') else ''), part.label)))
        found.append(Primitive(part.type, label, values.astype(np.float32), units, camera,
                               chances.ravel(), drawn.decode_path, tokens))
    return found


def _pixels(part, shares: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Pixels of shares of an image of (height, width); a point's pixel has its centre at 0.5."""
    scale = np.array(size[::-1], dtype=np.float64)
    if part.type == 'box_2d':
        return shares * np.tile(scale, 2)
    return shares * scale - 0.5
