"""
Record topics to a rosbag2 (mcap) until Ctrl-C.

    flashdrive record --bag run_7
    flashdrive record --bag run_7 --topics '/camera/.*' /odometry
"""
from __future__ import annotations

from ._node import add_node_arguments, need_ros, overrides, ros_arguments


def add_arguments(parser):
    """Add this verb's arguments: the parameters of the node."""
    try:
        from ..nodes.recording_parameters import RECORDER
    except ImportError:
        RECORDER = ()   # no ROS: `run` says so
    add_node_arguments(parser, RECORDER)


def run(args) -> int:
    """Run the recorder in this process."""
    need_ros()
    from ..nodes.recorder_node import record
    from ..nodes.recording_parameters import RECORDER
    return record(overrides(args, RECORDER), ros_arguments(args.namespace))
