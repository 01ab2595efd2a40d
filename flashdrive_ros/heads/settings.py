"""What can be set about the training of a head."""
from __future__ import annotations

from dataclasses import dataclass

from ..training.settings import setting

STAGES = ('gather', 'supervised', 'reinforce')


@dataclass(frozen=True)
class HeadSettings:
    """A run of one stage; `windows`, `out` and `begin` are folders."""

    stage: str = setting('supervised', f'one of {", ".join(STAGES)}')
    windows: str = setting('out/heads/windows', 'folder of the gathered windows')
    out: str = setting('out/heads/head', 'folder for the head and the state to go on from')
    begin: str = setting('', 'head to reinforce')
    inputs: str = setting('plan', 'what it sees: no_plan, plan or plan_autoregressive')
    model: str = setting('small', 'frozen model whose features are gathered')
    episodes: int = setting(400, 'episodes to gather')
    workers: int = setting(1, 'processes that gather')
    device: str = setting('cpu', 'device that features are computed and heads are trained on')
    minutes: float = setting(5.0, 'time of the run; 0: not limited')
    steps: int = setting(0, 'steps of the run, those of earlier ones included; 0: not limited')
    batch: int = setting(32, 'windows of a step')
    noises: int = setting(4, 'noises, or sampled plans, of each window')
    learning_rate: float = setting(1e-3, 'highest learning rate of supervised training')
    reinforce_rate: float = setting(1e-4, 'learning rate of reinforcement')
    discount: float = setting(0.6, 'weight of each denoising step over that of the next one')
    imitation: float = setting(0.3, 'weight of the supervised loss in reinforcement')
    ema: float = setting(0.995, 'weight of the past in the averaged weights that are kept')
    drop: float = setting(0.1, 'share of the tokens that supervised training hides')
    seed: int = setting(0, 'seed of weights, order and noise')
    resume: bool = setting(False, 'go on from the state in the output folder')

    def __post_init__(self):
        """Refuse what does not fit, naming the setting."""
        checks = {'stage': self.stage in STAGES, 'batch': self.batch > 0,
                  'noises': self.noises > (self.stage == 'reinforce'),
                  'begin': bool(self.begin) or self.stage != 'reinforce',
                  'minutes': self.minutes > 0 or self.steps > 0 or self.stage == 'gather',
                  'discount': 0 < self.discount <= 1, 'drop': 0 <= self.drop < 1,
                  'ema': 0 <= self.ema < 1}
        for name, holds in checks.items():
            if not holds:
                raise ValueError(f'{name} = {getattr(self, name)!r} does not fit')
