"""
Clips: consecutive frames of an episode with everything that is to be learned from them.

A clip of L frames holds W = L - F + 1 windows of F frames; window w ends at frame
w + F - 1.  All arrays have fixed shapes, so that clips travel through shared
memory and lie side by side on the device.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial

import cv2
import numpy as np
import torch

from ..core import unicycle
from ..core.config import ActionConfig, ModelConfig
from ..core.geometry import yaw_rotation
from ..core.images import patch_grid
from ..core.primitives.reading import Reader
from ..core.prompt import build_layout
from ..core.tokenizer import Tokenizer
from ..core.trajectory_tokens import history_token_ids
from ..world.boxes import boxes_2d
from ..world.reason import CAUSES, describe
from . import questions, seeing
from .episodes import (
    FUTURE,
    VALIDATION,
    Episode,
    EpisodeConfig,
    choose,
    drive,
    training_seed,
)

ALIGN = 64
LONG_ANSWER = 288
WORDINGS, QUESTIONS = 4, 6
"""Wordings of the reasoning, and questions; which is learned is drawn anew every time."""
BLOCK = ('start', 'size', 'learned', 'layout')
"""
Of each primitive of an answer: where it begins, tokens of its block, those of them that the
answer has (fewer for an absent class) and its index in `questions.LAYOUTS`.
"""
JPEG_SHARE = 0.5
JPEG_QUALITY = (60, 95)
PHYSICAL = {'accel_mean': 0.0, 'accel_std': 1.0, 'curvature_mean': 0.0, 'curvature_std': 1.0}
"""Controls are stored in m/s^2 and 1/m; the trainer normalises them."""


@dataclass(frozen=True)
class ClipConfig:
    """
    What a clip holds; `seed` and an index make its content.

    `validation` seeds are held out, and their episodes are undisturbed.  `long_paths` is the
    share of paths that are asked for with 64 points; their answers need `LONG_ANSWER` tokens.
    """

    seed: int = 0
    frames: int = 4
    clips_per_episode: int = 20
    prompt_tokens: int = 112
    reason_tokens: int = 32
    question_tokens: int = 88
    answer_tokens: int = 128
    long_paths: float = 0.0
    silent_share: float = 0.15
    validation: bool = False
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)


@dataclass(frozen=True)
class Field:
    """Shape and dtype of one array of a clip."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class SlotLayout:
    """Where the arrays of a clip lie in a slot."""

    fields: dict[str, Field]

    @property
    def nbytes(self) -> int:
        """Bytes of a slot."""
        return sum(self.room(f) for f in self.fields.values())

    @staticmethod
    def room(f: Field) -> int:
        """Bytes that an array takes with its padding."""
        return -(-f.nbytes // ALIGN) * ALIGN

    def views(self, buffer: np.ndarray) -> dict[str, np.ndarray]:
        """Arrays on the bytes [nbytes] of a slot."""
        found, at = {}, 0
        for name, f in self.fields.items():
            found[name] = buffer[at:at + f.nbytes].view(f.dtype).reshape(f.shape)
            at += self.room(f)
        return found


def clip_fields(clip: ClipConfig, model: ModelConfig, cameras: int) -> dict[str, Field]:
    """Return the arrays of a clip: raw images, and per window tokens, controls and truth."""
    windows = clip.frames - model.prompt.frames_per_camera + 1
    height, width = clip.episode.height, clip.episode.width
    return {
        'images': Field((clip.frames, cameras, height, width, 3), 'uint8'),
        'prompt_ids': Field((windows, clip.prompt_tokens), 'int32'),
        'prompt_length': Field((windows,), 'int32'),
        'reason_ids': Field((windows, WORDINGS, clip.reason_tokens), 'int32'),
        'reason_length': Field((windows, WORDINGS), 'int32'),
        'question_ids': Field((windows, QUESTIONS, clip.question_tokens), 'int32'),
        'question_length': Field((windows, QUESTIONS), 'int32'),
        'answer_ids': Field((windows, QUESTIONS, clip.answer_tokens), 'int32'),
        'answer_length': Field((windows, QUESTIONS), 'int32'),
        'answer_blocks': Field((windows, QUESTIONS, questions.MAX_BLOCKS, len(BLOCK)), 'int32'),
        'controls': Field((windows, FUTURE, 2), 'float32'),
        'speed': Field((windows,), 'float32'),
        'future': Field((windows, FUTURE, 3), 'float32'),
        'history': Field((windows, 16, 3), 'float32'),
        'cause': Field((windows,), 'int32'),
        'seen': Field((windows, cameras, *patch_grid(height, width, model.vision, model.prompt),
                       seeing.CHANNELS), 'uint8'),
        'identity': Field((3,), 'int64'),
    }


class ClipMaker:
    """Makes clips: `clips(index)` are those of the episode with that index."""

    def __init__(self, config: ClipConfig, model: ModelConfig, tokenizer: Tokenizer,
                 camera_ids=(0, 1, 2, 6)):
        self.config, self.model, self.tokenizer = config, model, tokenizer
        self.camera_ids = tuple(camera_ids)
        self.fields = clip_fields(config, model, len(self.camera_ids))
        self.reader = Reader(tokenizer)
        self.tail_of = lru_cache(maxsize=4096)(self._tail_of)
        self.window = model.prompt.frames_per_camera

    def clips(self, index: int, first: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """
        Yield the clips of episode `index`, from number `first` on.

        Always `clips_per_episode`; an episode with too few learnable moments
        repeats some of them, one without any gives way to another attempt.
        """
        config = self.config
        for attempt in range(100):
            seed = (VALIDATION + index * 100 + attempt if config.validation
                    else training_seed(config.seed, index, attempt))
            rng = np.random.default_rng([config.seed, index, attempt, 7])
            episode = drive(seed, config.episode)
            starts = choose(episode, config.clips_per_episode, config.frames, self.window, rng)
            if starts:
                break
        else:
            raise RuntimeError(f'episode {index}: the expert failed in 100 attempts')
        for number in range(config.clips_per_episode):
            own = np.random.default_rng([config.seed, index, attempt, 8, number])
            if number >= first:
                start = starts[number % len(starts)]
                yield self.make(episode, start, own, (index, number, seed))

    def make(self, episode: Episode, start: int, rng: np.random.Generator,
             identity: tuple[int, int, int]) -> dict[str, np.ndarray]:
        """Draw the clip that begins at tick `start`."""
        arrays = {name: np.zeros(f.shape, f.dtype) for name, f in self.fields.items()}
        ticks = [start + self.window - 1 + w for w in range(len(arrays['speed']))]
        silent = rng.random() < self.config.silent_share
        quality = int(rng.integers(*JPEG_QUALITY)) if rng.random() < JPEG_SHARE else 0
        for frame in range(self.config.frames):
            moment = episode.moments[start + frame]
            # ids are painted only for the cameras that a question is about
            images, ids = episode.world.renderer.render(moment.pose, moment.things, ids=True)
            for v, camera in enumerate(self.camera_ids):
                arrays['images'][frame, v] = through_jpeg(images[camera], quality)
            if frame >= self.window - 1:
                w, tick = frame - self.window + 1, start + frame
                self._ask(arrays, w, episode, tick, ids, rng)
                before = episode.moments[tick - 1].things
                arrays['seen'][w] = seeing.seen_in(
                    ids, self.camera_ids, arrays['seen'].shape[2:4], moment.pose, moment.things,
                    before)
        for w, tick in enumerate(ticks):
            self._tell(arrays, w, episode, tick, silent, rng)
        self._drive(arrays, episode, ticks)
        arrays['identity'][:] = identity
        return arrays

    def _tell(self, arrays, w: int, episode: Episode, tick: int, silent: bool, rng) -> None:
        """Prompt of a window, and its reasoning in several wordings, the world's own first."""
        moment = episode.moments[tick]
        navigation = moment.navigation
        if silent and 'Turn' not in navigation:
            navigation = ''
        history = episode.history(tick)
        xyz = np.concatenate((history[:, :2], np.zeros((len(history), 1))), 1)
        ids, (begin, end) = self.tail_of(navigation, None)
        ids = ids.copy()
        ids[begin:end] = history_token_ids(xyz, self.model.prompt)
        _fill(arrays, 'prompt', w, ids)
        for k in range(WORDINGS):
            text = describe(moment.because, rng) if k else moment.text
            ids = self.tokenizer.encode(text + '<|cot_end|><|traj_future_start|>')
            _fill(arrays, 'reason', (w, k), ids)
        arrays['history'][w] = history
        arrays['cause'][w] = CAUSES.index(moment.because.name)

    def _ask(self, arrays, w: int, episode: Episode, tick: int, ids, rng) -> None:
        """Questions about a window, and their answers."""
        things = episode.moments[tick].things
        size = self.config.episode.width, self.config.episode.height
        facts = questions.Facts(_Boxes(ids, things), size, episode.future(tick)[:, :2],
                                episode.world.rig, partial(episode.motions, tick))
        for k in range(QUESTIONS):
            asked = questions.draw(facts, rng, self.config.long_paths)
            _fill(arrays, 'question', (w, k), self.tail_of('', asked.question)[0])
            answer = self.tokenizer.encode(asked.answer + '<|answer_end|>')
            _fill(arrays, 'answer', (w, k), answer)
            for n, block in enumerate(self.reader.read(answer)[0]):
                arrays['answer_blocks'][w, k, n] = (
                    block.start, block.layout.size, len(block.token_ids),
                    questions.LAYOUTS.index(block.layout))

    def _drive(self, arrays, episode: Episode, ticks: list[int]) -> None:
        """What the expert did next, as a trajectory and as controls."""
        future = np.stack([episode.future(tick) for tick in ticks])
        speed, controls = controls_of(arrays['history'], future, self.model.action)
        arrays['speed'][:], arrays['controls'][:], arrays['future'][:] = speed, controls, future

    def _tail_of(self, navigation: str, question: str | None) -> tuple[np.ndarray, tuple]:
        """Token ids of the prompt after the last image, and where in them the history goes."""
        grids = ((1, 1),) * len(self.camera_ids)
        layout = build_layout(self.model, self.tokenizer, self.camera_ids, grids,
                              nav_text=navigation, question=question)
        begin, end = layout.history
        return (layout.token_ids[layout.suffix:].astype(np.int32),
                (begin - layout.suffix, end - layout.suffix))


class _Boxes(dict):
    """2D boxes by camera, worked out when asked for."""

    def __init__(self, ids, things):
        super().__init__()
        self.ids, self.things = ids, things

    def get(self, camera, default=()):
        """Boxes of a camera."""
        if camera not in self and camera in self.ids:
            self[camera] = boxes_2d(self.ids[camera], self.things)
        return super().get(camera, default)


def _fill(arrays, name: str, w, ids) -> None:
    room = arrays[f'{name}_ids'].shape[-1]
    if len(ids) > room:
        raise RuntimeError(f'{name} has {len(ids)} tokens, ClipConfig has room for {room}')
    arrays[f'{name}_ids'][w][:len(ids)] = ids
    arrays[f'{name}_length'][w] = len(ids)


def through_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    """`image` as a camera's JPEG stream would give it; untouched for quality 0."""
    if not quality:
        return image
    _, packed = cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return cv2.imdecode(packed, cv2.IMREAD_COLOR)


def controls_of(history: np.ndarray, future: np.ndarray,
                action: ActionConfig) -> tuple[np.ndarray, np.ndarray]:
    """
    Speed at t0 [n] m/s and controls [n, 64, 2] (m/s^2, 1/m) behind `future` [n, 64, 3].

    `history` is [n, 16, 3]; rows are x, y, yaw in the ego frame at t0.
    """
    settings = ActionConfig(**{**action.__dict__, **PHYSICAL})
    past, ahead = (torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in (history, future))
    flat = torch.zeros_like(past[..., :1])
    speed = unicycle.speed_from_history(torch.cat((past[..., :2], flat), -1),
                                        yaw_rotation(past[..., 2]), action)
    flat = torch.zeros_like(ahead[..., :1])
    controls = unicycle.encode(torch.cat((ahead[..., :2], flat), -1),
                               yaw_rotation(ahead[..., 2]), speed, settings)
    return speed.numpy(), controls.actions.numpy()

