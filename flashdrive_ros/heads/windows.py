"""
Windows for heads: what the frozen model says of each, what happened next, what is around.

A file an episode, in a folder that a run which was cut goes on to fill.  States are float16.
"""
from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..one_thread import single_threaded_children
from ..training.episodes import EpisodeConfig, choose, drive, training_seed
from .reading import PLANS, Reader
from .status import command_of
from .surroundings import Surroundings, surroundings_of

log = logging.getLogger(__name__)
FRAMES = 4
ABOUT = 'settings.json'


@dataclass(frozen=True)
class GatherSettings:
    """
    What is gathered; `held_out` episodes are those of `first_seed` on, undisturbed.

    `expert` also writes down what the model's own action expert plans.
    """

    model: str = 'small'
    plans: tuple[str, ...] = tuple(PLANS)
    episodes: int = 200
    windows: int = 16
    seed: int = 0
    held_out: bool = False
    first_seed: int = 20_000
    expert: bool = False
    episode_seconds: float = 60.0


@dataclass(frozen=True)
class Windows:
    """
    B windows: states [B, N, hidden] float16, segments [B, N] (255 where there is no token).

    history [B, 16, 3] and future [B, 64, 3] are rows x, y, yaw in the ego frame at t0;
    command [B] an index; expert [B, 64, 3] the action expert's plan (NaN where none was
    asked for); seed and tick [B] say where a window is from.
    """

    states: np.ndarray
    segments: np.ndarray
    history: np.ndarray
    future: np.ndarray
    command: np.ndarray
    expert: np.ndarray
    seed: np.ndarray
    tick: np.ndarray
    around: Surroundings

    def __len__(self) -> int:
        """Count them."""
        return len(self.command)

    def __getitem__(self, rows) -> Windows:
        """Some of them."""
        return Windows(*(getattr(self, f.name)[rows] for f in fields(self)))

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name, those of the surroundings too."""
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name != 'around'}
        return flat | {f'around.{f.name}': getattr(self.around, f.name)
                       for f in fields(Surroundings)}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Windows:
        """Inverse of `arrays`."""
        around = Surroundings(*(arrays[f'around.{f.name}'] for f in fields(Surroundings)))
        return cls(**{f.name: arrays[f.name] for f in fields(cls) if f.name != 'around'},
                   around=around)


def joined(parts: list[Windows]) -> Windows:
    """Windows one after the other; the longest decides how many tokens all have."""
    size = max(p.states.shape[1] for p in parts)
    padded = [replace(p, states=_padded(p.states, size, 0), segments=_padded(
        p.segments, size, 255)).arrays() for p in parts]
    return Windows.of({name: np.concatenate([p[name] for p in padded]) for name in padded[0]})


def _padded(array: np.ndarray, size: int, value: int) -> np.ndarray:
    more = [(0, 0)] * array.ndim
    more[1] = 0, size - array.shape[1]
    return np.pad(array, more, constant_values=value)


class Gatherer:
    """Gathers the windows of one episode after the other."""

    def __init__(self, settings: GatherSettings, device: str = 'cpu'):
        self.settings = settings
        self.reader = Reader(settings.model, settings.plans, device)
        self.planner = None
        if settings.expert:
            from ..evaluation.planners import LocalPlanner
            self.planner = LocalPlanner(settings.model, device, 'auto')

    def episode(self, index: int) -> Windows | None:
        """Drive, draw and read an episode; None when it has no window worth learning from."""
        settings = self.settings
        config = EpisodeConfig(seconds=settings.episode_seconds)
        seed = training_seed(settings.seed, index, 0)
        if settings.held_out:
            seed = settings.first_seed + index
            config = replace(config, route_length=1500.0, push_every_s=0.0, jitter_cameras=0.0,
                             balanced=False)
        episode = drive(seed, config)
        rng = np.random.default_rng([settings.seed, index, 7])
        ticks = sorted(s + FRAMES - 1
                       for s in choose(episode, settings.windows, FRAMES, FRAMES, rng))
        rows = [self._window(episode, seed, index, tick) for tick in ticks]
        return joined(rows) if rows else None

    def _window(self, episode, seed: int, index: int, tick: int) -> Windows:
        from ..evaluation.windows import ego_history, frame_set, stamp_ns
        renderer = episode.world.renderer
        sets = [frame_set(renderer.render(m.pose, m.things), stamp_ns(index, t))
                for t, m in enumerate(episode.moments[tick - FRAMES + 1:tick + 1],
                                      tick - FRAMES + 1)]
        ego = ego_history(episode.poses()[:tick + 1], sets[-1].t0_ns)
        words = episode.moments[tick].navigation
        self.reader.reset()
        reading = self.reader.read(sets[-1], ego, words, sets[:-1])
        expert = np.full((64, 3), np.nan, np.float32)
        if self.planner is not None:
            self.planner.reset()
            plan = self.planner.plan(sets[-1], ego, words, sets[:-1]).plan
            expert = np.column_stack((plan.xyz[plan.chosen, :, :2], plan.yaw[plan.chosen]))
        one = {'states': reading.states, 'segments': reading.segments,
               'history': episode.history(tick), 'future': episode.future(tick),
               'command': np.int64(command_of(words)), 'expert': expert,
               'seed': np.int64(seed), 'tick': np.int64(tick)}
        one = {k: np.asarray(v, np.float32 if v.dtype == np.float64 else None)[None]
               for k, v in one.items()}
        return Windows(**one, around=Surroundings.stack([surroundings_of(episode, tick)]))


def gather(settings: GatherSettings, folder: Path, workers: int = 1,
           minutes: float = 0.0, device: str = 'cpu') -> int:
    """
    Fill `folder` with a file an episode; returns how many windows it holds.

    Goes on where an earlier run ended, which must have had the same settings (`UserError`);
    stops after `minutes` (0: when all are there).
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = json.loads(json.dumps(asdict(settings)))
    path = folder / ABOUT
    if path.exists():
        found = json.loads(path.read_text(encoding='utf-8'))
        other = sorted(k for k in about if k != 'episodes' and found.get(k) != about[k])
        if other:
            raise UserError(f'{folder} holds windows gathered with other settings '
                            f'({", ".join(other)}); give another folder')
    path.write_text(json.dumps(about, indent=1) + '\n', encoding='utf-8')
    missing = [i for i in range(settings.episodes) if not (folder / _name(i)).exists()]
    until = time.monotonic() + 60 * minutes if minutes else float('inf')
    began, done = time.monotonic(), 0
    for count in _gathered(settings, folder, missing, workers, until, device):
        done += count
        log.info('%d windows in %.0f s', done, time.monotonic() - began)
    return sum(len(part['command']) for part in map(np.load, sorted(folder.glob('*.npz'))))


def _gathered(settings, folder, missing, workers, until, device) -> Iterator[int]:
    """Gather the missing episodes until it is time to stop; windows of each."""
    if workers <= 1:
        gatherer = Gatherer(settings, device)
        for index in missing:
            if time.monotonic() > until:
                return
            yield _written(gatherer.episode(index), folder, index)
        return
    with single_threaded_children():
        context = get_context('spawn')
        with context.Pool(workers, _begin, (settings, folder, device)) as pool:
            for count in pool.imap_unordered(_work, missing):
                yield count
                if time.monotonic() > until:
                    return


_gatherer: Gatherer | None = None
_folder: Path | None = None


def _begin(settings: GatherSettings, folder: Path, device: str) -> None:
    global _gatherer, _folder
    import torch
    torch.set_num_threads(1)
    _gatherer, _folder = Gatherer(settings, device), folder


def _work(index: int) -> int:
    return _written(_gatherer.episode(index), _folder, index)


def _written(windows: Windows | None, folder: Path, index: int) -> int:
    """Write an episode's file, which appears whole or not at all; an empty one for none."""
    if windows is None:
        windows_arrays: dict = {'command': np.zeros(0, np.int64)}
    else:
        windows_arrays = windows.arrays()
    draft = folder / f'.{_name(index)}.part'
    with draft.open('wb') as file:
        np.savez(file, **windows_arrays)
    draft.replace(folder / _name(index))
    return len(windows_arrays['command'])


def _name(index: int) -> str:
    return f'episode_{index:05d}.npz'


def load(folder: Path) -> Windows:
    """All windows of a folder; `UserError` when there are none."""
    parts = []
    for path in sorted(Path(folder).glob('episode_*.npz')):
        with np.load(path) as arrays:
            if len(arrays['command']):
                parts.append(Windows.of(dict(arrays)))
    if not parts:
        raise UserError(f'{folder} holds no windows; gather some with "flashdrive train heads '
                        '--stage gather"')
    return joined(parts)
