"""Compare the plans of two recordings, matched by the time of their frames."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .plans import RecordedPlan
from .recording import Recording


@dataclass(frozen=True)
class PlanDifference:
    """Two plans for the same frames; `xyz_m` is None when their shapes differ."""

    stamp_ns: int
    xyz_m: float | None
    text_equal: bool


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
    return PlanDifference(a.stamp_ns, xyz_m, a.text == b.text)


def report(comparison: Comparison, tolerance_m: float, *, worst: int = 5) -> str:
    """A few lines for a terminal: totals, then the plans that differ most."""
    c = comparison
    lines = [f'{len(c.matched)} plans matched by stamp, {len(c.only_first)} only in the first '
             f'recording, {len(c.only_second)} only in the second',
             f'text equal in {c.texts_equal} of {len(c.matched)}',
             f'largest waypoint difference {c.max_xyz_m:.3g} m (tolerance {tolerance_m:g} m)']
    differing = sorted((d for d in c.matched if not d.text_equal or d.xyz_m is None or d.xyz_m),
                       key=lambda d: -(float('inf') if d.xyz_m is None else d.xyz_m))
    for d in differing[:worst]:
        distance = 'shape or finiteness differs' if d.xyz_m is None else f'{d.xyz_m:.3g} m'
        lines.append(f'  {d.stamp_ns / 1e9:.3f}: {distance}'
                     + ('' if d.text_equal else ', other text'))
    lines.append('SAME' if c.within(tolerance_m) else 'DIFFERENT')
    return '\n'.join(lines)
