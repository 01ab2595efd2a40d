"""Windows of held-out episodes with everything that is true of them, spread over each episode."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from ..core.ego import EgoHistory
from ..core.types import FrameSet
from ..training.episodes import Episode, EpisodeConfig, drive
from ..training.questions import Facts
from ..world.boxes import boxes_2d
from .windows import check_seeds, ego_history, frame_set, stamp_ns

BEFORE = 3
"""Frames before the newest one in a window."""


@dataclass(frozen=True)
class HeldOutWindow:
    """Input of an engine's step at `tick` (`before` are older frames), and the truth of it."""

    seed: int
    tick: int
    before: tuple[FrameSet, ...]
    frames: FrameSet
    history: EgoHistory
    nav_text: str
    facts: Facts


def episode_of(seed: int, seconds: float) -> Episode:
    """Let the expert drive the world of `seed` undisturbed, as it is evaluated elsewhere."""
    return drive(seed, EpisodeConfig(seconds=seconds, route_length=1500.0, push_every_s=0.0,
                                     jitter_cameras=0.0, balanced=False))


def ticks_of(episode: Episode, seed: int, count: int) -> list[int]:
    """One tick anywhere in each of `count` equal parts of what has a past and a future."""
    rng = np.random.default_rng([seed, 3])
    whole = np.flatnonzero(episode.learnable())
    return [int(rng.choice(part)) for part in np.array_split(whole, count) if len(part)]


def tasks(config, seeds, rows: list[dict]) -> list[dict]:
    """Return what is still to be done: one task a seed."""
    check_seeds(seeds)
    done = {row['seed'] for row in rows}
    return [{'seed': seed, 'config': asdict(config)} for seed in seeds if seed not in done]


def windows(seed: int, count: int, seconds: float) -> Iterator[HeldOutWindow]:
    """Draw up to `count` windows of an episode of `seconds`; fewer where it ends early."""
    episode = episode_of(seed, seconds)
    for tick in ticks_of(episode, seed, count):
        yield window(episode, seed, tick)


def window(episode: Episode, seed: int, tick: int) -> HeldOutWindow:
    """Draw the window that ends at `tick`."""
    renderer, now = episode.world.renderer, episode.moments[tick]
    before = [frame_set(renderer.render(m.pose, m.things), stamp_ns(seed, t))
              for t, m in enumerate(episode.moments[tick - BEFORE:tick], tick - BEFORE)]
    images, ids = renderer.render(now.pose, now.things, ids=True)
    boxes = {camera: boxes_2d(ids[camera], now.things) for camera in images}
    height, width = next(iter(images.values())).shape[:2]
    facts = Facts(boxes, (width, height), episode.future(tick)[:, :2], episode.world.rig,
                  partial(episode.motions, tick))
    stamp = stamp_ns(seed, tick)
    return HeldOutWindow(
        seed, tick, tuple(before), frame_set(images, stamp),
        ego_history(episode.poses()[:tick + 1], stamp), now.navigation, facts)
