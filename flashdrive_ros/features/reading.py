"""Features out of a message or of a plan, as arrays."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

SEGMENTS = {'question': 0, 'subtask': 1, 'trajectory': 2, 'image': 3, 'other': 255}
"""Segments and their ids, as in PlanFeatures.msg."""
DTYPES = ('float32', 'float16', 'bfloat16')
"""Number types, each at its constant of PlanFeatures.msg."""
_STORED = {'float32': '<f4', 'float16': '<f2', 'bfloat16': '<u2'}


class FeatureError(ValueError):
    """Features are malformed, or not what an interface needs; the text says which."""


@dataclass(frozen=True)
class Features:
    """
    Hidden states of one plan.

    `values` [layers, tokens, hidden] float32; `layer_ids` count as in transformers (0 is the
    embedding output).  `token_ids`, `positions`, `segment_ids` and `valid` are [tokens].
    `stamp_ns` is the time of the camera frames; it, `plan_id` and `model` are empty for
    features that came without a message.
    """

    values: np.ndarray
    layer_ids: tuple[int, ...]
    token_ids: np.ndarray
    positions: np.ndarray
    segment_ids: np.ndarray
    valid: np.ndarray
    standardised: bool = False
    decode_path: str = ''
    plan_id: int = 0
    model: str = ''
    stamp_ns: int = 0

    def select(self, segments: Sequence[str] | None = None,
               layers: Sequence[int] | None = None, valid_only: bool = False) -> Features:
        """Tokens of some segments (names) and some layers (ids, negative ones from the end)."""
        here = np.ones(len(self.valid), bool)
        if segments is not None:
            unknown = [s for s in segments if s not in SEGMENTS]
            if unknown:
                raise FeatureError(f'no segment {unknown[0]!r}, there are {", ".join(SEGMENTS)}')
            here &= np.isin(self.segment_ids, [SEGMENTS[s] for s in segments])
        if valid_only:
            here &= self.valid
        rows = range(len(self.layer_ids)) if layers is None else [self._row(n) for n in layers]
        chosen = {name: getattr(self, name)[here] for name in (
            'token_ids', 'positions', 'segment_ids', 'valid')}
        return replace(self, values=self.values[list(rows)][:, here],
                       layer_ids=tuple(self.layer_ids[i] for i in rows), **chosen)

    def _row(self, layer: int) -> int:
        if -len(self.layer_ids) <= layer < 0:
            return layer + len(self.layer_ids)
        if layer not in self.layer_ids:
            raise FeatureError(f'no layer {layer}, there are {list(self.layer_ids)}')
        return self.layer_ids.index(layer)


def floats(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Stored numbers as float32; bfloat16 comes as its bits in uint16."""
    if dtype not in DTYPES:
        raise FeatureError(f'number type {dtype!r}, expected one of {", ".join(DTYPES)}')
    if dtype == 'bfloat16':
        return (np.asarray(stored).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(stored).astype(np.float32)


def from_message(message) -> Features:
    """Features of a PlanFeatures message; raises `FeatureError` for one that is malformed."""
    if message.dtype >= len(DTYPES):
        raise FeatureError(f'dtype is {message.dtype}, expected 0 to {len(DTYPES) - 1}')
    dtype, shape = DTYPES[message.dtype], tuple(int(n) for n in message.shape)
    stored, data = np.dtype(_STORED[dtype]), np.frombuffer(bytes(message.data), np.uint8)
    if len(data) != np.prod(shape) * stored.itemsize:
        raise FeatureError(f'data has {len(data)} bytes, shape {list(shape)} of {dtype} needs '
                           f'{int(np.prod(shape)) * stored.itemsize}')
    time = message.header.stamp
    return _features(message, floats(data.view(stored).reshape(shape), dtype),
                     plan_id=message.plan_id, model=message.model,
                     stamp_ns=time.sec * 1_000_000_000 + time.nanosec)


def from_plan(features) -> Features:
    """Features of a plan of an engine in this process (`DrivePlan.features`)."""
    return _features(features, floats(features.values, features.dtype))


def _features(source, values: np.ndarray, **more) -> Features:
    arrays = {name: np.asarray(getattr(source, name), dtype) for name, dtype in (
        ('token_ids', np.uint32), ('positions', np.int32), ('segment_ids', np.uint8),
        ('valid', bool))}
    layers, tokens, _ = values.shape
    for name, found, expected in (('layer_ids', len(source.layer_ids), layers),
                                  *((n, len(a), tokens) for n, a in arrays.items())):
        if found != expected:
            raise FeatureError(f'{name} has {found} entries, the shape says {expected}')
    return Features(values, tuple(int(n) for n in source.layer_ids), **arrays,
                    standardised=bool(source.standardised), decode_path=source.decode_path,
                    **more)
