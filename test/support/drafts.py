"""Drafters whose proposals are known, and small ones with random weights."""
from dataclasses import dataclass

import torch

from flashdrive_ros.core.drafter import Drafter, DrafterConfig
from flashdrive_ros.core.speculative import Draft


def tiny_drafter(model, seed=0, **changes) -> Drafter:
    """Random weights; fits `tiny_model`."""
    config = DrafterConfig.for_target(model.config, **{'taps': 2, 'num_hidden_layers': 1,
                                                       **changes})
    return Drafter.random(config, seed).requires_grad_(False)


@dataclass(frozen=True)
class Scripted(Draft):
    """
    Proposes what is `known` to come, for each row as far as `right` says in a round.

    The proposal behind that is wrong.  `calls` counts the rounds.
    """

    known: tuple = ()
    right: tuple = ()
    done: list = None

    def propose(self, model, anchors, context, allowed):
        size, blocks = self.block_size, []
        round_ = len(self.done)
        right = min(self.right[round_ % len(self.right)], size - 1)
        for k, ids in enumerate(self.known):
            at = min(1 + sum(n + 1 for n in self.done), len(ids))
            row = [*ids[at - 1:at + right], *[0] * size][:size]
            if right < size - 1:
                row[right + 1] = (ids[at + right] if at + right < len(ids) else 0) ^ 1
            row[0] = int(anchors[k])
            blocks.append(row)
        self.done.append(right)
        return torch.tensor(blocks)
