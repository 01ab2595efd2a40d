"""
Correctness beside speed: what a row computes against the plain path, on the same windows.

The oracle is the engine with everything off but the row's own algorithm (streaming, drafting,
velocity reuse), same weights, noise and draws; so only rounding, and low bits, may differ.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.engine import Engine
from .measure import Driver, Load
from .rows import Row

WINDOWS = 3


@dataclass(frozen=True)
class Outcome:
    """
    What a row made of the last of a few windows.

    `keys`, `values` [layers, kv_heads, n, d] of the prompt's slots behind its images, which
    all that follows attends to; token ids; waypoints [K, N, 3].
    """

    keys: Tensor
    values: Tensor
    tokens: tuple[int, ...]
    xyz: np.ndarray


def outcome(engine: Engine, load: Load, streams: bool) -> Outcome:
    """
    Drive a few windows from a reset, the likeliest tokens taken; the engine is reset after.

    Sampled ones would tell little: with random weights all of the vocabulary is as likely.
    """
    greedy = engine.config.greedy
    engine.configure(greedy=True)
    engine.reset('comparison')
    driver = Driver(engine, load, streams)
    for _ in range(WINDOWS):
        plan, _ = driver.step()
    stream = engine.streams['guided']
    suffix = slice(stream.layout.suffix, stream.layout.size)
    keys, values = (t[:, :, suffix].to('cpu', torch.float32, copy=True)
                    for t in (stream.cache.k, stream.cache.v))
    engine.configure(greedy=greedy)
    engine.reset('comparison')
    return Outcome(keys, values, plan.reasoning.token_ids, plan.xyz)


def compare(found: Outcome, expected: Outcome) -> dict:
    """Relative deviation of keys and values, share of equal tokens, distance of waypoints in m."""
    same = [a == b for a, b in zip(found.tokens, expected.tokens)]
    longest = max(len(found.tokens), len(expected.tokens), 1)
    return {'keys': _relative(found.keys, expected.keys),
            'values': _relative(found.values, expected.values),
            'equal_tokens': sum(same) / longest,
            'waypoints_m': float(np.linalg.norm(found.xyz - expected.xyz, axis=-1).mean())}


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


class Oracles:
    """Outcomes of the plain path, made once for each set of algorithms."""

    def __init__(self):
        self.found: dict[tuple, Outcome] = {}

    @staticmethod
    def key(row: Row) -> tuple:
        """The algorithms of a row."""
        return row.streams, row.drafts, tuple(row.settings.get('velocity_reuse', ()))

    def make(self, engine: Engine, load: Load, rows) -> None:
        """Have the plain `engine` compute what `rows` will be compared with."""
        for row in rows:
            streams, drafts, reuse = key = self.key(row)
            if key in self.found or (drafts and engine.drafter is None):
                continue
            engine.configure(streaming=streams, drafting='on' if drafts else 'off',
                             velocity_reuse=reuse, num_trajectories=1, **load.tokens(row))
            self.found[key] = outcome(engine, load, streams)

    def check(self, engine: Engine, load: Load, row: Row) -> dict | None:
        """Compare an engine with its oracle; None when there is none."""
        expected = self.found.get(self.key(row))
        return None if expected is None else compare(
            outcome(engine, load, row.streams), expected)

    def check_released(self, pipeline, suffix: slice) -> dict | None:
        """Compare the keys and values of the released pipeline's last window."""
        expected = self.found.get((False, False, ()))
        if expected is None:
            return None
        layers = pipeline.cache.layers
        keys, values = (torch.stack([getattr(layer, name)[0, :, suffix].float().cpu()
                                     for layer in layers]) for name in ('keys', 'values'))
        return {'keys': _relative(keys, expected.keys),
                'values': _relative(values, expected.values)}


