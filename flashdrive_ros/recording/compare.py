"""Compare the plans of two recordings, matched by the time of their frames."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .plans import STAGES, RecordedPlan
from .recording import Recording


@dataclass(frozen=True)
class PlanDifference:
    """Two plans for the same frames; `xyz_m` is None when shapes or finiteness differ."""

    first: RecordedPlan
    second: RecordedPlan
    xyz_m: float | None

    @property
    def stamp_ns(self) -> int:
        """Time of the frames."""
        return self.first.stamp_ns

    @property
    def text_equal(self) -> bool:
        """Whether both say the same."""
        return self.first.text == self.second.text

    @property
    def is_same(self) -> bool:
        """Whether text and waypoints are equal to the bit."""
        return self.text_equal and self.xyz_m == 0


@dataclass(frozen=True)
class Comparison:
    """Plans of both recordings by header stamp."""

    matched: tuple[PlanDifference, ...]
    only_first: tuple[int, ...]
    only_second: tuple[int, ...]

    @property
    def max_xyz_m(self) -> float:
        """Largest difference of a waypoint's coordinate; inf where shapes or finiteness differ."""
        return max((float('inf') if d.xyz_m is None else d.xyz_m for d in self.matched),
                   default=0.0)

    @property
    def texts_equal(self) -> int:
        """Number of matched plans with the same reasoning text."""
        return sum(d.text_equal for d in self.matched)

    def within(self, tolerance_m: float) -> bool:
        """Say whether every plan has a partner with the same text and near waypoints."""
        return bool(self.matched) and not (self.only_first or self.only_second) and (
            self.texts_equal == len(self.matched) and self.max_xyz_m <= tolerance_m)


def compare(first: Recording, second: Recording) -> Comparison:
    """Match plans by stamp (the last one counts where a stamp repeats)."""
    a, b = ({p.stamp_ns: p for p in r.plans} for r in (first, second))
    return Comparison(
        tuple(_difference(a[stamp], b[stamp]) for stamp in sorted(a.keys() & b.keys())),
        tuple(sorted(a.keys() - b.keys())), tuple(sorted(b.keys() - a.keys())))


def _difference(a: RecordedPlan, b: RecordedPlan) -> PlanDifference:
    xyz_m = None
    if a.xyz.shape == b.xyz.shape and a.is_finite and b.is_finite:
        xyz_m = float(np.abs(a.xyz - b.xyz).max(initial=0.0))
    return PlanDifference(a, b, xyz_m)


def timing(plans: Sequence[RecordedPlan]) -> dict[str, tuple[float, float]]:
    """Median and 90th percentile in ms of every stage, of the whole step, and to the plan."""
    rows = {stage: [p.stages_ms[stage] for p in plans] for stage in STAGES}
    rows |= {'total': [p.total_ms for p in plans],
             'camera to plan': [p.camera_to_plan_ms for p in plans]}
    return {name: (float(np.median(ms)), float(np.percentile(ms, 90)))
            for name, ms in rows.items() if ms}


def worst_first(comparison: Comparison) -> list[PlanDifference]:
    """Plans that are not the same, the furthest apart first."""
    return sorted((d for d in comparison.matched if not d.is_same),
                  key=lambda d: (-(float('inf') if d.xyz_m is None else d.xyz_m), d.stamp_ns))


def report(comparison: Comparison, tolerance_m: float, *, worst: int = 5) -> str:
    """A few lines for a terminal: totals, then the plans that differ most."""
    c = comparison
    lines = [f'{len(c.matched)} plans matched by stamp, {len(c.only_first)} only in the first '
             f'recording, {len(c.only_second)} only in the second',
             f'text equal in {c.texts_equal} of {len(c.matched)}',
             f'largest waypoint difference {c.max_xyz_m:.3g} m (tolerance {tolerance_m:g} m)']
    if c.matched:
        times = [timing([getattr(d, side) for d in c.matched]) for side in ('first', 'second')]
        lines += [f'{"ms, median (p90)":<16} {"first":>16} {"second":>16}']
        lines += [' '.join([f'{name:<16}', *(f'{t[name][0]:8.1f} ({t[name][1]:5.1f})'
                                             for t in times)]) for name in times[0]]
    for d in worst_first(c)[:worst]:
        distance = 'shape or finiteness differs' if d.xyz_m is None else f'{d.xyz_m:.3g} m'
        lines.append(f'  {d.stamp_ns / 1e9:.3f}: {distance}'
                     + ('' if d.text_equal else ', other text'))
    lines.append('SAME' if c.within(tolerance_m) else 'DIFFERENT')
    return '\n'.join(lines)
