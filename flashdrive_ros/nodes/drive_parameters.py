"""The parameters of the drive node."""
from __future__ import annotations

from ..core.types import CAMERA_NAMES
from .parameters import ParameterSpec as P

NODE = (
    P('model', 'string', 'small', 'checkpoint directory, or the name of a shipped model'),
    P('autostart', 'bool', True, 'configure and activate without being asked'),
    P('camera_ids', 'int[]', [0, 1, 2, 6],
      'camera ids: ' + ', '.join(f'{i} {name}' for i, name in CAMERA_NAMES.items())),
    P('camera_topics', 'string[]', [],
      'image topics, one per camera id; empty: camera/<name>/image_raw'),
    P('image_transport', 'string', 'compressed', 'how images come; compressed adds /compressed '
      'to each topic', choices=('raw', 'compressed')),
    P('camera_reliability', 'string', 'best_effort', 'QoS of the camera subscriptions',
      choices=('best_effort', 'reliable')),
    P('camera_depth', 'int', 5, 'queue length of the camera subscriptions', 1, 100),
    P('camera_tolerance_s', 'float', 0.05,
      'how far a frame may be from the 100 ms grid of its set, s', 0.001, 0.099),
    P('timeout_s', 'float', 1.0, 'silence of a camera, of odometry or of plans that is an error, '
      's', 0.1, 60.0, live=True),
    P('base_frame', 'string', 'base_link', 'frame id of plans: the vehicle'),
)

ENGINE = (
    P('device', 'string', 'cpu', 'torch device that the model runs on'),
    P('dtype', 'string', 'auto', 'number type of the model'),
    P('eager', 'bool', False, 'plain execution without captured graphs'),
    P('streaming', 'bool', True, 'compute only what is new in each window'),
    P('seed', 'int', 0, 'seed of every sampling', 0, 2**31 - 1, live=True),
    P('num_trajectories', 'int', 1, 'trajectories sampled per plan', 1, 64, live=True),
    P('flow_steps', 'int', 10, 'integration steps of the action expert', 1, 100, live=True),
    P('temperature', 'float', 0.6, 'sampling temperature of the reasoning', 0.0, 5.0, live=True),
    P('top_p', 'float', 0.98, 'probability mass kept in sampling the reasoning', 0.0, 1.0,
      live=True),
    P('greedy', 'bool', True, 'always take the likeliest token', live=True),
    P('max_new_tokens', 'int', 64, 'most reasoning tokens of a plan', 1, 4096, live=True),
    P('nav_guidance_weight', 'float', 1.0, 'weight of the navigation text; 1 is plain',
      0.0, 10.0, live=True),
)
"""Names and kinds of the fields of `core.config.EngineConfig`."""
