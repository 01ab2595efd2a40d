"""Clips of the embedded world at a size for tests."""
from dataclasses import replace

from flashdrive_ros.training.episodes import EpisodeConfig
from flashdrive_ros.training.samples import ClipConfig, ClipMaker
from support.tiny_model import tiny_model

EPISODE = EpisodeConfig(width=96, height=64, seconds=14.0, route_length=450.0, push_every_s=9.0)
CLIPS = ClipConfig(frames=6, clips_per_episode=3, episode=EPISODE)
CAMERAS = (0, 1, 2, 6)


def tiny_maker(**changes):
    """Return a maker of tiny clips; `changes` of its `ClipConfig`."""
    model, tokenizer = tiny_model()
    return ClipMaker(replace(CLIPS, **changes), model.config, tokenizer, CAMERAS)
