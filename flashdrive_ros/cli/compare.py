"""
Compare two recordings: plans, texts and times, matched by the time of their frames.

Exit code 0 when every plan has a partner with the same text and waypoints
within the tolerance, else 1.

    flashdrive compare out/drive/bag out/again/bag --tolerance 1e-4
    flashdrive compare out/drive out/again --html out/compare.html
"""
from __future__ import annotations

from pathlib import Path

from ..errors import UserError


def add_arguments(parser):
    """Add this verb's arguments."""
    parser.add_argument('first', type=Path, help='a bag, or a folder that "drive" wrote')
    parser.add_argument('second', type=Path, help='another one')
    parser.add_argument('--tolerance', type=float, default=1e-3, metavar='M',
                        help='largest difference of a waypoint, m (default: %(default)s)')
    parser.add_argument('--html', type=Path, metavar='FILE', help='write a page as well: the '
                        'table, times and differences over the drive, the plans that differ')


def run(args) -> int:
    """Print the comparison."""
    from ..recording.compare import compare, report
    from ..recording.recording import Recording
    from ..session.folder import find_bag
    bags = find_bag(args.first), find_bag(args.second)
    comparison = compare(*map(Recording, bags))
    print(report(comparison, args.tolerance))
    if args.html:
        from ..recording.compare_page import write_page
        try:
            path = write_page(comparison, args.tolerance, list(map(str, bags)), args.html)
        except OSError as error:
            raise UserError(f'--html {args.html}: {error.strerror or error}') from error
        print(f'page: {path}')
    return 0 if comparison.within(args.tolerance) else 1
