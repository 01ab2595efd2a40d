"""
Waymo's end-to-end driving data and its challenge: frames in, 20 points at 4 Hz out.

Only the fields used here are declared (`waymo.open_dataset`, proto2).  Positions are metres
in the ego frame at t0 (x forward, y left), the origin in the middle of the rear axle.
"""
from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ..core.ego import EgoHistory
from ..core.engine import Engine
from ..core.types import GRID_NS, NANOSECONDS, CameraFrame, DrivePlan, FrameSet, InputError
from ..errors import UserError
from ..nodes.images import decode_compressed
from .messages import by_last_name, make_messages
from .resample import poses_at, times_s

RATE_HZ, HORIZON_S = 4.0, 5.0
CAMERAS = {2: 0, 1: 1, 3: 2}
"""Our camera by Waymo's number: front left, front, front right."""
INTENTS = {1: 'Go straight.', 2: 'Turn left.', 3: 'Turn right.'}
T0_NS = 10 * NANOSECONDS
MOVING_MPS = 0.5
PACKAGE = 'waymo.open_dataset'
_OURS = f'{PACKAGE}.'
FIELDS = {
    'Context': 'optional string name 1',
    'CameraImage': 'optional enum name 1, optional bytes image 2',
    'Frame': f'optional {_OURS}Context context 1, optional int64 timestamp_micros 2, '
             f'repeated {_OURS}CameraImage images 4',
    'EgoTrajectoryStates':
        'repeated float pos_x 1, repeated float pos_y 2, repeated float pos_z 3, '
        'repeated float vel_x 4, repeated float vel_y 5, repeated float accel_x 6, '
        'repeated float accel_y 7, optional float preference_score 8',
    'E2EDFrame': f'optional {_OURS}Frame frame 1, '
                 f'optional {_OURS}EgoTrajectoryStates future_states 5, '
                 f'optional {_OURS}EgoTrajectoryStates past_states 6, optional enum intent 7, '
                 f'repeated {_OURS}EgoTrajectoryStates preference_trajectories 8',
    'TrajectoryPrediction': 'repeated float pos_x 1, repeated float pos_y 2',
    'FrameTrajectoryPredictions': 'optional string frame_name 1, '
                                  f'optional {_OURS}TrajectoryPrediction trajectory 2',
    'E2EDChallengeSubmission':
        f'repeated {_OURS}FrameTrajectoryPredictions predictions 1, '
        'optional enum submission_type 2, optional string account_name 3, '
        'optional string unique_method_name 4, repeated string authors 5, '
        'optional string affiliation 6, optional string description 7, '
        'optional string method_link 8, optional bool uses_public_model_pretraining 11, '
        'optional string num_model_parameters 12, repeated string public_model_names 13',
}


@cache
def messages() -> SimpleNamespace:
    """The message classes; raises `UserError` without protobuf."""
    return by_last_name(make_messages([(PACKAGE, 'proto2', FIELDS)]), PACKAGE)


def points(plan: DrivePlan) -> np.ndarray:
    """Positions [20, 2] m at 0.25, 0.5, … 5 s of a plan."""
    return poses_at(plan, times_s(RATE_HZ, HORIZON_S))[:, :2]


def add_prediction(submission, frame_name: str, xy) -> None:
    """Add positions `xy` [20, 2] of one frame to an `E2EDChallengeSubmission`."""
    xy = np.asarray(xy, np.float64)
    if xy.shape != (round(RATE_HZ * HORIZON_S), 2) or not np.isfinite(xy).all():
        raise InputError(f'{frame_name}: a prediction must be 20 finite points [20, 2], got '
                         f'{list(xy.shape)}')
    if any(p.frame_name == frame_name for p in submission.predictions[-1:]):
        raise InputError(f'{frame_name} has a prediction already')
    prediction = submission.predictions.add(frame_name=frame_name)
    prediction.trajectory.pos_x.extend(xy[:, 0])
    prediction.trajectory.pos_y.extend(xy[:, 1])


def new_submission(account_name: str, method: str, parameters: str, *, pretrained: bool = True,
                   **others):
    """
    Return a submission with the fields without which it is refused.

    `parameters` is a count such as '10B'; `pretrained` says that the model began as a public
    one; `others` are further fields.
    """
    if not parameters[:1].isdigit() or parameters[-1:] not in 'KMBT':
        raise InputError(f'parameters must be a number and K, M, B or T, got {parameters!r}')
    return messages().E2EDChallengeSubmission(
        submission_type=1, account_name=account_name, unique_method_name=method,
        num_model_parameters=parameters, uses_public_model_pretraining=pretrained, **others)


def predict(engine: Engine, frame) -> DrivePlan:
    """Plan for one `E2EDFrame`, its camera images alone: their past is not in the data."""
    name, wanted = frame.frame.context.name, engine.camera_ids
    images = {CAMERAS[i.name]: i.image for i in frame.frame.images if i.name in CAMERAS}
    missing = sorted(set(wanted or CAMERAS.values()) - set(images))
    if missing:
        raise InputError(f'frame {name!r} has no image for cameras {missing}')
    frames = FrameSet(T0_NS, {c: CameraFrame(decode_compressed(
        SimpleNamespace(data=np.frombuffer(data, np.uint8), format=''), f'{name} camera {c}'),
        T0_NS) for c, data in images.items()})
    engine.reset('another frame')
    text = '' if engine.model.config.is_r1 else INTENTS.get(frame.intent, '')
    return engine.step(frames, ego_history(frame.past_states, T0_NS), text)


def ego_history(states, t0_ns: int) -> EgoHistory:
    """
    Ego history from the `past_states` of a frame, 4 Hz, the last at t0.

    They have no heading: that is the direction of the velocity, held where the car stands.
    """
    xy = np.stack([states.pos_x, states.pos_y], 1).astype(np.float64)
    velocity = np.stack([states.vel_x, states.vel_y], 1).astype(np.float64)
    if len(xy) < 7 or len(velocity) != len(xy):
        raise InputError(f'past states have {len(xy)} positions and {len(velocity)} velocities; '
                         '1.5 s at 4 Hz are 7 of each')
    yaw, latest = np.zeros(len(xy)), 0.0
    for i in range(len(xy) - 2, -1, -1):
        if np.hypot(*velocity[i]) > MOVING_MPS:
            latest = np.arctan2(velocity[i, 1], velocity[i, 0])
        yaw[i] = latest
    zero = np.zeros(len(xy))
    turn = np.stack([zero, zero, np.sin(yaw / 2), np.cos(yaw / 2)], 1)
    stamps = t0_ns + np.arange(-len(xy) + 1, 1) * round(2.5 * GRID_NS)
    return EgoHistory.from_odometry(stamps, np.column_stack((xy, zero)), turn, t0_ns)


def read_records(path: Path | str) -> Iterator[bytes]:
    """
    Yield the records of a TFRecord file: length, its check, the record, its check.

    Raises `UserError` where the file ends within one; the check sums are not looked at.
    """
    with Path(path).open('rb') as file:
        while head := file.read(12):
            length = struct.unpack('<Q', head[:8])[0] if len(head) == 12 else 0
            record = file.read(length + 4)
            if len(head) < 12 or len(record) < length + 4:
                raise UserError(f'{path} ends within a record: it is cut or no TFRecord file')
            yield record[:-4]


def read_frames(path: Path | str) -> Iterator:
    """Yield the `E2EDFrame`s of a TFRecord file."""
    for number, record in enumerate(read_records(path)):
        try:
            yield messages().E2EDFrame.FromString(record)
        except Exception as error:  # protobuf's own class, which is not imported here
            raise UserError(f'{path}: record {number} is no E2EDFrame: {error}') from None
