"""
Replay a bag or a video onto the topics that cameras and odometry use.

    flashdrive replay run_7                      at its own pace
    flashdrive replay run_7 --rate 0             lock-step: each window after the last one's plan
    flashdrive replay run_7 --stamps now --loop
    flashdrive replay dashcam.mp4 --assumed-speed-mps 20
    flashdrive replay run_7 --remap /front/image/compressed:=/camera/front_wide_120/image_raw/compressed
"""  # noqa: E501
from __future__ import annotations

from ._node import add_node_arguments, need_ros, overrides, ros_arguments


def add_arguments(parser):
    """Add this verb's arguments: the parameters of the node."""
    try:
        from ..nodes.recording_parameters import REPLAY
    except ImportError:
        REPLAY = ()   # no ROS: `run` says so
    add_node_arguments(parser, REPLAY, positional='source')


def run(args) -> int:
    """Run the replay in this process."""
    need_ros()
    from ..nodes.recording_parameters import REPLAY
    from ..nodes.replay_node import replay
    return replay(overrides(args, REPLAY), ros_arguments(args.namespace))
