"""
Configuration: one dataclass a concern, the defaults of Alpamayo 1.5 visible.

`ModelConfig.from_checkpoint` reads the `config.json` of a checkpoint directory
(the released field names) and the configuration of its base VLM.
"""
from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path

from .types import FEATURE_DTYPES, SEGMENTS, InputError


class CheckpointError(RuntimeError):
    """A checkpoint can't be used; the text names the file or key."""


@dataclass(frozen=True)
class VisionConfig:
    """Qwen3-VL vision tower (spec `alpamayo.md` section 2)."""

    depth: int = 27
    hidden_size: int = 1152
    num_heads: int = 16
    intermediate_size: int = 4304
    out_hidden_size: int = 4096
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    patch_size: int = 16
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    in_channels: int = 3

    @property
    def patch_dim(self) -> int:
        """Values of one flattened patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size ** 2


@dataclass(frozen=True)
class DecoderConfig:
    """Qwen3 decoder: the language model, or the action expert at other sizes."""

    num_hidden_layers: int = 36
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 5_000_000.0
    mrope_section: tuple[int, int, int] = (24, 20, 20)

    def __post_init__(self):
        """Check what the attention and the rotary code rely on."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(f'num_attention_heads {self.num_attention_heads} is no multiple '
                                  f'of num_key_value_heads {self.num_key_value_heads}')
        if sum(self.mrope_section) != self.head_dim // 2:
            raise CheckpointError(f'mrope_section {self.mrope_section} must sum to head_dim / 2 = '
                                  f'{self.head_dim // 2}')


@dataclass(frozen=True)
class ActionConfig:
    """Action space and flow matching (spec `alpamayo.md` sections 6 and 7)."""

    accel_mean: float = 0.02902694707164455
    accel_std: float = 0.6810426736454882
    curvature_mean: float = 0.0002692167976330542
    curvature_std: float = 0.026148280660833106
    accel_bounds: tuple[float, float] = (-9.8, 9.8)
    curvature_bounds: tuple[float, float] = (-0.33, 0.33)
    dt: float = 0.1
    n_waypoints: int = 64
    theta_lambda: float = 1e-6
    theta_ridge: float = 1e-8
    v_lambda: float = 1e-6
    v_ridge: float = 1e-4
    a_lambda: float = 1e-4
    a_ridge: float = 1e-4
    kappa_lambda: float = 1e-4
    kappa_ridge: float = 1e-4
    proj_hidden_size: int = 512
    proj_layers: int = 2
    num_fourier_feats: int = 20
    max_freq: float = 100.0
    num_inference_steps: int = 10

    def __post_init__(self):
        """Refuse what would give plans without computing any."""
        for name in ('num_inference_steps', 'n_waypoints', 'dt'):
            if not getattr(self, name) > 0:
                raise CheckpointError(f'{name} is {getattr(self, name)!r}, expected more than 0')


R1_CAMERAS = (0, 1, 2, 6)
"""Alpamayo 1 knows no other set of cameras."""


@dataclass(frozen=True)
class PromptConfig:
    """What the prompt is made of (spec `alpamayo.md` sections 3 to 5)."""

    include_camera_ids: bool = True
    include_frame_nums: bool = True
    min_pixels: int = 163840
    max_pixels: int = 196608
    traj_token_start_idx: int = 151669
    traj_vocab_size: int = 4000
    future_bins: int = 3000
    history_bins: int = 1000
    history_min: tuple[float, float, float] = (-4.0, -4.0, -10.0)
    history_max: tuple[float, float, float] = (4.0, 4.0, 10.0)
    history_yaw: bool = False
    future_min: tuple[float, float] = (-10.0, -10.0)
    future_max: tuple[float, float] = (10.0, 10.0)
    tokens_per_history_traj: int = 48
    frames_per_camera: int = 4
    camera_ids: tuple[int, ...] | None = None
    """Cameras that the model insists on; None: any subset."""
    system: str = ''
    """Text of the system turn; '' is that of driving."""
    camera_names: tuple[str, ...] = ()
    """Names of the cameras 0, 1, ... in the prompt; () are those of a car."""
    extra_tokens: tuple[str, ...] = ()
    """Tokens after the markers, a whole range written `<0>..<1000>`."""

    @property
    def history_token_start(self) -> int:
        """Id of history bin 0."""
        return self.traj_token_start_idx + self.future_bins


@dataclass(frozen=True)
class ModelConfig:
    """Everything about the network that a checkpoint fixes."""

    name: str = 'alpamayo-1.5-shape'
    model_type: str = 'alpamayo1_5'
    vision: VisionConfig = field(default_factory=VisionConfig)
    text: DecoderConfig = field(default_factory=DecoderConfig)
    expert: DecoderConfig = field(default_factory=lambda: DecoderConfig(
        hidden_size=2048, intermediate_size=8256, num_attention_heads=16))
    action: ActionConfig = field(default_factory=ActionConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    vocab_size: int = 155697
    weights_dtype: str = 'bfloat16'
    expert_non_causal_attention: bool = True
    trained: bool = True
    random_weights_seed: int | None = None

    def __post_init__(self):
        """Refuse an expert that can't attend to the language model's keys."""
        for key in ('num_key_value_heads', 'head_dim'):
            ours, theirs = getattr(self.expert, key), getattr(self.text, key)
            if ours != theirs:
                raise CheckpointError(f'expert {key} is {ours}, the language model has {theirs}')
        if self.expert.num_hidden_layers > self.text.num_hidden_layers:
            raise CheckpointError(
                f'expert num_hidden_layers is {self.expert.num_hidden_layers}, the language '
                f'model has only {self.text.num_hidden_layers}')

    @property
    def is_r1(self) -> bool:
        """Alpamayo 1 (R1): no labels in the prompt, fixed cameras."""
        return self.model_type == 'alpamayo_r1'

    @classmethod
    def from_checkpoint(cls, directory: Path, vlm: dict) -> ModelConfig:
        """
        Read `directory/config.json`; `vlm` is the base VLM's configuration.

        Raises `CheckpointError` naming the key.
        """
        raw = read_json(directory / 'config.json')
        model_type = raw.get('model_type')
        if model_type not in ('alpamayo1_5', 'alpamayo_r1'):
            raise CheckpointError(f"model_type is {model_type!r}, expected 'alpamayo1_5' or "
                                  "'alpamayo_r1'")
        is_r1 = model_type == 'alpamayo_r1'
        own = _section(raw, 'flashdrive')
        text = _section(vlm, 'text_config') if 'text_config' in vlm else vlm
        expert = {**text, **(_section(raw, 'expert_cfg') or _EXPERT_OVERRIDES)}
        prompt = {'camera_ids': R1_CAMERAS if is_r1 else None, **raw, **own, **_tokenizers(raw),
                  'include_camera_ids': not is_r1 and raw.get('include_camera_ids', True),
                  'include_frame_nums': not is_r1 and raw.get('include_frame_nums', True)}
        return cls(
            name=_checked('name', own.get('name'), directory.name), model_type=model_type,
            vision=take(VisionConfig, _section(vlm, 'vision_config')),
            text=_decoder_config(text), expert=_decoder_config(expert),
            action=take(ActionConfig, _action(raw)), prompt=take(PromptConfig, prompt),
            vocab_size=_checked('vocab_size', raw.get('vocab_size'), cls.vocab_size),
            weights_dtype=_dtype_name(raw),
            expert_non_causal_attention=_checked(
                'expert_non_causal_attention', raw.get('expert_non_causal_attention'), True),
            trained=_checked('trained', own.get('trained'), True),
            random_weights_seed=own.get('random_weights_seed'))


_EXPERT_OVERRIDES = {'hidden_size': 2048, 'intermediate_size': 8256, 'num_attention_heads': 16,
                     'head_dim': 128}
_RELEASED_SPACE = {'accel_mean': 0.0, 'accel_std': 1.0, 'curvature_mean': 0.0,
                   'curvature_std': 1.0, 'curvature_bounds': (-0.2, 0.2)}
"""What the released class takes for a key that a given `action_space_cfg` leaves out."""
_RELEASED_PROJECTION = {'hidden_size': 1024, 'num_enc_layers': 4}


def _action(raw: dict) -> dict:
    """Fields of `ActionConfig` out of the sections of a released config.json."""
    action = {}
    if space := _section(raw, 'action_space_cfg'):
        action = {**_RELEASED_SPACE, **space}
    if projection := _section(raw, 'action_in_proj_cfg'):
        projection = {**_RELEASED_PROJECTION, **projection}
        action |= {'proj_hidden_size': projection['hidden_size'],
                   'proj_layers': projection['num_enc_layers'],
                   **{k: projection[k] for k in ('num_fourier_feats', 'max_freq')
                      if k in projection}}
    steps = _section(raw, 'diffusion_cfg').get('num_inference_steps')
    return action | {'num_inference_steps': steps}


def _tokenizers(raw: dict) -> dict:
    """Fields of `PromptConfig` out of the trajectory tokenizers of a released config.json."""
    future = _section(raw, 'traj_tokenizer_cfg')
    history = _section(raw, 'hist_traj_tokenizer_cfg')
    fields = {'future_bins': future.get('num_bins') if future else 0}
    names = {'history_bins': 'num_bins', 'history_min': 'ego_xyz_min',
             'history_max': 'ego_xyz_max', 'history_yaw': 'predict_yaw'}
    fields |= {ours: history.get(theirs) for ours, theirs in names.items()}
    for ours, theirs in (('future_min', 'dims_min'), ('future_max', 'dims_max')):
        fields[ours] = future.get(theirs)
    return fields


def _dtype_name(raw: dict) -> str:
    name = str(raw.get('dtype') or raw.get('torch_dtype') or ModelConfig.weights_dtype)
    name = name.removeprefix('torch.')
    if name not in ('float32', 'bfloat16', 'float16'):
        raise CheckpointError(f"config.json: dtype is {name!r}, expected 'float32', 'bfloat16' or "
                              "'float16'")
    return name


def _decoder_config(raw: dict) -> DecoderConfig:
    rope = _section(raw, 'rope_parameters') or _section(raw, 'rope_scaling')
    return take(DecoderConfig, {**raw, **{k: rope[k] for k in ('mrope_section', 'rope_theta')
                                          if k in rope}})


def take(cls, values: dict):
    """Build dataclass `cls` from the keys of `values` that it knows; lists become tuples."""
    return cls(**{f.name: _checked(f.name, values.get(f.name), f.default) for f in fields(cls)})


def _section(raw: dict, key: str) -> dict:
    """Object under `key`, empty when there is none."""
    value = raw.get(key)
    if not isinstance(value, dict | None):
        raise CheckpointError(f'{key} is {value!r}, expected an object')
    return value or {}


def _checked(key: str, value, like):
    """`value`, lists as tuples, when it is of the kind of `like`; `like` when it is None."""
    if value is None:
        return like
    if like is None or isinstance(like, tuple):
        value = tuple(value) if isinstance(value, list) else value
        item, kind = (str, 'a list of texts') if like == () else (int | float, 'a list of numbers')
        right = isinstance(value, tuple) and all(isinstance(v, item) for v in value)
    elif isinstance(like, float):
        right, kind = type(value) in (int, float), 'a number'
    elif type(like) is int:
        right, kind = type(value) is int and value >= 0, 'a whole number from 0'
    else:
        right, kind = isinstance(value, type(like)), 'true or false' if like in (
            True, False) else 'a text'
    if not right:
        raise CheckpointError(f'{key} is {value!r}, expected {kind}')
    return value


def read_json(path: Path) -> dict:
    """Read a JSON object; raises `CheckpointError` naming the file."""
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
        raise CheckpointError(f'{path} does not exist') from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f'{path} is not readable JSON: {error}') from None
    if not isinstance(data, dict):
        raise CheckpointError(f'{path} holds a {type(data).__name__}, expected a JSON object')
    return data


@dataclass(frozen=True)
class EngineConfig:
    """
    How the engine runs.  Everything here may change without another checkpoint.

    device               'cpu', 'cuda', 'cuda:1', or 'auto' (CUDA when present)
    dtype                'auto' is float32 on CPU, bfloat16 on CUDA
    cpu_threads          threads of torch on a CPU; 0 is half the cores: its threads wait for
                         each other by spinning, and beside a busy source that costs ten times
                         what the second half would bring
    quantization         'fp8', 'w4a8' or 'w4a16': the language model's projections in fewer bits
                         (see `quantization/swap.py`), made while loading where the checkpoint
                         is plain; 'none': as the checkpoint is
    quantize_expert      the action expert's projections too
    seed                 noise and sampling are drawn from (seed, t0): a window repeats exactly
    num_trajectories     K samples of the action expert
    separate_reasonings  each trajectory after its own reasoning instead of one shared
    flow_steps           Euler steps of flow matching; 0 takes the checkpoint's number
    velocity_reuse       flow steps that take the velocity of the step before them instead of
                         evaluating the action expert, e.g. (3, 4, 5, 6) of 8; never step 0
    greedy               take the likeliest token; else temperature and top_p
    drafting             'auto': reasoning is drafted while that pays, where the model has a
                         drafter; 'on': always; 'off': never.  The tokens are the same
    settle_reasoning     pass a finished text through the model once more, as a whole: plans then
                         depend on its tokens alone and not, by rounding, on how many of them
                         were computed at once
    nav_guidance_weight  classifier-free guidance on navigation text (Alpamayo 1.5);
                         1 is none, w mixes (1 - w) unguided + w guided velocity
    noise_temperature    factor on the initial noise of flow matching
    graphs               'on': every stage of a step is captured once into a CUDA graph and
                         replayed; 'off': launched kernel by kernel; 'auto': on where there is CUDA
    fusion               'on': fused kernels; 'off': the plain operations, which are the oracle;
                         'auto': on where there is CUDA.  Both 'off' is the plain path
    streaming            compute only what is new; off: the whole window every step
    recompute_labels     frame labels of a streaming step: 'keep', 'newest' or 'all'
    refresh_period_s     a full prefill at least this often; 0 never
    grid_tolerance_s     a window whose frames are this far off the 100 ms grid is a gap
    primitives           what every plan is asked besides, such as 'boxes:1:car,pedestrian' (see
                         `primitives/requests.py`); cameras that are not there are not asked about
    primitives_every     only every that many-th plan is asked, the first after a reset included
    primitive_decoding   'autoregressive', 'verified', 'direct' or 'fallback' (see
                         `primitives/flash.py`); 'auto' takes what the drafter was trained for,
                         'autoregressive' without one
    max_primitive_tokens most tokens of the answer to one such question
    box_confidence       a drafted coordinate of a box is uncertain below this probability
    box_spread           and when likely ones lie further apart than that, in 1/1000 of the image
    features             hidden states for action models (see `plan_features.py`): 'off', 'plan'
                         (with every plan) or 'drawn' (with plans that are asked for primitives)
    feature_layers       which: 0 is the embedding output, i the output of layer i, -1 the last,
                         behind the final norm
    feature_segments     of which tokens: 'question', 'subtask', 'trajectory', 'image', 'other'
    feature_dtype        'float32', 'float16' or 'bfloat16'
    standardise_features each vector with mean 0 and standard deviation 1 over its channels
    """

    device: str = 'auto'
    dtype: str = 'auto'
    cpu_threads: int = 0
    quantization: str = 'none'
    quantize_expert: bool = False
    seed: int = 0
    num_trajectories: int = 1
    separate_reasonings: bool = False
    flow_steps: int = 0
    velocity_reuse: tuple[int, ...] = ()
    max_new_tokens: int = 64
    greedy: bool = False
    temperature: float = 0.6
    top_p: float = 0.98
    drafting: str = 'auto'
    settle_reasoning: bool = False
    nav_guidance_weight: float = 1.0
    noise_temperature: float = 1.0
    graphs: str = 'auto'
    fusion: str = 'auto'
    streaming: bool = True
    recompute_labels: str = 'keep'
    refresh_period_s: float = 0.0
    grid_tolerance_s: float = 0.04
    primitives: tuple[str, ...] = ()
    primitives_every: int = 1
    primitive_decoding: str = 'auto'
    max_primitive_tokens: int = 384
    box_confidence: float = 0.9
    box_spread: int = 60
    features: str = 'off'
    feature_layers: tuple[int, ...] = (-1,)
    feature_segments: tuple[str, ...] = ('question', 'subtask', 'trajectory')
    feature_dtype: str = 'bfloat16'
    standardise_features: bool = False

    def __post_init__(self):
        """Refuse values out of range, naming the field."""
        object.__setattr__(self, 'velocity_reuse', tuple(sorted(set(self.velocity_reuse))))
        for name in ('primitives', 'feature_layers', 'feature_segments'):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        checks = {
            'cpu_threads': 0 <= self.cpu_threads <= 1024,
            'quantization': self.quantization in ('none', 'fp8', 'w4a8', 'w4a16'),
            'quantize_expert': not self.quantize_expert or self.quantization != 'none',
            'num_trajectories': 1 <= self.num_trajectories <= 64,
            'flow_steps': 0 <= self.flow_steps <= 100,
            'max_new_tokens': 1 <= self.max_new_tokens <= 1024,
            'temperature': 0 < self.temperature <= 10,
            'top_p': 0 < self.top_p <= 1,
            'drafting': self.drafting in ('auto', 'on', 'off'),
            'graphs': self.graphs in ('auto', 'on', 'off'),
            'fusion': self.fusion in ('auto', 'on', 'off'),
            'noise_temperature': 0 <= self.noise_temperature <= 10,
            'recompute_labels': self.recompute_labels in ('keep', 'newest', 'all'),
            'nav_guidance_weight': math.isfinite(self.nav_guidance_weight),
            'refresh_period_s': self.refresh_period_s >= 0,
            'grid_tolerance_s': 0 < self.grid_tolerance_s < 0.05,
            'primitives_every': 1 <= self.primitives_every <= 1000,
            'primitive_decoding': self.primitive_decoding in (
                'auto', 'autoregressive', 'verified', 'direct', 'fallback'),
            'max_primitive_tokens': 1 <= self.max_primitive_tokens <= 4096,
            'box_confidence': 0 <= self.box_confidence <= 1,
            'box_spread': 0 <= self.box_spread <= 1000,
            'features': self.features in ('off', 'plan', 'drawn'),
            'feature_layers': len(self.feature_layers) > 0,
            'feature_segments': self.feature_segments and set(self.feature_segments) <= set(
                SEGMENTS),
            'feature_dtype': self.feature_dtype in FEATURE_DTYPES,
            'dtype': self.dtype in ('auto', 'float32', 'bfloat16', 'float16'),
        }
        for name, holds in checks.items():
            if not holds:
                raise InputError(f'{name} = {getattr(self, name)!r} is out of range')

    def steps_of(self, action: ActionConfig) -> int:
        """Euler steps of flow matching for a checkpoint's action settings."""
        return self.flow_steps or action.num_inference_steps
