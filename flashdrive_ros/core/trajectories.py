"""From a reasoned prompt to K trajectories: flow matching in the action expert."""
from __future__ import annotations

import torch
from torch import Tensor

from .action import guide
from .branches import shared_prefix
from .config import ActionConfig
from .ego import EgoHistory
from .model import Alpamayo
from .reasoning import Reasoned
from .rotary import decoder_rotary, rotate
from .stream import PromptStream
from .unicycle import UnicycleTrajectory, decode, speed_from_history


class ActionContext:
    """
    What the action tokens of K samples attend to, and their positions.

    Everything up to the trajectory-start token of their own reasoning, and each
    other (spec `alpamayo.md` section 7).
    """

    def __init__(self, stream: PromptStream, samples: int, reasoned: Reasoned):
        self.stream, self.samples, self.tails = stream, samples, reasoned.tails
        config = stream.model.config
        device, n = stream.model.device, config.action.n_waypoints
        first = torch.tensor(reasoned.first_action_slot, device=device) + stream.layout.rope_delta
        self.positions = first[:, None] + torch.arange(n, device=device)
        cos, sin = decoder_rotary(self.positions.flatten().expand(3, -1), config.expert,
                                  stream.model.dtype)
        self.cos, self.sin = (a.view(len(first), 1, n, -1) for a in (cos, sin))
        self.visible = reasoned.visible
        self.prefix = reasoned.visible[0] if self.tails is None else stream.layout.size
        self.causal = not config.expert_non_causal_attention
        needs_mask = self.tails is not None or self.causal
        self.mask = self._mask() if needs_mask else None

    def _mask(self) -> Tensor:
        """Additive mask of own keys: of its sample's reasoning, and of the action tokens."""
        device, n = self.stream.model.device, self.stream.model.config.action.n_waypoints
        own = torch.ones(n, n, dtype=torch.bool, device=device)
        own = (own.tril() if self.causal else own).expand(self.samples, n, n)
        if self.tails is not None:
            length = self.tails.length
            seen = torch.tensor(self.visible, device=device)[:, None] - self.prefix
            valid = torch.arange(length, device=device) < seen
            own = torch.cat((valid[:, None].expand(-1, n, -1), own), -1)
        heads = self.stream.model.config.expert
        group = heads.num_attention_heads // heads.num_key_value_heads
        mask = torch.zeros(own.shape, dtype=self.stream.model.dtype, device=device)
        return mask.masked_fill_(~own, -torch.inf).repeat(1, group, 1)[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend` with batch K."""
        cache = self.stream.cache
        q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        if self.tails is not None:
            length = self.tails.length
            k = torch.cat((self.tails.k[layer, :, :, :length], k), 2)
            v = torch.cat((self.tails.v[layer, :, :, :length], v), 2)
        return shared_prefix(q, cache.k[layer, :, :self.prefix], cache.v[layer, :, :self.prefix],
                             k, v, self.mask)


class VelocityField:
    """Velocity of flow matching, optionally guided by a second prompt without navigation text."""

    def __init__(self, model: Alpamayo, context: ActionContext,
                 unguided: ActionContext | None = None, weight: float = 1.0):
        self.model, self.context, self.unguided, self.weight = model, context, unguided, weight
        self.frequencies = model.frequencies()

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """`x` [K, N, 2] and `t` [] in float32 -> velocity [K, N, 2]."""
        tokens = self.model.action_in_proj(x, t, self.frequencies)
        guided = self.velocity(tokens, self.context)
        if self.unguided is None:
            return guided
        return guide(guided, self.velocity(tokens, self.unguided), self.weight)

    def velocity(self, tokens: Tensor, context: ActionContext) -> Tensor:
        """Velocity [K, N, 2] of the expert for action `tokens` [K, N, hidden]."""
        return self.model.action_out_proj(self.model.expert(tokens, context)).float()


def draw_noise(samples: int, waypoints: int, temperature: float,
               generator: torch.Generator) -> Tensor:
    """Initial noise [K, N, 2] in float32 on the generator's device."""
    return temperature * torch.randn(samples, waypoints, 2, generator=generator,
                                     device=generator.device)


def start_of(ego: EgoHistory, config: ActionConfig) -> Tensor:
    """The ego's speed in m/s and height in m at t0, [2]."""
    xyz = torch.as_tensor(ego.xyz, dtype=torch.float32)
    rot = torch.as_tensor(ego.rot, dtype=torch.float32)
    return torch.stack((speed_from_history(xyz[None], rot[None], config)[0], xyz[-1, 2]))


def drive(controls: Tensor, ego: EgoHistory, config: ActionConfig) -> UnicycleTrajectory:
    """Trajectories of normalised `controls` [K, N, 2], from the ego's speed and height at t0."""
    return drive_from(start_of(ego, config), controls.cpu(), config)


def drive_from(start: Tensor, controls: Tensor, config: ActionConfig) -> UnicycleTrajectory:
    """Trajectories of normalised `controls` [K, N, 2] from `start` (see `start_of`)."""
    speed, height = start[:, None].expand(-1, len(controls))
    return decode(controls, speed, height, config)
