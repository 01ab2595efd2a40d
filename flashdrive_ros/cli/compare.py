"""
Compare the plans of two recordings, matched by the time of their frames.

Exit code 0 when every plan has a partner with the same text and waypoints
within the tolerance, else 1.

    flashdrive compare out/drive/bag out/again/bag --tolerance 1e-4
"""
from __future__ import annotations

from pathlib import Path


def add_arguments(parser):
    """Add this verb's arguments."""
    parser.add_argument('first', type=Path, help='a bag, or a folder that "drive" wrote')
    parser.add_argument('second', type=Path, help='another one')
    parser.add_argument('--tolerance', type=float, default=1e-3, metavar='M',
                        help='largest difference of a waypoint, m (default: %(default)s)')


def run(args) -> int:
    """Print the comparison."""
    from ..recording.compare import compare, report
    from ..recording.recording import Recording
    from ..session.folder import find_bag
    comparison = compare(Recording(find_bag(args.first)), Recording(find_bag(args.second)))
    print(report(comparison, args.tolerance))
    return 0 if comparison.within(args.tolerance) else 1
