"""What the compared action heads get of a plan, and the training of one of them."""
from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .head import ActionHead
from .plans import SUBTASK, TRAJECTORY, Planner, Plans
from .timing import CHUNK, CHUNKS_PER_PLAN
from .vlm import pictures

HEADS = 'arm-heads'
"""Folder of the heads, beside that of the VLM."""


@dataclass(frozen=True)
class Variant:
    """`form` of the plan ('' none), from one draft or not, and the segments that are shown."""

    form: str = ''
    flash: bool = True
    segments: tuple[int, ...] = (SUBTASK, TRAJECTORY)


VARIANTS = {
    'no_features': Variant(),
    'autoregressive': Variant('2d3d', flash=False),
    'flash_no_trajectory': Variant('text', segments=(SUBTASK,)),
    'flash_3d': Variant('3d'),
    'flash_2d3d': Variant('2d3d')}
"""Every head sees images and question of the newest look; these differ in the plan."""


def plan(planner: Planner, variant: Variant, seen: Tensor, told: Sequence[str]) -> Plans | None:
    """Make the plan that a variant's head attends to; None when it gets none."""
    if not variant.form:
        return None
    return planner.plans(seen, told, variant.form, variant.flash).keep(*variant.segments)


def features(rows: dict, ask, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Features [N, K, hidden] and segments [N, K] of all samples, from `ask(pictures, told)`."""
    parts = []
    for first in range(0, len(rows['step']), batch):
        at = slice(first, first + batch)
        parts.append(ask(pictures(rows['main'][at], rows['wrist'][at]),
                         [str(t) for t in rows['instruction'][at]]))
    most = max(p.features.shape[1] for p in parts)

    def fill(tensor, value):
        room = tensor.new_full((len(tensor), most, *tensor.shape[2:]), value)
        room[:, :tensor.shape[1]] = tensor
        return room
    return (torch.cat([fill(p.features.half(), 0) for p in parts]),
            torch.cat([fill(p.segments, -1) for p in parts]))


def train(rows: dict, name: str, planner: Planner, looks: tuple[Tensor, Tensor], out: Path, *,
          minutes: float, batch: int = 64, rate: float = 2e-3, seed: int = 0, say=print) -> Path:
    """Train the head of variant `name` into `out`; the VLM is frozen, its plans its own."""
    torch.manual_seed(seed)
    variant, period = VARIANTS[name], CHUNK * CHUNKS_PER_PLAN
    planned = np.flatnonzero(rows['step'] % period == 0)
    plans, row_of = None, np.zeros(len(rows['step']), int)
    if variant.form:
        own = {key: rows[key][planned] for key in ('main', 'wrist', 'instruction', 'step')}
        plans = features(own, lambda seen, told: plan(planner, variant, seen, told))
        place = {(rows['episode'][i], rows['step'][i]): k for k, i in enumerate(planned)}
        row_of = np.array([place[e, s - s % period] for e, s in zip(
            rows['episode'], rows['step'])])
    device = planner.device
    state, actions = (torch.from_numpy(rows[k]).float().to(device) for k in (
        'state', 'actions'))
    age = torch.from_numpy(rows['step'] % period // CHUNK).to(device)
    row_of = torch.from_numpy(row_of).to(device)
    head = ActionHead(planner.model.config.text.hidden_size).to(device)
    head.scale.copy_(head.normal(actions, state).flatten(0, 1).std(0).clamp(min=1e-3))
    stepper = torch.optim.AdamW(head.parameters(), rate, weight_decay=0.01)
    begin, step, seen = time.monotonic(), 0, []
    while (share := (time.monotonic() - begin) / 60 / minutes) < 1:
        at = torch.randint(len(state), (batch,), device=device)
        memory = head.memory((looks[0][at].float(), looks[1][at]), plans and (
            plans[0][row_of[at]].float(), plans[1][row_of[at]]))
        loss = head.loss(actions[at], state[at], age[at], memory)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        stepper.param_groups[0]['lr'] = rate * min(1, (step + 1) / 50) * min(
            1.0, max(0.02, (1 - share) / 0.6))
        stepper.step()
        stepper.zero_grad(set_to_none=True)
        step += 1
        seen.append(loss.detach())
        if step % 50 == 0:
            say(f'{name} step {step} loss {torch.stack(seen[-50:]).mean():.4f} {share:.0%}')
    out.mkdir(parents=True, exist_ok=True)
    weights = {k: v.half().cpu() for k, v in head.state_dict().items()}
    save_file(weights, out / f'{name}.safetensors')
    (out / f'{name}.json').write_text(json.dumps({
        'steps': step, 'batch': batch, 'seed': seed, 'minutes': minutes,
        'device': device.type, 'loss': round(float(torch.stack(seen[-50:]).mean()), 5)}) + '\n')
    return out / f'{name}.safetensors'


def load(folder: Path, name: str, hidden: int) -> ActionHead:
    """Head of variant `name`; raises `FileNotFoundError` naming its file."""
    path = folder / f'{name}.safetensors'
    if not path.is_file():
        raise FileNotFoundError(f'{path} does not exist: train it with flashdrive train arm')
    head = ActionHead(hidden)
    head.load_state_dict({k: v.float() for k, v in load_file(path).items()})
    return head.eval()
