"""
What weights of fewer bits cost: the same windows planned with every setting of quantisation.

Reasoning is greedy and the noise of the flow is the same, so that a difference is one of the
weights.  4-bit weights come rounded as they are and scaled for recorded windows.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ..core import checkpoint
from ..core.config import EngineConfig
from ..core.engine import Engine
from ..core.quantization import scaling, swap
from ..core.quantization.convert import run_windows
from . import held_out, intervals
from .calibration import world_windows
from .errors import errors
from .held_out import HeldOutWindow, tasks  # noqa: F401 (a part of this evaluation)
from .planners import Planners
from .tables import interval_text, markdown

NONE = 'none'
EXPERT, CALIBRATED = 'expert', 'calibrated'
SETTINGS = (NONE, 'fp8', 'w4a8', 'w4a16', 'w4a8 calibrated', 'w4a16 calibrated', 'fp8 expert',
            'w4a8 expert', 'w4a8 expert calibrated')
CALIBRATION_WINDOWS = 12


@dataclass(frozen=True)
class LowBit:
    """
    What is measured: `windows` of each episode of `seconds`, with each of `quantizations`.

    Those are a kind, 'expert' when the action expert is quantised as well, and
    'calibrated' when scales were sought.  `settings` are further fields of `EngineConfig`.
    """

    models: dict[str, str]
    quantizations: tuple[str, ...] = SETTINGS
    windows: int = 4
    seconds: float = 40.0
    samples: int = 6
    engine_seed: int = 0
    settings: dict = field(default_factory=dict)


def run_task(task: dict, planners: Planners) -> Iterator[dict]:
    """Plan the windows of a seed with every setting."""
    config = LowBit(**task['config'])
    settings = {'num_trajectories': config.samples, 'seed': config.engine_seed, 'greedy': True,
                **config.settings}
    found = []
    for window in held_out.windows(task['seed'], config.windows, config.seconds):
        plans = {}
        for name in config.quantizations:
            engine = engine_of(config.models['target'], name, planners.device, planners.dtype)
            engine.configure(**settings)
            engine.reset('another window')
            plans[name] = engine.step(window.frames, window.history, window.nav_text,
                                      window.before)
        found.append({'tick': window.tick, **{
            name: _told(plan, plans[NONE], window) for name, plan in plans.items()}})
    yield {'seed': task['seed'], 'windows': found}


@cache
def engine_of(model: str, quantization: str, device: str, dtype: str) -> Engine:
    """Engine of this process with a checkpoint's weights in a setting."""
    kind, *more = quantization.split()
    config = EngineConfig(device=device, dtype=dtype, drafting='off')
    if kind == NONE:
        return Engine.from_checkpoint(model, config)
    low = swap.QuantizationConfig(kind, EXPERT in more)
    place, number = checkpoint.resolve_device(device, dtype)
    engine = Engine(*checkpoint.load(model, place, number), config)
    if CALIBRATED in more:
        with scaling.recording(engine.model, low) as recorded:
            run_windows(engine, world_windows(CALIBRATION_WINDOWS))
        scaling.scale(engine.model, low, recorded)
    swap.quantize(engine.model, low)
    return engine


def _told(plan, plain, window: HeldOutWindow) -> dict:
    wrong = errors(plan.xyz[..., :2], window.facts.path)
    apart = np.linalg.norm(plan.xyz[..., :2] - plain.xyz[..., :2], axis=-1).mean()
    return {'ade': wrong['ade'], 'min_ade': wrong['min_ade'], 'apart_m': float(apart),
            'equal_text': plan.reasoning.text == plain.reasoning.text}


def summary(config: LowBit, rows: Sequence[dict]) -> dict:
    """Body of the results file."""
    by_seed = [row['windows'] for row in sorted(rows, key=lambda row: row['seed'])
               if row['windows']]
    return {'rows': {name: _row(by_seed, name) for name in config.quantizations},
            'windows': sum(map(len, by_seed)), 'seeds': [row['seed'] for row in rows],
            'calibration_windows': CALIBRATION_WINDOWS}


def _row(by_seed: Sequence[Sequence[dict]], name: str) -> dict:
    """Errors, their relation to those of plain weights, and how far plans and texts differ."""
    def sums(key, of=name):
        return np.array([sum(float(w[of][key]) for w in windows) for windows in by_seed])
    counts = np.array([len(windows) for windows in by_seed], float)
    if not len(counts):
        return {}
    row = {}
    for label, key in (('minADE1', 'ade'), ('minADE6', 'min_ade')):
        row[label] = float(sums(key).sum() / counts.sum())
        row[f'{label}_to_none'] = [float(sums(key).sum() / sums(key, NONE).sum()),
                                   *intervals.ratio(sums(key), sums(key, NONE))]
    row['apart_m'] = float(sums('apart_m').sum() / counts.sum())
    equal = int(sums('equal_text').sum())
    row['equal_text'] = [equal / counts.sum(), *intervals.wilson(equal, int(counts.sum()))]
    return row


def table(body: dict) -> str:
    """Tables in Markdown."""
    return markdown(
        ['weights', 'minADE1 m', 'to none', 'minADE6 m', 'to none', 'apart m', 'same words'],
        [[name, f'{row["minADE1"]:.3f}', interval_text(*_split(row['minADE1_to_none'])),
          f'{row["minADE6"]:.3f}', interval_text(*_split(row['minADE6_to_none'])),
          f'{row["apart_m"]:.3f}', interval_text(*_split(row['equal_text']))]
         for name, row in body['rows'].items() if row])


def _split(values: Sequence[float]) -> tuple:
    return values[0], values[1:], 3


def draw(body: dict, folder) -> list:
    """No charts."""
    return []
