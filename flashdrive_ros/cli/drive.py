"""
Drive: start the nodes, watch them, then write a recording, a video and a summary.

Starts the same nodes with the same parameter files as the launch file does, on
machines without ros2 launch as well.  OUT then holds bag/, drive.mp4,
contact_sheet.png, summary.json, log/ and parameters/.

    flashdrive drive                                    30 s in the embedded world, lock-step
    flashdrive drive --rate 1                           ... in real time, if the machine can
    flashdrive drive --source video:dashcam.mp4
    flashdrive drive --source bag:run_7 --rate 0        lock-step: every window gets a plan
    flashdrive drive --model ./my_checkpoint --set drive.num_trajectories=6
"""
from __future__ import annotations

from pathlib import Path

from ._node import need_ros


def add_arguments(parser):
    """Add this verb's arguments."""
    add = parser.add_argument
    add('--source', default='world', metavar='SOURCE',
        help='world (the embedded one), video (the example clip), video:<file>, '
        'bag:<folder or file>, or none: publishers of your own (default: %(default)s)')
    add('--remap', action='append', default=[], metavar='FROM:=TO',
        help='another name for a topic of the drive node, such as '
        'odometry:=/localization/kinematic_state; may be repeated')
    add('--topics', default='', metavar='YAML', help='file of other names for topics: '
        'docs/your_topics.md; alpamayo_autoware is a shipped one')
    add('--model', default='', help='checkpoint directory, shipped name or hub id (default: that '
        'of the parameter files)')
    add('--duration', type=float, default=30.0, metavar='S', help='seconds from the first plan '
        'on, those of a world that waits for plans; 0: until the source ends or Ctrl-C '
        '(default: %(default)s)')
    add('--out', type=Path, default=Path('out/drive'), metavar='FOLDER',
        help='results go here, those of an earlier drive are replaced (default: %(default)s)')
    add('--params-file', type=Path, action='append', default=[], metavar='YAML',
        help='ROS parameters that every node reads after its own; may be repeated')
    add('--set', action='append', default=[], metavar='NODE.PARAM=VALUE',
        help='one parameter, such as drive.num_trajectories=6 or world.seed=3; may be repeated')
    add('--namespace', default='', help='namespace of all nodes')
    add('--rate', type=float, help='speed of the source; 0: lock-step, it waits for plans '
        '(default: 1 for a bag or video, 0 for the world)')
    add('--loop', action='store_true', help='begin a bag or video again at its end')
    add('--startup', type=float, default=180.0, metavar='S',
        help='give up when there is no plan after this time (default: %(default)s)')
    add('--no-record', action='store_true', help='only drive: no recording, no results')
    add('--no-pictures', action='store_true', help='no video and no contact sheet')


def run(args) -> int:
    """Drive, then print the summary."""
    need_ros()
    from ..session.drive import DriveOptions
    from ..session.drive import run as drive
    return drive(DriveOptions(
        source=args.source, model=args.model, duration_s=args.duration, out=args.out,
        namespace=args.namespace, parameter_files=tuple(args.params_file),
        settings=tuple(args.set), remaps=tuple(args.remap), rate=args.rate, loop=args.loop,
        topics=args.topics,
        startup_s=args.startup,
        record=not args.no_record, pictures=not args.no_pictures))
