"""
Questions about a window and their answers from ground truth.

Boxes, the way ahead, the motion of others and the light; `core.primitives.requests` has the words.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.primitives import layouts
from ..core.primitives.coordinates import FORWARD_M, LEFT_M, NONE
from ..core.primitives.grammar import write, write_boxes, write_label
from ..core.primitives.requests import MOTIONS, PATHS, PrimitiveRequest
from ..world.boxes import Box2D
from ..world.cameras import Camera

LABELS = {'car': 'car', 'truck': 'truck', 'pedestrian': 'pedestrian', 'cyclist': 'cyclist',
          'traffic_light_red': 'red light', 'traffic_light_yellow': 'yellow light',
          'traffic_light_green': 'green light'}
"""Label of the world -> words of an answer, in the order in which they are asked for."""
LIGHTS = ('red light', 'yellow light', 'green light')
PLAIN_ANSWERS = (*LIGHTS, 'no light')
LIGHT_QUESTION = 'Which light is ahead?'
AGENTS = ('car', 'truck', 'pedestrian', 'cyclist')
"""Labels whose motion is told."""
AHEAD = (1, 6)
"""Cameras that look ahead."""
MAX_BOXES = 10
"""The largest ones, over all classes of an answer."""
MAX_AGENTS = 3
MAX_BLOCKS = MAX_BOXES + len(LABELS) - 1
"""Primitives of an answer: all boxes of one class, and every other one absent."""
SHARES = {'boxes': 0.60, 'path': 0.22, 'motion': 0.12, 'light': 0.06}
"""How often each kind of question is drawn."""
PATH_KINDS = {'trajectory_2d': 0.3, 'trajectory_3d': 0.2, 'trajectory_2d_3d': 0.5}
LAYOUTS = (layouts.box(), *(layouts.DECLARED[kind](n) for kind in PATH_KINDS for n in PATHS),
           *(layouts.trajectory_3d(n) for n in MOTIONS))
"""What blocks the answers hold."""


@dataclass(frozen=True)
class Facts:
    """
    What is true of a window.

    `boxes` by camera, in pixels of images `size` (width, height); `path` [64, 2] m in the ego
    frame, 0.1 s apart; `rig` the cameras by id.  `motions(ticks)` gives by id the middles
    [len(ticks), 2] m, in the ego frame of t0, of what is there at all of these ticks of 0.1 s.
    """

    boxes: Mapping[int, Sequence[Box2D]]
    size: tuple[int, int]
    path: np.ndarray
    rig: Mapping[int, Camera]
    motions: Callable[[Sequence[int]], Mapping[int, np.ndarray]]


@dataclass(frozen=True)
class Asked:
    """A question with its answer."""

    question: str
    answer: str


def vocabulary_questions(camera_id: int) -> list[str]:
    """
    Questions that the vocabulary of the small model was made from.

    Others are asked with it too; adding them here would change the vocabulary that its weights
    were trained on.
    """
    requests = [PrimitiveRequest('boxes', camera_id, tuple(LABELS.values()))]
    requests += [path_request(kind, camera_id, n) for n in PATHS for kind in PATH_KINDS]
    return [LIGHT_QUESTION, *(request.question() for request in requests)]


def path_request(kind: str, camera_id: int, points: int) -> PrimitiveRequest:
    """Request of the way ahead; the camera counts where the image is asked for."""
    return PrimitiveRequest(kind, None if kind == 'trajectory_3d' else camera_id, points=points)


def ask(request: PrimitiveRequest, facts: Facts) -> Asked:
    """Ask for primitives, answered by the facts."""
    answer = {'boxes': _boxes, 'motion': _motion}.get(request.kind, _path)
    return Asked(request.question(), answer(request, facts))


def _boxes(request: PrimitiveRequest, facts: Facts) -> str:
    """Write the largest ten boxes of the classes, left to right in each class."""
    seen = [box for box in facts.boxes.get(request.camera_id, ())
            if LABELS.get(box.label) in request.classes]
    seen = sorted(seen, key=_area, reverse=True)[:MAX_BOXES]
    scale = np.array([*facts.size, *facts.size], dtype=np.float64)
    return ''.join(write_boxes(label, [
        np.array([b.x1, b.y1, b.x2, b.y2]) / scale
        for b in sorted(seen, key=lambda b: (b.x1, b.y1)) if LABELS[b.label] == label])
        for label in request.classes)


def _path(request: PrimitiveRequest, facts: Facts) -> str:
    """Write the way ahead as points at equal times."""
    path = resample(facts.path, request.points)
    if request.kind == 'trajectory_3d':
        return write(request.kind, path)
    ground = np.concatenate((path, np.zeros((len(path), 1))), 1)
    uv, inside = facts.rig[request.camera_id].project(ground)
    shares = np.where(inside[:, None], (uv + 0.5) / np.array(facts.size, dtype=np.float64), np.nan)
    return write(request.kind, shares if request.kind == 'trajectory_2d'
                 else np.concatenate((shares, path), 1))


def _motion(request: PrimitiveRequest, facts: Facts) -> str:
    """
    Write where the nearest three agents go that a camera ahead shows, the nearest first.

    Places outside the range of the coordinates are out of view; who is gone before the end is
    left out.
    """
    step = round(request.seconds / request.points * 10)
    motions = facts.motions([step * k for k in range(request.points + 1)])
    labels = {box.id: LABELS[box.label] for camera in AHEAD for box in facts.boxes.get(camera, ())
              if LABELS.get(box.label) in AGENTS and box.id in motions}
    nearest = sorted(labels, key=lambda i: (float(np.hypot(*motions[i][0])), i))[:MAX_AGENTS]
    return ''.join(write_label(labels[i]) + write('trajectory_3d', _in_range(motions[i][1:]))
                   for i in nearest) or NONE


def _in_range(xy: np.ndarray) -> np.ndarray:
    low, high = np.array([[FORWARD_M.low, LEFT_M.low], [FORWARD_M.high, LEFT_M.high]])
    return np.where(((xy >= low) & (xy <= high)).all(1, keepdims=True), xy, np.nan)


def ask_light(facts: Facts) -> Asked:
    """Colour of the light that shows largest in the cameras that look ahead."""
    ahead = [box for camera in AHEAD for box in facts.boxes.get(camera, ())
             if LABELS.get(box.label) in LIGHTS]
    answer = LABELS[max(ahead, key=lambda b: b.pixels).label] if ahead else 'no light'
    return Asked(LIGHT_QUESTION, answer)


def resample(path: np.ndarray, points: int) -> np.ndarray:
    """`points` rows at equal times, t0 left out, of `path` [64, 2] with rows 0.1 s apart."""
    times = np.arange(1, points + 1) * (PATHS[points] / points)
    known = np.arange(len(path) + 1) * 0.1
    whole = np.concatenate((np.zeros((1, 2)), path[:, :2]))
    return np.stack([np.interp(times, known, column) for column in whole.T], 1)


def draw(facts: Facts, rng: np.random.Generator, long_share: float = 0.0) -> Asked:
    """
    Draw one question: mostly boxes, mostly of the cameras that look ahead.

    `long_share` of the paths have 64 points.
    """
    cameras = sorted(facts.rig)
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    if kind == 'light':
        return ask_light(facts)
    if kind == 'path':
        points = int(rng.choice([8, 20], p=[0.75, 0.25]))
        if long_share and rng.random() < long_share:
            points = max(PATHS)
        camera = 1 if 1 in cameras else cameras[0]
        way = str(rng.choice(list(PATH_KINDS), p=list(PATH_KINDS.values())))
        return ask(path_request(way, camera, points), facts)
    if kind == 'motion':
        return ask(PrimitiveRequest('motion', points=max(MOTIONS)), facts)
    weight = np.array([0.35 if camera in AHEAD else 0.15 for camera in cameras])
    camera = int(rng.choice(cameras, p=weight / weight.sum()))
    names = list(LABELS.values())
    if rng.random() < 0.6:
        keep = rng.permutation(len(names))[:int(rng.integers(1, 5))]
        names = [names[i] for i in sorted(keep)]
    return ask(PrimitiveRequest('boxes', camera, tuple(names)), facts)


def _area(box: Box2D) -> float:
    return (box.x2 - box.x1) * (box.y2 - box.y1)
