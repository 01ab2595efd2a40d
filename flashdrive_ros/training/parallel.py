"""One process, or several that were started by torchrun or `accelerate launch`."""
from __future__ import annotations

import os

import torch
from torch import nn


class Workgroup:
    """Rank and size of the run; needs `accelerate` when there are several processes."""

    def __init__(self, device: str):
        self.size = int(os.environ.get('WORLD_SIZE', '1'))
        self.rank, self.device, self.accelerator = 0, None, None
        if self.size > 1:
            try:
                from accelerate import Accelerator
            except ModuleNotFoundError:
                raise RuntimeError('several processes need accelerate: pip install '
                                   'accelerate') from None
            self.accelerator = Accelerator(cpu=device == 'cpu')
            self.rank = self.accelerator.process_index
            self.device = self.accelerator.device

    @property
    def is_main(self) -> bool:
        """Whether this process logs, validates and saves."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """`module` with gradients averaged over the processes."""
        return module if self.accelerator is None else self.accelerator.prepare_model(module)

    def agree(self, value: float) -> float:
        """Return the main process's number everywhere, so that all stop together."""
        if self.accelerator is None:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        torch.distributed.broadcast(shared, 0)
        return float(shared)
