"""
Questions about a window and their answers from ground truth: boxes, the way ahead, the light.

Ranges of coordinates are stated in the question (spec `vflash.md` section 1.2).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.primitives.coordinates import FORWARD_M, LEFT_M
from ..core.primitives.grammar import write, write_boxes
from ..core.prompt import DISPLAY_NAMES
from ..world.boxes import Box2D
from ..world.cameras import Camera

LABELS = {'car': 'car', 'truck': 'truck', 'pedestrian': 'pedestrian', 'cyclist': 'cyclist',
          'traffic_light_red': 'red light', 'traffic_light_yellow': 'yellow light',
          'traffic_light_green': 'green light'}
"""Label of the world -> words of an answer, in the order in which they are asked for."""
LIGHTS = ('red light', 'yellow light', 'green light')
PLAIN_ANSWERS = (*LIGHTS, 'no light')
LIGHT_QUESTION = 'Which light is ahead?'
MAX_BOXES = 10
"""The largest ones, over all classes of an answer."""
PATHS = {8: 4.0, 20: 5.0, 64: 6.4}
"""Points of a way and the seconds that they span: NAVSIM, Waymo, Alpamayo."""
KINDS = ('image', 'metres', 'both')


@dataclass(frozen=True)
class Facts:
    """
    What is true of a window.

    `boxes` by camera, in pixels of images `size` (width, height); `path` [64, 2] m in the ego
    frame, 0.1 s apart; `rig` the cameras by id.
    """

    boxes: Mapping[int, Sequence[Box2D]]
    size: tuple[int, int]
    path: np.ndarray
    rig: Mapping[int, Camera]


@dataclass(frozen=True)
class Asked:
    """A question with its answer."""

    question: str
    answer: str


def boxes_question(camera_id: int, labels: Sequence[str]) -> str:
    """Ask for the boxes of some classes in one camera."""
    return f'Boxes in the {DISPLAY_NAMES[camera_id].lower()}, 0 to 1000: {", ".join(labels)}.'


def path_question(camera_id: int, points: int, kind: str) -> str:
    """Ask for the way ahead in the image, in metres or both."""
    image = f'in the {DISPLAY_NAMES[camera_id].lower()}, 0 to 1000'
    metres = (f'in metres, x {FORWARD_M.low:.0f} to {FORWARD_M.high:.0f}, '
              f'y {LEFT_M.low:.0f} to {LEFT_M.high:.0f}')
    where = {'image': image, 'metres': metres, 'both': f'{image}, then {metres}'}[kind]
    return f'Path of the next {PATHS[points]} s, {points} points {where}.'


def every_question(camera_id: int) -> list[str]:
    """Every kind of question there is, for the vocabulary."""
    return [LIGHT_QUESTION, boxes_question(camera_id, list(LABELS.values())),
            *(path_question(camera_id, n, kind) for n in PATHS for kind in KINDS)]


def ask_boxes(facts: Facts, camera_id: int, labels: Sequence[str]) -> Asked:
    """Boxes of `labels` in a camera, the largest ten, left to right in each class."""
    seen = [box for box in facts.boxes.get(camera_id, ()) if LABELS.get(box.label) in labels]
    seen = sorted(seen, key=_area, reverse=True)[:MAX_BOXES]
    scale = np.array([*facts.size, *facts.size], dtype=np.float64)
    answer = ''.join(write_boxes(label, [
        np.array([b.x1, b.y1, b.x2, b.y2]) / scale
        for b in sorted(seen, key=lambda b: (b.x1, b.y1)) if LABELS[b.label] == label])
        for label in labels)
    return Asked(boxes_question(camera_id, labels), answer)


def ask_path(facts: Facts, camera_id: int, points: int, kind: str) -> Asked:
    """The way ahead as `points` points at equal times."""
    path = resample(facts.path, points)
    answer = ''
    if kind != 'metres':
        ground = np.concatenate((path, np.zeros((points, 1))), 1)
        uv, inside = facts.rig[camera_id].project(ground)
        shares = (uv + 0.5) / np.array(facts.size, dtype=np.float64)
        answer += write('trajectory_2d', np.where(inside[:, None], shares, np.nan))
    if kind != 'image':
        answer += write('trajectory_3d', path)
    return Asked(path_question(camera_id, points, kind), answer)


def ask_light(facts: Facts) -> Asked:
    """Colour of the light that shows largest in the cameras that look ahead."""
    ahead = [box for camera in (1, 6) for box in facts.boxes.get(camera, ())
             if LABELS.get(box.label) in LIGHTS]
    answer = LABELS[max(ahead, key=lambda b: b.pixels).label] if ahead else 'no light'
    return Asked(LIGHT_QUESTION, answer)


def resample(path: np.ndarray, points: int) -> np.ndarray:
    """`points` rows at equal times, t0 left out, of `path` [64, 2] with rows 0.1 s apart."""
    times = np.arange(1, points + 1) * (PATHS[points] / points)
    known = np.arange(len(path) + 1) * 0.1
    whole = np.concatenate((np.zeros((1, 2)), path[:, :2]))
    return np.stack([np.interp(times, known, column) for column in whole.T], 1)


def draw(facts: Facts, rng: np.random.Generator) -> Asked:
    """Draw one question: mostly boxes, mostly of the cameras that look ahead."""
    cameras = sorted(facts.rig)
    kind = rng.choice(['boxes', 'path', 'light'], p=[0.68, 0.24, 0.08])
    if kind == 'light':
        return ask_light(facts)
    if kind == 'path':
        points = int(rng.choice([8, 20], p=[0.75, 0.25]))
        camera = 1 if 1 in cameras else cameras[0]
        return ask_path(facts, camera, points, str(rng.choice(KINDS, p=[0.3, 0.2, 0.5])))
    weight = np.array([0.35 if camera in (1, 6) else 0.15 for camera in cameras])
    camera = int(rng.choice(cameras, p=weight / weight.sum()))
    names = list(LABELS.values())
    if rng.random() < 0.6:
        keep = rng.permutation(len(names))[:int(rng.integers(1, 5))]
        names = [names[i] for i in sorted(keep)]
    return ask_boxes(facts, camera, names)


def _area(box: Box2D) -> float:
    return (box.x2 - box.x1) * (box.y2 - box.y1)
