"""Compare the five action heads of the arm: success by variant with Wilson intervals."""
from __future__ import annotations

import json
from pathlib import Path

from ..core import checkpoint
from ..evaluation.heads_results import merge
from ..evaluation.intervals import wilson
from .closed_loop import FIRST_SEED, run
from .plans import planner_of
from .variants import HEADS, VARIANTS, load


def heads_of(name: str) -> Path:
    """Folder of the heads beside the checkpoint `name`."""
    return checkpoint.find(name).with_name(HEADS)


def evaluate(name: str, out: Path, episodes: int = 100, only=(), device: str = 'cpu',
             say=print) -> dict:
    """Measure all variants, `episodes` each over four tasks, and merge them into `out`."""
    planner, body = planner_of(name, device), {}
    if out.is_file():
        body = json.loads(out.read_text(encoding='utf-8')).get('arm', {})
    for variant in only or VARIANTS:
        hidden = planner.model.config.text.hidden_size
        head = load(heads_of(name), variant, hidden).to(planner.device)
        hits = run(variant, head, planner, -(-episodes // 4))
        total, tried = sum(hits.values()), 4 * -(-episodes // 4)
        low, high = wilson(total, tried)
        body[variant] = {'success': total / tried, 'episodes': tried, 'interval': [low, high],
                         'successes_by_task': hits}
        say(f'{variant:20} {total / tried:6.1%}  [{low:.1%}, {high:.1%}]  {hits}')
        merge(out, 'arm', body, first_seed=FIRST_SEED, episodes=tried)
    return body
