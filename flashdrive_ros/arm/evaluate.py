"""Compare the five action heads of the arm: success by variant with Wilson intervals."""
from __future__ import annotations

import json
from pathlib import Path

import torch

from ..core import checkpoint, drafter
from ..evaluation.heads_results import merge
from ..evaluation.intervals import wilson
from .closed_loop import FIRST_SEED, run
from .plans import Planner
from .variants import VARIANTS, load

HEADS = 'arm-heads'


def planner_of(name: str) -> Planner:
    """Planner of the checkpoint `name` with its drafter, on the CPU."""
    model, tokenizer = checkpoint.load(name, torch.device('cpu'), torch.float32)
    return Planner(model, tokenizer, drafter.load_companion(name, model, 'on'))


def heads_of(name: str) -> Path:
    """Folder of the heads beside the checkpoint `name`."""
    return checkpoint.find(name).with_name(HEADS)


def evaluate(name: str, out: Path, episodes: int = 100, only=(), say=print) -> dict:
    """Measure all variants, `episodes` each over four tasks, and merge them into `out`."""
    planner, body = planner_of(name), {}
    if out.is_file():
        body = json.loads(out.read_text(encoding='utf-8')).get('arm', {})
    for variant in only or VARIANTS:
        head = load(heads_of(name), variant, planner.model.config.text.hidden_size)
        hits = run(variant, head, planner, -(-episodes // 4))
        total, tried = sum(hits.values()), 4 * -(-episodes // 4)
        low, high = wilson(total, tried)
        body[variant] = {'success': total / tried, 'episodes': tried, 'interval': [low, high],
                         'successes_by_task': hits}
        say(f'{variant:20} {total / tried:6.1%}  [{low:.1%}, {high:.1%}]  {hits}')
        merge(out, 'arm', body, first_seed=FIRST_SEED, episodes=tried)
    return body
