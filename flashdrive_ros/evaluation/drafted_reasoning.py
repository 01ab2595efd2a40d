"""
Reasoning decoded plain and drafted by one engine behind the same prompt, in alternation.

Greedy tokens must be the same; what differs is the number of the target's passes and the
time.  Blocks of another size than the drafter's own use the same weights.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from ..core.drafter import Taps
from ..core.engine import Engine, StageClock
from ..core.reasoning import Reasoned
from ..core.stream import PromptStream
from ..core.types import Reasoning
from . import held_out, intervals
from .drafters import engine_with_drafter, with_block
from .held_out import HeldOutWindow, tasks  # noqa: F401 (a part of this evaluation)
from .planners import Planners
from .tables import interval_text, markdown

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


def run_task(task: dict, planners: Planners) -> Iterator[dict]:
    """Decode the windows of a seed in every way."""
    config = DraftedReasoning(**task['config'])
    engine = ComparingEngine(engine_with_drafter(planners, config.models['target']), config)
    found = []
    for window in held_out.windows(task['seed'], config.windows, config.seconds):
        if not found:
            engine.compare(window, 0)  # what is made at first use is not to count
        found.append({'tick': window.tick, **engine.compare(window, len(found))})
    yield {'seed': task['seed'], 'drafter_block': engine.drafter_block,
           'windows': found}


class ComparingEngine(Engine):
    """
    An engine that reasons about a window in every way, each time behind the same prompt.

    It has the weights and settings of `engine`; its plans are those after the last way.
    """

    def __init__(self, engine: Engine, comparison: DraftedReasoning):
        self.comparison, self.turn = comparison, 0
        self.told: dict[str, dict] = {}
        self.drafter_block = engine.drafter.config.block_size
        self.drafters = {f'B{size}': with_block(engine.drafter, size)
                         for size in comparison.blocks}
        self.widest = max(self.drafters.values(), key=lambda d: d.config.block_size)
        super().__init__(engine.model, engine.tokenizer, replace(engine.config, **{
            'num_trajectories': 1, 'flow_steps': 1, 'velocity_reuse': (), **comparison.settings,
            'streaming': False, 'seed': comparison.engine_seed, 'drafting': 'on'}), self.widest)

    def compare(self, window: HeldOutWindow, turn: int) -> dict:
        """Results by sampling and way; who begins changes with `turn`."""
        self.turn = turn
        self.reset('another window')
        self.step(window.frames, window.history, window.nav_text, window.before)
        return self.told

    def _reason(self, stream: PromptStream, hidden: Tensor, taps: Taps | None) -> Reasoned:
        names = [PLAIN, *self.drafters]
        at = self.turn % len(names)
        settings, state = self.config, self.generator.get_state()
        try:
            for sampling, chosen in self.comparison.samplings.items():
                self.config, clock = replace(settings, **chosen), StageClock(self.model.device)
                found = {}
                for name in (*names[at:], *names[:at]):
                    self.drafter = self.drafters.get(name, self.widest)
                    self.generator.set_state(state)
                    stream.truncate(stream.layout.size)
                    with clock(name):
                        found[name] = super()._reason(stream, hidden,
                                                      None if name == PLAIN else taps)
                times = clock.finish()
                plain = found[PLAIN].texts[0].token_ids
                self.told[sampling] = {name: _told(reasoned.texts[0], times[name], plain)
                                       for name, reasoned in found.items()}
        finally:
            self.config, self.drafter = settings, self.widest
        return found[name]


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
            'drafter_block': rows[0]['drafter_block'] if rows else None, 'threads': 1,
            'seeds': [row['seed'] for row in rows]}


def _row(by_seed: Sequence[Sequence[dict]], sampling: str, name: str) -> dict:
    """
    Figures of one way of decoding, and of plain decoding of the same windows.

    The first token comes from the prompt's own pass, so a round brings the others:
    `tokens_per_round` is (tokens - 1) / rounds, and `most_per_round` what it would be if every
    proposal were accepted: short texts leave their last block unfilled.
    """
    def sums(value, of=name):
        return np.array([sum(value(w[sampling][of]) for w in windows) for windows in by_seed],
                        float)
    windows = [w[sampling][name] for seed in by_seed for w in seed]
    if not windows:
        return {'tokens_per_round': None, 'windows': 0, 'speedup': None}
    tokens, rounds = sums(lambda t: t['tokens'] - 1), sums(lambda t: t['rounds'])
    size = int(name[1:])
    fewest = sums(lambda t: -(-(t['tokens'] - 1) // size))
    ms, plain_ms = sums(lambda t: t['ms']), sums(lambda t: t['ms'], PLAIN)
    each = [n for w in windows for n in w['accepted']]
    return {'tokens_per_round': _over(tokens, rounds), 'windows': len(windows),
            'speedup': _over(plain_ms, ms),
            'most_per_round': _over(tokens, fewest),
            'tokens_per_round_ci': list(intervals.ratio(tokens, rounds)),
            'speedup_ci': list(intervals.ratio(plain_ms, ms)),
            'tokens': float(np.mean([w['tokens'] for w in windows])),
            'rounds': float(np.mean([w['rounds'] for w in windows])),
            'equal_to_plain': float(np.mean([w['equal'] for w in windows])),
            'reason_ms': ms.sum() / len(windows), 'plain_reason_ms': plain_ms.sum() / len(windows),
            'acceptance_by_position': [float(np.mean([n > i for n in each]))
                                       for i in range(size - 1)] if each else []}


def _over(above: np.ndarray, below: np.ndarray) -> float | None:
    return float(above.sum() / below.sum()) if below.sum() else None


def table(body: dict) -> str:
    """Tables in Markdown."""
    lines = [[f'{name}, {sampling}', str(row['windows']),
              interval_text(row['tokens_per_round'], row['tokens_per_round_ci']),
              interval_text(row['most_per_round']), f'{row["tokens"]:.1f}',
              f'{row["rounds"]:.1f}',
              f'{100 * row["equal_to_plain"]:.2f} %', f'{row["plain_reason_ms"]:.1f}',
              f'{row["reason_ms"]:.1f}', interval_text(row['speedup'], row['speedup_ci'])]
             for sampling, key in ((GREEDY, 'rows'), (SAMPLED, 'sampled_rows'))
             for name, row in body[key].items() if row['windows']]
    text = markdown(['block', 'windows', 'tokens a round', 'at most', 'tokens', 'rounds',
                     'as plain', 'plain ms', 'drafted ms', 'times as fast'], lines)
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
