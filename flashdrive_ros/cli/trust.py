"""
Prove how far the drive node can be trusted: break its drives, soak it, time it.

The node runs as a process of its own, with a car beside it, over real DDS in a domain that
nobody else is in.  Its engine is a double that needs no time and fails on demand, or a model.

    flashdrive trust faults
    flashdrive trust faults --only flood --engine small
    flashdrive trust soak --windows 10000
    flashdrive trust overhead
"""
from __future__ import annotations

import argparse
from pathlib import Path

KINDS = {
    'faults': ('double', 'faults of cameras, clocks, engine and peers: what each one costs'),
    'soak': ('double', 'thousands of windows: memory, and windows without plan and reason'),
    'overhead': ('small', "from the cameras' stamp to the plan, less the engine's step"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `flashdrive trust`."""
    kinds = parser.add_subparsers(title='what', dest='what', metavar='<what>', required=True)
    for name, (engine, text) in KINDS.items():
        kind = kinds.add_parser(name, help=text)
        add = kind.add_argument
        add('--engine', default=engine, metavar='MODEL',
            help='double, or a model (default: %(default)s)')
        add('--set', action='append', default=[], metavar='PARAMETER=VALUE',
            help='one parameter of the drive node; may be repeated')
        add('--work', type=Path, default=Path('out/trust'), metavar='FOLDER',
            help='for logs (default: %(default)s)')
        add('--out', type=Path, default=Path('bench/results'), metavar='FOLDER',
            help='for results (default: %(default)s)')
        if name == 'faults':
            add('--only', nargs='+', default=[], metavar='WORD', help='faults with one of these '
                'words in their names; other rows of the results file stay')
            add('--seed', type=int, default=0, help='of what is random (default: %(default)s)')
        elif name == 'soak':
            add('--windows', type=int, default=10_000, help='(default: %(default)s)')
        else:
            add('--plans', type=int, default=300, help='(default: %(default)s)')


def run(args: argparse.Namespace) -> int:
    """Do it; 0 when the node held."""
    from ..errors import UserError
    try:
        from ..evaluation.trust import results
    except ImportError as error:
        raise UserError(f'ROS 2 is not there: {error}') from None
    return getattr(results, args.what)(args)
