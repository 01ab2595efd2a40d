"""
Draft a topics file for a bag: which of its topics are cameras and odometry.

    flashdrive topics run_7 > my_topics.yaml     then look it through
    flashdrive drive --source bag:run_7 --topics my_topics.yaml
"""
from __future__ import annotations

from pathlib import Path


def add_arguments(parser):
    """Add this verb's arguments."""
    parser.add_argument('bag', type=Path, help='rosbag2: a folder, or its .mcap or .db3 file')


def run(args) -> int:
    """Print the draft."""
    from ..session.topics import draft
    print(draft(args.bag), end='')
    return 0
