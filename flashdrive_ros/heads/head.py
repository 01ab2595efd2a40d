"""
A driving head: from features, history and status to waypoints in the ego frame, and back to disk.

Waypoints are standardised as what constant velocity leaves unexplained, over a scale that
grows with time as fitted to the training set; so one head gives 8 (4 s), 20 (5 s) or 64
(6.4 s) of them.
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..core.config import CheckpointError
from ..core.primitives.requests import PATHS
from .diffusion import Chain, Schedule, sample
from .network import Context, HeadConfig, HeadNetwork
from .status import STEP_S, status_of

GRID = 64
WEIGHTS, ABOUT = 'model.safetensors', 'config.json'


def times_of(points: int) -> np.ndarray:
    """Times [points] s of the waypoints; `ValueError` for a number that no layout has."""
    if points not in PATHS:
        raise ValueError(f'waypoints must be one of {", ".join(map(str, PATHS))}, got {points!r}')
    return np.arange(1, points + 1) * (PATHS[points] / points)


@dataclass(frozen=True)
class Scales:
    """
    Means and standard deviations that inputs and waypoints are standardised with.

    `spread` [64, 3] is that of x, y, yaw less constant velocity at 0.1, 0.2, … 6.4 s.
    """

    history: np.ndarray
    history_std: np.ndarray
    status: np.ndarray
    status_std: np.ndarray
    spread: np.ndarray

    @classmethod
    def fit(cls, history: np.ndarray, command: np.ndarray, future: np.ndarray) -> Scales:
        """From the histories [B, 16, 3], commands [B] and futures [B, 64, 3] of a data set."""
        past, status = (np.stack(a) for a in zip(*(
            status_of(h, int(c)) for h, c in zip(history, command))))
        left = future - coasting(status, np.arange(1, GRID + 1) * STEP_S)
        spread = np.sqrt((left ** 2).mean(0))
        return cls(past.mean(0), past.std(0) + 1e-3, status.mean(0), status.std(0) + 1e-3,
                   np.maximum(spread, 1e-3).astype(np.float32))

    def at(self, times: np.ndarray) -> np.ndarray:
        """Spread [N, 3] at times (s)."""
        grid = np.arange(1, GRID + 1) * STEP_S
        return np.stack([np.interp(times, grid, c) for c in self.spread.T], 1)


def coasting(status: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Rows x, y, yaw [B, N, 3] of those who go on at the velocity of their status [B, 8]."""
    there = np.zeros((len(status), len(times), 3), np.float32)
    there[..., :2] = status[:, None, 4:6] * times[:, None]
    return there


def resampled(future: np.ndarray, points: int) -> np.ndarray:
    """Rows [B, points, 3] at a layout's times, of `future` [B, 64, 3] with rows 0.1 s apart."""
    known = np.arange(GRID + 1) * STEP_S
    whole = np.concatenate((np.zeros_like(future[:, :1]), future), 1)
    times = times_of(points)
    left = np.clip(np.searchsorted(known, times, 'right') - 1, 0, GRID - 1)
    share = ((times - known[left]) / STEP_S)[:, None]
    return whole[:, left] * (1 - share) + whole[:, left + 1] * share


@dataclass
class Conditions:
    """Inputs of B windows as the network takes them, and their raw status [B, 8]."""

    features: Tensor
    mask: Tensor
    history: Tensor
    status: Tensor
    raw: np.ndarray


@dataclass
class DrivingHead:
    """A network with its scales and schedule; `about` says how it was trained."""

    network: HeadNetwork
    scales: Scales
    about: dict = field(default_factory=dict)

    def __post_init__(self):
        """Lay out the noise schedule."""
        config = self.network.config
        self.schedule = Schedule(config.train_steps, config.sample_steps)

    @property
    def config(self) -> HeadConfig:
        """Sizes and inputs."""
        return self.network.config

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.network.out.weight.device

    def conditions(self, states: Sequence[np.ndarray] | np.ndarray, masks: np.ndarray | None,
                   histories: np.ndarray, commands: Sequence[int]) -> Conditions:
        """
        Inputs of B windows: states [B, L, channels] with masks [B, L], or a list of [L, channels].

        `histories` [B, 16, 3] rows x, y, yaw; `commands` indexes of `status.COMMANDS`.
        """
        if masks is None:
            size = max(map(len, states))
            masks = np.array([[i < len(s) for i in range(size)] for s in states])
            states = np.stack([np.pad(s, ((0, size - len(s)), (0, 0))) for s in states])
        if states.shape[-1] != self.config.features:
            raise ValueError(f'the head reads {self.config.features} channels, '
                             f'got {states.shape[-1]}')
        past, raw = (np.stack(a) for a in zip(*(
            status_of(np.asarray(h), int(c)) for h, c in zip(histories, commands))))
        s, device = self.scales, self.device
        return Conditions(
            torch.as_tensor(states, device=device).float(),
            torch.as_tensor(masks, device=device),
            torch.as_tensor((past - s.history) / s.history_std, device=device).float(),
            torch.as_tensor((raw - s.status) / s.status_std, device=device).float(), raw)

    def context(self, conditions: Conditions) -> Context:
        """Pass what the plans of these windows share."""
        c = conditions
        return self.network.context(c.features, c.mask, c.history, c.status)

    def standardised(self, waypoints: np.ndarray, raw: np.ndarray) -> Tensor:
        """Standardise waypoints [B, N, 3] of windows with raw status [B, 8]."""
        times = times_of(waypoints.shape[1])
        left = waypoints - coasting(raw, times)
        return torch.as_tensor(left / self.scales.at(times), device=self.device).float()

    def waypoints(self, clean: Tensor, raw: np.ndarray) -> np.ndarray:
        """Rows x, y, yaw [B, R, N, 3] m, rad of standardised ones; inverse of `standardised`."""
        times = times_of(clean.shape[2])
        left = clean.detach().cpu().numpy() * self.scales.at(times)
        return left + coasting(raw, times)[:, None]

    def denoiser(self, context: Context, points: int):
        """Return what `diffusion.sample` asks for these windows."""
        times = torch.as_tensor(times_of(points), device=self.device).float()
        return lambda x, t: self.network(x, t, times, context)

    def noise(self, batch: int, samples: int, points: int, generator: torch.Generator) -> Tensor:
        """First noise [B, R, N, 3] of chains."""
        return torch.randn(batch, samples, points, 3, generator=generator).to(self.device)

    @torch.no_grad()
    def plan(self, conditions: Conditions, points: int = 20, samples: int = 1,
             seed: int = 0) -> np.ndarray:
        """
        Sample plans [B, samples, points, 3] (x, y, yaw in the ego frame at t0).

        The same seed and inputs give the same plans.
        """
        noise = self.noise(len(conditions.raw), samples, points,
                           torch.Generator().manual_seed(seed))
        denoise = self.denoiser(self.context(conditions), points)
        return self.waypoints(sample(denoise, noise, self.schedule).clean, conditions.raw)

    def chain(self, context: Context, points: int, samples: int,
              generator: torch.Generator) -> Chain:
        """Sample chains whose every step is drawn."""
        noise = self.noise(len(context.token), samples, points, generator)
        return sample(self.denoiser(context, points), noise, self.schedule, 1.0, generator)

    def save(self, folder: Path | str) -> Path:
        """Write weights (float16), sizes, scales and history of the head; returns its folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({k: v.detach().half().cpu().contiguous()
                   for k, v in self.network.state_dict().items()}, folder / WEIGHTS)
        scales = {k: np.asarray(v, np.float64).round(6).tolist()
                  for k, v in vars(self.scales).items()}
        (folder / ABOUT).write_text(json.dumps(
            {'head': self.config.as_dict(), 'scales': scales, 'training': self.about},
            indent=1) + '\n', encoding='utf-8')
        return folder

    @classmethod
    def load(cls, folder: Path | str, device: str = 'cpu') -> DrivingHead:
        """Read what `save` wrote; raises `CheckpointError` that names what is wrong."""
        folder = Path(folder)
        try:
            about = json.loads((folder / ABOUT).read_text(encoding='utf-8'))
            network = HeadNetwork(HeadConfig(**about['head']))
            scales = Scales(**{k: np.array(v, np.float32) for k, v in about['scales'].items()})
            network.load_state_dict({k: v.float() for k, v in
                                     load_file(folder / WEIGHTS).items()})
        except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f'{folder} holds no driving head: {error}') from error
        return cls(network.to(device).eval(), scales, about.get('training', {}))


def new_head(config: HeadConfig, scales: Scales, seed: int = 0) -> DrivingHead:
    """Return an untrained head; the seed decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DrivingHead(HeadNetwork(config), scales)
