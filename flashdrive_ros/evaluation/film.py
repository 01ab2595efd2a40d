"""Four scenarios side by side, driven by a policy, as one small animated picture."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from ..core.ego import HISTORY_POSES
from ..errors import UserError
from ..view import draw, overlay
from ..view.camera import CameraView
from ..world import EVENTS, World
from ..world.cameras import Camera
from .closed_loop import Episode
from .expert_drive import record_expert
from .planners import Planners
from .policies import Move, policy_of
from .windows import FUTURE, TICK_S

FRONT = 1
CAUSES = {'light': 'red_light', 'pedestrian': 'pedestrian', 'lead_brake': 'lead_braking',
          'curve': 'curve', 'cut_in': 'cut_in', 'stop_and_go': 'lead_stopped',
          'follow': 'lead_slower', 'free': 'clear_road'}
"""What is to be seen of an event."""
SCENES = ('light', 'pedestrian', 'lead_brake', 'curve')
FIRST_SEED = 40_000
TRIES = 60
CAPTION = 46
EVERY = 2
"""Every second tick becomes a picture: 5 a second."""
SCALES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


@dataclass(frozen=True)
class Scene:
    """An episode, and the ticks of it (after the start) to be shown."""

    event: str
    seed: int
    first: int


def make(path: Path, model: str, policy: str, device: str = 'cpu', *,
         scenes: Sequence[str] | None = None, seconds: float = 8.0,
         limit_bytes: int = 3 << 20, say: Callable[[str], None] = print) -> int:
    """
    Write the film (.gif or .webp); returns its size in bytes, at most `limit_bytes`.

    `scenes` are four 'event:seed'; left out, the first seeds are taken in which
    the expert has to deal with what the event promises.
    """
    ticks, planners = round(seconds / TICK_S), Planners(device)
    tiles = []
    for scene in [parse(text, ticks) for text in scenes or SCENES]:
        say(f'{scene.event}: seed {scene.seed}, from {scene.first * TICK_S:.1f} s')
        tiles.append(shoot(scene, ticks, model, policy, planners))
    return encode(path, grid(tiles), limit_bytes)


def parse(text: str, ticks: int) -> Scene:
    """Scene of 'event:seed', or of 'event' with a seed that shows it."""
    event, _, seed = text.partition(':')
    if event not in EVENTS or (seed and not seed.isdigit()):
        raise UserError(f'{text!r} is no scene: expected one of {", ".join(EVENTS)}, '
                        'with :seed behind it')
    if seed:
        return Scene(event, int(seed), look(event, int(seed), ticks) or 0)
    for candidate in range(FIRST_SEED, FIRST_SEED + TRIES):
        first = look(event, candidate, ticks)
        if first is not None:
            return Scene(event, candidate, first)
    raise UserError(f'no seed from {FIRST_SEED} to {FIRST_SEED + TRIES - 1} shows {event}')


def look(event: str, seed: int, ticks: int) -> int | None:
    """First tick of the part of an episode that shows the event; None if it is not in there."""
    drive = record_expert(seed, HISTORY_POSES + 3 * ticks, scenario=event)
    causes = np.array(drive.causes[HISTORY_POSES:]) == CAUSES[event]
    if drive.fault or causes.sum() < ticks // 5:
        return None
    return max(0, int(np.flatnonzero(causes)[0]) - ticks // 4)


def shoot(scene: Scene, ticks: int, model: str, policy: str, planners) -> list[np.ndarray]:
    """Pictures of a scene."""
    reference = record_expert(scene.seed, HISTORY_POSES + scene.first + ticks + FUTURE,
                              scenario=scene.event)
    driver = policy_of(policy, reference, {policy: model}, planners, {})
    episode = Episode(World(scene.seed, scene.event), reference, driver)
    pictures: list[np.ndarray] = []
    while episode.ticks < scene.first + ticks and not episode.ended:
        shows = episode.ticks >= scene.first and (episode.ticks - scene.first) % EVERY == 0
        seen = episode.world.observe(boxes=False).images[FRONT] if shows else None
        speed = episode.world.state.speed
        move = episode.step()
        if shows:
            pictures.append(tile(seen, episode.world.rig[FRONT], move, scene.event, speed))
    wanted = -(-ticks // EVERY)
    return pictures + pictures[-1:] * (wanted - len(pictures))


def tile(image: np.ndarray, camera: Camera, move: Move, event: str, speed: float) -> np.ndarray:
    """One camera image with the plan on it, and below it what the model says."""
    image = image.copy()
    view = CameraView(camera.width, camera.height, camera.intrinsics, camera.rotation,
                      np.asarray(camera.position))
    if move.made is not None:
        overlay.draw_plan(image, view, move.made, overlay.Motion())
        if not move.made.trained:
            draw.watermark(image, 'UNTRAINED MODEL')
    caption = np.full((CAPTION, image.shape[1], 3), draw.PANEL, np.uint8)
    width, words = image.shape[1], f'{speed * 3.6:.0f} km/h'
    draw.text(caption, event.replace('_', ' '), (6, 14), draw.DIM, 0.4)
    draw.text(caption, words, (width - 6 - draw.text_width(words, 0.4), 14), draw.INK, 0.4)
    for i, line in enumerate(draw.wrap(move.text or '', width - 12, 0.38)[:2]):
        draw.text(caption, line, (6, 28 + 13 * i), draw.CHOSEN, 0.38)
    return np.concatenate((image, caption))


def grid(tiles: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Four films as one, two beside two."""
    return [np.concatenate((np.concatenate((a, b), 1), np.concatenate((c, d), 1)))
            for a, b, c, d in zip(*tiles)]


def encode(path: Path, pictures: Sequence[np.ndarray], limit_bytes: int) -> int:
    """Write an animated picture, made smaller until it is no larger than `limit_bytes`."""
    if not hasattr(cv2, 'imwriteanimation'):
        raise UserError(f'OpenCV {cv2.__version__} writes no animations: 4.11 or later does')
    path.parent.mkdir(parents=True, exist_ok=True)
    for scale in SCALES:
        animation = cv2.Animation()
        animation.frames = [cv2.cvtColor(cv2.resize(
            p, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2BGR)
            for p in pictures]
        animation.durations = [round(1000 * EVERY * TICK_S)] * len(pictures)
        options = [cv2.IMWRITE_WEBP_QUALITY, 70] if path.suffix == '.webp' else []
        if not cv2.imwriteanimation(str(path), animation, options):
            raise UserError(f'{path} can not be written')
        size = path.stat().st_size
        if size <= limit_bytes:
            return size
    raise UserError(f'{path}: {size} bytes at the smallest size, more than {limit_bytes}')
