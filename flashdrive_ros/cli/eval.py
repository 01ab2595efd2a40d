"""
Measure a model in the embedded world: open loop, closed loop, its drafter, or a film of it.

Rows are written the moment they are measured (WORK), so a run that is cut, or
limited with --limit, goes on when the same command is given again.  Results,
tables and charts go to OUT.

    flashdrive eval open-loop --seeds 100
    flashdrive eval open-loop --expert-tuned DIR --vlm-tuned DIR --device cuda --workers 16
    flashdrive eval closed-loop --seeds 200 --device cuda --workers 14 --limit 480
    flashdrive eval closed-loop --set noise_temperature=0.6 --set velocity_reuse=[4,5,6]
    flashdrive eval reasoning --seeds 250
    flashdrive eval primitives --seeds 25
    flashdrive eval drafting --seeds 20
    flashdrive eval quantization --seeds 25 --windows 8
    flashdrive eval heads --arm --episodes 100
    flashdrive eval film --out docs/driving.gif
"""
from __future__ import annotations

import argparse
import os
from pathlib import Path

from ._settings import engine_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `flashdrive eval`."""
    kinds = parser.add_subparsers(title='what', dest='what', metavar='<what>', required=True)
    open_loop = kinds.add_parser(
        'open-loop', help='minADE on held-out seeds, whole windows and streams; velocity reuse')
    _common(open_loop, seeds=100, first=20_000)
    _shared_engines(open_loop)
    add = open_loop.add_argument
    add('--vlm-tuned', default='', metavar='MODEL', help='another checkpoint, for that row')
    add('--expert-tuned', default='', metavar='MODEL', help='another checkpoint, for that row')
    add('--rows', nargs='+', default=[], metavar='ROW', help='only these rows of the table')
    add('--samples', type=int, default=6, help='trajectories a window (default: %(default)s)')
    add('--windows', type=int, default=16, help='consecutive windows of a stretch '
        '(default: %(default)s)')
    add('--stretches', type=int, default=2, help='stretches an episode (default: %(default)s)')
    add('--every', type=int, default=4, help='every n-th window counts (default: %(default)s)')
    add('--no-probe', action='store_true', help='leave out the velocity along the flow')
    closed_loop = kinds.add_parser(
        'closed-loop', help='episodes driven by expert, constant velocity, full and streaming')
    _common(closed_loop, seeds=200, first=30_000)
    _shared_engines(closed_loop)
    add = closed_loop.add_argument
    add('--full-model', default='', metavar='MODEL',
        help='another checkpoint for the policy full: that before streaming fine-tuning')
    add('--latency', default='', metavar='DEVICE', help='where to time the engine at the end, '
        'with nothing else at work; none: nowhere (default: that of --device)')
    add('--policies', nargs='+', default=[], metavar='POLICY', help='only these policies')
    add('--seconds', type=float, default=20.0, help='length of an episode (default: %(default)s)')
    reasoning = kinds.add_parser(
        'reasoning', help='reasoning plain and drafted: tokens a round, equality, time')
    _drafted(reasoning, seeds=100, first=20_000)
    add = reasoning.add_argument
    add('--block', type=int, nargs='+', default=[8, 16], metavar='N',
        help='tokens of a round (default: 8 16)')
    add('--temperature', type=float, default=0.6, help='(default: %(default)s)')
    add('--top-p', type=float, default=0.98, help='(default: %(default)s)')
    _drafted(kinds.add_parser(
        'primitives', help='boxes and trajectories in every mode of decoding: errors, passes, '
        'time'), seeds=50, first=20_000)
    drafting = kinds.add_parser(
        'drafting', help='closed loop plain and drafted: the same tokens, plans and paths')
    _common(drafting, seeds=20, first=30_000)
    drafting.add_argument('--seconds', type=float, default=20.0, help='length of an episode '
                          '(default: %(default)s)')
    drafting.set_defaults(lanes=0, servers=0)
    low_bit = kinds.add_parser(
        'quantization', help='plans and words with weights of fewer bits')
    _drafted(low_bit, seeds=25, first=20_000)
    low_bit.add_argument('--rows', nargs='+', default=[], metavar='ROW',
                         help='only these settings, such as "w4a8 expert calibrated"')
    heads = kinds.add_parser('heads', help='action heads that attend to plan features: the '
                             'robot arm, driving')
    add = heads.add_argument
    add('--arm', action='store_true', help='only the arm: five heads by what they get of a plan')
    add('--driving', action='store_true', help='only driving: with and without the visual plan')
    add('--model', default='', help='checkpoint whose heads are measured (default: arm for the '
        'arm, small for driving)')
    add('--episodes', type=int, default=100, help='of each head (default: %(default)s)')
    add('--rows', nargs='+', default=[], metavar='HEAD', help='only these heads of the arm')
    add('--device', default='cpu', help='torch device (default: %(default)s)')
    add('--out', type=Path, default=Path('bench/results'), metavar='FOLDER',
        help='for results (default: %(default)s)')
    film = kinds.add_parser('film', help='four scenarios as one small animated picture')
    add = film.add_argument
    add('--model', default='small', help='checkpoint (default: %(default)s)')
    add('--policy', default='streaming', help='who drives (default: %(default)s)')
    add('--device', default='cpu', help='torch device (default: %(default)s)')
    add('--scenes', nargs=4, default=None, metavar='EVENT:SEED',
        help='four scenarios and their seeds')
    add('--seconds', type=float, default=8.0, help='length (default: %(default)s)')
    add('--out', type=Path, default=Path('docs/driving.gif'), metavar='FILE',
        help='.gif or .webp (default: %(default)s)')
    add('--max-mb', type=float, default=3.0, help='no larger than this (default: %(default)s)')


def _common(parser, seeds: int, first: int, workers: int | None = None) -> None:
    add = parser.add_argument
    add('--model', default='small', help='checkpoint directory, shipped name or hub id '
        '(default: %(default)s)')
    add('--seeds', type=int, default=seeds, help='held-out episodes (default: %(default)s)')
    add('--first-seed', type=int, default=first, help='(default: %(default)s)')
    add('--device', default='cpu', help='cpu, cuda (all of them) or cuda:1 (default: %(default)s)')
    add('--dtype', default='auto', help='number type of the model (default: %(default)s)')
    add('--workers', type=int, default=workers, help='processes with one thread each; 0: in this '
        f'one (default: {workers or "one a core"})')
    add('--set', action='append', default=[], metavar='SETTING=VALUE',
        help='one setting of the engine, such as greedy=true; may be repeated')
    add('--limit', type=float, default=0.0, metavar='S', help='stop after S seconds and report '
        'what there is; 0: never (default: %(default)s)')
    add('--engine-seed', type=int, default=0, help='seed of sampling (default: %(default)s)')
    add('--work', type=Path, default=Path('out/eval'), metavar='FOLDER',
        help='for rows (default: %(default)s)')
    add('--out', type=Path, default=Path('bench/results'), metavar='FOLDER',
        help='for results (default: %(default)s)')
    add('--fresh', action='store_true', help='forget the rows of earlier runs')


def _shared_engines(parser) -> None:
    add = parser.add_argument
    add('--lanes', type=int, default=None, help='episodes a process drives in turn, with shared '
        'engines planning for all; 0: an engine in every process (default: 0 on a CPU, else 4)')
    add('--servers', type=int, default=None, help='processes that plan for the lanes '
        '(default: 1 on a CPU, else 3: Python keeps one from filling a GPU)')


def _drafted(parser, seeds: int, first: int) -> None:
    """Options of what times single windows: an engine of its own in every process."""
    _common(parser, seeds, first)
    parser.add_argument('--windows', type=int, default=2, help='windows of an episode, spread '
                        'over it (default: %(default)s)')
    parser.add_argument('--seconds', type=float, default=40.0, help='length of an episode '
                        '(default: %(default)s)')
    parser.set_defaults(lanes=0, servers=0)


def run(args: argparse.Namespace) -> int:
    """Measure; 0 when everything that was asked for was measured."""
    from ..core.config import CheckpointError
    from ..core.types import InputError
    from ..errors import UserError
    try:
        return {'open-loop': _open_loop, 'closed-loop': _closed_loop, 'film': _film,
                'heads': _heads,
                'reasoning': _reasoning, 'primitives': _primitives,
                'drafting': _drafting,
                'quantization': _quantization}[args.what](args)
    except (CheckpointError, InputError) as error:
        raise UserError(str(error)) from error


def _open_loop(args) -> int:
    from ..evaluation import open_loop, open_loop_results
    models = {'full': args.model, 'streaming': args.model,
              'streaming_vlm_tuned': args.vlm_tuned, 'streaming_expert_tuned': args.expert_tuned}
    models = {name: model for name, model in models.items() if model}
    models[open_loop.CONSTANT_VELOCITY] = ''
    models = _only(models, args.rows, 'row')
    probe = 'streaming_expert_tuned' if 'streaming_expert_tuned' in models else 'streaming'
    config = open_loop.OpenLoop(
        models, stretches=args.stretches, windows=args.windows, every=args.every,
        samples=args.samples, probe='' if args.no_probe else probe,
        engine_seed=args.engine_seed, settings=engine_settings(args.set, 'num_trajectories'))
    return _measure(args, 'open_loop', config, open_loop, open_loop_results)


def _closed_loop(args) -> int:
    from ..evaluation import closed_loop, closed_loop_results
    models = {'expert': '', 'constant_velocity': '', 'full': args.full_model or args.model,
              'streaming': args.model}
    models = _only(models, args.policies, 'policy')
    config = closed_loop.ClosedLoop(models, args.seconds, {
        'seed': args.engine_seed, **engine_settings(args.set)})
    return _measure(args, 'closed_loop', config, closed_loop, closed_loop_results)


def _reasoning(args) -> int:
    from ..errors import UserError
    from ..evaluation import drafted_reasoning
    from ..evaluation.drafters import companion
    wrong = [size for size in args.block if size < 2]
    if wrong:
        raise UserError(f'--block {wrong[0]}: expected at least 2 tokens')
    config = drafted_reasoning.DraftedReasoning(
        {'target': args.model, 'drafter': companion(args.model)}, tuple(args.block),
        args.windows, args.seconds, args.temperature, args.top_p, args.engine_seed,
        engine_settings(args.set, 'drafting', 'greedy', 'temperature', 'top_p',
                        'num_trajectories'))
    return _measure(args, 'reasoning', config, drafted_reasoning, drafted_reasoning)


def _primitives(args) -> int:
    from ..evaluation import drawn_primitives, drawn_primitives_results
    from ..evaluation.drafters import companion
    config = drawn_primitives.DrawnPrimitives(
        {'target': args.model, 'drafter': companion(args.model)}, windows=args.windows,
        seconds=args.seconds, engine_seed=args.engine_seed,
        settings=engine_settings(args.set, 'primitives', 'primitive_decoding'))
    return _measure(args, 'primitives', config, drawn_primitives, drawn_primitives_results)


def _drafting(args) -> int:
    from ..evaluation import drafted_driving
    from ..evaluation.drafters import companion
    config = drafted_driving.DraftedDriving(
        {'target': args.model, 'drafter': companion(args.model)}, args.seconds, args.engine_seed,
        engine_settings(args.set, 'drafting', 'settle_reasoning'))
    return _measure(args, 'drafting', config, drafted_driving, drafted_driving)


def _quantization(args) -> int:
    from ..evaluation import low_bit
    rows = _only(dict.fromkeys(low_bit.SETTINGS), args.rows, 'row')
    config = low_bit.LowBit(
        {'target': args.model}, (low_bit.NONE, *(r for r in rows if r != low_bit.NONE)),
        args.windows, args.seconds, engine_seed=args.engine_seed, settings=engine_settings(
            args.set, 'quantization', 'quantize_expert', 'num_trajectories', 'greedy'))
    return _measure(args, 'quantization', config, low_bit, low_bit)


def _only(models: dict, names: list[str], what: str) -> dict:
    from ..errors import UserError
    unknown = sorted(set(names) - set(models))
    if unknown:
        raise UserError(f'no {what} {unknown[0]!r}; there are {", ".join(models)}')
    return {name: models[name] for name in models if not names or name in names}


def _measure(args, name: str, config, module, results) -> int:
    """Do what is missing, then write results, tables and charts from all there is."""
    from dataclasses import asdict

    from ..evaluation.fingerprint import fingerprint
    from ..evaluation.record import write_results
    from ..evaluation.workers import Crew, RowFile, run_tasks
    kind = args.device.partition(':')[0]
    digests = {model: fingerprint(model) for model in set(config.models.values()) if model}
    settings = {**asdict(config), 'device': kind, 'dtype': args.dtype, 'weights': {
        name: digests[model] for name, model in config.models.items() if model}}
    path = args.work / f'{name}.jsonl'
    if args.fresh:
        path.unlink(missing_ok=True)
    file = RowFile(path, settings)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    workers = args.workers if args.workers is not None else len(os.sched_getaffinity(0))
    lanes = args.lanes if args.lanes is not None else 0 if kind == 'cpu' else 4
    servers = args.servers if args.servers is not None else 1 if kind == 'cpu' else 3
    crew = Crew(workers, args.device, args.dtype, lanes, servers if lanes else 0, args.limit)
    tasks = module.tasks(config, seeds, file.rows)
    print(f'{name}: {len(tasks)} tasks to do, {len(file.rows)} rows in {path}')
    failures = run_tasks(module.run_task, tasks, file, crew)
    rows = [row for row in file.rows if row['seed'] in seeds]
    body = results.summary(config, rows)
    if getattr(args, 'latency', 'none') != 'none':
        _time(args.latency or args.device, args, config, body)
    body = write_results(args.out / f'{name}.json', body, settings=settings, crew=asdict(crew),
                         seeds_asked=len(seeds))
    print(results.table(body))
    for picture in results.draw(body, args.out):
        print(picture)
    print(args.out / f'{name}.json')
    missing = module.tasks(config, seeds, file.rows)
    if missing:
        print(f'{len(missing)} of {len(seeds)} seeds are not done')
    return 1 if failures or missing or body.get('mismatches') else 0


def _time(device: str, args, config, body) -> None:
    """Add the time of the engine's step, alone on this machine, to the policies of `body`."""
    import torch

    from ..evaluation.closed_loop import latency
    from ..evaluation.planners import Planners
    planners = Planners(device, args.dtype)
    for name, policy in body['policies'].items():
        found = latency(config, name, planners, args.first_seed)
        if found is not None:
            policy['latency_ms'] = {**found, 'device': device,
                                    'threads': torch.get_num_threads()}


def _heads(args) -> int:
    from ..errors import UserError
    both = args.arm == args.driving
    if args.arm or both:
        try:
            from ..arm.evaluate import evaluate
            evaluate(args.model or 'arm', args.out / 'heads.json', args.episodes,
                     tuple(args.rows), args.device)
        except ModuleNotFoundError as error:
            if error.name != 'mujoco':
                raise
            raise UserError('the arm needs MuJoCo: pip install "flashdrive_ros[arm]"') from error
        except (FileNotFoundError, ValueError) as error:
            raise UserError(str(error)) from error
    if args.driving or both:
        from types import SimpleNamespace

        from ..evaluation.heads_results import merge
        from ..heads import evaluate
        given = {'episodes': args.episodes, **({'model': args.model} if args.model else {})}
        merge(args.out / 'heads.json', 'driving', evaluate(SimpleNamespace(**given)))
    return 0


def _film(args) -> int:
    from ..evaluation.film import make
    size = make(args.out, args.model, args.policy, args.device, scenes=args.scenes,
                seconds=args.seconds, limit_bytes=int(args.max_mb * 2 ** 20))
    print(f'{args.out}: {size / 2 ** 20:.2f} MiB')
    return 0
