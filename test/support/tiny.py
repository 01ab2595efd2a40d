"""A network small enough to run thousands of times, of the same architecture."""
from dataclasses import replace

import numpy as np
import torch

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.config import (
    ActionConfig,
    DecoderConfig,
    EngineConfig,
    ModelConfig,
    VisionConfig,
)
from flashdrive_ros.core.ego import HISTORY_POSES, EgoHistory
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.model import Alpamayo
from flashdrive_ros.core.tokenizer import Tokenizer
from flashdrive_ros.core.types import GRID_NS, CameraFrame, FrameSet

TEXT = DecoderConfig(num_hidden_layers=3, hidden_size=32, intermediate_size=48,
                     num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     rope_theta=10000.0, mrope_section=(4, 2, 2))
SHAPES = ((64, 96), (96, 64), (64, 64))
"""Image sizes (height, width) of different grids: 2x3, 3x2 and 2x2 tokens."""


def tiny_config(frames=4, **changes) -> ModelConfig:
    """Configuration with the vocabulary of the shipped small model."""
    small = checkpoint.read_config(checkpoint.MODELS / 'small')[0]
    prompt = replace(small.prompt, min_pixels=4096, max_pixels=8192, frames_per_camera=frames)
    return ModelConfig(
        name='tiny', text=TEXT, expert=replace(TEXT, hidden_size=24, num_attention_heads=2),
        vision=VisionConfig(depth=3, hidden_size=16, num_heads=2, intermediate_size=24,
                            out_hidden_size=32, num_position_embeddings=16,
                            deepstack_visual_indexes=(0, 1)),
        action=ActionConfig(proj_hidden_size=16, num_inference_steps=3), prompt=prompt,
        vocab_size=small.vocab_size, trained=False, **changes)


def tiny_tokenizer(config: ModelConfig) -> Tokenizer:
    return Tokenizer.from_file(checkpoint.MODELS / 'small/tokenizer.json', config)


def tiny_model(config: ModelConfig | None = None, seed=0) -> Alpamayo:
    """Random weights; biases and norms random too, so that none can be forgotten."""
    model = Alpamayo(config or tiny_config()).eval().requires_grad_(False)
    checkpoint.randomise(model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def tiny_engine(model: Alpamayo | None = None, drafter=None, **settings) -> Engine:
    model = model or tiny_model()
    settings = {'device': 'cpu', 'max_new_tokens': 4} | settings
    return Engine(model, tiny_tokenizer(model.config), EngineConfig(**settings), drafter)


def r1_config(**changes) -> ModelConfig:
    """Alpamayo 1: no labels, fixed cameras."""
    config = tiny_config(model_type='alpamayo_r1', **changes)
    return replace(config, prompt=replace(
        config.prompt, include_camera_ids=False, include_frame_nums=False,
        camera_ids=(0, 1, 2, 6)))


def image(key, shape=SHAPES[0]) -> np.ndarray:
    """An image that depends on `key` (hashable numbers) alone."""
    seed = abs(hash(key)) % (1 << 32)
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


def frame_set(t0_ns: int, cameras=(0, 1, 2, 6), shape=SHAPES[0], key=0) -> FrameSet:
    """Frames of time `t0_ns`; another `key` shows something else."""
    return FrameSet(t0_ns, {c: CameraFrame(image((key, c, t0_ns), shape), t0_ns)
                            for c in cameras})


def ego_history(t0_ns: int) -> EgoHistory:
    """Driving straight at a speed that depends on the time."""
    xyz = np.zeros((HISTORY_POSES, 3))
    xyz[:, 0] = (5 + t0_ns / GRID_NS % 7) * 0.1 * np.arange(1 - HISTORY_POSES, 1)
    return EgoHistory(t0_ns, xyz, np.tile(np.eye(3), (HISTORY_POSES, 1, 1)))


def drive(engine: Engine, times, nav_text='', **frames) -> list:
    """Step through grid times (counted in 100 ms); the plans."""
    return [engine.step(frame_set(t * GRID_NS, **frames), ego_history(t * GRID_NS), nav_text)
            for t in times]


def same(a, b) -> bool:
    """Two plans are equal bit for bit."""
    return a.reasoning == b.reasoning and a.all_reasonings == b.all_reasonings and all(
        np.array_equal(getattr(a, n), getattr(b, n))
        for n in ('xyz', 'yaw', 'speed', 'acceleration', 'curvature', 'scores'))
