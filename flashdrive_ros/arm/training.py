"""
All stages of the arm's training, each skipped when its result is there.

episodes -> VLM -> drafter -> one head a variant.  `minutes` are those of the VLM; the drafter
takes a quarter of it, every head a sixth.  Only the episodes need MuJoCo.
"""
from __future__ import annotations

from pathlib import Path

import numpy as np

from . import train_drafter, train_vlm, variants
from .plans import planner_of


def train_all(out: Path, *, episodes: int = 300, minutes: float = 10.0, batch: int = 32,
              seed: int = 0, device: str = 'cpu', only_episodes: bool = False,
              say=print) -> None:
    """Train into the folder `out`: arm, arm-DFlash and arm-heads; `episodes` of each task."""
    file, model = out / 'episodes.npz', out / 'arm'
    if file.is_file():
        rows = dict(np.load(file))
    else:
        from .episodes import make
        rows = make(file, range(episodes), say)
    if only_episodes:
        return
    common = {'batch': batch, 'seed': seed, 'say': say}
    if not any(model.glob('*.safetensors')):
        train_vlm.train(rows, model, minutes=minutes, device=device, **common)
    if not (out / 'arm-DFlash' / 'config.json').is_file():
        train_drafter.train(rows, model, minutes=minutes / 4, device=device, **common)
    planner, looks = planner_of(str(model), device), None
    for name in variants.VARIANTS:
        if (out / variants.HEADS / f'{name}.safetensors').is_file():
            continue
        looks = looks or variants.features(rows, planner.looks)
        variants.train(rows, name, planner, looks, out / variants.HEADS, minutes=minutes / 6,
                       **common)
