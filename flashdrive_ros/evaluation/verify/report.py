"""One line per compared array: largest absolute and relative error, tolerance, verdict."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

OK, FAIL, UNCHECKED = 'ok', 'FAIL', 'not checked'


def array(values) -> np.ndarray:
    """NumPy array of a tensor, a list or an array."""
    return values.detach().cpu().numpy() if hasattr(values, 'detach') else np.asarray(values)


class Report:
    """
    Collects comparisons and tells each to `say` at once.

    The relative error is the largest absolute one over the largest expected
    magnitude of the array.
    """

    def __init__(self, say: Callable[[str], None] = print):
        self.say, self.counts, self.failures = say, Counter(), []
        self.title = ''

    @property
    def passed(self) -> bool:
        """Something was compared and nothing failed."""
        return not self.counts[FAIL] and self.counts[OK] > 0

    def section(self, title: str) -> None:
        """Begin the comparisons of one file."""
        self.title = title
        self.say(f'\n{title}\n  {"":44} {"max abs":>10} {"max rel":>10} {"tolerance":>10}')

    def close(self, name: str, actual, expected, tolerance, note: str = '') -> None:
        """Compare numbers; `tolerance` is absolute, one for all or one per last-axis element."""
        actual, expected = array(actual), array(expected)
        if actual.shape != expected.shape:
            self.failed(name, f'shape {list(actual.shape)}, expected {list(expected.shape)}')
            return
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        error = np.where(same, 0.0, np.abs(actual.astype(float) - expected.astype(float)))
        largest = float(error.max(initial=0.0))
        scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
        within = bool((error <= np.asarray(tolerance)).all())
        shown = '/'.join(f'{t:.0e}' for t in np.atleast_1d(tolerance))
        self._line(name, OK if within else FAIL, f'{largest:10.2e}',
                   f'{largest / scale if scale else largest:10.2e}', shown, note)

    def equal(self, name: str, actual, expected, excused=None, note: str = '') -> None:
        """Compare integers, truth values or text; elements `excused` [same shape] may differ."""
        actual, expected = array(actual), array(expected)
        if actual.shape != expected.shape:
            self.failed(name, f'shape {list(actual.shape)}, expected {list(expected.shape)}')
            return
        wrong = np.atleast_1d(actual != expected)
        if excused is not None and wrong.any():
            spared = int((wrong & array(excused)).sum())
            wrong = wrong & ~array(excused)
            note = f'{note} {spared} ties'.strip() if spared else note
        if wrong.any():
            first = tuple(int(i) for i in np.argwhere(wrong)[0])
            found, wanted = np.atleast_1d(actual)[first], np.atleast_1d(expected)[first]
            self.failed(name, f'{int(wrong.sum())} of {wrong.size} differ; at {list(first)} '
                              f'{str(found)!r}, expected {str(wanted)!r}')
            return
        self._line(name, OK, f'{0:10}', f'{0:10}', 'exact', note)

    def failed(self, name: str, why: str) -> None:
        """Something that can't even be compared."""
        self._line(name, FAIL, f'{"":>10}', f'{"":>10}', '', why)

    def unchecked(self, name: str, why: str = 'unknown') -> None:
        """Something in the files that no comparison covers."""
        self._line(name, UNCHECKED, f'{"":>10}', f'{"":>10}', '', why)

    def finish(self) -> None:
        """Say the totals, and the failures again."""
        self.say('')
        for failure in self.failures:
            self.say(f'FAIL {failure}')
        self.say(f'{self.counts[OK]} ok, {self.counts[FAIL]} failed, '
                 f'{self.counts[UNCHECKED]} not checked')

    def _line(self, name, status, absolute, relative, tolerance, note) -> None:
        self.counts[status] += 1
        if status == FAIL:
            self.failures.append(f'{self.title}: {name} {note}'.rstrip())
        self.say(f'  {name:44} {absolute} {relative} {tolerance:>10} {status} {note}'.rstrip())
