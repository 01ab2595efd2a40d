"""
The language model and the vision tower against transformers' Qwen3-VL in float32.

At tiny sizes, and (slow: 4 GB) at the exact widths of Alpamayo with two decoder layers and
four vision blocks.
"""
from dataclasses import replace

import pytest
import torch
from support.tiny import frame_set, tiny_config, tiny_model, tiny_tokenizer

from flashdrive_ros.core import checkpoint, images
from flashdrive_ros.core.config import DecoderConfig, VisionConfig
from flashdrive_ros.core.prompt import build_layout
from flashdrive_ros.core.stream import PromptStream

transformers = pytest.importorskip('transformers')
CAMERAS = (0, 1, 6)
FRAMES = 2


def reference(config, tokenizer):
    """transformers' model of the same sizes."""
    text, vision = config.text, config.vision
    rope = {'rope_type': 'default', 'mrope_interleaved': True, 'rope_theta': text.rope_theta,
            'mrope_section': list(text.mrope_section)}
    qwen = transformers.Qwen3VLConfig(
        text_config={
            'hidden_size': text.hidden_size, 'intermediate_size': text.intermediate_size,
            'num_hidden_layers': text.num_hidden_layers, 'head_dim': text.head_dim,
            'num_attention_heads': text.num_attention_heads, 'vocab_size': config.vocab_size,
            'num_key_value_heads': text.num_key_value_heads, 'rope_parameters': rope,
            'rope_theta': text.rope_theta, 'rope_scaling': rope, 'rms_norm_eps': 1e-6,
            'pad_token_id': None},
        vision_config={
            'depth': vision.depth, 'hidden_size': vision.hidden_size,
            'num_heads': vision.num_heads, 'intermediate_size': vision.intermediate_size,
            'out_hidden_size': vision.out_hidden_size,
            'num_position_embeddings': vision.num_position_embeddings,
            'deepstack_visual_indexes': list(vision.deepstack_visual_indexes)},
        image_token_id=tokenizer.id('image_pad'), video_token_id=tokenizer.id('video_pad'),
        vision_start_token_id=tokenizer.id('vision_start'),
        vision_end_token_id=tokenizer.id('vision_end'), tie_word_embeddings=False)
    return transformers.Qwen3VLForConditionalGeneration._from_config(
        qwen, attn_implementation='eager').eval()


def wide_config():
    """Every width of Alpamayo 1.5, few layers, and the small vocabulary."""
    tiny = tiny_config(frames=FRAMES)
    text = replace(DecoderConfig(), num_hidden_layers=2)
    return replace(tiny, text=text, expert=replace(
        text, hidden_size=64, intermediate_size=64, num_attention_heads=8), vision=replace(
        VisionConfig(), depth=4, deepstack_visual_indexes=(0, 1)))


@pytest.fixture(scope='module', params=[
    'tiny', pytest.param('wide', marks=pytest.mark.slow)])
def both(request):
    """Our stream after a prefill, and transformers' outputs for the same prompt."""
    config = tiny_config(frames=FRAMES) if request.param == 'tiny' else wide_config()
    model, tokenizer = tiny_model(config), tiny_tokenizer(config)
    theirs = reference(config, tokenizer)
    weights = {}
    for key, tensor in checkpoint.public_tensors(model):
        if key.startswith('vlm.'):
            weights[key.removeprefix('vlm.')] = tensor
    theirs.load_state_dict(weights)
    sets = [frame_set(t, CAMERAS) for t in range(FRAMES)]
    raw = torch.stack([torch.from_numpy(s.frames[c].image) for c in CAMERAS for s in sets])
    patches, grid = images.prepare(raw.permute(0, 3, 1, 2), config.vision, config.prompt)
    layout = build_layout(config, tokenizer, CAMERAS, [tuple(n // 2 for n in grid)] * 3,
                          nav_text='Turn left in 40m')
    with torch.inference_mode():
        features = model.visual(patches, grid)
        stream, taps = PromptStream(model, layout, 4), []
        hidden, _ = stream.prefill([features[i:i + FRAMES] for i in range(0, 6, FRAMES)], FRAMES,
                                   layout.token_ids[slice(*layout.history)], taps=taps)
        ids = torch.from_numpy(layout.token_ids)[None]
        inputs = {'input_ids': ids, 'pixel_values': patches.flatten(0, 1),
                  'image_grid_thw': torch.tensor([[1, *grid]] * 6)}
        if int(transformers.__version__.split('.')[0]) >= 5:
            inputs['mm_token_type_ids'] = (ids == tokenizer.id('image_pad')).int()
        out = theirs(**inputs, use_cache=True, output_hidden_states=True)
        vision = theirs.model.visual(inputs['pixel_values'], inputs['image_grid_thw'])
    return {'config': config, 'layout': layout, 'features': features, 'stream': stream,
            'hidden': hidden, 'taps': taps, 'model': model, 'theirs': out, 'vision': vision,
            'their_model': theirs, 'inputs': inputs}


def close(ours, theirs, limit=1e-5):
    """Largest difference, relative to the largest number."""
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < limit


def test_logits_of_every_token(both):
    ours = both['model'].lm_head(both['hidden'])[:, :both['config'].vocab_size]
    close(ours, both['theirs'].logits[0])


def test_pad_rows_of_the_vocabulary_are_never_allowed(both):
    model = both['model']
    allowed = model.allowed_tokens(trajectory_tokens=True)
    assert len(allowed) % 64 == 0 and int(allowed.sum()) == both['config'].vocab_size


def test_keys_and_values_of_every_layer(both):
    cache, size = both['stream'].cache, both['layout'].size
    for index, layer in enumerate(both['theirs'].past_key_values.layers):
        close(cache.k[index, :, :size], layer.keys[0])
        close(cache.v[index, :, :size], layer.values[0])


def test_hidden_states_of_every_layer(both):
    # theirs are recorded before deepstack features are added to the image tokens
    text = both['inputs']['input_ids'] != both['their_model'].config.image_token_id
    for ours, theirs in zip(both['taps'][:-1], both['theirs'].hidden_states):
        close(ours[text], theirs[text])


def test_image_tokens_and_deepstack(both):
    tokens = torch.cat([f.tokens for f in both['features']])
    taps = torch.cat([f.deepstack for f in both['features']], 1)
    vision = both['vision']
    their_tokens = vision.pooler_output if hasattr(vision, 'pooler_output') else vision[0]
    their_taps = vision.deepstack_features if hasattr(vision, 'deepstack_features') else vision[1]
    close(tokens, their_tokens)
    close(taps, torch.stack(list(their_taps)))


def test_positions(both):
    model, layout = both['their_model'].model, both['layout']
    ids = torch.from_numpy(layout.token_ids)[None]
    image = ids == both['their_model'].config.image_token_id
    arguments = {'input_ids': ids, 'image_grid_thw': torch.tensor([[1, 4, 6]] * 6)}
    if int(transformers.__version__.split('.')[0]) >= 5:
        arguments['mm_token_type_ids'] = image.int()
    positions, delta = model.get_rope_index(**arguments)
    assert torch.equal(positions[-3:, 0], torch.from_numpy(layout.positions))
    assert int(delta) == layout.rope_delta


def test_decoded_tokens_continue_like_theirs(both):
    stream, new = both['stream'], torch.tensor([5, 17, 42])
    ids = torch.cat((torch.from_numpy(both['layout'].token_ids), new))[None]
    inputs = both['inputs'] | {'input_ids': ids}
    if 'mm_token_type_ids' in inputs:
        kinds = inputs['mm_token_type_ids']
        inputs['mm_token_type_ids'] = torch.nn.functional.pad(kinds, (0, len(new)))
    with torch.inference_mode():
        stream.truncate(both['layout'].size)
        hidden = torch.cat([stream.extend(token[None]) for token in new])
        theirs = both['their_model'](**inputs).logits[0, -len(new):]
    close(both['model'].lm_head(hidden)[:, :both['config'].vocab_size], theirs)
