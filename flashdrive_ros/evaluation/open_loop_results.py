"""Rows of an open-loop run -> the results file, its table and its charts."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import charts, intervals
from .errors import BY
from .flow import calmest, name_of, schedules
from .open_loop import CONSTANT_VELOCITY, FULL, ROWS, STREAMING, OpenLoop
from .tables import interval_text, markdown

WHOLE = '6.4'
CLOSE = 1.05
"""A fine-tuned expert is as good as the full window when it errs no more than this much more."""


class Measured:
    """Windows by row of the table and seed, of those seeds that every row has."""

    def __init__(self, config: OpenLoop, rows: Sequence[dict]):
        self.names = [name for name in ROWS if name in config.models]
        by_seed: dict[int, dict] = {}
        for row in rows:
            by_seed.setdefault(row['seed'], {})[row['row']] = row
        whole = {s: r for s, r in sorted(by_seed.items()) if set(self.names) <= set(r)}
        self.dropped = {s: r[self.names[0]]['fault'] for s, r in whole.items()
                        if r[self.names[0]]['fault']}
        self.seeds = [s for s in whole if s not in self.dropped
                      and whole[s][self.names[0]]['windows']]
        self.windows = {name: [whole[s][name]['windows'] for s in self.seeds]
                        for name in self.names}

    def sums(self, name: str, value) -> tuple[np.ndarray, np.ndarray]:
        """Sum and count by seed of `value(window)`, where it is not None."""
        per_seed = [[v for w in windows if (v := value(w)) is not None]
                    for windows in self.windows[name]]
        return (np.array([sum(v) for v in per_seed], float),
                np.array([len(v) for v in per_seed], float))

    def mean(self, name: str, value) -> tuple[float, list[float]]:
        """Mean over all windows and its interval."""
        above, below = self.sums(name, value)
        return average(above, below), list(intervals.ratio(above, below))


def average(above, below) -> float:
    """Sum over count; NaN for none."""
    return float(above.sum() / below.sum()) if below.sum() else float('nan')


def summary(config: OpenLoop, rows: Sequence[dict]) -> dict:
    """Body of the results file."""
    measured = Measured(config, rows)
    table = {name: _row(measured, name) for name in measured.names}
    relations = _relations(measured)
    body = {'rows': table, 'relations': relations, 'findings': findings(table, relations),
            'seeds': measured.seeds, 'dropped_seeds': measured.dropped}
    if config.probe in measured.names:
        body |= flow_summary(measured, config.probe)
    return body


def _row(measured: Measured, name: str) -> dict:
    ade, ade_ci = measured.mean(name, lambda w: w['ade'])
    best, best_ci = measured.mean(name, lambda w: w['min_ade'])
    windows = [w for seed in measured.windows[name] for w in seed]
    row = {'minADE1': ade, 'minADE6': best, 'windows': len(windows), 'minADE1_ci': ade_ci,
           'minADE6_ci': best_ci, 'by_horizon': {
               h: {'minADE1': measured.mean(name, lambda w, h=h: w['ade_by'][h])[0],
                   'minADE6': measured.mean(name, lambda w, h=h: w['min_ade_by'][h])[0]}
               for h in BY} | {WHOLE: {'minADE1': ade, 'minADE6': best}}}
    if name == CONSTANT_VELOCITY:
        return row
    modes = [w['mode'] for w in windows]
    return {**row, 'modes': {m: modes.count(m) for m in sorted(set(modes))},
            'minADE6_by_age': {str(age): measured.mean(
                name, lambda w, a=age: w['min_ade'] if w['age'] == a else None)[0]
                for age in sorted({w['age'] for w in windows})},
            'cause_right': measured.mean(name, lambda w: float(w['named'] == w['cause']))[0],
            'tokens': float(np.mean([w['tokens'] for w in windows])) if windows else None}


def _relations(measured: Measured) -> dict:
    """Errors of rows over those of others, window by window the same ones, with intervals."""
    others = [name for name in measured.names if name.startswith(STREAMING)]
    pairs = [(name, FULL) for name in others] + [
        (name, STREAMING) for name in others if name != STREAMING] + [
        (name, CONSTANT_VELOCITY) for name in measured.names if name != CONSTANT_VELOCITY]
    found = {}
    for name, base in pairs:
        if base in measured.names:
            found[f'{name} / {base}'] = {
                label: _relation(measured, name, base, key)
                for label, key in (('minADE1', 'ade'), ('minADE6', 'min_ade'))}
    return found


def _relation(measured, name, base, key) -> list[float]:
    above, _ = measured.sums(name, lambda w: w[key])
    below, _ = measured.sums(base, lambda w: w[key])
    return [average(above, below), *intervals.ratio(above, below)]


def findings(table: dict, relations: dict) -> dict[str, bool]:
    """What was to be shown, and whether the figures show it."""
    found = {}

    def tell(what: str, above: str, below: str, label: str, limit: float):
        relation = relations.get(f'{above} / {below}')
        if relation is not None:
            found[what] = relation[label][0] <= limit
    if f'{STREAMING} / {FULL}' in relations:
        found['streaming without tuning errs more than the full window'] = \
            relations[f'{STREAMING} / {FULL}']['minADE6'][0] > 1.0
    if f'streaming_vlm_tuned / {STREAMING}' in relations:
        found['tuning the VLM alone is worse than no tuning'] = \
            relations[f'streaming_vlm_tuned / {STREAMING}']['minADE6'][0] > 1.0
    tell('tuning the expert alone is better than no tuning', 'streaming_expert_tuned', STREAMING,
         'minADE6', 1.0)
    tell('the tuned expert is within 5 % of the full window', 'streaming_expert_tuned', FULL,
         'minADE6', CLOSE)
    best = 'streaming_expert_tuned' if 'streaming_expert_tuned' in table else FULL
    tell('minADE1 is at most half of that of constant velocity', best, CONSTANT_VELOCITY,
         'minADE1', 0.5)
    return found


def flow_summary(measured: Measured, name: str) -> dict:
    """Profile of the velocity along the flow, and the errors by schedule of reuse."""
    probed = [[w['flow'] for w in windows if 'flow' in w] for windows in measured.windows[name]]
    flows = [f for seed in probed for f in seed]
    if not flows:
        return {}
    steps = len(flows[0]['change']) + 1
    counts = np.array([len(seed) for seed in probed], float)

    def sums(value):
        return np.array([sum(value(f) for f in seed) for seed in probed], float)
    change = [average(sums(lambda f, i=i: f['change'][i]), counts) for i in range(steps - 1)]
    spread = [list(intervals.ratio(sums(lambda f, i=i: f['change'][i]), counts))
              for i in range(steps - 1)]

    def scored(schedule):
        key = name_of(schedule)
        best = sums(lambda f: f['reuse'][key][1])
        return {'steps': list(schedule), 'minADE1': average(sums(lambda f: f['reuse'][key][0]),
                                                            counts),
                'minADE6': average(best, counts),
                'minADE6_to_none': [average(best, plain), *intervals.ratio(best, plain)]}
    plain = sums(lambda f: f['reuse']['none'][1])
    chosen = {str(n): scored(calmest(change, n) if n else ()) for n in range(steps - 1)}
    return {'velocity_profile': {'row': name, 'windows': len(flows), 'change': change,
                                 'change_ci': spread,
                                 'u_shape': is_u_shaped(change)},
            'velocity_reuse': chosen,
            'velocity_reuse_all': {name_of(s): {k: scored(s)[k] for k in ('minADE1', 'minADE6')}
                                   for s in schedules(steps)}}


def is_u_shaped(change: Sequence[float]) -> bool:
    """Whether the velocity changes most at the first and the last step, less between."""
    inner = change[1:-1]
    return len(inner) > 0 and max(inner) < min(change[0], change[-1])


def table(body: dict) -> str:
    """Tables in Markdown."""
    rows = []
    for name, row in body['rows'].items():
        rows.append([name, interval_text(row['minADE1'], row['minADE1_ci']),
                     interval_text(row['minADE6'], row['minADE6_ci']),
                     *(f'{row["by_horizon"][h]["minADE6"]:.2f}' for h in BY),
                     str(row['windows'])])
    text = markdown(['row', 'minADE1 m', 'minADE6 m', *(f'at {h} s' for h in BY), 'windows'],
                    rows)
    text += '\n\n' + markdown(['relation', 'minADE1', 'minADE6'], [
        [name, *(interval_text(r[k][0], r[k][1:]) for k in ('minADE1', 'minADE6'))]
        for name, r in body['relations'].items()])
    text += '\n\n' + '\n'.join(f'- {"yes" if holds else "NO"}: {what}'
                               for what, holds in body['findings'].items())
    if 'velocity_reuse' in body:
        profile = body['velocity_profile']
        text += '\n\n' + markdown(['step', *map(str, range(1, len(profile['change']) + 1))], [
            ['change of velocity', *(f'{c:.3f}' for c in profile['change'])]])
        text += '\n\n' + markdown(['reused', 'steps', 'minADE1 m', 'minADE6 m', 'to none'], [
            [n, ' '.join(map(str, r['steps'])) or '-', f'{r["minADE1"]:.3f}',
             f'{r["minADE6"]:.3f}', interval_text(r['minADE6_to_none'][0],
                                                  r['minADE6_to_none'][1:], 3)]
            for n, r in body['velocity_reuse'].items()])
    return text


def draw(body: dict, folder: Path) -> list[Path]:
    """Write charts; returns their files."""
    rows = body['rows']
    paths = [charts.write(folder / 'open_loop.png', charts.bars(
        'Open loop: error of the planned trajectory at 6.4 s', 'm',
        {name: {k: (row[k], *row[f'{k}_ci']) for k in ('minADE1', 'minADE6')}
         for name, row in rows.items()}))]
    if 'velocity_reuse' in body:
        change = body['velocity_profile']['change']
        reuse = body['velocity_reuse']
        paths.append(charts.write(folder / 'velocity_profile.png', charts.stack([
            charts.lines('Change of velocity along the flow', 'share of the last one', 'step',
                         {'': (range(1, len(change) + 1), change)}),
            charts.lines('Error by number of reused steps', 'm', 'steps reused', {
                k: ([int(n) for n in reuse], [r[k] for r in reuse.values()])
                for k in ('minADE1', 'minADE6')})])))
    return paths
