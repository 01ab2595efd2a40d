"""A checkpoint with the architecture and the vocabulary of the small one, sized for tests."""
import json
import shutil
import tempfile
from pathlib import Path

import torch

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.model import Alpamayo
from flashdrive_ros.core.tokenizer import Tokenizer

HIDDEN, LAYERS = 32, 3
HEADS = {'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 16}


def write_tiny_checkpoint(directory):
    """Write config files and tokenizer, no weights: 64 x 96 pixels an image (3 x 2 tokens)."""
    small, directory = checkpoint.find('small'), Path(directory)
    config = json.loads((small / 'config.json').read_text())
    config |= {'min_pixels': 4096, 'max_pixels': 6144,
               'expert_cfg': {'hidden_size': 24, 'intermediate_size': 40, **HEADS}}
    config['action_in_proj_cfg']['hidden_size'] = 16
    config['flashdrive'] |= {'name': 'tiny', 'trained': False, 'random_weights_seed': 0}
    vlm = json.loads((small / 'vlm' / 'config.json').read_text())
    vlm['text_config'] |= {
        'num_hidden_layers': LAYERS, 'hidden_size': HIDDEN, 'intermediate_size': 48, **HEADS,
        'rope_scaling': {'mrope_interleaved': True, 'mrope_section': [4, 2, 2]}}
    vlm['vision_config'] |= {
        'depth': 2, 'hidden_size': 16, 'num_heads': 2, 'intermediate_size': 32,
        'out_hidden_size': HIDDEN, 'num_position_embeddings': 16, 'deepstack_visual_indexes': [0]}
    (directory / 'vlm').mkdir(parents=True, exist_ok=True)
    (directory / 'config.json').write_text(json.dumps(config))
    (directory / 'vlm' / 'config.json').write_text(json.dumps(vlm))
    shutil.copy(small / 'tokenizer.json', directory)
    return directory


def tiny_model(seed=0):
    """Return the tiny model with random weights, and its tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        config, tokenizer_file = checkpoint.read_config(write_tiny_checkpoint(folder))
        tokenizer = Tokenizer.from_file(tokenizer_file, config)
    model = Alpamayo(config)
    checkpoint.randomise(model, seed)
    return model.eval(), tokenizer


def random_images(batch, views, frames, height=64, width=96, seed=0):
    """Random pictures, uint8 [batch, views, frames, 3, height, width]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, views, frames, 3, height, width), generator=generator,
                         dtype=torch.uint8)
