"""A checkpoint directory of the small model's architecture and vocabulary, at tiny sizes."""
import json
import shutil

from flashdrive_ros.core import checkpoint

HEADS = {'num_attention_heads': 2, 'num_key_value_heads': 1, 'head_dim': 16}


def tiny_checkpoint(directory, seed=0):
    """Write the checkpoint (random weights of a seed) and return its directory."""
    small = checkpoint.find('small')
    config = json.loads((small / 'config.json').read_text())
    vlm = json.loads((small / 'vlm' / 'config.json').read_text())
    config['expert_cfg'] |= HEADS | {'hidden_size': 24, 'intermediate_size': 40}
    config['action_in_proj_cfg']['hidden_size'] = 16
    config |= {'min_pixels': 4096, 'max_pixels': 6144}
    config['flashdrive'] |= {'name': 'tiny', 'random_weights_seed': seed}
    vlm['text_config'] |= HEADS | {'num_hidden_layers': 2, 'hidden_size': 32,
                                   'intermediate_size': 48}
    vlm['text_config']['rope_scaling']['mrope_section'] = [4, 2, 2]
    vlm['vision_config'] |= {'depth': 2, 'hidden_size': 32, 'num_heads': 2,
                             'intermediate_size': 32, 'out_hidden_size': 32,
                             'num_position_embeddings': 16, 'deepstack_visual_indexes': [0]}
    (directory / 'vlm').mkdir(parents=True)
    (directory / 'config.json').write_text(json.dumps(config))
    (directory / 'vlm' / 'config.json').write_text(json.dumps(vlm))
    shutil.copy(small / 'tokenizer.json', directory)
    return directory
