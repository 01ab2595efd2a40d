"""
Time a model stage by stage: the released pipeline, and this engine with each technique.

Rows are written the moment they are measured, to OUT; a later run of the same commit, machine
and settings adds its rows to the same file.  Small trained models drive through the embedded
world, those with random weights through noise.

    flashdrive bench --model alpamayo-1.5-shape --out bench/results
    flashdrive bench --model small --device cpu --trajectories 1 6
    flashdrive bench --model alpamayo-1.5-shape --rows graphs all all_low_bit
"""
from __future__ import annotations

import argparse
from pathlib import Path

from ._settings import engine_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `flashdrive bench`."""
    add = parser.add_argument
    add('--model', default='small', help='checkpoint directory, shipped name or hub id '
        '(default: %(default)s)')
    add('--rows', nargs='+', default=[], metavar='ROW', help='only these: released, eager, '
        'graphs, streaming, drafting, velocity_reuse, low_bit, all, all_low_bit, '
        'all_low_bit_expert, primitives; not by default: first_plan (a new process), memory')
    add('--trajectories', nargs='+', type=int, default=[1, 6], metavar='K',
        help='(default: 1 6)')
    add('--repeats', type=int, default=30, help='timed steps of a row (default: %(default)s)')
    add('--limit-s', type=float, default=12.0, metavar='S', help='fewer steps, though at least '
        'three, when they take longer than this (default: %(default)s)')
    add('--device', default='auto', help='torch device (default: %(default)s)')
    add('--image-size', default='1920x1080', metavar='WxH',
        help='of noise images (default: %(default)s)')
    add('--quantization', default='fp8', help='kind of the low-bit rows (default: %(default)s)')
    add('--set', action='append', default=[], metavar='NAME=VALUE',
        help='a setting of the engine in every row, e.g. greedy=true')
    add('--out', type=Path, default=Path('out/bench'), metavar='FOLDER',
        help='results file and chart (default: %(default)s)')


def run(arguments: argparse.Namespace) -> int:
    """Measure; 0 when no row failed."""
    import torch

    from ..benchmark.measure import Load
    from ..benchmark.results import Results, table
    from ..benchmark.rows import ON_CPU, ROWS
    from ..benchmark.run import FIRST_PLAN, MEMORY, PRIMITIVES, Bench
    from ..core import checkpoint
    from ..core.engine import DEFAULT_CAMERAS
    from ..errors import UserError

    device, _ = checkpoint.resolve_device(arguments.device, 'auto')
    config, _ = checkpoint.read_config(checkpoint.find(arguments.model))
    known = [*ROWS, PRIMITIVES, FIRST_PLAN, MEMORY]
    default = [*(ROWS if device.type == 'cuda' else ON_CPU), PRIMITIVES]
    unknown = sorted(set(arguments.rows) - set(known))
    if unknown:
        raise UserError(f'no rows {", ".join(unknown)}; there are {", ".join(known)}')
    width, _, height = arguments.image_size.partition('x')
    settings = engine_settings(arguments.set, 'num_trajectories', 'drafting', 'velocity_reuse')
    load = Load(arguments.model, device, config.trained, config.prompt.camera_ids or
                DEFAULT_CAMERAS, (int(height), int(width)), arguments.repeats,
                arguments.limit_s, quantization=arguments.quantization, settings=settings)
    kind = 'gpu' if device.type == 'cuda' else device.type
    name = {'alpamayo-1.5-shape': 'full_size'}.get(config.name, config.name)
    results = Results(arguments.out / f'{kind}_{name}.json', {
        'model': config.name, 'trained': config.trained, 'settings': {
            'device': device.type, 'image_size': None if config.trained else arguments.image_size,
            'quantization': arguments.quantization, **settings}})
    if results.note:
        print(results.note)
    with torch.no_grad():
        failed = Bench(load, results, arguments.trajectories).run(
            [n for n in known if n in (arguments.rows or default)])
    for count in arguments.trajectories:
        print(f'\n{count} trajectories, median ms (times the floor)\n'
              + table(results.data, str(count)))
    print(f'\n{results.path}')
    return 1 if failed else 0
