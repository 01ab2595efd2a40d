"""Flow matching in the action expert: all its steps as one stage."""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..action import integrate
from ..quantization.products import Product
from ..reasoning import Reasoned
from ..rotary import decoder_rotary
from .reference import HeadNorms, Rotation, Store
from .stack import Stack

if TYPE_CHECKING:
    from .window import FastStream


class Flow:
    """
    Noise to controls of K samples that share one reasoning.

    Action tokens attend to the stream's slots before `visible`, and to their own
    sample's; the first of them has the position of slot `first`.
    """

    def __init__(self, stream: FastStream):
        self.stream, model = stream, stream.model
        self.model, self.config = model, model.config.action
        self.stack = Stack(model.expert, stream.ops)
        device = model.device
        self.first, self.visible = (torch.zeros((), dtype=torch.long, device=device)
                                    for _ in range(2))
        self.frequencies = model.frequencies()
        tail = stream.cache.capacity - stream.cache.prompt_slots + 1
        positions = stream.layout.next_position + torch.arange(
            tail + self.config.n_waypoints, device=device)
        self.cos, self.sin = decoder_rotary(positions.expand(3, -1), model.config.expert,
                                            model.dtype)
        self.noise: dict[int, Tensor] = {}
        self.controls: dict[int, Tensor] = {}

    def serves(self, reasoned: Reasoned) -> bool:
        """Say whether this model's samples can be drawn here: not each with its own reasoning."""
        return reasoned.tails is None and self.model.config.expert_non_causal_attention

    def run(self, reasoned: Reasoned, noise: Tensor, steps: int,
            reuse: tuple[int, ...]) -> Tensor:
        """Controls [K, N, 2] from `noise` [K, N, 2]; see `action.integrate`."""
        samples = len(noise)
        self.first.fill_(reasoned.first_action_slot[0])
        self.visible.fill_(reasoned.visible[0])
        if samples not in self.noise:
            self.noise[samples], self.controls[samples] = noise.clone(), torch.empty_like(noise)
        self.noise[samples].copy_(noise)
        self.stream.stages.run(('flow', samples, steps, reuse),
                               lambda: self._flow(samples, steps, reuse))
        return self.controls[samples]

    def _flow(self, samples: int, steps: int, reuse: tuple[int, ...]) -> None:
        """Stage: all Euler steps."""
        model, expert = self.model, self.model.config.expert
        count = samples * self.config.n_waypoints
        rows = torch.arange(count, device=self.first.device)
        at = self.first - self.stream.cache.prompt_slots + rows % self.config.n_waypoints
        shape = (expert.num_key_value_heads, count, expert.head_dim)
        k, v = (torch.empty(shape, dtype=model.dtype, device=rows.device) for _ in range(2))
        attend = ActionAttention(self, Rotation(self.cos, self.sin, at), Store(k, v, rows),
                                 samples)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            tokens = model.action_in_proj(x, t, self.frequencies)
            hidden = self.stack(tokens.flatten(0, 1), attend)
            return model.action_out_proj(hidden).float().view_as(x)
        self.controls[samples].copy_(integrate(velocity, self.noise[samples], steps, reuse=reuse))


class ActionAttention:
    """Action tokens of K samples behind one shared prefix."""

    def __init__(self, flow: Flow, rotation: Rotation, own: Store, samples: int):
        self.flow, self.rotation, self.own, self.samples = flow, rotation, own, samples

    def __call__(self, layer: int, product: Product, norms: HeadNorms, last: int) -> Tensor:
        """Store and attend; see `stack.Attend`."""
        ops, cache = self.flow.stream.ops, self.flow.stream.cache
        q = ops.store_heads(product, norms, self.rotation, self.own)
        return ops.shared_attention(q, cache.k[layer], cache.v[layer], self.flow.visible, self.own,
                                    self.samples)
