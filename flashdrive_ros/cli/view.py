"""
Show a recording, or a drive that is running, in rerun (pip install "flashdrive_ros[view]").

    flashdrive view                         the recording in out/drive
    flashdrive view run_7 --save run_7.rrd  convert only, to look at elsewhere
    flashdrive view --live                  what runs now

rerun reports anonymous usage data unless told otherwise: rerun analytics disable
"""
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def add_arguments(parser):
    """Add this verb's arguments."""
    parser.add_argument('recording', type=Path, nargs='?', default=Path('out/drive'),
                        help='a bag, or a folder that "drive" wrote (default: %(default)s)')
    parser.add_argument('--save', type=Path, metavar='FILE',
                        help='write a rerun file and do not open the viewer')
    parser.add_argument('--live', action='store_true', help='show the nodes that run now')
    parser.add_argument('--namespace', default='', help='live: namespace of the nodes')


def run(args) -> int:
    """Convert and open, or follow the running nodes."""
    from ..view.rerun_log import load_rerun, log_recording
    load_rerun()
    if args.live:
        from ._node import need_ros
        need_ros()
        from ..nodes.viewer_node import view
        return view(args.namespace)
    from ..recording.recording import Recording
    from ..session.folder import find_bag
    bag = find_bag(args.recording)
    path = args.save or bag.parent / 'drive.rrd'
    log_recording(Recording(bag), path)
    print(f'{path}: {path.stat().st_size / 1e6:.1f} MB')
    if args.save:
        return 0
    viewer = Path(sys.prefix) / 'bin' / 'rerun'
    return subprocess.call([str(viewer) if viewer.exists() else shutil.which('rerun') or 'rerun',
                            str(path)])
