r"""
Write a checkpoint with low-bit weights, calibrated on recorded windows.

4-bit weights are scaled for what the model reads in these windows: of bags and videos, or
of the embedded world where none is given.  The result loads like any checkpoint.

    flashdrive convert small --quantization w4a8 --out out/small-w4a8
    flashdrive convert nvidia/Alpamayo-1.5-10B --quantization w4a16 --out alpamayo-w4a16 \
        --windows-from run_7 run_8
    flashdrive convert nvidia/Alpamayo-1.5-10B --memory     # what fits on which card
"""
from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `flashdrive convert`."""
    add = parser.add_argument
    add('source', metavar='SRC', help='checkpoint directory, shipped name or hub id')
    add('--quantization', choices=('fp8', 'w4a8', 'w4a16'), default='w4a8',
        help='fp8: 8-bit weights and activations; w4a8: 4-bit weights, 8-bit activations; w4a16: '
        '4-bit weights alone (default: %(default)s)')
    add('--out', type=Path, metavar='DIR', help='where to write; must not exist')
    add('--quantize-expert', action='store_true', help='the action expert too')
    add('--keep', action='append', default=None, metavar='NAME', help='a projection that stays '
        'plain, * stands for anything; may be repeated (default: '
        'language_model.layers.16.mlp.down_proj)')
    add('--windows-from', nargs='+', default=[], metavar='RECORDING',
        help='bags or videos (default: the embedded world)')
    add('--windows', type=int, default=24, help='how many; 0: round without calibration '
        '(default: %(default)s)')
    add('--device', default='auto', help='torch device (default: %(default)s)')
    add('--memory', action='store_true', help='only print what the model needs in each setting')


def run(args: argparse.Namespace) -> int:
    """Convert; 0 when it is written."""
    from ..core.config import CheckpointError
    from ..core.quantization.convert import convert
    from ..core.quantization.swap import HIGH, QuantizationConfig
    from ..errors import UserError
    from ..evaluation.calibration import recorded_windows, world_windows
    if args.out is None and not args.memory:
        raise UserError('--out DIR is missing')
    try:
        if args.memory:
            print(memory_table(args.source))
            return 0
        config = QuantizationConfig(args.quantization, args.quantize_expert,
                                    HIGH if args.keep is None else tuple(args.keep))
        windows = recorded_windows(args.windows_from, args.windows) if args.windows_from else \
            world_windows(args.windows)
        convert(args.source, args.out, config, windows, args.device, lambda text: print(
            text, flush=True))
    except CheckpointError as error:
        raise UserError(str(error)) from error
    return 0


def memory_table(name: str) -> str:
    """What a model needs in each setting with six trajectories, and on which cards that fits."""
    from ..core import checkpoint
    from ..core.config import EngineConfig
    from ..core.quantization.footprint import CARDS_GIB, GIB, SETTINGS, memory_needed
    from ..evaluation.tables import markdown
    model, _ = checkpoint.read_config(checkpoint.find(name))
    rows = []
    for kind, expert in SETTINGS:
        needed = memory_needed(model, EngineConfig(
            quantization=kind, quantize_expert=expert, num_trajectories=6), drafter=True)
        rows.append([kind + (', expert too' if expert else ''),
                     *(f'{part / GIB:.1f}' for part in (needed.weights, needed.cache, needed.work,
                                                        needed.total)),
                     *('yes' if needed.total <= card * GIB else 'no' for card in CARDS_GIB)])
    return markdown(['weights', 'weights GiB', 'cache', 'work', 'total',
                     *(f'{card} GiB' for card in CARDS_GIB)], rows)
