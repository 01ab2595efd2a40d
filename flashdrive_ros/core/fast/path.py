"""What an engine uses in place of the plain path: fused operations, and graphs."""
from __future__ import annotations

import logging
from types import ModuleType

import torch

from ..config import EngineConfig
from ..drafter import Drafter
from ..graphs import GraphPool
from ..model import Alpamayo
from ..plan_features import FeatureChoice
from ..prompt import PromptLayout
from . import reference
from .vision import FastVision
from .window import FastStream

log = logging.getLogger(__name__)


class FastPath:
    """Stages of static shape, made of `operations`, in the graphs of `pool`."""

    def __init__(self, model: Alpamayo, drafter: Drafter | None, operations: ModuleType,
                 pool: GraphPool):
        self.model, self.drafter, self.operations, self.pool = model, drafter, operations, pool
        self.encode = FastVision(model, operations, pool)

    @classmethod
    def wanted(cls, model: Alpamayo, drafter: Drafter | None,
               config: EngineConfig) -> FastPath | None:
        """Path that `config` asks for; None for the plain one."""
        on_cuda = model.device.type == 'cuda'
        graphs, fusion = (setting == 'on' or (setting == 'auto' and on_cuda)
                          for setting in (config.graphs, config.fusion))
        if not graphs and not fusion:
            return None
        return cls(model, drafter, operations(fusion, model.device),
                   GraphPool(model.device, graphs))

    def stream(self, layout: PromptLayout, tail_slots: int,
               window_drafter: Drafter | None,
               choice: FeatureChoice | None = None) -> FastStream:
        """Stream of a prompt, as `PromptStream`."""
        return FastStream(self.model, layout, tail_slots, self.operations, self.pool, self.drafter,
                          window_drafter, choice)


def operations(fusion: bool, device: torch.device) -> ModuleType:
    """Module of the operations: Triton's where wanted and possible, else plain torch."""
    if not fusion or device.type != 'cuda':
        return reference
    try:
        from . import kernels
    except ImportError as error:
        log.warning('no fused kernels: %s', error)
        return reference
    return kernels
