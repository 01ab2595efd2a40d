"""
What the conditioning inputs of known action models take (spec `vflash.md` section 4).

Each function takes the features of one plan and gives a batch of one.
"""
from __future__ import annotations

import numpy as np

from .reading import FeatureError, Features

EPSILON = 1e-8
COSMOS_TOKENS = 512
"""Length to which Cosmos-Predict2.5 pads and truncates its context."""


def for_cosmos(features: Features, length: int | None = COSMOS_TOKENS, layers: str = 'concat',
               pad: np.ndarray | None = None, backend: str = 'numpy'):
    """
    Context [1, N, D] for the cross-attention of Cosmos-Predict2.5.

    Every token has its layers, but for the embedding output, each standardised over its
    channels, side by side ('concat') or averaged ('mean').  That attention knows no mask, so
    tokens that are not valid are left out.  With a `length`, what is longer is cut at the end
    and what is shorter filled up with `pad` [D], zeros when None; fillers are attended to, as
    theirs are.  None: as many as there are, which the attention takes just as well.
    """
    features = _without_embedding(features.select(valid_only=True))
    values = features.values if features.standardised else _standardised(features.values)
    if layers == 'concat':
        rows = np.concatenate(list(values), -1)
    elif layers == 'mean':
        rows = values.mean(0)
    else:
        raise FeatureError(f"layers is {layers!r}, expected 'concat' or 'mean'")
    if length is not None:
        filler = np.zeros(rows.shape[1], np.float32) if pad is None else np.asarray(pad)
        if filler.shape != rows.shape[1:]:
            raise FeatureError(f'pad is {list(filler.shape)}, expected [{rows.shape[1]}]')
        filled = np.tile(filler.astype(np.float32), (length, 1))
        filled[:len(rows)] = rows[:length]
        rows = filled
    return _given(rows[None], backend)


def for_starvla_piv3(features: Features, blocks: int | None = None, length: int | None = None,
                     backend: str = 'numpy'):
    """
    States [layers, 1, N, D] and mask [1, N] for StarVLA's QwenPI_v3, whose block i reads layer i.

    The last `blocks` layers, all but the embedding output when None.  Tokens that are not valid
    are masked; with a `length`, so are those that fill up, and longer features are refused.
    """
    features = _without_embedding(features)
    count = len(features.layer_ids) if blocks is None else blocks
    if not 0 < count <= len(features.layer_ids):
        raise FeatureError(f'{count} blocks each read a layer, the features have '
                           f'{len(features.layer_ids)}: {list(features.layer_ids)}')
    states = np.where(features.valid[:, None], features.values[-count:], 0)
    mask = features.valid
    if length is not None:
        more = length - len(mask)
        if more < 0:
            raise FeatureError(f'{len(mask)} tokens do not fit into {length}')
        states, mask = np.pad(states, ((0, 0), (0, more), (0, 0))), np.pad(mask, (0, more))
    return _given(states[:, None], backend), _given(mask[None], backend)


def for_recogdrive(features: Features, backend: str = 'numpy'):
    """
    States [1, N, D] of the last layer for ReCogDrive's diffusion head.

    It knows no mask and takes the mean over the tokens too, so those that are not valid are
    left out and nothing is filled up.
    """
    features = features.select(layers=(-1,), valid_only=True)
    if not len(features.valid):
        raise FeatureError('no token is valid')
    return _given(features.values, backend)


def _without_embedding(features: Features) -> Features:
    layers = [n for n in features.layer_ids if n != 0]
    if not layers:
        raise FeatureError('the features have the embedding output only')
    return features.select(layers=layers)


def _standardised(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(-1, keepdims=True)
    return centred / (values.std(-1, ddof=1, keepdims=True) + EPSILON)


def _given(array: np.ndarray, backend: str):
    """Contiguous array or tensor, as wanted."""
    array = np.ascontiguousarray(array)
    if backend == 'numpy':
        return array
    if backend != 'torch':
        raise FeatureError(f"backend is {backend!r}, expected 'numpy' or 'torch'")
    import torch
    return torch.from_numpy(array)
