"""
All stages of the arm's training, each skipped when its result is there.

episodes -> VLM -> drafter -> one head a variant.  On one core: `minutes` are those of the
VLM; the drafter takes a quarter of it, every head a sixth.
"""
from __future__ import annotations

from pathlib import Path

import numpy as np

from . import episodes, train_drafter, train_vlm, variants
from .evaluate import HEADS, planner_of


def train_all(out: Path, *, seeds: int = 300, minutes: float = 10.0, seed: int = 0,
              say=print) -> None:
    """Train into the folder `out`: arm, arm-DFlash and arm-heads."""
    file, model = out / 'episodes.npz', out / 'arm'
    rows = dict(np.load(file)) if file.is_file() else episodes.make(file, range(seeds), say)
    if not any(model.glob('*.safetensors')):
        train_vlm.train(rows, model, minutes=minutes, seed=seed, say=say)
    if not (out / 'arm-DFlash' / 'config.json').is_file():
        train_drafter.train(rows, model, minutes=minutes / 4, seed=seed, say=say)
    planner, looks = planner_of(str(model)), None
    for name in variants.VARIANTS:
        if (out / HEADS / f'{name}.safetensors').is_file():
            continue
        if looks is None:
            looks = variants.features(rows, planner.looks)
        variants.train(rows, name, planner, looks, out / HEADS, minutes=minutes / 6, seed=seed,
                       say=say)
