"""
Held-out windows: how far the plans are from what the expert did, and whether the cause is right.

minADE as in spec `alpamayo.md` section 9: distance in x and y, mean over 6.4 s, the
best of k samples.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import unicycle
from ..core.action import integrate
from ..core.model import Alpamayo
from ..core.tokenizer import Tokenizer
from ..world.reason import CAUSES
from .causes import cause_named
from .decoding import decode, greedy
from .forward import ActionAttention, Geometry, Keys, forward, velocity
from .losses import join, roll_out
from .store import Batch


@dataclass(frozen=True)
class ValidationConfig:
    """`chunk` windows are computed at a time."""

    samples: int = 6
    flow_steps: int = 8
    chunk: int = 64
    max_new_tokens: int = 32


@dataclass(frozen=True)
class Reasoned:
    """Prompts with chosen text `ids` [B, n]; `length` [B] counts the trajectory's start too."""

    ids: Tensor
    length: Tensor
    texts: list[str]


@torch.no_grad()
def validate(model: Alpamayo, geometry: Geometry, tokenizer: Tokenizer, batch: Batch,
             config: ValidationConfig, seed: int = 0,
             rolled: tuple[Batch, ...] = ()) -> dict[str, float]:
    """
    Measure `batch`, computed whole or streamed after the windows `rolled`.

    Returns metres and shares, and the same metres for constant velocity.
    """
    device = batch.speed.device
    generator = torch.Generator(device).manual_seed(seed)
    errors, texts = [], []
    parts = [b.split(config.chunk) for b in (*rolled, batch)]
    for *before, part in zip(*parts):
        keys = window_keys(model, geometry, part, before)
        reasoned = reason(model, geometry, tokenizer, part, keys, config.max_new_tokens)
        xy = plan(model, geometry, part, keys, reasoned, config, generator)
        errors.append((xy - part.future[:, None, :, :2]).norm(dim=-1))
        texts += reasoned.texts
    error = torch.cat(errors)  # [B, samples, 64]
    mean = error.mean(-1)
    still = (constant_velocity(batch) - batch.future[..., :2]).norm(dim=-1)
    best = error.gather(1, mean.argmin(1)[:, None, None].expand(-1, 1, error.shape[-1]))[:, 0]
    named = [cause_named(text) for text in texts]
    truth = [CAUSES[i] for i in batch.cause.tolist()]
    result = {'minADE1': mean[:, 0].mean(), 'minADE6': mean.min(1).values.mean(),
              'constant_velocity': still.mean(),
              'cause_right': sum(a == b for a, b in zip(named, truth)) / len(truth),
              'windows': len(batch)}
    for seconds in (1, 3, 5):
        result[f'minADE6_{seconds}s'] = best[:, :10 * seconds].mean()
    for cause in sorted(set(truth)):
        chosen = [a == b for a, b in zip(named, truth) if b == cause]
        result[f'cause_right/{cause}'] = sum(chosen) / len(chosen)
    return {name: float(value) for name, value in result.items()}


def window_keys(model: Alpamayo, geometry: Geometry, window: Batch, before=()) -> Keys:
    """Keys of a window, computed whole or streamed after the windows `before`."""
    if not before:
        return forward(model, geometry, window.images).keys
    past = roll_out(model, geometry, before)
    return forward(model, geometry, window.images[:, :, -1:], past=past).keys


def reason(model: Alpamayo, geometry: Geometry, tokenizer: Tokenizer, window: Batch, keys: Keys,
           max_new_tokens: int) -> Reasoned:
    """Likeliest reasoning of every window, up to and with the start of the trajectory."""
    last = tokenizer.id('traj_future_start')
    said, count = decode(model, geometry, keys, window.prompt_ids, window.prompt_length,
                         max_new_tokens, (last,), model.allowed_tokens(trajectory_tokens=False),
                         greedy)
    said[:, -1].masked_fill_(count == max_new_tokens, last)  # the trajectory starts all the same
    length = window.prompt_length + count.to(window.prompt_length.dtype)
    ids = join(window.prompt_ids, window.prompt_length, said, count, int(length.max())).ids
    written = [tokenizer.decode(row[int(p):int(n)].tolist())
               for row, p, n in zip(ids, window.prompt_length, length)]
    return Reasoned(ids, length, [text.partition('<|cot_end|>')[0].strip() for text in written])


def plan(model: Alpamayo, geometry: Geometry, window: Batch, keys: Keys, reasoned: Reasoned,
         config: ValidationConfig, generator: torch.Generator) -> Tensor:
    """Waypoints [B, samples, 64, 2] m in the ego frame, from noise by flow matching."""
    action = model.config.action
    width = int(reasoned.length.max())
    keys = forward(model, geometry, None, (reasoned.ids[:, :width],), keys).keys
    attend = ActionAttention(geometry, keys, reasoned.length, width, config.samples,
                             action.n_waypoints)
    shape = len(window), config.samples, action.n_waypoints, 2
    noise = torch.randn(shape, generator=generator, device=window.speed.device)
    controls = integrate(lambda x, t: velocity(model, attend, x, t.expand(shape[:2])), noise,
                         config.flow_steps)
    flat = controls.float().flatten(0, 1)
    speed = window.speed.repeat_interleave(config.samples)
    decoded = unicycle.decode(flat, speed, torch.zeros_like(speed), action)
    return decoded.xyz[..., :2].unflatten(0, shape[:2])


def constant_velocity(window: Batch) -> Tensor:
    """Waypoints [B, 64, 2] m of driving straight on at the speed of t0."""
    times = 0.1 * torch.arange(1, window.future.shape[1] + 1, device=window.speed.device)
    ahead = window.speed[:, None] * times
    return torch.stack((ahead, torch.zeros_like(ahead)), -1)
