"""Flow matching in the action expert, from noise to trajectories, as one stage."""
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..action import held_constants, integrate
from ..quantization.products import Product
from ..reasoning import Reasoned
from ..rotary import decoder_rotary
from ..trajectories import drive_from
from ..unicycle import UnicycleTrajectory
from .reference import Ahead, HeadNorms, Rotation, Store
from .stack import Stack

if TYPE_CHECKING:
    from .window import FastStream


class Flow:
    """
    Noise to trajectories of K samples that share one reasoning.

    Action tokens attend to the stream's slots before `visible`, and to their own
    sample's; the first of them has the position of slot `first`.
    """

    def __init__(self, stream: FastStream):
        self.stream, model = stream, stream.model
        self.model, self.config = model, model.config.action
        self.stack = Stack(model.expert, stream.ops)
        device = model.device
        self.numbers = torch.zeros(2, dtype=torch.long, device=device)
        self.first, self.visible = self.numbers
        self.start = torch.zeros(2, device=device)
        self.action = held_constants(self.config, model.dtype)
        self.frequencies = model.frequencies()
        tail = stream.cache.capacity - stream.cache.prompt_slots + 1
        positions = stream.layout.next_position + torch.arange(
            tail + self.config.n_waypoints, device=device)
        self.cos, self.sin = decoder_rotary(positions.expand(3, -1), model.config.expert,
                                            model.dtype)
        self.noise: dict[int, Tensor] = {}
        self.results: dict[int, Tensor] = {}
        """Trajectories [K, N, 7] by K, in memory that the device writes to."""

    def serves(self, reasoned: Reasoned) -> bool:
        """Say whether this model's samples can be drawn here: not each with its own reasoning."""
        return reasoned.tails is None and self.model.config.expert_non_causal_attention

    def run(self, reasoned: Reasoned, noise: Tensor, steps: int, reuse: tuple[int, ...],
            start: Tensor) -> UnicycleTrajectory:
        """
        Trajectories from `noise` [K, N, 2] and the ego's `start` (`trajectories.start_of`).

        `steps` and `reuse` are those of `action.integrate`.
        """
        samples = len(noise)
        self.numbers.copy_(torch.tensor((reasoned.first_action_slot[0], reasoned.visible[0])))
        self.start.copy_(start)
        self._allocate(samples)
        self.noise[samples].copy_(noise)
        self.stream.stages.run(('flow', samples, steps, reuse),
                               partial(self._flow, samples, steps, reuse))
        if noise.device.type == 'cuda':
            torch.cuda.current_stream(noise.device).synchronize()
        result = self.results[samples].clone()
        return UnicycleTrajectory(result[..., :3], *result[..., 3:].unbind(-1))

    def prepare(self, samples: int, steps: int, reuse: tuple[int, ...]) -> None:
        """Capture the stage of these settings."""
        self._allocate(samples)
        size = self.stream.layout.size
        self.numbers.copy_(torch.tensor((size, size)))
        self.stream.stages.prepare(('flow', samples, steps, reuse),
                                   partial(self._flow, samples, steps, reuse))

    def _allocate(self, samples: int) -> None:
        if samples not in self.noise:
            shape = samples, self.config.n_waypoints
            device = self.start.device
            self.noise[samples] = torch.zeros(*shape, 2, device=device)
            self.results[samples] = torch.zeros(*shape, 7, pin_memory=device.type == 'cuda')

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
        controls = integrate(velocity, self.noise[samples], steps, reuse=reuse)
        made = drive_from(self.start, controls, self.action)
        rest = torch.stack((made.yaw, made.speed, made.acceleration, made.curvature), -1)
        self.results[samples].copy_(torch.cat((made.xyz, rest), -1), non_blocking=True)


class ActionAttention:
    """Action tokens of K samples behind one shared prefix."""

    def __init__(self, flow: Flow, rotation: Rotation, own: Store, samples: int):
        self.flow, self.rotation, self.own, self.samples = flow, rotation, own, samples

    def __call__(self, layer: int, product: Product, norms: HeadNorms, last: int,
                 ahead: Ahead | None) -> Tensor:
        """Store and attend; see `stack.Attend`."""
        ops, cache = self.flow.stream.ops, self.flow.stream.cache
        q = ops.store_heads(product, norms, self.rotation, self.own, ahead=ahead)
        return ops.shared_attention(q, cache.k[layer], cache.v[layer], self.flow.visible, self.own,
                                    self.samples)
