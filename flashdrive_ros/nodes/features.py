"""The features of a plan as a message, within what shared memory carries."""
from __future__ import annotations

import array

import numpy as np

from flashdrive_ros import msg

from ..core import types
from .messages import header_of

BUDGET_MB = 16.0
"""Largest message that config/large_images.xml lets through shared memory (maxMessageSize)."""
_DTYPES = {'float32': msg.PlanFeatures.FLOAT32, 'float16': msg.PlanFeatures.FLOAT16,
           'bfloat16': msg.PlanFeatures.BFLOAT16}


def features_message(plan: types.DrivePlan, frame_id: str,
                     budget_mb: float = BUDGET_MB) -> msg.PlanFeatures:
    """
    Features of a plan that has some.

    Raises `InputError` when their numbers take more than `budget_mb` (MiB).
    """
    features = plan.features
    size_mb, shape = features.values.nbytes / 2**20, features.values.shape
    if size_mb > budget_mb:
        raise types.InputError(
            f'{size_mb:.1f} MB of features ({shape[0]} layers, {shape[1]} tokens, {shape[2]} '
            f'channels of {features.dtype}) exceed feature_budget_mb = {budget_mb:g}: choose '
            'fewer feature_layers or feature_segments, or raise it together with maxMessageSize '
            'and segment_size of config/large_images.xml, where '
            f'{BUDGET_MB:g} MB is the most that shared memory carries')
    values = features.values
    return msg.PlanFeatures(
        header=header_of(plan, frame_id), plan_id=plan.plan_id, model=plan.model,
        decode_path=features.decode_path, dtype=_DTYPES[features.dtype],
        shape=np.array(shape, np.uint32),
        data=array.array('B', values.astype(values.dtype.newbyteorder('<')).tobytes()),
        layer_ids=array.array('H', features.layer_ids),
        token_ids=array.array('I', features.token_ids.astype(np.uint32).tobytes()),
        positions=array.array('i', features.positions.astype(np.int32).tobytes()),
        segment_ids=array.array('B', features.segment_ids.astype(np.uint8).tobytes()),
        valid=features.valid.tolist(), standardised=features.standardised)
