"""
What goes into an engine step and what comes out of it.

Stamps are integer nanoseconds of one clock (the cameras' acquisition time).
Poses are in the ego frame at t0 unless said otherwise: x forward, y left,
z up, metres, radians, right-handed (REP 103).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

CAMERA_NAMES = {
    0: 'cross_left_120',
    1: 'front_wide_120',
    2: 'cross_right_120',
    3: 'rear_left_70',
    4: 'rear_tele_30',
    5: 'rear_right_70',
    6: 'front_tele_30',
}
"""Camera ids of Alpamayo; the prompt is always written in ascending id order."""

NANOSECONDS = 1_000_000_000
GRID_NS = 100_000_000
"""The models were trained on frames 100 ms apart."""


MAX_ASPECT = 200
"""Longer side of an image over its shorter one; Qwen's image preparation takes no more."""


class InputError(ValueError):
    """A step was refused because of its input; the engine's state is unchanged."""


@dataclass(frozen=True)
class CameraFrame:
    """
    One image: RGB uint8 [H, W, 3] and the time it was taken (ns).

    A tensor will do as well, on the engine's device best of all.
    """

    image: np.ndarray
    stamp_ns: int

    def __post_init__(self):
        """Refuse anything that is not an RGB uint8 image of a usable shape."""
        shape, dtype = np.shape(self.image), getattr(self.image, 'dtype', None)
        if len(shape) != 3 or shape[2] != 3 or 0 in shape or str(dtype) not in (
                'uint8', 'torch.uint8'):
            raise InputError(
                f'a camera frame must be uint8 [H, W, 3] RGB, got {dtype} {list(shape)}')
        if max(shape[:2]) > MAX_ASPECT * min(shape[:2]):
            raise InputError(f'image {shape[1]}x{shape[0]} has an aspect ratio above {MAX_ASPECT}')


@dataclass(frozen=True)
class FrameSet:
    """
    One new frame of every camera, belonging to the grid time `t0_ns`.

    `frames` maps the camera id (`CAMERA_NAMES`) to its frame; each frame keeps
    its own stamp, which lies within the selector's tolerance of `t0_ns`.
    """

    t0_ns: int
    frames: Mapping[int, CameraFrame]

    def __post_init__(self):
        """Keep the cameras in ascending id order; refuse unknown ids and an empty set."""
        unknown = sorted(set(self.frames) - set(CAMERA_NAMES))
        if unknown or not self.frames:
            raise InputError(f'camera ids must be some of {sorted(CAMERA_NAMES)}, '
                             f'got {sorted(self.frames)}')
        object.__setattr__(self, 'frames', dict(sorted(self.frames.items())))

    @property
    def camera_ids(self) -> tuple[int, ...]:
        """Ids of the cameras, ascending."""
        return tuple(self.frames)

    @property
    def skew_ns(self) -> int:
        """Latest minus earliest stamp of the set."""
        stamps = [f.stamp_ns for f in self.frames.values()]
        return max(stamps) - min(stamps)


@dataclass(frozen=True)
class Reasoning:
    """
    Chain-of-causation text of one plan.

    `token_ids` are the generated ids up to and including the end marker;
    `drafted` and `accepted` count speculative tokens (0 without drafting) and
    `rounds` the target passes; `accepted_by_round` holds what each round accepted.
    `stop_reason` is 'end_token', 'im_end' or 'length'.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    stop_reason: str = 'end_token'
    accepted_by_round: tuple[int, ...] = ()


@dataclass(frozen=True)
class Primitive:
    """
    One visual primitive (VFlash): a point, box or trajectory.

    `type` is 'point', 'box_2d', 'box_3d', 'trajectory_2d' or 'trajectory_3d'; `values` is
    [n, d] in `units`: pixels of the original image of `camera_id`, metres in its optical
    frame, or in the ego frame at t0 when it is None.  NaN marks values out of view.
    """

    type: str
    label: str
    values: np.ndarray
    units: str
    camera_id: int | None = None
    confidences: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    decode_path: str = 'autoregressive'
    token_ids: tuple[int, ...] = ()


SEGMENTS = {'question': 0, 'subtask': 1, 'trajectory': 2, 'image': 3, 'other': 255}
"""
Segments of a plan's features and their ids.

question    text of the prompt (history and route included) and of questions for primitives
subtask     the reasoning, and what answers say besides primitives
trajectory  primitives that are trajectories, from start to end token
image       image tokens
other       labels and markers around images, boxes and points
"""
FEATURE_DTYPES = ('float32', 'float16', 'bfloat16')


@dataclass(frozen=True)
class PlanFeatures:
    """
    Hidden states of one plan for action models (spec `vflash.md` section 4.7).

    `values` [layers, tokens, hidden] are float32, float16 or, as uint16, the bits of bfloat16,
    which `dtype` says.  `layer_ids` count as in transformers: 0 is the embedding output, i the
    output of layer i, the last of all that behind the final norm.  `token_ids` uint32,
    `positions` int32 (temporal rotary position), `segment_ids` uint8 (`SEGMENTS`) and `valid`
    bool are [tokens]; what is not valid was not computed, or is not finite.  `decode_path` is
    that of the first primitive, else of the reasoning ('autoregressive' or 'verified').
    """

    values: np.ndarray
    layer_ids: tuple[int, ...]
    token_ids: np.ndarray
    positions: np.ndarray
    segment_ids: np.ndarray
    valid: np.ndarray
    standardised: bool = False
    dtype: str = 'float32'
    decode_path: str = ''


@dataclass(frozen=True)
class WindowState:
    """
    How the window of this plan was computed.

    `mode` is 'prefill' (everything) or 'streaming' (only what is new);
    `reason` says why a prefill was due ('' when streaming).  `frames_known` of
    `frames_per_camera` are real; older ones repeat the oldest known frame.
    """

    mode: str
    reason: str
    frames_known: int
    frames_per_camera: int
    images_encoded: int
    prompt_tokens: int
    computed_tokens: int


@dataclass(frozen=True)
class DrivePlan:
    """
    The result of one engine step; everything in it belongs to `t0_ns`.

    K trajectories of N waypoints; waypoint i lies (i + 1) * `dt_s` after t0.

    xyz           [K, N, 3] m          yaw           [K, N] rad
    speed         [K, N] m/s           acceleration  [K, N] m/s^2
    curvature     [K, N] 1/m           scores        [K], higher is better

    `trained` is False while the model's weights are random: such a plan must
    never reach a vehicle.  `stage_times_ms` has encode, prefill, reason, act,
    draw and total, and features when there are any.  `primitives` are those that
    `EngineConfig.primitives` asks for; `drawn` is False for a plan that was not asked for any.
    """

    t0_ns: int
    plan_id: int
    xyz: np.ndarray
    yaw: np.ndarray
    speed: np.ndarray
    acceleration: np.ndarray
    curvature: np.ndarray
    scores: np.ndarray
    chosen: int
    dt_s: float
    reasoning: Reasoning
    window: WindowState
    stage_times_ms: Mapping[str, float]
    model: str
    trained: bool
    primitives: tuple[Primitive, ...] = ()
    drawn: bool = False
    features: PlanFeatures | None = None
    all_reasonings: tuple[Reasoning, ...] = ()

    @property
    def is_finite(self) -> bool:
        """True when every number of every trajectory is finite."""
        return all(np.isfinite(a).all() for a in (
            self.xyz, self.yaw, self.speed, self.acceleration, self.curvature))
