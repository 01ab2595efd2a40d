"""
What a head reads of a window: last-layer hidden states of the frozen model, token by token.

The one place where heads meet the model.  A window is passed through the model once, then
the way ahead is drawn behind its images (a 2D+3D trajectory primitive) and question and
answer are passed through once more, which gives the states of all their tokens.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core import checkpoint, images
from ..core.config import EngineConfig
from ..core.drafter import load_companion
from ..core.drawing import decoding_mode
from ..core.ego import EgoHistory
from ..core.memory import FrameMemory
from ..core.primitives.flash import FlashDecoder, FlashSettings
from ..core.primitives.requests import PrimitiveRequest
from ..core.prompt import PromptLayout, build_layout, question_ids
from ..core.stream import PromptStream
from ..core.streaming import computed_slots, new_blocks
from ..core.trajectory_tokens import history_token_ids
from ..core.types import FrameSet

PROMPT, IMAGE, QUESTION = 0, 1, 2
PLANS = {'flash': 3, 'autoregressive': 4}
"""How a plan was drawn -> segment of its tokens."""
MODES = {'flash': 'fallback', 'autoregressive': 'autoregressive'}
INPUTS = {'no_plan': (PROMPT, IMAGE), 'plan': (PROMPT, IMAGE, QUESTION, PLANS['flash']),
          'plan_autoregressive': (PROMPT, IMAGE, QUESTION, PLANS['autoregressive'])}
"""What a head sees, by name: segments whose tokens it may attend to."""
REQUEST = 'trajectory_2d_3d:1:8'


@dataclass(frozen=True)
class Reading:
    """
    States [N, hidden] float16 of a window's tokens and the segment [N] uint8 of each.

    `PROMPT`: text behind the images (history, route, request); `IMAGE`: the newest frame of
    each camera; `QUESTION`: the request for the way ahead; `PLANS`: answers to it.
    """

    states: np.ndarray
    segments: np.ndarray

    def select(self, inputs: str) -> np.ndarray:
        """States of the tokens that a head with these `INPUTS` sees."""
        return self.states[np.isin(self.segments, INPUTS[inputs])]


class Reader:
    """
    Reads windows of one episode after the other; `plans` says how the way ahead is drawn.

    Raises `ValueError` for an unknown way and `InputError` where a way needs a drafter that
    the model lacks.
    """

    def __init__(self, model: str = 'small', plans: Sequence[str] = ('flash',),
                 device: str = 'cpu', dtype: str = 'auto'):
        unknown = set(plans) - set(PLANS)
        if unknown:
            raise ValueError(f'plans are drawn {" or ".join(PLANS)}, not {unknown.pop()!r}')
        place, kind = checkpoint.resolve_device(device, dtype)
        self.model, self.tokenizer = checkpoint.load(model, place, kind)
        drafter = load_companion(model, self.model, 'auto') if 'flash' in plans else None
        self.request = PrimitiveRequest.parse(REQUEST)
        self.question = torch.tensor(
            question_ids(self.model.config, self.tokenizer, self.request.question()),
            device=self.model.device)
        self.decoders = {}
        for plan in plans:
            mode = decoding_mode(MODES[plan], drafter)
            self.decoders[plan] = FlashDecoder(self.model, self.tokenizer,
                                               FlashSettings(mode=mode), drafter)
        self.window_drafter = drafter if drafter and drafter.config.window_context else None
        self.config = EngineConfig(greedy=True)
        self.memory = FrameMemory(self.model, self.model.config.prompt.frames_per_camera)
        self.streams: dict[int, PromptStream] = {}
        self.layouts: dict[tuple, PromptLayout] = {}

    @property
    def frames(self) -> int:
        """Frame sets of a window."""
        return self.memory.frames

    def reset(self) -> None:
        """Begin another episode."""
        self.memory.forget('another episode')
        self.layouts.clear()

    @torch.inference_mode()
    def read(self, frames: FrameSet, ego: EgoHistory, nav_text: str = '',
             history: Iterable[FrameSet] = ()) -> Reading:
        """
        Read the window that ends with `frames`; `history` are the sets before it.

        The whole window is computed, whatever was read before: states do not depend on it.
        """
        self.memory.encode([*history, frames])
        window, _, _ = self.memory.choose(frames.t0_ns, 10_000_000)
        layout = self._layout(frames, nav_text)
        stream = self._stream(layout)
        stream.layout = layout
        ids = history_token_ids(ego.xyz, self.model.config.prompt, ego.rot)
        hidden, _ = stream.prefill(self.memory.features(window), layout.frames, ids)
        self.memory.commit(frames.t0_ns, window, True)
        slots = computed_slots(layout, layout.frames)
        newest = layout.image_token_slots(new_blocks(layout, 1))
        parts = [(PROMPT, hidden[np.searchsorted(slots, layout.suffix):]),
                 (IMAGE, hidden[np.searchsorted(slots, newest)])]
        return _reading(parts + self._drawn(stream, layout.suffix))

    def _drawn(self, stream: PromptStream, suffix: int) -> list[tuple[int, Tensor]]:
        """States of the question and of each answer, by segment."""
        parts: list[tuple[int, Tensor]] = []
        asked = len(self.question)
        for plan, decoder in self.decoders.items():
            with stream.branch(suffix):
                answer = decoder.decode(stream, self.question, self.config)
                stream.truncate(suffix)
                ids = torch.tensor(answer.token_ids, device=self.question.device)
                states = stream.extend(torch.cat((self.question, ids)))
            if not parts:
                parts.append((QUESTION, states[:asked]))
            parts.append((PLANS[plan], states[asked:]))
        return parts

    def _layout(self, frames: FrameSet, nav_text: str) -> PromptLayout:
        config = self.model.config
        grids = tuple(tuple(n // config.vision.spatial_merge_size for n in images.patch_grid(
            *f.image.shape[:2], config.vision, config.prompt)) for f in frames.frames.values())
        key = frames.camera_ids, grids, nav_text
        if key not in self.layouts:
            self.layouts[key] = build_layout(config, self.tokenizer, frames.camera_ids, grids,
                                             nav_text=nav_text)
        return self.layouts[key]

    def _stream(self, layout: PromptLayout) -> PromptStream:
        stream = self.streams.get(layout.size)
        if stream is None or stream.layout.images != layout.images:
            tail = len(self.question) + self.config.max_primitive_tokens + 16
            stream = self.streams[layout.size] = PromptStream(
                self.model, layout, tail, self.window_drafter)
        return stream


def _reading(parts: list[tuple[int, Tensor]]) -> Reading:
    states = torch.cat([states for _, states in parts]).to('cpu', torch.float16).numpy()
    segments = np.concatenate([np.full(len(s), segment, np.uint8) for segment, s in parts])
    return Reading(states, segments)
