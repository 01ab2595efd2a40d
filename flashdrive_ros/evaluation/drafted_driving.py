"""
Closed loop with drafting and without, compared window by window and drive by drive.

With `settle_reasoning` nothing may differ at all.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field

import numpy as np

from ..core.ego import HISTORY_POSES
from ..core.engine import Engine
from ..core.types import DrivePlan
from ..world import World
from .closed_loop import Episode
from .drafters import engine_with_drafter
from .expert_drive import record_expert
from .planners import LocalPlanner, Planned, Planners
from .policies import ModelPolicy
from .tables import markdown
from .windows import FUTURE, TICK_S, check_seeds

WHY = ('greedy tokens are the same but for ties within rounding; the keys that the action expert '
       'reads of them are rounded otherwise in a block than token by token, so plans differ in '
       'their last digits, and a world that answers to them lets that grow; settled, the keys '
       'come from one pass over the finished text and nothing differs')
"""Why plans and paths are not the same to the bit unless texts are settled."""


@dataclass(frozen=True)
class DraftedDriving:
    """
    What is driven: each seed for `seconds`, plain and drafted, as texts are and settled.

    `models` has the checkpoint and, for the record, its drafter.  `settings` are further
    fields of `EngineConfig`.
    """

    models: dict[str, str]
    seconds: float = 20.0
    engine_seed: int = 0
    settings: dict = field(default_factory=dict)

    @property
    def ticks(self) -> int:
        """Ticks that are driven."""
        return round(self.seconds / TICK_S)


def tasks(config: DraftedDriving, seeds: Sequence[int], rows: list[dict]) -> list[dict]:
    """Return what is still to be done: one task a seed."""
    check_seeds(seeds)
    done = {row['seed'] for row in rows}
    return [{'seed': seed, 'config': asdict(config)} for seed in seeds if seed not in done]


def run_task(task: dict, planners: Planners) -> Iterator[dict]:
    """Drive a seed in all four ways."""
    config, seed = DraftedDriving(**task['config']), task['seed']
    plain = planners(config.models['target'])
    engine = engine_with_drafter(planners, config.models['target'])
    drafted = copy(plain)
    drafted.engine = Engine(engine.model, engine.tokenizer, engine.config, engine.drafter)
    reference = record_expert(seed, HISTORY_POSES + config.ticks + FUTURE)
    row = {'seed': seed, 'fault': reference.fault}
    if not reference.fault:
        for settled in (False, True):
            settings = {'greedy': True, **config.settings, 'seed': config.engine_seed,
                        'settle_reasoning': settled}
            shadowed = Shadowed(plain, drafted)
            first = _drive(shadowed, seed, reference, config, settings)
            drafted.reset()
            second = _drive(drafted, seed, reference, config, settings | {'drafting': 'on'})
            row['settled' if settled else 'as computed'] = {
                'windows': shadowed.told, 'episode': compared(first, second)}
    yield row


def _drive(planner, seed: int, reference, config: DraftedDriving, settings: dict) -> Episode:
    episode = Episode(World(seed), reference, ModelPolicy(planner, streaming=True, **settings))
    while episode.ticks < config.ticks and not episode.ended:
        episode.step()
    return episode


class Shadowed:
    """A planner whose plans are plain; a drafting one plans for the same windows beside it."""

    def __init__(self, plain: LocalPlanner, drafted: LocalPlanner):
        self.plain, self.drafted, self.frames = plain, drafted, plain.frames
        self.told: list[list] = []
        """Of each window: tokens equal, how far the plans are apart (m), tokens, rounds."""
        self.reset()

    def reset(self) -> None:
        """Begin another episode."""
        self.plain.reset()
        self.drafted.reset()

    def plan(self, frames, ego, nav_text, history=(), explore=False, **settings) -> Planned:
        """Plan plainly, and compare."""
        a, b = (planner.plan(frames, ego, nav_text, history, **settings, drafting=drafting)
                for planner, drafting in ((self.plain, 'off'), (self.drafted, 'on')))
        self.told.append(difference(a.plan, b.plan))
        return a


def difference(plain: DrivePlan, drafted: DrivePlan) -> list:
    """What `Shadowed.told` says of two plans for a window."""
    equal = plain.reasoning.token_ids == drafted.reasoning.token_ids
    apart = float(np.linalg.norm(plain.xyz - drafted.xyz, axis=-1).max())
    return [equal, apart, len(drafted.reasoning.token_ids), drafted.reasoning.rounds]


def compared(plain: Episode, drafted: Episode) -> dict:
    """What two episodes of a seed have in common."""
    ways = [np.array(e.scene.poses)[:, :2] for e in (plain, drafted)]
    n = min(map(len, ways))
    return {'flags': [{**e.flags, 'ended': e.ended, 'ticks': e.ticks} for e in (plain, drafted)],
            'apart_m': float(np.linalg.norm(ways[0][:n] - ways[1][:n], axis=1).max())}


def summary(config: DraftedDriving, rows: Sequence[dict]) -> dict:
    """Body of the results file."""
    driven = sorted((row for row in rows if not row['fault']), key=lambda row: row['seed'])
    return {'rows': {way: _row([row[way] for row in driven])
                     for way in ('as computed', 'settled')} if driven else {},
            'seeds': [row['seed'] for row in driven], 'why': WHY,
            'mismatches': [row['seed'] for row in driven if not _same(row['settled'])]}


def _same(found: dict) -> bool:
    """Whether nothing at all differs in a seed."""
    a, b = found['episode']['flags']
    return a == b and found['episode']['apart_m'] == 0 and all(
        equal and apart == 0 for equal, apart, *_ in found['windows'])


def _row(found: Sequence[dict]) -> dict:
    windows = [w for f in found for w in f['windows']]
    apart = np.array([w[1] for w in windows if w[0]])
    tokens, rounds = (sum(w[i] for w in windows) for i in (2, 3))
    episodes = [f['episode'] for f in found]
    return {'windows': len(windows), 'same_tokens': sum(w[0] for w in windows),
            'same_plans': int((apart == 0).sum()),
            'plans_within_1e-5_m': int((apart <= 1e-5).sum()),
            'plan_apart_m': {'median': float(np.median(apart)), 'max': float(apart.max())},
            'tokens_per_round': (tokens - len(windows)) / rounds,
            'episodes': len(episodes),
            'same_flags': sum(e['flags'][0] == e['flags'][1] for e in episodes),
            'same_path': sum(e['apart_m'] == 0 for e in episodes),
            'path_apart_m': {'median': float(np.median([e['apart_m'] for e in episodes])),
                             'max': max(e['apart_m'] for e in episodes)}}


def table(body: dict) -> str:
    """Tables in Markdown."""
    return markdown(
        ['texts', 'windows', 'same tokens', 'same plans', 'plans apart at most', 'episodes',
         'same flags', 'same path', 'paths apart at most'],
        [[way, str(r['windows']), str(r['same_tokens']), str(r['same_plans']),
          f'{r["plan_apart_m"]["max"]:.1e} m', str(r['episodes']), str(r['same_flags']),
          str(r['same_path']), f'{r["path_apart_m"]["max"]:.1e} m']
         for way, r in body['rows'].items()])


def draw(body: dict, folder) -> list:
    """Draw no charts."""
    return []
