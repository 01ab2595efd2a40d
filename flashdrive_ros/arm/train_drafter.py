"""Train the arm's drafter: all coordinates of a plan from its start token, the VLM frozen."""
from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from ..core import checkpoint
from ..core.drafter import Drafter, DrafterConfig, save
from ..core.primitives.layouts import SLOT_KINDS
from ..training.forward import encode
from . import vlm
from .plans import Planner, draft
from .train_vlm import Texts, loss_of, optimisers


def train(rows: dict[str, np.ndarray], target: Path, *, minutes: float, batch: int = 32,
          rate: float = 3e-3, seed: int = 0, device: str = 'cpu', say=print) -> Path:
    """Train a drafter for the checkpoint `target` beside it; returns its directory."""
    model, tokenizer = checkpoint.load(str(target), torch.device(device), torch.float32)
    config = DrafterConfig.for_target(model.config, taps=2, num_hidden_layers=2,
                                      target_layer_ids=(1, 2), window_context=True,
                                      slot_kinds=SLOT_KINDS)
    drafter = Drafter.random(config, seed).to(model.device).train()
    planner = Planner(model, tokenizer)
    texts, pictures = Texts(tokenizer, rows, model.device), vlm.pictures(
        rows['main'], rows['wrist']).to(model.device)
    generator, first = torch.Generator(model.device).manual_seed(seed), tokenizer.id('0')
    steppers, forms = optimisers(drafter, rate), list(vlm.FORMS)
    begin, step, seen = time.monotonic(), 0, []
    while (share := (time.monotonic() - begin) / 60 / minutes) < 1:
        form = '2d3d' if step % 3 else '3d'
        schema = planner.schemas[form]
        at = torch.randint(texts.count, (batch,), generator=generator, device=model.device)
        ids, _, _ = texts.take(at, torch.full_like(at, forms.index(form)))
        start = (ids == schema.start).int().argmax(1)
        with torch.no_grad():
            encoded = encode(model, planner.geometry, pictures[at])
        logits = draft(model, drafter, planner.geometry, encoded, ids, start, schema)
        places = torch.from_numpy(schema.layout.coordinates).to(model.device)
        labels = ids.gather(1, start[:, None] + places)
        loss = loss_of(logits[:, places - 1].flatten(0, 1), labels.flatten(), first)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        now = rate * min(1, (step + 1) / 30) * min(1.0, max(0.02, (1 - share) / 0.5))
        for stepper in steppers:
            for group in stepper.param_groups:
                group['lr'] = now
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        step += 1
        seen.append(loss.detach())
        if step % 25 == 0:
            say(f'drafter step {step} loss {torch.stack(seen[-25:]).mean():.4f} {share:.0%}')
    out = target.with_name(target.name + checkpoint.DRAFTER_SUFFIX)
    save(drafter.to(torch.bfloat16), out, flashdrive={'training': {
        'steps': step, 'batch': batch, 'seed': seed, 'minutes': minutes}})
    return out
