"""The parameters of the drive node; those of the engine are the fields of `EngineConfig`."""
from __future__ import annotations

from collections.abc import Mapping

from ..core.config import EngineConfig
from ..core.types import CAMERA_NAMES
from .features import BUDGET_MB
from .gate import GateLimits
from .parameters import ParameterSpec as P

NODE = (
    P('model', 'string', 'small', 'checkpoint directory, or the name of a shipped model'),
    P('autostart', 'bool', True, 'configure and activate without being asked'),
    P('camera_ids', 'int[]', [0, 1, 2, 6],
      'camera ids: ' + ', '.join(f'{i} {name}' for i, name in CAMERA_NAMES.items())),
    P('camera_topics', 'string[]', [],
      'image topics, one per camera id; empty: camera/<name>/image_raw'),
    P('camera_mounts', 'string[]', [], 'where cameras sit that /tf_static does not place, each '
      'as ID X Y Z ROLL PITCH YAW in base_frame (m, rad), x along the view; for drawings only'),
    P('image_transport', 'string', 'compressed',
      'how images come; compressed adds /compressed to each topic',
      choices=('raw', 'compressed')),
    P('image_decoder', 'string', 'own', 'what reads images; cv_bridge must be installed',
      choices=('own', 'cv_bridge')),
    P('camera_reliability', 'string', 'best_effort', 'QoS of the camera subscriptions',
      choices=('best_effort', 'reliable')),
    P('camera_depth', 'int', 5, 'queue length of the camera subscriptions', 1, 100),
    P('camera_tolerance_s', 'float', 0.05,
      'how far a frame may be from the 100 ms grid of its set, s', 0.001, 0.099),
    P('anchor_camera', 'int', -1, 'id of the camera whose frames begin the 100 ms grid; '
      '-1: front_wide_120, or else the lowest id', -1, max(CAMERA_NAMES)),
    P('missing_cameras', 'string', 'stop', 'without a camera for timeout_s: stop planning, or '
      'go_on with the others, if the model takes any cameras', choices=('stop', 'go_on')),
    P('odometry_extrapolation_s', 'float', 0.0, 'odometry may end this long before the frames; '
      'constant velocity bridges it, s', 0.0, 0.5),
    P('odometry_jump_m', 'float', 1.0, 'movement between two odometry samples that their speed '
      'does not explain and that is refused as a jump, m', 0.01, 1e4),
    P('timeout_s', 'float', 1.0,
      'silence of a camera, of odometry or of plans that is an error, s', 0.1, 60.0, live=True),
    P('step_timeout_s', 'float', 0.0,
      'end the process, to be started anew, when one step takes longer than this, s; 0: never',
      0.0, 3600.0, live=True),
    P('base_frame', 'string', 'base_link', 'frame id of plans: the vehicle'),
    P('output_frame', 'string', '', 'frame of trajectory and path: that of the odometry, or '
      'another to which /tf leads, e.g. map; empty: base_frame'),
    P('feature_budget_mb', 'float', BUDGET_MB, 'plan features that take more are not published; '
      'the default is what config/large_images.xml lets through shared memory, MB', 0.01, 1024.0),
)

_DEFAULT, _LIMITS = EngineConfig(), GateLimits()


def _gate(name: str, text: str, *range_) -> P:
    return P(f'gate_{name}', 'float', getattr(_LIMITS, name),
             f'a plan is withheld {text}', *range_, live=True)


GATE = (
    _gate('min_speed_mps', 'with a speed below this, m/s', -100.0, 0.0),
    _gate('max_speed_mps', 'with a speed above this, m/s', 0.0, 100.0),
    _gate('max_acceleration_mps2', 'that speeds up or slows down by more, m/s^2', 0.0, 100.0),
    _gate('max_lateral_acceleration_mps2', 'that turns with more than this, m/s^2', 0.0, 100.0),
    _gate('max_curvature_1pm', 'with a greater curvature, 1/m', 0.0, 10.0),
    _gate('max_start_m', 'that begins further than this from where the vehicle then is, m',
          0.0, 100.0),
    _gate('max_speed_step_mps', "whose first speed is further from the vehicle's, m/s",
          0.0, 100.0),
)
NODE += GATE


def _engine(name: str, kind: str, text: str, *range_, live: bool = True, **more) -> P:
    default = getattr(_DEFAULT, name)
    return P(name, kind, list(default) if kind.endswith('[]') else default, text, *range_,
             live=live, **more)


ENGINE = (
    _engine('device', 'string', "torch device: 'cpu', 'cuda', 'cuda:1', or 'auto'", live=False),
    _engine('dtype', 'string', 'number type of the model; auto is float32 on CPU, else bfloat16',
            choices=('auto', 'float32', 'bfloat16', 'float16'), live=False),
    _engine('cpu_threads', 'int', 'threads of torch on a CPU; 0: half the cores', 0, 1024,
            live=False),
    _engine('graphs', 'string', 'replay every stage as a CUDA graph; auto: where there is CUDA',
            choices=('auto', 'on', 'off')),
    _engine('fusion', 'string', 'fused kernels; auto: where there is CUDA',
            choices=('auto', 'on', 'off')),
    _engine('quantization', 'string', "the language model's weights in fewer bits; none: as the "
            'checkpoint is', choices=('none', 'fp8', 'w4a8', 'w4a16'), live=False),
    _engine('quantize_expert', 'bool', "the action expert's weights too", live=False),
    _engine('streaming', 'bool', 'compute only what is new; off: the whole window every time'),
    _engine('seed', 'int', 'seed of every sampling', 0, 2**31 - 1),
    _engine('num_trajectories', 'int', 'trajectories sampled per plan', 1, 64),
    _engine('separate_reasonings', 'bool', 'each trajectory after a reasoning of its own'),
    _engine('flow_steps', 'int', 'steps of flow matching; 0: the number of the checkpoint',
            0, 100),
    _engine('velocity_reuse', 'int[]',
            'flow steps that take the velocity of the step before them, e.g. 3, 4, 5, 6 of 8'),
    _engine('greedy', 'bool', 'always take the likeliest token; else temperature and top_p'),
    _engine('temperature', 'float', 'sampling temperature of the reasoning', 1e-3, 10.0),
    _engine('top_p', 'float', 'probability mass kept when sampling the reasoning', 1e-3, 1.0),
    _engine('drafting', 'string', 'several reasoning tokens per pass: auto while that pays',
            choices=('auto', 'on', 'off')),
    _engine('settle_reasoning', 'bool', 'plans are the same to the bit, drafted or not'),
    _engine('max_new_tokens', 'int', 'most reasoning tokens of a plan', 1, 1024),
    _engine('nav_guidance_weight', 'float', 'guidance on the navigation text; 1 is none',
            0.0, 10.0),
    _engine('noise_temperature', 'float', 'factor on the initial noise of flow matching',
            0.0, 10.0),
    _engine('primitives', 'string[]',
            'what a plan is asked to draw: boxes:CAMERA:CLASS,..., trajectory_2d:CAMERA:POINTS, '
            'trajectory_3d:POINTS, trajectory_2d_3d:CAMERA:POINTS, motion:POINTS, '
            'dual_arm:CAMERA:POINTS'),
    _engine('primitives_every', 'int', 'only every that many-th plan is asked for primitives',
            1, 1000),
    _engine('primitive_decoding', 'string', 'how primitives are decoded; auto: what the drafter '
            'was trained for, autoregressive without one',
            choices=('auto', 'autoregressive', 'verified', 'direct', 'fallback')),
    _engine('max_primitive_tokens', 'int', 'most tokens of the answer to one request', 1, 4096),
    _engine('box_confidence', 'float',
            'a drafted coordinate of a box is uncertain below this probability', 0.0, 1.0),
    _engine('box_spread', 'int', 'and when likely ones lie further apart than this, in 1/1000 of '
            'the image', 0, 1000),
    _engine('features', 'string', 'hidden states for action models: with every plan, or with '
            'those that are asked for primitives', choices=('off', 'plan', 'drawn')),
    _engine('feature_layers', 'int[]', 'layers of the features: 0 is the embedding output, -1 the '
            'last, behind the final norm'),
    _engine('feature_segments', 'string[]',
            'tokens of the features: question, subtask, trajectory, image, other'),
    _engine('feature_dtype', 'string', 'number type of the features',
            choices=('float32', 'float16', 'bfloat16')),
    _engine('standardise_features', 'bool',
            'each vector of the features with mean 0 and standard deviation 1'),
    _engine('recompute_labels', 'string', 'frame labels that a streaming step computes again',
            choices=('keep', 'newest', 'all')),
    _engine('refresh_period_s', 'float', 'a full prefill at least this often, s; 0: never',
            0.0, 3600.0),
)
ENGINE_NAMES = frozenset(spec.name for spec in ENGINE)


def engine_config(parameters: Mapping) -> EngineConfig:
    """Settings of the engine out of all parameters."""
    return EngineConfig(**{name: parameters[name] for name in ENGINE_NAMES})
