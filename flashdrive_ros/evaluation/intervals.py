"""95 % confidence intervals: Wilson for shares, the bootstrap over seeds for means and ratios."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Z_95 = 1.959964
RESAMPLES = 2000


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Interval of a share; it stays within 0 and 1 and has a width also at 0 and n of n."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = hits / trials, Z_95 ** 2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * np.sqrt(
        share * (1 - share) / trials + z2 / (4 * trials ** 2))
    return float(max(middle - half, 0)), float(min(middle + half, 1))


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """
    Interval of sum(above) / sum(below), whose items belong together by seed.

    With counts `below` it is that of a mean, the values of one seed kept
    together because they resemble each other; with errors of another row it is
    that of a relation, both measured on the same windows.  NaN when there are
    none.
    """
    above, below = np.asarray(above, float), np.asarray(below, float)
    n = len(above)
    if n == 0 or not below.any():
        return float('nan'), float('nan')
    picks = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    below = below[picks].sum(1)
    values = above[picks].sum(1)[below != 0] / below[below != 0]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def mean(values: Sequence[float]) -> tuple[float, float]:
    """Interval of the mean of one value a seed."""
    return ratio(values, np.ones(len(values)))
