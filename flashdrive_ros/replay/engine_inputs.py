"""Arguments of engine steps out of a recording, without any node."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.types import CAMERA_NAMES, InputError
from ..errors import UserError
from ..nodes.frames import FrameSelector
from ..nodes.images import decode_compressed, decode_image
from ..nodes.inputs import StepInput, StepInputs
from ..recording.bag import ODOMETRY_TYPE, stamp_ns
from ..recording.definitions import Definitions
from .bag_source import BagSource
from .ego_motion import ConstantSpeed
from .source import Source
from .video_source import VideoSource

ASSUMED_SPEED_MPS = 15.0
"""Of a video, which says nothing of how its car moved."""


def open_recording(path: str) -> Source:
    """Open a bag's directory or a video's file."""
    found = Path(path).expanduser()
    if not found.exists():
        raise UserError(f'{found} does not exist')
    if found.is_dir() or found.suffix in ('.mcap', '.db3'):
        return BagSource(found)
    return VideoSource(found, ConstantSpeed(ASSUMED_SPEED_MPS))


def engine_inputs(source: Source, window: int = 4) -> Iterator[StepInput]:
    """Inputs of the steps that a drive node could have made of `source`, one after the other."""
    definitions, cameras = Definitions(), {}
    for topic, spec in source.topics.items():
        names = [i for i, name in CAMERA_NAMES.items() if name in topic]
        if spec.is_image and names:
            cameras[topic] = names[0]
        if topic in cameras or spec.type == ODOMETRY_TYPE:
            definitions.require(spec.type)
    if not cameras:
        raise UserError(f'{source.description}: no image topic is named after a camera '
                        f'({", ".join(CAMERA_NAMES.values())})')

    def decode(camera: int, payload: tuple) -> np.ndarray:
        topic, cdr = payload
        kind = source.topics[topic].type
        message = definitions.store.deserialize_cdr(cdr, kind)
        return (decode_compressed if 'Compressed' in kind else decode_image)(message, topic)

    inputs = StepInputs(FrameSelector(sorted(set(cameras.values()))), decode, window)
    for message in source.messages():
        kind = source.topics[message.topic].type
        if message.topic in cameras:
            inputs.add_camera(cameras[message.topic], message.stamp_ns,
                              (message.topic, message.cdr))
        elif kind == ODOMETRY_TYPE:
            pose = definitions.store.deserialize_cdr(message.cdr, kind)
            position, turn = pose.pose.pose.position, pose.pose.pose.orientation
            inputs.add_odometry(stamp_ns(pose.header.stamp),
                                (position.x, position.y, position.z),
                                (turn.x, turn.y, turn.z, turn.w))
        else:
            continue
        try:
            step = inputs.take()
        except InputError:  # frames that no step can use; the next may be better
            continue
        if step is not None:
            yield step
