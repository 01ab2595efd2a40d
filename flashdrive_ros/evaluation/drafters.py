"""The drafter that belongs to a checkpoint: where it is, and engines that have it."""
from __future__ import annotations

import copy
from dataclasses import replace

import torch

from ..core import checkpoint
from ..core.drafter import Drafter
from ..core.engine import Engine
from ..errors import UserError
from .planners import Planners


def companion(model: str) -> str:
    """Directory of the drafter of a checkpoint; `UserError` where there is none."""
    checkpoint.find(model)
    directory = checkpoint.find_companion(model, checkpoint.DRAFTER_SUFFIX)
    if directory is None:
        name = f'{model}{checkpoint.DRAFTER_SUFFIX}'
        raise UserError(f'{model} has no drafter: expected a directory {name} beside it; '
                        '`flashdrive train drafter` makes one')
    return str(directory)


def engine_with_drafter(planners: Planners, model: str) -> Engine:
    """Return the engine of this process for `model`, on one thread, with its drafter."""
    engine = planners(model).engine
    torch.set_num_threads(1)  # loading a model sets others
    if engine.drafter is None:
        raise UserError(f'{model} was loaded without a drafter')
    return engine


def with_block(drafter: Drafter, size: int) -> Drafter:
    """Return the same weights, proposing text blocks of `size` tokens."""
    other = copy.copy(drafter)
    other.config = replace(drafter.config, block_size=size)
    return other
