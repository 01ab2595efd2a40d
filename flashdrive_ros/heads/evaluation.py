"""
Driving heads measured: open loop on held-out windows, closed loop on held-out episodes.

    arguments.heads         folder with a head in each subfolder
    arguments.held_out      folder of held-out windows; gathered when there are none
    arguments.work          folder for rows of episodes, from which a cut run goes on
    arguments.windows, .episodes, .first_seed, .seconds, .limit, .workers, .model

Other attributes are not needed, and all have defaults (`DEFAULTS`).
"""
from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..evaluation import intervals
from ..evaluation.closed_loop import Episode
from ..evaluation.expert_drive import record_expert
from ..evaluation.windows import FUTURE, HISTORY_POSES, TICK_S
from ..evaluation.workers import Crew, RowFile, run_tasks
from ..world import World
from .head import DrivingHead, resampled
from .interpolation import dense
from .reading import INPUTS, PLANS, Reader
from .scoring import Scores, score
from .status import motion_of
from .windows import GatherSettings, Windows, gather, load

EXPERT, COASTING = 'action_expert', 'constant_velocity'
POINTS = 20
SAMPLES = 6
PARTS = ('no_collision', 'on_road', 'no_red_light', 'ttc', 'progress', 'comfort', 'total')
DEFAULTS = {'heads': 'small-heads', 'held_out': 'out/heads/held_out', 'work': 'out/eval',
            'windows': 144, 'episodes': 40, 'first_seed': 30_000, 'seconds': 10.0, 'limit': 0.0,
            'workers': 1, 'model': 'small'}
MODELS = Path(__file__).resolve().parents[1] / 'models'
FAULTS = ('collision', 'off_road', 'red_light')


def heads_in(folder: str | Path) -> dict[str, Path]:
    """Heads by name in a folder, or in a shipped one; `UserError` when there are none."""
    place = next((p for p in (Path(folder), MODELS / folder) if p.is_dir()), None)
    found = {p.parent.name: p.parent for p in sorted(place.glob('*/config.json'))
             if (p.parent / 'model.safetensors').exists()} if place else {}
    if not found:
        raise UserError(f'{folder} holds no driving heads; train some with '
                        '"flashdrive train heads"')
    return found


def evaluate(arguments) -> dict:
    """
    Measure all heads; the body of key 'driving' in the results of heads.

    For each head by its name, the action expert and constant velocity: ade_3s, ade_5s (m, one
    sampled plan), min_ade_5s (best of six), `collision` (share of the windows whose plan
    collides in 4 s), score parts, and what happened in closed loop, with 95 % intervals.
    """
    settings = {k: getattr(arguments, k, v) for k, v in DEFAULTS.items()}
    heads = heads_in(settings['heads'])
    windows = _held_out(settings)
    plans = {name: _sampled(DrivingHead.load(path), windows) for name, path in heads.items()}
    plans[COASTING] = _coasting(windows)[:, None]
    if np.isfinite(windows.expert).all():
        plans[EXPERT] = resampled(windows.expert, POINTS)[:, None]
    body = {name: open_loop(windows, p) for name, p in plans.items()}
    body['differences'] = _differences(windows, plans)
    closed = closed_loop(settings, {n: str(p) for n, p in heads.items()})
    for name, found in closed.items():
        body[name]['closed_loop'] = found
    body['windows'], body['window_seeds'] = len(windows), sorted(set(windows.seed.tolist()))
    return body


def _held_out(settings: dict) -> Windows:
    folder = Path(settings['held_out'])
    if not any(folder.glob('episode_*.npz')):
        gather(GatherSettings(settings['model'], episodes=-(-settings['windows'] // 3), windows=3,
                              held_out=True, expert=True, episode_seconds=40.0), folder,
               settings['workers'])
    return load(folder)[:settings['windows']]


def _sampled(head: DrivingHead, windows: Windows) -> np.ndarray:
    """Plans [B, SAMPLES, POINTS, 3] of a head."""
    seen = np.isin(windows.segments, INPUTS[head.config.inputs])
    return head.plan(head.conditions(windows.states, seen, windows.history, windows.command),
                     POINTS, SAMPLES, seed=1)


def _coasting(windows: Windows) -> np.ndarray:
    speed = np.array([motion_of(h)[0] for h in windows.history])
    plan = np.zeros((len(windows), POINTS, 3))
    plan[..., 0] = speed[:, None] * np.arange(1, POINTS + 1) * 0.25
    return plan


def displacements(windows: Windows, plans: np.ndarray) -> dict[str, np.ndarray]:
    """ADE [B] m up to 3 and 5 s of the first plan, and the least of all at 5 s."""
    gaps = np.linalg.norm(plans[..., :2] - resampled(windows.future, POINTS)[:, None, :, :2],
                          axis=-1)
    return {'ade_3s': gaps[:, 0, :12].mean(1), 'ade_5s': gaps[:, 0].mean(1),
            'min_ade_5s': gaps.mean(2).min(1)}


def scores_of(windows: Windows, plans: np.ndarray) -> Scores:
    """Score the first plan of each window."""
    speed, rate = np.array([motion_of(h) for h in windows.history]).T
    return score(dense(plans[:, 0], speed, rate), speed, rate, windows.around)


def open_loop(windows: Windows, plans: np.ndarray) -> dict:
    """Figures of plans [B, K, POINTS, 3], with intervals over the seeds."""
    values, scores = displacements(windows, plans), scores_of(windows, plans)
    collided = 1 - scores.no_collision
    found = {k: float(v.mean()) for k, v in values.items()}
    found['collision'] = float(collided.mean())
    found['score'] = {name: float(getattr(scores, name).mean()) for name in PARTS}
    found['ci'] = {k: list(_by_seed(windows.seed, v))
                   for k, v in {**values, 'score': scores.total}.items()}
    found['ci']['collision'] = list(intervals.wilson(int(collided.sum()), len(collided)))
    return found


def _by_seed(seeds: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Interval of the mean, the windows of a seed kept together."""
    each = [values[seeds == s] for s in np.unique(seeds)]
    return intervals.ratio([float(v.sum()) for v in each], [len(v) for v in each])


def _differences(windows: Windows, plans: dict[str, np.ndarray]) -> dict:
    """Each head less 'no_plan', and each reinforced head less what it began as, by window."""
    pairs = [(n, 'no_plan') for n in plans if n in INPUTS and n != 'no_plan']
    pairs += [(n, n.removesuffix('_rl')) for n in plans if n.endswith('_rl')]
    found = {}
    for a, b in pairs:
        if b not in plans:
            continue
        one, two = ({**displacements(windows, plans[n]),
                     'score': scores_of(windows, plans[n]).total} for n in (a, b))
        found[f'{a} - {b}'] = {k: [float((one[k] - two[k]).mean()),
                                   *_by_seed(windows.seed, one[k] - two[k])] for k in one}
    return found


@dataclass(frozen=True)
class HeadsLoop:
    """What is driven: folders of heads by name, for `seconds`, on features of `model`."""

    heads: dict[str, str]
    seconds: float
    model: str

    @property
    def ticks(self) -> int:
        """Ticks that a policy drives."""
        return round(self.seconds / TICK_S)


def closed_loop(settings: dict, heads: dict[str, str]) -> dict[str, dict]:
    """Drive held-out episodes; faults and progress of each head and of the action expert."""
    if not settings['episodes']:
        return {}
    config = HeadsLoop(heads, settings['seconds'], settings['model'])
    file = RowFile(Path(settings['work']) / 'heads_driving.jsonl', {
        **asdict(config), 'weights': {n: _digest(p) for n, p in heads.items()}})
    seeds = range(settings['first_seed'], settings['first_seed'] + settings['episodes'])
    names = (*heads, EXPERT)
    done = {(r['seed'], r['policy']) for r in file.rows}
    tasks = [{'seed': s, 'policies': [n for n in names if (s, n) not in done],
              'config': asdict(config)} for s in seeds]
    run_tasks(drive_task, [t for t in tasks if t['policies']], file,
              Crew(settings['workers'], limit_s=settings['limit']))
    rows = [r for r in file.rows if r['seed'] in seeds]
    whole = [s for s in seeds if {r['policy'] for r in rows if r['seed'] == s} >= set(names)
             and not any(r['fault'] for r in rows if r['seed'] == s)]
    by = {(r['seed'], r['policy']): r for r in rows}
    return {name: _driven([by[s, name] for s in whole]) for name in names} if whole else {}


def _driven(rows: list[dict]) -> dict:
    """Shares of the episodes with a fault, and the mean relative progress."""
    n = len(rows)
    found: dict = {'episodes': n, 'ci': {}}
    for name in FAULTS:
        hits = sum(r[name] for r in rows)
        found[name] = hits / n
        found['ci'][name] = list(intervals.wilson(hits, n))
    values = [r['p_rel'] for r in rows]
    found['progress'] = float(np.mean(values))
    found['ci']['progress'] = list(intervals.mean(values))
    return found


def _digest(folder: str) -> str:
    import hashlib
    return hashlib.sha256((Path(folder) / 'model.safetensors').read_bytes()).hexdigest()[:12]


def drive_task(task: dict, planners):
    """Drive one episode with one policy after the other; gives a row each."""
    from .policy import ExpertHeadPolicy, HeadPolicy
    config, seed = HeadsLoop(**task['config']), task['seed']
    reference = record_expert(seed, HISTORY_POSES + config.ticks + FUTURE)
    for name in task['policies']:
        row = {'seed': seed, 'policy': name, 'event': reference.event,
               'fault': reference.fault}
        if not reference.fault:
            if name == EXPERT:
                policy = ExpertHeadPolicy(planners(config.model))
            else:
                head = DrivingHead.load(config.heads[name])
                policy = HeadPolicy(_reader(config.model, head.config.inputs), head)
            episode = Episode(World(seed), reference, policy)
            while episode.ticks < config.ticks and not episode.ended:
                episode.step()
            row |= episode.results(config.ticks, judge_text=False)
        yield row


_readers: dict[tuple, Reader] = {}


def _reader(model: str, inputs: str) -> Reader:
    """Reader of this process that draws only what these inputs need."""
    plans = tuple(p for p, segment in PLANS.items() if segment in INPUTS[inputs])
    key = model, plans
    if key not in _readers:
        _readers[key] = Reader(model, plans)
    return _readers[key]
