"""
Reasoning decoded plain and drafted by one engine, window by window in alternation.

Greedy tokens must be the same; what differs is the number of the target's passes and the
time.  Blocks of another size than the drafter was trained for use the same weights.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from ..core.engine import Engine
from ..core.types import Reasoning
from . import held_out, intervals
from .drafters import engine_with_drafter, with_block
from .held_out import HeldOutWindow
from .planners import Planners
from .tables import interval_text, markdown
from .windows import check_seeds

PLAIN = 'plain'
GREEDY, SAMPLED = 'greedy', 'sampled'


@dataclass(frozen=True)
class DraftedReasoning:
    """
    What is measured: `windows` of each episode of `seconds`, with `blocks` tokens in a round.

    `models` has the checkpoint and, for the record, its drafter.  Every window is decoded
    greedily and sampled at `temperature` and `top_p`.  `settings` are further fields of
    `EngineConfig`.
    """

    models: dict[str, str]
    blocks: tuple[int, ...] = (8, 16)
    windows: int = 4
    seconds: float = 40.0
    temperature: float = 0.6
    top_p: float = 0.98
    engine_seed: int = 0
    settings: dict = field(default_factory=dict)

    @property
    def samplings(self) -> dict[str, dict]:
        """Settings of the engine by name."""
        return {GREEDY: {'greedy': True}, SAMPLED: {
            'greedy': False, 'temperature': self.temperature, 'top_p': self.top_p}}


def tasks(config: DraftedReasoning, seeds, rows: list[dict]) -> list[dict]:
    """Return what is still to be done: one task a seed."""
    check_seeds(seeds)
    done = {row['seed'] for row in rows}
    return [{'seed': seed, 'config': asdict(config)} for seed in seeds if seed not in done]


def run_task(task: dict, planners: Planners) -> Iterator[dict]:
    """Decode the windows of a seed in every way."""
    config = DraftedReasoning(**task['config'])
    engine = engine_with_drafter(planners, config.models['target'])
    ways = Ways(config, engine)
    found = []
    for window in held_out.windows(task['seed'], config.windows, config.seconds):
        if not found:
            ways.decode(window, 0)  # what is made at first use is not to count
        found.append({'tick': window.tick, **ways.decode(window, len(found))})
    yield {'seed': task['seed'], 'trained_block': engine.drafter.config.block_size,
           'windows': found}


class Ways:
    """Decodes a window plain and in blocks, by engines that share their weights."""

    def __init__(self, config: DraftedReasoning, engine: Engine):
        self.config = config
        engines = {size: Engine(engine.model, engine.tokenizer, engine.config,
                                with_block(engine.drafter, size)) for size in config.blocks}
        self.engines = {PLAIN: engine} | {f'B{size}': e for size, e in engines.items()}

    def decode(self, window: HeldOutWindow, turn: int) -> dict:
        """Results by sampling and way; who begins changes with `turn`."""
        names = list(self.engines)
        names = names[turn % len(names):] + names[:turn % len(names)]
        found = {}
        for sampling, settings in self.config.samplings.items():
            texts = {name: self._reason(name, window, settings) for name in names}
            plain = texts[PLAIN][0].token_ids
            found[sampling] = {name: _told(text, ms, plain)
                               for name, (text, ms) in texts.items()}
        return found

    def _reason(self, name: str, window: HeldOutWindow,
                settings: dict) -> tuple[Reasoning, float]:
        """Reasoning of a window that the engine has not seen, and its time in ms."""
        engine = self.engines[name]
        engine.reset('another window')
        engine.configure(**{
            'num_trajectories': 1, 'flow_steps': 1, 'velocity_reuse': (), 'primitives': (),
            'streaming': False, **self.config.settings, **settings,
            'seed': self.config.engine_seed, 'drafting': 'off' if name == PLAIN else 'on'})
        plan = engine.step(window.frames, window.history, window.nav_text, window.before)
        return plan.reasoning, plan.stage_times_ms['reason']


def _told(text: Reasoning, ms: float, plain: Sequence[int]) -> dict:
    told = {'tokens': len(text.token_ids), 'rounds': text.rounds, 'ms': ms,
            'accepted': list(text.accepted_by_round), 'equal': text.token_ids == tuple(plain)}
    return told if told['equal'] else told | {'ids': list(text.token_ids), 'plain': list(plain)}


def summary(config: DraftedReasoning, rows: Sequence[dict]) -> dict:
    """Body of the results file."""
    rows = sorted((row for row in rows if row['windows']), key=lambda row: row['seed'])
    names = [f'B{size}' for size in config.blocks]
    greedy, sampled = ({name: _row([r['windows'] for r in rows], sampling, name)
                        for name in names} for sampling in config.samplings)
    wrong = [{'seed': row['seed'], 'tick': w['tick'], 'sampling': sampling, 'block': name,
              **{k: w[sampling][name][k] for k in ('ids', 'plain')}}
             for row in rows for w in row['windows'] for sampling in config.samplings
             for name in names if not w[sampling][name]['equal']]
    return {'rows': greedy, 'sampled_rows': sampled,
            'mismatches': [w for w in wrong if w['sampling'] == GREEDY],
            'sampled_mismatches': [w for w in wrong if w['sampling'] == SAMPLED],
            'trained_block': rows[0]['trained_block'] if rows else None, 'threads': 1,
            'seeds': [row['seed'] for row in rows]}


def _row(by_seed: Sequence[Sequence[dict]], sampling: str, name: str) -> dict:
    """
    Figures of one way of decoding, and of plain decoding of the same windows.

    The first token comes from the prompt's own pass, so a round brings the others:
    `tokens_per_round` is (tokens - 1) / rounds.
    """
    def sums(value, of=name):
        return np.array([sum(value(w[sampling][of]) for w in windows) for windows in by_seed],
                        float)
    windows = [w[sampling][name] for seed in by_seed for w in seed]
    if not windows:
        return {'tokens_per_round': None, 'windows': 0, 'speedup': None}
    tokens, rounds = sums(lambda t: t['tokens'] - 1), sums(lambda t: t['rounds'])
    ms, plain_ms = sums(lambda t: t['ms']), sums(lambda t: t['ms'], PLAIN)
    each = [n for w in windows for n in w['accepted']]
    return {'tokens_per_round': _over(tokens, rounds), 'windows': len(windows),
            'speedup': _over(plain_ms, ms),
            'tokens_per_round_ci': list(intervals.ratio(tokens, rounds)),
            'speedup_ci': list(intervals.ratio(plain_ms, ms)),
            'tokens': float(np.mean([w['tokens'] for w in windows])),
            'rounds': float(np.mean([w['rounds'] for w in windows])),
            'equal_to_plain': float(np.mean([w['equal'] for w in windows])),
            'reason_ms': ms.sum() / len(windows), 'plain_reason_ms': plain_ms.sum() / len(windows),
            'acceptance_by_position': [float(np.mean([n > i for n in each]))
                                       for i in range(int(name[1:]) - 1)] if each else []}


def _over(above: np.ndarray, below: np.ndarray) -> float | None:
    return float(above.sum() / below.sum()) if below.sum() else None


def table(body: dict) -> str:
    """Tables in Markdown."""
    lines = [[f'{name}, {sampling}', str(row['windows']),
              interval_text(row['tokens_per_round'], row['tokens_per_round_ci']),
              f'{row["tokens"]:.1f}', f'{row["rounds"]:.1f}',
              f'{100 * row["equal_to_plain"]:.2f} %', f'{row["plain_reason_ms"]:.1f}',
              f'{row["reason_ms"]:.1f}', interval_text(row['speedup'], row['speedup_ci'])]
             for sampling, key in ((GREEDY, 'rows'), (SAMPLED, 'sampled_rows'))
             for name, row in body[key].items() if row['windows']]
    text = markdown(['block', 'windows', 'tokens a round', 'tokens', 'rounds', 'as plain',
                     'plain ms', 'drafted ms', 'times as fast'], lines)
    for name, row in body['rows'].items():
        if row['windows']:
            shares = ' '.join(f'{share:.2f}' for share in row['acceptance_by_position'])
            text += f'\n\n{name}: share of rounds that accept 1, 2, … proposals: {shares}'
    for wrong in body['mismatches']:
        text += (f'\n\nNOT THE SAME TOKENS: seed {wrong["seed"]}, tick {wrong["tick"]}, '
                 f'{wrong["block"]}')
    return text


def draw(body: dict, folder) -> list:
    """Draw no charts."""
    return []
