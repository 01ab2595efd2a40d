"""The results file: written after every row, merged with what the same sources measured before."""
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..evaluation import charts
from ..evaluation.record import header, write_results
from ..evaluation.tables import markdown
from .measure import STAGES

SAME = ('commit', 'versions', 'model', 'settings')
MACHINE = ('cpu', 'cores', 'gpu', 'gpus')
SECTIONS = ('rows', 'peak_gib', 'floors_ms', 'correctness', 'details', 'start', 'primitives',
            'encode_early', 'not_available')


class Results:
    """
    `bench/results/gpu_full_size.json` in the making.

    `path` is continued when it comes of the same commit, versions, hardware, model and
    settings; else it is begun anew.
    """

    def __init__(self, path: Path, about: dict):
        self.path, self.about = path, about
        self.data: dict = {name: {} for name in SECTIONS}
        self.commands: list[str] = []
        self.note = self._continue(header())

    def _continue(self, now: dict) -> str:
        """Take over an earlier file; returns what was done about it."""
        if not self.path.is_file():
            return ''
        old = json.loads(self.path.read_text(encoding='utf-8'))
        now = json.loads(json.dumps({**now, **self.about}, default=list))
        changed = [key for key in SAME if old.get(key) != now.get(key)]
        machines = [[data.get('hardware', {}).get(key) for key in MACHINE] for data in (old, now)]
        if machines[0] != machines[1]:
            changed.append('hardware')
        if '+' in now['commit'] or now['commit'] == 'unknown':
            changed.append('sources that are not of a commit')
        if changed:
            return f'{self.path.name} is begun anew: other {", ".join(changed)}'
        self.data |= {key: value for key, value in old.items() if key not in self.about}
        self.commands = old.get('commands', [])
        return f'{self.path.name} is continued'

    def put(self, section: str, *keys: str, value) -> None:
        """Store one value under `section` and `keys`."""
        place, path = self.data, (section, *keys)
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value

    def refuse(self, row: str, reason: str) -> None:
        """Note why a row is missing."""
        self.put('not_available', row, value=reason)

    def save(self) -> None:
        """Write the file and its chart."""
        started = self.data.get('first_plan', {})
        now = header()
        commands = [*(c for c in self.commands if c != now['command']), now['command']]
        body = {k: v for k, v in self.data.items() if k not in now and k != 'commands'}
        write_results(self.path, {
            **body, 'first_plan_s': started.get('first_plan_s')},
            **self.about, commands=commands)
        if self.data['rows']:
            charts.write(self.path.with_suffix('.png'), chart(self.data))


def chart(data: Mapping) -> np.ndarray:
    """Bars of the totals, and of the stages without the slowest rows."""
    rows = data['rows']
    totals = {name: {_trajectories(k): (times['total'], None, None) for k, times in row.items()}
              for name, row in rows.items()}
    fast = {name: {stage: (row['1'][stage], None, None) for stage in STAGES}
            for name, row in rows.items() if '1' in row and name not in ('released', 'eager')}
    pictures = [charts.bars('From frames to plan', 'ms', _short(totals))]
    if fast:
        pictures.append(charts.bars('Stages, one trajectory', 'ms', _short(fast)))
    return charts.stack(pictures)


def _short(groups: Mapping) -> dict:
    """Names that fit below a bar."""
    short = {'velocity_reuse': 'velocity', 'all_low_bit': 'all+low', 'low_bit': 'low bit',
             'all_low_bit_expert': '+expert'}
    return {short.get(name, name): group for name, group in groups.items()}


def _trajectories(count: str) -> str:
    return '1 trajectory' if count == '1' else f'{count} trajectories'


def table(data: Mapping, trajectories: str) -> str:
    """Markdown of one number of trajectories: medians, and times the floor."""
    lines = []
    for name, row in data['rows'].items():
        if trajectories not in row:
            continue
        times = row[trajectories]
        floors = data['floors_ms'].get(name, {}).get(trajectories, {})
        cells = [f'{times[s]:.1f}' + (f' ({times[s] / floors[s]:.1f}x)' if floors.get(s) else '')
                 for s in (*STAGES, 'total')]
        peak = data['peak_gib'].get(name, {}).get(trajectories)
        lines.append([name, *cells, f'{times["total_p90"]:.1f}',
                      '-' if peak is None else f'{peak:.1f}'])
    return markdown(['row', *STAGES, 'total', 'p90', 'peak GiB'], lines)
