"""
Prompt text and its layout: which slot holds what, and the position of every slot.

A slot is an index into the prompt.  Positions depend on the slot only, so all
of this is computed once per (cameras, image sizes, text) and reused
(spec `alpamayo.md` sections 4 and 13).
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .config import ModelConfig
from .text import refuse_free_text
from .tokenizer import Tokenizer
from .types import InputError

DISPLAY_NAMES = {
    0: 'Front left camera',
    1: 'Front camera',
    2: 'Front right camera',
    3: 'Rear left camera',
    4: 'Rear camera',
    5: 'Rear right camera',
    6: 'Front telephoto camera',
}
SYSTEM = 'You are a driving assistant that generates safe and accurate actions.'
REQUEST = ('output the chain-of-thought reasoning of the driving process, '
           'then output the future trajectory.')
_TURN = '<|im_end|>\n<|im_start|>assistant\n'
IMAGE = '<|vision_start|><|image_pad|><|vision_end|>'


@dataclass(frozen=True)
class PromptLayout:
    """
    Where everything stands in a prompt of S slots.

    token_ids    [S] ids; history slots hold a placeholder
    positions    [3, S] rotary positions (time, height, width)
    next_position  position of the first generated token, on all axes
    images       [views][frames] (first, end) slots from vision_start to after vision_end
    labels       [views][frames] (first, end) slots of the text before each image
    history      (first, end) slots of the ego history tokens; empty for questions
    suffix       first slot after the last image
    grids        [views] (rows, columns) of language-model tokens of an image
    """

    camera_ids: tuple[int, ...]
    token_ids: np.ndarray
    positions: np.ndarray
    next_position: int
    images: tuple[tuple[tuple[int, int], ...], ...]
    labels: tuple[tuple[tuple[int, int], ...], ...]
    history: tuple[int, int]
    suffix: int
    grids: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Number of slots S."""
        return len(self.token_ids)

    @property
    def prefix(self) -> int:
        """Slots before the first label or image."""
        return self.labels[0][0][0]

    @property
    def frames(self) -> int:
        """Frames per view."""
        return len(self.images[0])

    @property
    def rope_delta(self) -> int:
        """Position minus slot after the prompt."""
        return self.next_position - self.size

    def image_token_slots(self, blocks) -> np.ndarray:
        """Slots of the image tokens of `blocks`, a list of (view, frame), in that order."""
        spans = [self.images[v][f] for v, f in blocks]
        return np.concatenate([np.arange(a + 1, b - 1) for a, b in spans])


def prompt_text(config: ModelConfig, camera_ids, nav_text: str = '',
                question: str | None = None) -> str:
    """
    Prompt as text; each image is one `<|image_pad|>` (to be repeated per token).

    Alpamayo 1 knows no navigation text: it is left out.
    """
    prompt = config.prompt
    body = ''
    for camera in camera_ids:
        if prompt.include_camera_ids:
            body += f'{(prompt.camera_names or DISPLAY_NAMES)[camera]}: '
        for frame in range(prompt.frames_per_camera):
            body += (f'frame {frame} ' if prompt.include_frame_nums else '') + IMAGE
    if question is not None:
        ending = question_text(question)
    else:
        history = '<|traj_history|>' * prompt.tokens_per_history_traj
        body += f'<|traj_history_start|>{history}<|traj_history_end|>'
        if nav_text and not config.is_r1:
            body += f'<|route_start|>{nav_text}<|route_end|>'
        ending = f'{REQUEST}{_TURN}<|cot_start|>'
    return f'{_opening(config)}{body}{ending}'


def _opening(config: ModelConfig) -> str:
    """Prompt up to the first camera."""
    return f'<|im_start|>system\n{config.prompt.system or SYSTEM}<|im_end|>\n<|im_start|>user\n'


def question_text(question: str) -> str:
    """Prompt behind the last image when a question is asked; it begins with a marker."""
    return f'<|question_start|>{question}<|question_end|>{_TURN}<|answer_start|>'


def question_ids(config: ModelConfig, tokenizer: Tokenizer, question: str) -> list[int]:
    """
    Tokens of the prompt from `suffix` on when `question` is asked.

    Raises `InputError` for text that is too long or holds added tokens, or a question to a
    model that answers none.
    """
    _refuse(tokenizer, 'question', question)
    if config.is_r1:
        raise InputError(f'{config.name} (Alpamayo 1) answers no questions')
    return tokenizer.encode(question_text(question))


def _refuse(tokenizer: Tokenizer, kind: str, text: str) -> None:
    refuse_free_text(kind, text)
    if tokenizer.holds_added(text):
        raise InputError(f'{kind} must not hold marker tokens: {text!r}')


def build_layout(config: ModelConfig, tokenizer: Tokenizer, camera_ids, grids, *,
                 nav_text: str = '', question: str | None = None) -> PromptLayout:
    """
    Tokenise the prompt and lay it out.

    `camera_ids` ascending; `grids` gives (rows, columns) of language-model
    tokens of each camera's images.  Raises `InputError` for text that is too
    long or holds added tokens, or a question to a model that answers none.
    """
    _refuse(tokenizer, 'navigation text', nav_text)
    if question is not None:
        question_ids(config, tokenizer, question)
    ids = np.asarray(tokenizer.encode(prompt_text(config, camera_ids, nav_text, question)))
    frames = config.prompt.frames_per_camera
    per_image = [grid for grid in grids for _ in range(frames)]
    pad = tokenizer.id('image_pad')
    repeats = np.ones(len(ids), dtype=np.int64)
    repeats[ids == pad] = [rows * columns for rows, columns in per_image]
    ids = np.repeat(ids, repeats)
    starts = np.flatnonzero(ids == tokenizer.id('vision_start'))
    ends = np.flatnonzero(ids == tokenizer.id('vision_end')) + 1
    images = [(int(a), int(b)) for a, b in zip(starts, ends)]
    first = len(tokenizer.encode(_opening(config)))
    befores = [first, *(b for _, b in images[:-1])]
    labels = [(before, a) for before, (a, _) in zip(befores, images)]
    history = np.flatnonzero(ids == tokenizer.id('traj_history'))
    positions, next_position = rotary_positions(len(ids), images, per_image)
    return PromptLayout(
        camera_ids=tuple(camera_ids), token_ids=ids, positions=positions,
        next_position=next_position, images=_by_view(images, frames),
        labels=_by_view(labels, frames),
        history=(int(history[0]), int(history[-1]) + 1) if len(history) else (0, 0),
        suffix=images[-1][1], grids=tuple(grids))


def rotary_positions(size: int, images, grids) -> tuple[np.ndarray, int]:
    """
    Positions [3, size] and the next one after the prompt.

    Text advances all axes by one.  An image whose tokens start at position p
    has time p, height p + row, width p + column; the next text token continues
    after the largest of them.
    """
    positions = np.empty((3, size), dtype=np.int64)
    slot = position = 0
    for (first, end), (rows, columns) in zip(images, grids):
        count = first + 1 - slot
        positions[:, slot:first + 1] = position + np.arange(count)
        position += count
        inside = slice(first + 1, end - 1)
        positions[0, inside] = position
        positions[1, inside] = position + np.repeat(np.arange(rows), columns)
        positions[2, inside] = position + np.tile(np.arange(columns), rows)
        position += max(rows, columns)
        slot = end - 1
    positions[:, slot:] = position + np.arange(size - slot)
    return positions, position + size - slot


def _by_view(spans, frames: int):
    return tuple(tuple(spans[i:i + frames]) for i in range(0, len(spans), frames))
