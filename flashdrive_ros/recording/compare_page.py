"""A comparison of two recordings as one HTML page that needs nothing else."""
from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from .compare import Comparison, PlanDifference, timing, worst_first

ROWS = 200
"""Most plans that the page lists; it says how many there are."""
PATHS = 4
"""Most plans whose paths are drawn."""
FIRST, SECOND = '#1f77b4', '#d95f02'
STYLE = f""".a{{color:{FIRST}}}.b{{color:{SECOND}}}""" + """
body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;
text-align:left;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.verdict{font-weight:700}figure{display:inline-block;margin:.4em .8em 0 0}
figcaption,.note{color:#666;font-size:13px}svg{background:#fafafa;border:1px solid #ddd}
"""


def page(comparison: Comparison, tolerance_m: float, names: Sequence[str]) -> str:
    """HTML of a comparison of the recordings called `names`: totals, times, plans that differ."""
    c = comparison
    verdict = 'SAME' if c.within(tolerance_m) else 'DIFFERENT'
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f'<title>{verdict}: two recordings</title><style>{STYLE}</style>',
        f'<h1>Two recordings: <span class="verdict">{verdict}</span></h1>',
        f'<p><span class="a">first</span>: {escape(names[0])}<br>'
        f'<span class="b">second</span>: {escape(names[1])}</p>',
        _table(('', ''), [
            ('plans for the same frames', len(c.matched)),
            ('only in the first', len(c.only_first)), ('only in the second', len(c.only_second)),
            ('with the same text', f'{c.texts_equal} of {len(c.matched)}'),
            ('largest waypoint difference', f'{_metres(c.max_xyz_m)} '
             f'(tolerance {tolerance_m:g} m)')])]
    if c.matched:
        parts += ['<h2>Times</h2>', _times(c), '<h2>Over the drive</h2>', _over_the_drive(c)]
    parts += [_differing(c), _alone('first', c.only_first), _alone('second', c.only_second)]
    return '\n'.join(parts) + '</html>\n'


def write_page(comparison: Comparison, tolerance_m: float, names: Sequence[str], path) -> Path:
    """Write the page; makes its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(comparison, tolerance_m, names), encoding='utf-8')
    return path


def _metres(value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return 'shape or finiteness differs'
    return f'{value:.3g} m'


def _table(head: Sequence[str], rows) -> str:
    def row(cells, tag):
        return '<tr>' + ''.join(
            f'<{tag}{"" if i == 0 else " class=n"}>{cell}</{tag}>'
            for i, cell in enumerate(cells)) + '</tr>'
    title = row(head, 'th') if any(head) else ''
    return f'<table>{title}{"".join(row(r, "td") for r in rows)}</table>'


def _times(c: Comparison) -> str:
    first, second = (timing([getattr(d, side) for d in c.matched]) for side in ('first', 'second'))
    return _table(('ms', 'first, median', 'p90', 'second, median', 'p90'), [
        (name, *(f'{ms:.1f}' for ms in (*first[name], *second[name]))) for name in first])


def _over_the_drive(c: Comparison) -> str:
    seconds = np.array([d.stamp_ns - c.matched[0].stamp_ns for d in c.matched]) / 1e9
    away = [np.nan if d.xyz_m is None else d.xyz_m for d in c.matched]
    return (_chart('largest waypoint difference, m', seconds, [(away, '#444')])
            + _chart('time of a step, ms', seconds, [
                ([d.first.total_ms for d in c.matched], FIRST),
                ([d.second.total_ms for d in c.matched], SECOND)]))


def _chart(title: str, seconds: np.ndarray, curves, width: int = 460, height: int = 130) -> str:
    """Curves over time, one under the other's colour; gaps where a value is not finite."""
    values = np.concatenate([np.asarray(v, float) for v, _ in curves])
    top = float(np.nanmax(values, initial=0.0)) or 1.0
    span = float(seconds[-1]) or 1.0
    lines = ''
    for curve, colour in curves:
        at = ' '.join(f'{width * s / span:.1f},{height - (height - 8) * v / top:.1f}'
                      for s, v in zip(seconds, curve) if np.isfinite(v))
        lines += f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{at}"/>'
    return (f'<figure><svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(title)}">{lines}</svg>'
            f'<figcaption>{escape(title)}: 0 to {top:.3g}, over {span:.1f} s</figcaption>'
            '</figure>')


def _differing(c: Comparison) -> str:
    differing = worst_first(c)
    if not differing:
        return '<h2>Plans that differ</h2><p>none, to the bit</p>'
    drawn = [d for d in differing if d.first.is_finite and d.second.is_finite][:PATHS]
    rows = [(f'{d.stamp_ns / 1e9:.3f}', _metres(d.xyz_m), escape(d.first.text),
             'the same' if d.text_equal else escape(d.second.text)) for d in differing[:ROWS]]
    left = len(differing) - len(rows)
    return (f'<h2>Plans that differ: {len(differing)}</h2>' + ''.join(map(_paths, drawn))
            + _table(('frames at, s', 'waypoints', 'first says', 'second says'), rows)
            + (f'<p class="note">{left} more are not listed.</p>' if left else ''))


def _paths(d: PlanDifference, size: int = 220) -> str:
    """Both chosen paths from above, forward up."""
    paths = [plan.xyz[plan.chosen][:, :2] for plan in (d.first, d.second)]
    points = np.concatenate([np.zeros((1, 2)), *paths])
    low, high = points.min(0), points.max(0)
    scale = (size - 20) / max(*(high - low), 1.0)
    lines = ''
    for path, colour in zip(paths, (FIRST, SECOND)):
        at = ' '.join(f'{size / 2 - scale * (y - (low[1] + high[1]) / 2):.1f},'
                      f'{size - 10 - scale * (x - low[0]):.1f}' for x, y in path)
        lines += f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{at}"/>'
    return (f'<figure><svg viewBox="0 0 {size} {size}" width="{size}" height="{size}" role="img" '
            f'aria-label="chosen paths">{lines}</svg><figcaption>{d.stamp_ns / 1e9:.3f} s: chosen '
            f'paths, forward is up</figcaption></figure>')


def _alone(name: str, stamps: Sequence[int]) -> str:
    if not stamps:
        return ''
    listed = ', '.join(f'{s / 1e9:.3f}' for s in stamps[:ROWS])
    more = f' and {len(stamps) - ROWS} more' if len(stamps) > ROWS else ''
    return (f'<h2>Only in the {name}: {len(stamps)}</h2><p>frames at {listed}{more} s</p>')
