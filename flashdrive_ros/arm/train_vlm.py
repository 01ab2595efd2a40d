"""Train the arm's VLM on expert episodes: next tokens, with neighbouring coordinates alike."""
from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import checkpoint
from ..core.model import Alpamayo
from ..core.primitives.coordinates import BINS
from ..core.tokenizer import Tokenizer
from ..training.forward import Geometry, forward
from ..training.initialise import initialise
from . import vlm

SOFT_BINS = 1.5
"""Standard deviation of the label around a coordinate's bin."""
SHARES = {'2d3d': 0.75, '3d': 0.2, 'text': 0.05}


class Texts:
    """Questions and answers of all samples in all forms, as ids."""

    def __init__(self, tokenizer: Tokenizer, rows: dict, device: torch.device):
        whole, asked = [], []
        for form in vlm.FORMS:
            for i in range(len(rows['step'])):
                question = tokenizer.encode(vlm.asked(str(rows['instruction'][i]), form))
                whole.append(torch.tensor(question + tokenizer.encode(vlm.answer(
                    str(rows['subtask'][i]), form, rows['uv'][i], rows['metres'][i]))))
                asked.append(len(question))
        self.ids = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True).to(device)
        self.length = torch.tensor([len(w) for w in whole], device=device)
        self.asked = torch.tensor(asked, device=device)
        self.count = len(rows['step'])

    def take(self, at: Tensor, form: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        Ids [B, N] of samples `at` [B] in forms [B] (indexes of `FORMS`).

        Also their number [B] and that of the questions' [B].
        """
        rows = form * self.count + at
        length = self.length[rows]
        return self.ids[rows, :int(length.max())], length, self.asked[rows]


def loss_of(logits: Tensor, labels: Tensor, first: int) -> Tensor:
    """Cross entropy of `logits` [n, V]; coordinates (ids from `first`) have soft labels."""
    log = logits.float().log_softmax(-1)
    number = (labels >= first) & (labels <= first + BINS)
    plain = F.nll_loss(log[~number], labels[~number], reduction='sum')
    bins = torch.arange(BINS + 1, device=logits.device)
    off = (bins - (labels[number, None] - first)).float()
    soft = (-0.5 * (off / SOFT_BINS) ** 2).exp()
    soft = soft / soft.sum(1, keepdim=True)
    own = -(soft * log[number][:, first:first + BINS + 1]).sum()
    return (plain + own) / len(labels)


def optimisers(model: torch.nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of layers, AdamW for the rest."""
    matrices, others = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        inner = p.ndim == 2 and not name.startswith(('embed_tokens', 'lm_head')) and (
            'pos_embed' not in name and 'embedding' not in name)
        (matrices if inner else others).append(p)
    return [torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, momentum=0.95,
                             adjust_lr_fn='match_rms_adamw'),
            torch.optim.AdamW(others, lr=rate, weight_decay=0.0, betas=(0.9, 0.95))]


def train(rows: dict[str, np.ndarray], out: Path, *, minutes: float, batch: int = 32,
          rate: float = 3e-3, seed: int = 0, device: str = 'cpu', say=print) -> Path:
    """Train for `minutes` into the checkpoint `out`, whose log is beside it; returns `out`."""
    vlm.write_shape(out)
    config, file = checkpoint.read_config(out)
    tokenizer = Tokenizer.from_file(file, config)
    model = Alpamayo(config).to(device)
    initialise(model, tokenizer, seed)
    for module in (model.expert, model.action_in_proj, model.action_out_proj):
        module.requires_grad_(False)
    geometry = Geometry(model, tokenizer, (0, 1), (96, 96))
    texts, seen_all = Texts(tokenizer, rows, model.device), vlm.pictures(
        rows['main'], rows['wrist']).to(model.device)
    generator, first = torch.Generator(model.device).manual_seed(seed), tokenizer.id('0')
    steppers = optimisers(model, rate)
    weights = torch.tensor([SHARES[form] for form in vlm.FORMS], device=model.device)
    begin, step, seen, log = time.monotonic(), 0, [], []
    while (share := (time.monotonic() - begin) / 60 / minutes) < 1:
        at = torch.randint(texts.count, (batch,), generator=generator, device=model.device)
        ids, length, spoken = texts.take(at, torch.multinomial(
            weights, batch, replacement=True, generator=generator))
        hidden = forward(model, geometry, seen_all[at], (ids,)).hidden
        place = torch.arange(ids.shape[1] - 1, device=model.device)
        learned = (place >= spoken[:, None] - 1) & (place < length[:, None] - 1)
        loss = loss_of(model.lm_head(hidden[:, :-1][learned]), ids[:, 1:][learned], first)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        now = rate * min(1, (step + 1) / 40) * min(1.0, max(0.02, (1 - share) / 0.5))
        for stepper in steppers:
            for group in stepper.param_groups:
                group['lr'] = now
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        step += 1
        seen.append(loss.detach())
        if step % 25 == 0:
            log.append((step, round(float(torch.stack(seen[-25:]).mean()), 4)))
            say(f'vlm step {step} loss {log[-1][1]} {share:.0%}')
    raw = json.loads((out / 'config.json').read_text())
    raw['flashdrive'] |= {'trained': True, 'training': {
        'steps': step, 'batch': batch, 'seed': seed, 'minutes': minutes, 'loss': log[-1:]}}
    (out / 'config.json').write_text(json.dumps(raw, indent=1) + '\n')
    checkpoint.save(model.to(torch.bfloat16), out, 15 << 20)
    return out
