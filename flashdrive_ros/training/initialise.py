"""Where training starts: weights that let gradients through, numbers near their neighbours."""
from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.checkpoint import clear_pads, draw_weights
from ..core.config import ActionConfig
from ..core.model import Alpamayo
from ..core.primitives.coordinates import BINS
from ..core.tokenizer import Tokenizer

EMBEDDING_STD = 0.05
HEAD_STD = 0.02
CYCLES = (0.5, 64.0)
"""Slowest and fastest wave along a range of numbers in its tokens' embeddings."""
LEAST_STD = (0.1, 1e-3)
"""Of acceleration, m/s^2, and curvature, 1/m."""
_INTO_RESIDUAL = ('o_proj.weight', 'down_proj.weight', 'attn.proj.weight', 'linear_fc2.weight')


@torch.no_grad()
def initialise(model: Alpamayo, tokenizer: Tokenizer, seed: int) -> None:
    """Fill `model` with seeded weights to train from."""
    generator = torch.Generator(model.device).manual_seed(seed)
    depths = {'language_model': model.config.text.num_hidden_layers,
              'expert': model.config.expert.num_hidden_layers,
              'visual': model.config.vision.depth}

    def std_of(name: str, parameter: Tensor) -> float:
        if name.startswith(('embed_tokens', 'visual.pos_embed')):
            return EMBEDDING_STD
        if name.startswith(('lm_head', 'action_out_proj')):
            return HEAD_STD
        std = parameter.shape[-1] ** -0.5
        if name.endswith(_INTO_RESIDUAL) and ('.layers.' in name or '.blocks.' in name):
            std *= (2 * depths[name.partition('.')[0]]) ** -0.5
        return std
    draw_weights(model, generator, std_of)
    prompt = model.config.prompt
    for first, count in ((prompt.history_token_start, prompt.history_bins),
                         (tokenizer.id('0'), BINS + 1)):
        for table, std in ((model.embed_tokens.weight, EMBEDDING_STD),
                           (model.lm_head.weight, HEAD_STD)):
            table[first:first + count] = number_line(count, table.shape[1], generator) * std
    clear_pads(model)


def number_line(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows [count, width] of unit variance in which neighbours are alike: mixed sines."""
    waves = 24
    device = generator.device
    cycles = torch.logspace(*torch.tensor(CYCLES).log10().tolist(), waves, device=device)
    angle = 2 * torch.pi * torch.linspace(0, 1, count, device=device)[:, None] * cycles
    features = torch.cat((angle.sin(), angle.cos()), 1) * waves ** -0.5
    return features @ torch.randn(2 * waves, width, generator=generator, device=device)


def fit_actions(controls: Tensor, action: ActionConfig) -> ActionConfig:
    """
    `action` with the normalisation of physical `controls` [n, 64, 2].

    Too few windows may all stand still or go straight: spreads are no smaller
    than `LEAST_STD`.
    """
    flat = controls.double().flatten(0, -2)
    mean = flat.mean(0)
    std = flat.std(0).maximum(flat.new_tensor(LEAST_STD))
    return replace(action, accel_mean=float(mean[0]), accel_std=float(std[0]),
                   curvature_mean=float(mean[1]), curvature_std=float(std[1]))
