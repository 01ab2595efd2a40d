"""Learning curves of a run as a picture (needs matplotlib, else only the log is kept)."""
from __future__ import annotations

import json
import logging
from pathlib import Path

log = logging.getLogger(__name__)
PANELS = (
    ('losses', ('action', 'reason', 'answer', 'seen_vision', 'seen_language', 'text',
                'primitive'), True),
    ('tokens right', ('reason_right', 'answer_right', 'cause_right', 'text_right',
                      'primitive_right'), False),
    ('minADE at 6.4 s, m', ('minADE1', 'minADE6', 'constant_velocity'), False),
    ('tokens per round', tuple(f'tokens_per_round/{what}' for what in (
        'reason_B8', 'reason_B16', 'answer_B8')), False),
    ('windows/s', ('windows_per_s',), False),
)


def read_log(path: Path) -> list[dict]:
    """Lines of a run's log."""
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines() if line]


def draw(path: Path, picture: Path) -> bool:
    """Draw the log `path` to `picture`; False without a log or without matplotlib."""
    if not path.is_file():
        return False
    try:
        import matplotlib
    except ModuleNotFoundError:
        log.info('no learning curves as a picture: pip install matplotlib')
        return False
    matplotlib.use('Agg')
    from matplotlib import pyplot
    lines = read_log(path)
    panels = [p for p in PANELS if any(name in line for line in lines for name in p[1])]
    if not panels:
        return False
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3), squeeze=False)
    for axis, (title, names, logarithmic) in zip(axes[0], panels):
        for name in names:
            points = [(line['step'], line[name]) for line in lines if name in line]
            if points:
                marker = 'o' if len(points) < 40 else None
                axis.plot(*zip(*points), label=name, marker=marker, markersize=3)
        axis.set_title(title)
        axis.set_xlabel('step')
        if logarithmic:
            axis.set_yscale('log')
        if axis.lines:
            axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(picture, dpi=100)
    pyplot.close(figure)
    return True
