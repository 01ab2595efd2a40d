"""Errors of sampled trajectories against the way that was driven."""
from __future__ import annotations

import numpy as np
import torch

from .metrics import HORIZONS, least_average_displacement


def errors(xy: np.ndarray, truth: np.ndarray) -> dict:
    """
    ADE of K trajectories `xy` [K, 64, 2] against `truth` [64, 2 or more], also by horizon, m.

    'ade' is the mean over the K samples: what one sample errs on average,
    which is minADE1.  'min_ade' is that of the sample that is best over all
    6.4 s, at the shorter horizons too (spec `alpamayo.md` section 9).
    """
    predicted = torch.as_tensor(np.asarray(xy, np.float64))[None, None]
    target = torch.as_tensor(np.asarray(truth, np.float64)[None, :, :2])
    best = least_average_displacement(predicted, target)
    each = np.linalg.norm(np.asarray(xy, np.float64) - np.asarray(truth)[None, :, :2], axis=-1)
    return {'ade': float(each.mean()), 'min_ade': float(best['min_ade'][0]),
            'ade_by': {name: float(each[:, :steps].mean()) for name, steps in BY.items()},
            'min_ade_by': {name: float(best[f'min_ade/by_t={steps / 10:.1f}'][0])
                           for name, steps in BY.items()}}


BY = {f'{steps / 10:g}': steps for steps in HORIZONS}
"""Horizons in seconds, as they are named in results, and their steps."""
