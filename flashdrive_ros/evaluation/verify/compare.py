"""Comparisons that several stages of a golden case share."""
from __future__ import annotations

import numpy as np
import torch

from . import tolerances
from .golden import GoldenFile
from .report import Report
from .rollout import Row


def check_keys(golden: GoldenFile, name: str, caches: dict[str, list[torch.Tensor]], pad: int,
               report: Report) -> None:
    """
    Statistics, last entries and probes of cached keys and values.

    `caches['k' or 'v']` are [layers, kv_heads, n, d], one a row without padding;
    probes are of row 0, at positions that count its `pad`.
    """
    positions = f'{name}_k_probe_positions'
    probed = golden[positions] - pad if positions in golden else None
    for kind, rows in caches.items():
        stats, last = f'{name}_{kind}_mean_std_absmax', f'{name}_{kind}_last4'
        probe = f'{name}_{kind}_probe_head0_b0'
        if stats in golden:
            flat = torch.cat([r.flatten(1) for r in rows], 1).double()
            found = torch.stack((flat.mean(1), flat.std(1), flat.abs().amax(1)), 1)
            report.close(stats, found, golden[stats], tolerances.KEYS)
        if last in golden:
            report.close(last, torch.stack([r[:, :, -4:] for r in rows], 1), golden[last],
                         tolerances.KEYS)
        if probe in golden and probed is not None:
            real = probed >= 0
            report.close(probe, rows[0][:, 0, probed[real]], golden[probe][:, real],
                         tolerances.KEYS, '' if real.all() else f'{(~real).sum()} in padding')


def padded(values, rows: list[Row], fill=0) -> np.ndarray:
    """Left-pad one array [S] per row to the batch's common length."""
    return np.stack([np.pad(np.asarray(v), (r.pad, 0), constant_values=fill)
                     for v, r in zip(values, rows)])
