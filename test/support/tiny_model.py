"""A model with the architecture and the vocabulary of the small one, small enough for tests."""
from dataclasses import replace

import torch

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.config import DecoderConfig, VisionConfig
from flashdrive_ros.core.model import Alpamayo
from flashdrive_ros.core.tokenizer import Tokenizer


def tiny_model(seed=0, hidden=32, layers=3):
    """Return model and tokenizer: two images a frame set, 64 x 96 pixels each."""
    config, tokenizer_file = checkpoint.read_config(checkpoint.find('small'))
    sizes = dict(num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=16, rope_theta=1e4, mrope_section=(4, 2, 2))
    config = replace(
        config, trained=False, random_weights_seed=seed,
        vision=VisionConfig(depth=2, hidden_size=16, num_heads=2, intermediate_size=32,
                            out_hidden_size=hidden, num_position_embeddings=16,
                            deepstack_visual_indexes=(0,)),
        text=DecoderConfig(hidden_size=hidden, intermediate_size=48, **sizes),
        expert=DecoderConfig(hidden_size=24, intermediate_size=40, **sizes),
        action=replace(config.action, proj_hidden_size=16),
        prompt=replace(config.prompt, min_pixels=4096, max_pixels=6144))
    model = Alpamayo(config)
    checkpoint.randomise(model, seed)
    return model.eval(), Tokenizer.from_file(tokenizer_file, config)


def random_images(batch, views, frames, height=64, width=96, seed=0):
    """Random pictures, uint8 [batch, views, frames, 3, height, width]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, views, frames, 3, height, width), generator=generator,
                         dtype=torch.uint8)
