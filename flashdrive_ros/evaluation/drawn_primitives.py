"""
Visual primitives of held-out windows, decoded in every mode behind the same prefilled window.

The truth are the world's annotations, written and read as an answer of the model is, so that
both have the rounding of the coordinate tokens.
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ..core.drawing import Drawing
from ..core.engine import Engine
from ..core.primitives.flash import MODES, Answer
from ..core.primitives.reading import Block, Reader
from ..core.primitives.requests import PrimitiveRequest
from ..training.questions import AHEAD, LABELS, ask
from . import held_out
from .drafters import engine_with_drafter
from .held_out import HeldOutWindow, tasks  # noqa: F401 (a part of this evaluation)
from .planners import Planners
from .primitive_metrics import box_scores, pair_paths, path_errors

REQUESTS = (*(f'boxes:{camera}:{",".join(LABELS.values())}' for camera in AHEAD),
            'trajectory_2d_3d:1:8', 'trajectory_2d_3d:1:20', 'motion:6')


@dataclass(frozen=True)
class DrawnPrimitives:
    """
    What is measured: `requests` of `windows` of each episode of `seconds`, in all `modes`.

    `models` has the checkpoint and, for the record, its drafter.  `settings` are further fields
    of `EngineConfig`.
    """

    models: dict[str, str]
    requests: tuple[str, ...] = REQUESTS
    modes: tuple[str, ...] = MODES
    windows: int = 4
    seconds: float = 40.0
    engine_seed: int = 0
    settings: dict = field(default_factory=dict)


def run_task(task: dict, planners: Planners) -> Iterator[dict]:
    """Decode the answers of a seed's windows in every mode, and compare them with the truth."""
    config = DrawnPrimitives(**task['config'])
    engine = engine_with_drafter(planners, config.models['target'])
    artist = Artist(config, engine)
    found = []
    for window in held_out.windows(task['seed'], config.windows, config.seconds):
        artist.see(window)
        if not found:
            artist.answers(window, 0)  # what is made at first use is not to count
        found.append({'tick': window.tick, 'answers': artist.answers(window, len(found))})
    yield {'seed': task['seed'], 'windows': found}


class Artist:
    """Draws the same window in every mode, by the engine's own stage."""

    def __init__(self, config: DrawnPrimitives, engine: Engine):
        self.config, self.engine, self.reader = config, engine, Reader(engine.tokenizer)
        engine.configure(**{
            'num_trajectories': 1, 'flow_steps': 1, 'velocity_reuse': (), 'max_new_tokens': 1,
            'streaming': False, 'drafting': 'off', 'greedy': True, 'seed': config.engine_seed,
            **config.settings, 'primitive_decoding': 'fallback',
            'primitives': config.requests[-1:]})  # one, so that what drafters see is kept
        self.drawings = {(mode, text): Drawing(
            engine.model, engine.tokenizer, replace(
                engine.config, primitives=(text,), primitive_decoding=mode), engine.drafter)
            for mode in config.modes for text in config.requests}

    def see(self, window: HeldOutWindow) -> None:
        """Bring the engine to a window that it has not seen."""
        self.engine.reset('another window')
        self.engine.step(window.frames, window.history, window.nav_text, window.before)

    @torch.inference_mode()
    def answers(self, window: HeldOutWindow, turn: int) -> dict[str, dict]:
        """Figures of the window's answers by mode and request; who begins changes with `turn`."""
        modes = self.config.modes
        modes = (*modes[turn % len(modes):], *modes[:turn % len(modes)])
        stream = self.engine.streams['guided']
        sizes = {c: f.image.shape[:2] for c, f in window.frames.frames.items()}
        encode = self.engine.tokenizer.encode
        found: dict[str, dict] = {mode: {} for mode in self.config.modes}
        for text in self.config.requests:
            request = PrimitiveRequest.parse(text)
            truth, _ = self.reader.read(encode(ask(request, window.facts).answer))
            for mode in modes:
                drawing = self.drawings[mode, text]
                began = time.perf_counter()
                drawing.draw(stream, sizes)
                if stream.model.device.type == 'cuda':
                    torch.cuda.synchronize(stream.model.device)
                ms = (time.perf_counter() - began) * 1e3
                answer, = drawing.answers
                written = [drawn.block for drawn in answer.primitives]
                found[mode][text] = {'ms': ms, **counts(answer),
                                     'scores': scores(request, written, truth)}
        return found


def counts(answer: Answer) -> dict:
    """Tokens and passes of an answer, and of each block in it: layout, tokens, passes, path."""
    return {'tokens': len(answer.token_ids), 'target_passes': answer.target_passes,
            'draft_passes': answer.draft_passes, 'problems': len(answer.problems),
            'stop': answer.stop,
            'blocks': [[name_of(drawn.block), len(drawn.block.token_ids), drawn.draft_passes,
                        drawn.target_passes, drawn.decode_path] for drawn in answer.primitives]}


def name_of(block) -> str:
    """Name of a block's layout: its type and, where that is free, its number of points."""
    if block.layout.is_box:
        return 'box_2d, absent' if block.is_absent else 'box_2d'
    return f'{block.layout.type} {block.layout.parts[0].points}'


def scores(request: PrimitiveRequest, written: Sequence[Block],
           truth: Sequence[Block]) -> dict:
    """Compare an answer with the truth; what a request of this kind has."""
    if request.kind == 'boxes':
        return box_scores(_boxes(written), _boxes(truth))
    if request.kind == 'motion':
        return _motion_scores(_labelled(written), _labelled(truth))
    return _path_scores(request, written, truth)


def _boxes(found: Sequence[Block]) -> list[tuple[str, np.ndarray]]:
    return [(w.label, box) for w in found if w.type == 'box_2d' for box in w.values]


def _labelled(found: Sequence[Block]) -> list[tuple[str, np.ndarray]]:
    return [(w.label, w.values) for w in found if w.type == 'trajectory_3d']


def _motion_scores(predicted, truth) -> dict:
    pairs = pair_paths(predicted, truth)
    errors = [path_errors(predicted[p][1], truth[t][1]) for p, t in pairs]
    return {'3d': [e for e in errors if e], 'predicted': len(predicted), 'true': len(truth)}


def _path_scores(request, written, truth) -> dict:
    """
    Errors of the path by its parts.

    '2d' in shares of the image, '3d' in metres; None for a part without a point in view in
    both, and for an answer that is not one path of this form.  `view` counts points on which
    both agree whether they are in the image, and all.
    """
    columns = {'trajectory_2d': {'2d': slice(0, 2)}, 'trajectory_3d': {'3d': slice(0, 2)},
               'trajectory_2d_3d': {'2d': slice(0, 2), '3d': slice(2, 4)}}[request.kind]
    true, = truth
    answered = len(written) == 1 and written[0].type == true.type and (
        written[0].values.shape == true.values.shape)
    if not answered:
        return {'answered': False, **dict.fromkeys(columns)}
    ours = written[0].values
    seen = [~np.isnan(rows[:, 0]) for rows in (ours, true.values)]
    return {'answered': True, 'view': [int((seen[0] == seen[1]).sum()), len(ours)],
            **{part: path_errors(ours[:, c], true.values[:, c]) for part, c in columns.items()}}


def kinds(config: DrawnPrimitives) -> Mapping[str, str]:
    """Kind of each request."""
    return {text: PrimitiveRequest.parse(text).kind for text in config.requests}
