"""Check that this engine computes what the released model computes, array by array."""
from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `flashdrive verify`."""
    parser.add_argument('directory', help='golden directory: index.json, checkpoints, cases')
    parser.add_argument('--only', default='', metavar='TEXT',
                        help='only files whose name contains TEXT, e.g. alpamayo1_5/c2f4')
    parser.add_argument('--quiet', action='store_true', help='say only failures and totals')


def run(arguments: argparse.Namespace) -> int:
    """Verify a directory; 0 only if every comparison holds."""
    from ..evaluation.verify import GoldenError, verify
    lines: list[str] = []
    try:
        report = verify(arguments.directory, arguments.only,
                        lines.append if arguments.quiet else print)
    except GoldenError as error:
        print(f'flashdrive verify: {error}', file=sys.stderr)
        return 2
    if arguments.quiet:
        print('\n'.join(lines[-1 - len(report.failures):]))
    return 0 if report.passed else 1
