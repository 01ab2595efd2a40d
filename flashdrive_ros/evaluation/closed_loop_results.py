"""Rows of a closed-loop run -> the results file, its table and its chart."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import charts, intervals
from .closed_loop import ClosedLoop, count
from .policies import CONSTANT_VELOCITY, FULL, POLICIES, STREAMING
from .tables import interval_text, markdown

FAULTS = ('collision', 'off_road', 'wrong_lane', 'red_light')
MEASURES = ('p_rel', 'd_traj', 'd_loc', 'd_traj_mean', 'd_loc_mean', 'plan_dev')


def summary(config: ClosedLoop, rows: Sequence[dict]) -> dict:
    """Body of the results file; episodes in which the expert erred are left out and counted."""
    names = [name for name in POLICIES if name in config.models]
    by_seed: dict[int, dict] = {}
    for row in rows:
        by_seed.setdefault(row['seed'], {})[row['policy']] = row
    whole = {s: r for s, r in sorted(by_seed.items()) if set(names) <= set(r)}
    dropped = {s: r[names[0]]['fault'] for s, r in whole.items() if r[names[0]]['fault']}
    seeds = [s for s in whole if s not in dropped]
    episodes = {name: [whole[s][name] for s in seeds] for name in names}
    policies = {name: _policy(episodes[name]) for name in names}
    return {'episodes': len(seeds), 'seconds': config.seconds, 'policies': policies,
            'differences': _differences(episodes),
            'findings': findings(len(seeds), policies, episodes),
            'events': count(whole[s][names[0]]['event'] for s in seeds),
            'seeds': seeds, 'dropped_seeds': dropped}


def _policy(episodes: list[dict]) -> dict:
    found, spread = {}, {}
    for name in FAULTS:
        hits = sum(e[name] for e in episodes)
        found[name] = hits / len(episodes) if episodes else None
        spread[name] = list(intervals.wilson(hits, len(episodes)))
    for name in MEASURES:
        values = [e[name] for e in episodes if e[name] is not None]
        found[name] = float(np.mean(values)) if values else None
        spread[name] = list(intervals.mean(values))
    found['cause_right'] = None
    texts = [e['texts'] for e in episodes if 'texts' in e]
    if texts:
        more, their_spread = _texts(texts)
        found |= more
        spread |= their_spread
    if any(e['modes'] for e in episodes):
        found['modes'] = {m: sum(e['modes'].get(m, 0) for e in episodes)
                          for m in ('prefill', 'streaming')}
    found['ended_early'] = count(e['ended'] for e in episodes if e['ended'])
    found['by_event'] = {event: {name: float(np.mean([e[name] for e in episodes
                                                      if e['event'] == event]))
                                 for name in ('collision', 'off_road', 'p_rel')}
                         for event in sorted({e['event'] for e in episodes})}
    return {**found, 'ci': spread}


def _texts(texts: list[dict]) -> tuple[dict, dict]:
    """Shares of reasonings over all plans, with intervals over the episodes."""
    found, spread = {}, {}
    for name, above, below in (('cause_right', 'right', 'plans'), ('cause_near', 'near', 'plans'),
                               ('text_agrees', 'agree', 'checked')):
        hits, trials = ([t[k] for t in texts] for k in (above, below))
        found[name] = sum(hits) / sum(trials) if sum(trials) else None
        spread[name] = list(intervals.ratio(hits, trials))
    causes: dict[str, np.ndarray] = {}
    for t in texts:
        for cause, numbers in t['by_cause'].items():
            causes[cause] = causes.get(cause, np.zeros(2, int)) + numbers
    found['cause_right_by_cause'] = {cause: {'share': float(right / n), 'plans': int(n)}
                                     for cause, (right, n) in sorted(causes.items())}
    found['cause_right_mean_of_causes'] = float(np.mean([r / n for r, n in causes.values()]))
    return found, spread


def _differences(episodes: dict[str, list[dict]]) -> dict:
    """Streaming less full, episode by episode the same one, with intervals."""
    if not {FULL, STREAMING} <= set(episodes):
        return {}
    found = {}
    for name in (*FAULTS, *MEASURES):
        pairs = [(a[name], b[name]) for a, b in zip(episodes[STREAMING], episodes[FULL])
                 if a[name] is not None and b[name] is not None]
        gaps = [float(a) - float(b) for a, b in pairs]
        found[name] = [float(np.mean(gaps)) if gaps else None, *intervals.mean(gaps)]
    return {f'{STREAMING} - {FULL}': found}


def findings(count_: int, policies: dict, episodes: dict) -> dict[str, bool]:
    """What was to be shown, and whether the figures show it."""
    found = {'at least 200 episodes': count_ >= 200}
    for name in (FULL, STREAMING):
        p = policies.get(name)
        if p and count_:
            found |= {f'{name}: collisions in at most 5 %': p['collision'] <= 0.05,
                      f'{name}: off the road in at most 5 %': p['off_road'] <= 0.05}
            if p['cause_right'] is not None:
                found[f'{name}: the named cause is right in at least 80 %'] = \
                    p['cause_right'] >= 0.8
    gaps = _differences(episodes).get(f'{STREAMING} - {FULL}')
    if gaps and count_:
        found |= {'streaming collides no more often (within the interval)':
                  gaps['collision'][1] <= 0,
                  'streaming leaves the road no more often (within the interval)':
                  gaps['off_road'][1] <= 0,
                  'streaming deviates less from plan to plan': gaps['plan_dev'][0] < 0}
    if {CONSTANT_VELOCITY, STREAMING} <= set(policies) and count_:
        worse = [policies[CONSTANT_VELOCITY][k] > policies[STREAMING][k]
                 for k in ('collision', 'off_road')]
        found['constant velocity is worse in both'] = all(worse)
    return found


def table(body: dict) -> str:
    """Tables in Markdown."""
    rows = []
    for name, p in body['policies'].items():
        cells = [interval_text(_percent(p[k]), _percent(p['ci'][k]), 1) for k in FAULTS]
        cells += [interval_text(p[k]) for k in ('p_rel', 'd_traj', 'd_loc', 'plan_dev')]
        cells += [interval_text(_percent(p.get(k)), None, 1)
                  for k in ('cause_right', 'cause_near', 'text_agrees')]
        cells.append(f'{p["latency_ms"]["p50"]:.0f}' if p.get('latency_ms') else '-')
        rows.append([name, *cells])
    text = f'{body["episodes"]} episodes of {body["seconds"]:g} s\n\n' + markdown(
        ['policy', 'collision %', 'off road %', 'wrong lane %', 'red light %', 'p_rel', 'd_traj m',
         'd_loc m', 'plan_dev m', 'cause right %', 'nearly %', 'text agrees %', 'ms'], rows)
    return text + '\n\n' + '\n'.join(f'- {"yes" if holds else "NO"}: {what}'
                                     for what, holds in body['findings'].items())


def _percent(value):
    if isinstance(value, list):
        return [_percent(v) for v in value]
    return None if value is None else 100 * value


def draw(body: dict, folder: Path) -> list[Path]:
    """Write the chart; returns its file."""
    return [charts.write(folder / 'closed_loop.png', charts.bars(
        f'Closed loop: share of {body["episodes"]} episodes with a fault', '%',
        {name: {k: (_percent(p[k]), *_percent(p['ci'][k])) for k in FAULTS}
         for name, p in body['policies'].items()}))]
