"""
Training of a head: supervised first, then reinforcement of the head alone (DiffGRPO).

Features and plans are read from disk and never change: the model stays frozen.
Reinforcement samples a group of plans for each window by a chain of draws, drives them
(`scoring`), and makes the draws of those likelier that score above their group's mean; a
share of the supervised loss keeps the plans those of a driver.
"""
from __future__ import annotations

import copy
import json
import logging
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.config import CheckpointError
from .diffusion import log_likelihoods
from .head import DrivingHead, Scales, new_head, resampled
from .interpolation import dense
from .network import HeadConfig
from .reading import INPUTS
from .scoring import score
from .settings import HeadSettings
from .status import motion_of
from .windows import Windows

log = logging.getLogger(__name__)
LAYOUT_SHARES = {20: 0.75, 8: 0.15, 64: 0.1}
REINFORCED_POINTS = 20
STATE = 'state.pt'
WARM_UP = 50
CLIP = 1.0
LOG_EVERY = 25
SPREAD_FLOOR = 0.02
"""Groups whose scores differ less than this teach proportionally less."""


class HeadTrainer:
    """One run of one stage over `windows`."""

    def __init__(self, settings: HeadSettings, windows: Windows):
        self.settings, self.windows = settings, windows
        torch.manual_seed(settings.seed)
        self.rng = np.random.default_rng(settings.seed)
        self.generator = torch.Generator().manual_seed(settings.seed)
        if settings.begin:
            self.head = DrivingHead.load(settings.begin, settings.device)
            if self.head.config.inputs != settings.inputs:
                raise ValueError(f'inputs = {settings.inputs!r}, but {settings.begin} sees '
                                 f'{self.head.config.inputs!r}')
        else:
            config = HeadConfig(settings.inputs, windows.states.shape[-1])
            scales = Scales.fit(windows.history, windows.command, windows.future)
            self.head = new_head(config, scales, settings.seed)
            self.head.network.to(settings.device)
        self.seen = np.isin(windows.segments, INPUTS[settings.inputs])
        used = self.seen.any(0)
        self.states, self.seen = windows.states[:, used], self.seen[:, used]
        self.motion = np.array([motion_of(h) for h in windows.history])
        reinforces = settings.stage == 'reinforce'
        rate = settings.reinforce_rate if reinforces else settings.learning_rate
        self.optimiser = torch.optim.AdamW(self.head.network.parameters(), rate,
                                           betas=(0.9, 0.95), weight_decay=1e-4)
        self.averaged = copy.deepcopy(self.head.network)
        self.step = 0
        self.seconds = 0.0
        self.curve: list[dict] = []
        if settings.resume:
            self._restore()

    def run(self) -> DrivingHead:
        """Train until time or steps are over; writes the head and returns it."""
        settings, began = self.settings, time.monotonic()
        told: deque = deque(maxlen=LOG_EVERY)
        before = self.seconds
        self.head.network.train()
        while not self._over(time.monotonic() - began):
            self._set_rate(before + time.monotonic() - began)
            rows = self.rng.choice(len(self.windows), min(settings.batch, len(self.windows)),
                                   replace=False)
            figures = (self.reinforce if settings.stage == 'reinforce'
                       else self.supervise)(rows)
            self.step += 1
            told.append(figures)
            if self.step % LOG_EVERY == 0:
                means = {k: float(np.mean([f[k] for f in told])) for k in figures}
                self.curve.append({'step': self.step, **means})
                log.info('step %d: %s', self.step,
                         ', '.join(f'{k} {v:.4f}' for k, v in means.items()))
        self.seconds = before + time.monotonic() - began
        return self._finish()

    def _over(self, seconds: float) -> bool:
        s = self.settings
        return bool((s.steps and self.step >= s.steps)
                    or (s.minutes and seconds >= 60 * s.minutes))

    def _set_rate(self, seconds: float) -> None:
        s = self.settings
        done = max(self.step / s.steps if s.steps else 0.0,
                   seconds / (60 * s.minutes) if s.minutes else 0.0)
        rate = s.reinforce_rate if s.stage == 'reinforce' else s.learning_rate
        share = min(1.0, (self.step + 1) / WARM_UP) * (0.03 + 0.97 * (
            0.5 + 0.5 * np.cos(np.pi * min(done, 1.0))))
        for group in self.optimiser.param_groups:
            group['lr'] = float(rate * share)

    def _conditions(self, rows: np.ndarray, drop: float = 0.0):
        mask = self.seen[rows]
        if drop:
            kept = mask & (self.rng.random(mask.shape) >= drop)
            mask = np.where(kept.any(1, keepdims=True), kept, mask)
        return self.head.conditions(self.states[rows], mask, self.windows.history[rows],
                                    self.windows.command[rows])

    def loss(self, rows: np.ndarray, points: int, drop: float = 0.0) -> Tensor:
        """Mean squared error of the clean waypoints, over noises of all strengths."""
        head, noises = self.head, self.settings.noises
        conditions = self._conditions(rows, drop)
        clean = head.standardised(resampled(self.windows.future[rows], points), conditions.raw)
        clean = clean[:, None].expand(-1, noises, -1, -1)
        step = torch.randint(1, head.schedule.steps + 1, (len(rows), noises),
                             generator=self.generator)
        noise = torch.randn(clean.shape, generator=self.generator).to(clean.device)
        noisy = head.schedule.noised(clean, step, noise)
        t = (step / head.schedule.steps).to(clean.device)
        found = head.denoiser(head.context(conditions), points)(noisy, t)
        return ((found - clean) ** 2).mean()

    def supervise(self, rows: np.ndarray) -> dict[str, float]:
        """Take a supervised step on these windows."""
        points = int(self.rng.choice(list(LAYOUT_SHARES), p=list(LAYOUT_SHARES.values())))
        loss = self.loss(rows, points, self.settings.drop)
        self._descend(loss)
        return {'loss': float(loss.detach())}

    def reinforce(self, rows: np.ndarray) -> dict[str, float]:
        """Take a step of policy gradient on these windows, group by group."""
        head, settings = self.head, self.settings
        conditions = self._conditions(rows)
        with torch.no_grad():
            context = head.context(conditions)
            chain = head.chain(context, REINFORCED_POINTS, settings.noises, self.generator)
        plans = head.waypoints(chain.clean, conditions.raw)
        scores = self.scores(plans, rows)
        advantage = torch.as_tensor(advantages(scores), device=head.device).float()
        denoise = head.denoiser(head.context(conditions), REINFORCED_POINTS)
        steps = log_likelihoods(denoise, chain, head.schedule)
        # the last draw, nearest to the plan, weighs most
        weights = [settings.discount ** (len(steps) - 1 - i) for i in range(len(steps))]
        policy = -sum(w * (advantage * s).mean() for w, s in zip(weights, steps)) / len(steps)
        imitation = self.loss(rows, REINFORCED_POINTS)
        self._descend(policy + settings.imitation * imitation)
        return {'score': float(scores.mean()), 'imitation': float(imitation.detach())}

    def scores(self, plans: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Scores [B, R] of plans [B, R, N, 3] of these windows."""
        batch, samples = plans.shape[:2]
        each = np.repeat(rows, samples)
        speed, rate = self.motion[each].T
        rows_ = dense(plans.reshape(batch * samples, *plans.shape[2:]), speed, rate)
        return score(rows_, speed, rate, self.windows.around[each]).total.reshape(
            batch, samples)

    def _descend(self, loss: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.network.parameters(), CLIP)
        self.optimiser.step()
        ema = min(self.settings.ema, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            for mean, now in zip(self.averaged.parameters(), self.head.network.parameters()):
                mean.lerp_(now, 1 - ema)

    def _finish(self) -> DrivingHead:
        out = Path(self.settings.out)
        about = {**self.head.about, self.settings.stage: {
            **{k: v for k, v in asdict(self.settings).items()
               if k not in ('windows', 'out', 'begin', 'resume')},
            'steps_done': self.step, 'seconds': round(self.seconds, 1),
            'windows': len(self.windows), 'curve': self.curve[-40:]}}
        head = DrivingHead(self.averaged.eval(), self.head.scales, about)
        head.save(out)
        torch.save({'network': self.head.network.state_dict(),
                    'averaged': self.averaged.state_dict(),
                    'optimiser': self.optimiser.state_dict(), 'step': self.step,
                    'seconds': self.seconds, 'curve': self.curve,
                    'rng': json.dumps(self.rng.bit_generator.state),
                    'generator': self.generator.get_state()}, out / STATE)
        return head

    def _restore(self) -> None:
        path = Path(self.settings.out) / STATE
        if not path.exists():
            raise CheckpointError(f'{path}: no state to go on from')
        state = torch.load(path, weights_only=True, map_location=self.settings.device)
        self.head.network.load_state_dict(state['network'])
        self.averaged.load_state_dict(state['averaged'])
        self.optimiser.load_state_dict(state['optimiser'])
        self.step, self.seconds = state['step'], state['seconds']
        self.curve = state['curve']
        self.rng.bit_generator.state = json.loads(state['rng'])
        self.generator.set_state(state['generator'].cpu())


def advantages(scores: np.ndarray) -> np.ndarray:
    """Scores [B, R] less their group's mean, over its spread; 0 where all are equal."""
    spread = scores.std(1, keepdims=True)
    return (scores - scores.mean(1, keepdims=True)) / (spread + SPREAD_FLOOR)


def run(settings: HeadSettings) -> None:
    """Do the stage, and print where its result is."""
    from .windows import GatherSettings, gather, load
    if settings.stage == 'gather':
        count = gather(GatherSettings(model=settings.model, episodes=settings.episodes,
                                      seed=settings.seed), Path(settings.windows),
                       settings.workers, settings.minutes, settings.device)
        print(f'{settings.windows}: {count} windows')
        return
    HeadTrainer(settings, load(Path(settings.windows))).run()
    print(settings.out)
