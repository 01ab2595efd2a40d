"""The rows of the table: which techniques are on in each."""
from __future__ import annotations

from dataclasses import dataclass, field, fields

from ..core.config import EngineConfig

TOKENS = 16
"""Tokens of a reasoning, the trajectory-start token among them."""
ACCEPTED = 4
"""Drafts that every round accepts where weights are random: 1 + 3 x (4 + 1) tokens."""
FLOW_STEPS = 8
REUSED = (3, 4, 5, 6)
"""Flow steps that take the velocity of the step before them (spec `alpamayo.md` section 14)."""
PLAIN = {'streaming': False, 'drafting': 'off', 'velocity_reuse': (), 'flow_steps': FLOW_STEPS}
SWITCHED = {'graphs': 'off', 'fusion': 'off', 'quantization': 'none', 'quantize_expert': False}
"""Settings that not every version of the engine has, where they do nothing."""
TECHNIQUES = {'streaming': {'streaming': True}, 'drafting': {'drafting': 'on'},
              'velocity_reuse': {'velocity_reuse': REUSED}}
ALL = {key: value for setting in TECHNIQUES.values() for key, value in setting.items()}


class NotAvailable(Exception):
    """A row can not be measured here; the text says why."""


@dataclass(frozen=True)
class Row:
    """
    One row: its `settings` are those that differ from `PLAIN`.

    With `graphs` it runs on captured graphs and fused kernels, `low_bit` with
    quantised weights of the language model.
    """

    name: str
    says: str
    settings: dict = field(default_factory=dict)
    graphs: bool = True
    low_bit: bool = False

    @property
    def streams(self) -> bool:
        """Say whether a step computes only what is new; else the engine forgets every frame."""
        return self.settings.get('streaming', False)

    @property
    def drafts(self) -> bool:
        """Say whether reasoning is drafted."""
        return self.settings.get('drafting') == 'on'

    def config(self, *, cuda: bool, quantization: str, **given) -> EngineConfig:
        """Settings of the engine; raises `NotAvailable` when it lacks one that this row needs."""
        wanted = {**PLAIN, **SWITCHED, **self.settings, **given}
        if self.graphs and cuda:
            wanted |= {'graphs': 'on', 'fusion': 'on'}
        if self.low_bit:
            wanted['quantization'] = quantization
        known = {f.name for f in fields(EngineConfig)}
        lacking = sorted(name for name in set(wanted) - known if wanted[name] != SWITCHED[name])
        if lacking:
            raise NotAvailable(f'the engine has no setting {", ".join(lacking)}')
        return EngineConfig(**{k: v for k, v in wanted.items() if k in known})


RELEASED = 'released'
ROWS = {row.name: row for row in (
    Row(RELEASED, 'transformers, autocast, as the released code works', graphs=False),
    Row('eager', 'this engine, everything off', graphs=False),
    Row('graphs', 'graphs and fused kernels, no algorithm'),
    Row('streaming', 'and only what is new is encoded and prefilled', TECHNIQUES['streaming']),
    Row('drafting', 'graphs, and reasoning drafted in blocks', TECHNIQUES['drafting']),
    Row('velocity_reuse', 'graphs, and 4 of 8 velocities reused', TECHNIQUES['velocity_reuse']),
    Row('low_bit', 'graphs, and a low-bit language model', low_bit=True),
    Row('all', 'all of these but low bit', ALL),
    Row('all_low_bit', 'all of these', ALL, low_bit=True),
    Row('all_low_bit_expert', 'all of these, the expert in low bit too',
        {**ALL, 'quantize_expert': True}, low_bit=True))}
ON_CPU = ('released', 'eager', 'streaming', 'drafting', 'velocity_reuse', 'all')
"""On a CPU there are no graphs: techniques stand alone on top of `eager`."""
