"""Plain tables in Markdown."""
from __future__ import annotations

import math
from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns line up in plain text as well."""
    cells = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row):
        return '| ' + ' | '.join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))
        ) + ' |'
    rule = '|' + '|'.join('-' * (w + 1) + ('-' if i == 0 else ':')
                          for i, w in enumerate(widths)) + '|'
    return '\n'.join([line(cells[0]), rule, *map(line, cells[1:])])


def interval_text(value: float | None, interval: Sequence[float | None] | None = None,
                  digits: int = 2) -> str:
    """Return '1.72 (1.60 to 1.85)', or '-' for no value."""
    if value is None or math.isnan(value):
        return '-'
    text = f'{value:.{digits}f}'
    if interval and all(v is not None and math.isfinite(v) for v in interval):
        text += f' ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})'
    return text
