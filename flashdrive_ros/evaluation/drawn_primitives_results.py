"""Rows of a run of `drawn_primitives` -> the results file and its tables."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from . import intervals
from .drawn_primitives import DrawnPrimitives, kinds
from .primitive_metrics import THRESHOLDS, f1
from .tables import interval_text, markdown

ERRORS = ('ade', 'fde', 'rmse', 'hd', 'dfd')


class Measured:
    """Answers of all windows, by seed."""

    def __init__(self, config: DrawnPrimitives, rows: Sequence[dict]):
        self.kinds = kinds(config)
        self.rows = sorted((row for row in rows if row['windows']), key=lambda row: row['seed'])

    def answers(self, mode: str, wanted: Callable[[str], bool]) -> list[list[dict]]:
        """By seed, the answers in this mode to requests of the kinds that are `wanted`."""
        return [[answer for window in row['windows']
                 for text, answer in window['answers'][mode].items() if wanted(self.kinds[text])]
                for row in self.rows]

    def to(self, mode: str, request: str) -> list[list[dict]]:
        """By seed, the answers in this mode to one request."""
        return [[window['answers'][mode][request] for window in row['windows']]
                for row in self.rows]


def sums(by_seed: Sequence[Sequence[dict]], values: Callable[[dict], Iterable[float]],
         ) -> tuple[np.ndarray, np.ndarray]:
    """Sum and count by seed of what `values(answer)` gives."""
    found = [[v for answer in answers for v in values(answer)] for answers in by_seed]
    return np.array([sum(f) for f in found], float), np.array([len(f) for f in found], float)


def over(above: np.ndarray, below: np.ndarray) -> float | None:
    """Ratio of sums; None for nothing."""
    return float(above.sum() / below.sum()) if below.sum() else None


def summary(config: DrawnPrimitives, rows: Sequence[dict]) -> dict:
    """Body of the results file."""
    measured = Measured(config, rows)
    table = {mode: _row(measured, mode) for mode in config.modes}
    relations = {f'{mode} / autoregressive': _relations(measured, mode) for mode in config.modes
                 if mode != 'autoregressive' and 'autoregressive' in config.modes}
    return {'rows': table, 'relations': relations, 'findings': _findings(table, relations),
            'by_request': {text: {mode: _of_request(measured, mode, text)
                                  for mode in config.modes} for text in config.requests},
            'by_layout': {mode: _by_layout(measured, mode) for mode in config.modes},
            'windows': sum(len(row['windows']) for row in measured.rows), 'threads': 1,
            'seeds': [row['seed'] for row in measured.rows]}


def _is_path(kind: str) -> bool:
    return kind.startswith('trajectory')


def _is_boxes(kind: str) -> bool:
    return kind == 'boxes'


def _any(kind: str) -> bool:
    return True


def _row(measured: Measured, mode: str) -> dict:
    """
    Figures of a mode.

    Errors are those of the ego's path, in shares of the image and in metres; passes and
    tokens a round those of blocks, from their start token on.
    """
    paths, boxes = measured.answers(mode, _is_path), measured.answers(mode, _is_boxes)
    every = measured.answers(mode, _any)
    found = {}
    for part, unit in (('2d', ''), ('3d', '_m')):
        for error in ERRORS:
            above, below = sums(paths, _error(part, error))
            found[f'{error}_{part}{unit}'] = over(above, below)
            if error == 'ade':
                found[f'ade_{part}{unit}_ci'] = list(intervals.ratio(above, below))
    above, below = sums(boxes, lambda a: [a['scores']['f1']])
    drawn, _ = sums(boxes, lambda a: [a['scores']['predicted']])
    box_s, _ = sums(boxes, lambda a: [a['ms'] / 1e3])
    tokens, blocks = sums(every, lambda a: [block[1] for block in a['blocks']])
    passes, _ = sums(every, lambda a: [block[3] for block in a['blocks']])
    whole, answers = sums(every, lambda a: [a['target_passes']])
    written, _ = sums(every, lambda a: [a['tokens']])
    ms, _ = sums(every, lambda a: [a['ms']])
    paths_taken = [b[4] for seed in every for a in seed for b in a['blocks']]
    return found | {
        'box_f1': over(above, below), 'box_f1_ci': list(intervals.ratio(above, below)),
        **_pooled_boxes(boxes), 'boxes': int(drawn.sum()), 'boxes_per_s': over(drawn, box_s),
        'tokens_per_round': over(tokens, passes), 'target_passes': over(passes, blocks),
        'blocks': int(blocks.sum()), 'answers': int(answers.sum()),
        'target_passes_per_answer': over(whole, answers),
        'tokens_per_answer': over(written, answers),
        'tokens_per_pass_of_answer': over(written, whole), 'ms_per_answer': over(ms, answers),
        'answered': over(*sums(paths, lambda a: [a['scores']['answered']])),
        'view_right': over(*(sums(paths, lambda a, i=i: [a['scores'].get('view', (0, 0))[i]])[0]
                             for i in range(2))),
        'malformed': int(sums(every, lambda a: [a['problems']])[0].sum()),
        'decode_paths': {p: paths_taken.count(p) for p in sorted(set(paths_taken))},
        'motion': _motion(measured.answers(mode, lambda kind: kind == 'motion'))}


def _error(part: str, error: str) -> Callable[[dict], list[float]]:
    def values(answer: dict) -> list[float]:
        found = answer['scores'].get(part)
        return [found[error]] if found else []
    return values


def _pooled_boxes(boxes) -> dict:
    """F1 of all boxes of all images together."""
    flat = [a['scores'] for seed in boxes for a in seed]
    predicted, true = (sum(s[k] for s in flat) for k in ('predicted', 'true'))
    hits = [sum(s['hits'][i] for s in flat) for i in range(len(THRESHOLDS))]
    by = {f'{t:.2f}': f1(n, predicted, true) for t, n in zip(THRESHOLDS, hits)}
    return {'box_f1_pooled': float(np.mean(list(by.values()))), 'box_f1_by_iou': by,
            'true_boxes': true}


def _motion(answers) -> dict:
    """Errors of others' paths that could be paired with a true one, and how many could."""
    flat = [a['scores'] for seed in answers for a in seed]
    pairs = [pair for s in flat for pair in s['3d']]
    return {**{f'{e}_m': float(np.mean([p[e] for p in pairs])) if pairs else None
               for e in ERRORS}, 'paired': len(pairs),
            **{k: sum(s[k] for s in flat) for k in ('predicted', 'true')}}


def _of_request(measured: Measured, mode: str, text: str) -> dict:
    """Time, tokens and passes of the answers to one request, and its main error."""
    answers = measured.to(mode, text)
    count = sum(map(len, answers))
    means = {k: over(*sums(answers, lambda a, k=k: [a[k]]))
             for k in ('ms', 'tokens', 'target_passes', 'draft_passes')}
    kind = measured.kinds[text]
    if kind == 'boxes':
        means['box_f1'] = over(*sums(answers, lambda a: [a['scores']['f1']]))
    elif kind != 'motion':
        means |= {f'{e}_{part}': over(*sums(answers, _error(part, e)))
                  for part in ('2d', '3d') for e in ERRORS}
    return {**means, 'answers': count}


def _by_layout(measured: Measured, mode: str) -> dict:
    """Tokens and passes of the blocks of each layout."""
    blocks: dict[str, list] = {}
    for seed in measured.answers(mode, _any):
        for answer in seed:
            for name, *block in answer['blocks']:
                blocks.setdefault(name, []).append(block)
    return {name: {'blocks': len(found), 'tokens': found[0][0],
                   'draft_passes': float(np.mean([b[1] for b in found])),
                   'target_passes': float(np.mean([b[2] for b in found]))}
            for name, found in sorted(blocks.items())}


def _relations(measured: Measured, mode: str) -> dict:
    """Errors and time over those of autoregressive decoding of the same answers."""
    found = {}
    for part in ('2d', '3d'):
        above, below = _paired(measured, mode, _error(part, 'ade'))
        found[f'ade_{part}'] = [over(above, below), *intervals.ratio(above, below)]
    for name, wanted in (('ms', _any), ('ms_boxes', _is_boxes), ('ms_paths', _is_path)):
        above, below = (sums(measured.answers(m, wanted), lambda a: [a['ms']])[0]
                        for m in (mode, 'autoregressive'))
        found[name] = [over(above, below), *intervals.ratio(above, below)]
    return found


def _paired(measured: Measured, mode: str, value) -> tuple[np.ndarray, np.ndarray]:
    """Sums by seed over paths for which both this mode and the autoregressive one have a value."""
    ours, theirs = (measured.answers(m, _is_path) for m in (mode, 'autoregressive'))
    pairs = [[(x, y) for a, b in zip(*seed) for x, y in zip(value(a), value(b))]
             for seed in zip(ours, theirs)]
    return (np.array([sum(x for x, _ in p) for p in pairs], float),
            np.array([sum(y for _, y in p) for p in pairs], float))


def _findings(table: dict, relations: dict) -> dict[str, bool]:
    """What was to be shown, and whether the figures show it."""
    found = {}
    direct = relations.get('direct / autoregressive')
    if direct and direct['ade_3d'][0] is not None:
        found['direct drafts of the path err less than the autoregressive target (3D ADE)'] = \
            direct['ade_3d'][0] < 1.0
        found['direct drafts are decoded faster than by the autoregressive target'] = \
            direct['ms'][0] < 1.0
    rounds = {mode: table[mode]['tokens_per_round'] for mode in ('verified', 'direct')
              if mode in table}
    if len(rounds) == 2 and None not in rounds.values():
        found['verified drafting brings fewer tokens a round in primitives than direct'] = \
            rounds['verified'] < rounds['direct']
    return found


def table(body: dict) -> str:
    """Tables in Markdown."""
    def number(value, digits):
        return '-' if value is None else f'{value:.{digits}f}'
    text = markdown(
        ['mode', 'ADE 2D', 'ADE 3D m', 'box F1', 'boxes/s', 'tokens a round',
         'passes a primitive', 'ms an answer'],
        [[mode, interval_text(row['ade_2d'], row['ade_2d_ci'], 4),
          interval_text(row['ade_3d_m'], row['ade_3d_m_ci']),
          interval_text(row['box_f1'], row['box_f1_ci'], 3), number(row['boxes_per_s'], 1),
          number(row['tokens_per_round'], 2), number(row['target_passes'], 2),
          number(row['ms_per_answer'], 1)] for mode, row in body['rows'].items()])
    text += '\n\n' + markdown(
        ['mode', *(f'{e.upper()} {unit}' for unit in ('2D', '3D m') for e in ERRORS[1:]),
         'motion ADE m', 'paths answered'],
        [[mode, *(number(row[f'{e}_{part}'], digits) for part, digits in (('2d', 4), ('3d_m', 2))
                  for e in ERRORS[1:]), number(row['motion']['ade_m'], 2),
          number(row['answered'], 3)] for mode, row in body['rows'].items()])
    layouts = sorted({name for found in body['by_layout'].values() for name in found})
    text += '\n\n' + markdown(['target passes a block', 'tokens', *body['by_layout']], [
        [name, str(next(found[name]['tokens'] for found in body['by_layout'].values()
                        if name in found)),
         *(number(found[name]['target_passes'], 2) if name in found else '-'
           for found in body['by_layout'].values())] for name in layouts])
    text += '\n\n' + markdown(['to autoregressive', 'ADE 2D', 'ADE 3D', 'time'], [
        [name, *(interval_text(relation[k][0], relation[k][1:], 3)
                 for k in ('ade_2d', 'ade_3d', 'ms'))]
        for name, relation in body['relations'].items()])
    return text + '\n\n' + '\n'.join(f'- {"yes" if holds else "NO"}: {what}'
                                     for what, holds in body['findings'].items())


def draw(body: dict, folder) -> list:
    """Draw no charts."""
    return []
