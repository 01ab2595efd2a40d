"""A forward pass over a whole sequence by transformers' Qwen3-VL text model, as an oracle."""
import pytest
import torch

from flashdrive_ros.core import checkpoint


def text_model(model):
    """transformers' text model with the weights of ours."""
    transformers = pytest.importorskip('transformers')
    text = model.config.text
    rope = {'rope_type': 'default', 'mrope_interleaved': True, 'rope_theta': text.rope_theta,
            'mrope_section': list(text.mrope_section)}
    config = transformers.Qwen3VLTextConfig(
        hidden_size=text.hidden_size, intermediate_size=text.intermediate_size,
        num_hidden_layers=text.num_hidden_layers, head_dim=text.head_dim,
        num_attention_heads=text.num_attention_heads, vocab_size=model.config.vocab_size,
        num_key_value_heads=text.num_key_value_heads, rope_parameters=rope,
        rope_theta=text.rope_theta, rope_scaling=rope, rms_norm_eps=1e-6, pad_token_id=None)
    theirs = transformers.Qwen3VLTextModel._from_config(config, attn_implementation='eager').eval()
    prefix = 'vlm.model.language_model.'
    weights = {key.removeprefix(prefix): tensor for key, tensor in
               checkpoint.public_tensors(model) if key.startswith(prefix)}
    theirs.load_state_dict(weights)
    return theirs


@torch.inference_mode()
def hidden_states(model, tokenizer, ids, layout, pictures, deepstack):
    """
    States [n, hidden] of each depth for the tokens `ids` [n], and temporal positions [n].

    `pictures` and `deepstack` are the features of the images in slot order; positions
    are derived here from the tokens alone.
    """
    ids = torch.as_tensor(ids)
    image = ids == tokenizer.id('image_pad')
    theirs = text_model(model)
    x = theirs.embed_tokens(ids)
    x[image] = torch.cat(pictures)
    positions = _positions(ids, tokenizer, layout.grids, layout.frames)
    out = theirs(inputs_embeds=x[None], position_ids=positions[:, None],
                 attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                 visual_pos_masks=image[None], deepstack_visual_embeds=list(
                     torch.cat(deepstack, 1)), output_hidden_states=True, use_cache=False)
    return [states[0] for states in out.hidden_states], positions[0]


def _positions(ids, tokenizer, grids, frames):
    """Three-axis positions [3, n]: text goes on by one, an image by its longer side."""
    rows, at, seen = [], 0, 0
    images = [grid for grid in grids for _ in range(frames)]
    ids = ids.tolist()
    i = 0
    while i < len(ids):
        if ids[i] != tokenizer.id('image_pad'):
            rows.append((at, at, at))
            at, i = at + 1, i + 1
            continue
        height, width = images[seen]
        rows += [(at, at + r, at + c) for r in range(height) for c in range(width)]
        at, i, seen = at + max(height, width), i + height * width, seen + 1
    return torch.tensor(rows).T
