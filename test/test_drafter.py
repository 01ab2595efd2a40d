"""Drafters: their directories in the public layout, what they refuse, and what they compute."""
import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from support.drafts import tiny_drafter
from support.tiny import tiny_config, tiny_model

from flashdrive_ros.core import checkpoint, drafter
from flashdrive_ros.core.config import CheckpointError
from flashdrive_ros.core.drafter import Drafter, DrafterConfig, Taps, load, save, spread_layers

PUBLIC = {
    f'layers.{n}.{key}.weight' for n in range(2) for key in (
        *(f'self_attn.{p}_proj' for p in 'qkvo'), 'self_attn.q_norm', 'self_attn.k_norm',
        *(f'mlp.{p}_proj' for p in ('gate', 'up', 'down')), 'input_layernorm',
        'post_attention_layernorm')} | {'fc.weight', 'hidden_norm.weight', 'norm.weight'}
"""Keys of a released drafter with two layers."""


@pytest.fixture(scope='module')
def model():
    return tiny_model()


@pytest.fixture
def folder(model, tmp_path):
    """A saved drafter of the tiny model."""
    made = tiny_drafter(model, 3, num_hidden_layers=2, window_context=True, context_len=5)
    save(made, tmp_path / 'tiny-DFlash')
    return tmp_path / 'tiny-DFlash'


def edit(folder, **values):
    path = folder / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rewrite(folder, change):
    """Apply `change` to the tensors, which then are in one file without an index."""
    (shard,) = folder.glob('*.safetensors')
    tensors = load_file(shard)
    change(tensors)
    (folder / 'model.safetensors.index.json').unlink(missing_ok=True)
    save_file(tensors, shard)


def test_saved_drafter_loads_bit_for_bit_under_public_names(folder, model):
    made = tiny_drafter(model, 3, num_hidden_layers=2, window_context=True, context_len=5)
    again = load(folder, model)
    assert again.config == made.config
    for (name, a), b in zip(made.named_parameters(), again.parameters()):
        assert torch.equal(a, b), name
    (shard,) = folder.glob('*.safetensors')
    assert set(load_file(shard)) == PUBLIC | {'mask_embedding'}


@pytest.mark.parametrize('nested', [False, True])
def test_released_layout_loads(folder, model, nested):
    """Its config.json, its own file for the mask, separate projections."""
    mask = torch.randn(32)
    torch.save(mask, folder / 'mask_embedding.pt')
    rewrite(folder, lambda tensors: tensors.pop('mask_embedding'))
    raw = json.loads((folder / 'config.json').read_text())
    del raw['window_context']
    if nested:
        raw['dflash_config'] = {n: raw.pop(n) for n in ('target_layer_ids', 'mask_token_id')}
        raw['rope_parameters'] = {'rope_theta': raw.pop('rope_theta'), 'rope_type': 'default'}
    (folder / 'config.json').write_text(json.dumps(
        {'architectures': ['DFlashDraftModel'], 'model_type': 'qwen3', 'num_target_layers': 3,
         **raw}))
    found = load(folder, model)
    assert torch.equal(found.mask_embedding, mask) and not found.config.window_context
    made = tiny_drafter(model, 3, num_hidden_layers=2)
    assert found.config.rope_theta == made.config.rope_theta
    q, k, v = found.layers[1].self_attn.qkv_proj.weight.split((64, 32, 32))
    (shard,) = folder.glob('*.safetensors')
    stored = load_file(shard)
    for part, weight in zip('qkv', (q, k, v)):
        assert torch.equal(stored[f'layers.1.self_attn.{part}_proj.weight'], weight)


def test_mask_embedding_may_be_a_row_of_the_target(folder, model):
    rewrite(folder, lambda tensors: tensors.pop('mask_embedding'))
    edit(folder, mask_token_id=17)
    assert torch.equal(load(folder, model).mask_embedding, model.embed_tokens.weight[17])


def test_masks_tell_slots_apart_where_the_drafter_knows_them(folder, model):
    plain, knowing = tiny_drafter(model), tiny_drafter(model, slot_kinds=3)
    kinds = torch.tensor([2, 0, 1, -1, 3])  # the first is the anchor's
    anchors = torch.randn(2, 32)
    assert torch.equal(plain.block(anchors, 5, kinds), plain.block(anchors, 5))
    x = knowing.block(anchors, 5, kinds)
    assert torch.equal(x[:, 0], anchors)
    mask, own = knowing.mask_embedding, knowing.slot_embedding
    wanted = torch.stack([mask + own[0], mask + own[1], mask, mask])  # text, and a kind of later
    assert torch.equal(x[:, 1:], wanted.expand(2, -1, -1)) and not torch.equal(own[0], own[1])
    save(knowing, folder)
    found = load(folder, model)
    assert torch.equal(found.slot_embedding, own) and found.config.slot_kinds == 3
    rewrite(folder, lambda tensors: tensors.pop('slot_embedding'))
    with pytest.raises(CheckpointError, match='missing keys: slot_embedding'):
        load(folder, model)


WRONG = {
    'hidden_size is 48, that of the target tiny is 32': {'hidden_size': 48},
    'target_layer_ids has 3, the target tiny has 3 layers': {'target_layer_ids': [1, 3]},
    r'fc\.weight \[32, 64\] instead of \[32, 96\]': {'target_layer_ids': [0, 1, 2]},
    r'mlp\.gate_proj\.weight \[48, 32\] instead of \[64, 32\]': {'intermediate_size': 64},
    'missing keys: layers.2': {'num_hidden_layers': 3},
    'unexpected keys: layers.1': {'num_hidden_layers': 1},
    'block_size is 1, expected at least 2': {'block_size': 1},
    'target_layer_ids is empty': {'target_layer_ids': []},
    "block_size is 'many', expected a whole number": {'block_size': 'many'},
    r"a drafter needs \['mask_token_id'\]": {'mask_token_id': ...},
}


@pytest.mark.parametrize('text', WRONG)
def test_what_does_not_fit_is_named_with_both_numbers(folder, model, text):
    edit(folder, **{k: v for k, v in WRONG[text].items() if v is not ...})
    if ... in WRONG[text].values():
        raw = json.loads((folder / 'config.json').read_text())
        (folder / 'config.json').write_text(json.dumps(
            {k: v for k, v in raw.items() if k not in WRONG[text]}))
    with pytest.raises(CheckpointError, match=text) as error:
        load(folder, model)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize('stored, text', [
    (torch.zeros(48), r'holds \[48\], expected numbers \[32\]'),
    ({'a': torch.zeros(32), 'b': torch.zeros(32)}, 'holds dict'),
    (torch.zeros(32, dtype=torch.int8), r'expected numbers \[32\]'),
    (None, 'has no mask_embedding.pt, and its mask_token_id 2739 is not one of the 2739 tokens'),
    (b'no pickle', 'can not be read'),
    (shutil.rmtree, 'can not be read'),
])
def test_wrong_mask_embedding_is_named(folder, model, stored, text):
    rewrite(folder, lambda tensors: tensors.pop('mask_embedding'))
    if isinstance(stored, bytes):
        (folder / 'mask_embedding.pt').write_bytes(stored)
    elif stored is not None:
        torch.save(stored, folder / 'mask_embedding.pt')
    with pytest.raises(CheckpointError, match=text):
        load(folder, model)


def test_default_taps():
    assert spread_layers(5, 36) == (1, 9, 17, 25, 33)  # Qwen3-4B
    assert spread_layers(1, 8) == (4,) and spread_layers(2, 3) == (1, 2)
    assert DrafterConfig.for_target(tiny_config(), taps=2).target_layer_ids == (1, 2)


def test_taps_are_the_outputs_of_the_chosen_layers_in_order(model):
    config = DrafterConfig.for_target(model.config, target_layer_ids=(2, 0))
    every, some, end = [], Taps(config), Taps(config, 3)
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))

    def attend(layer, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    for taps in (every, some, end):
        model.language_model(x, attend, taps=taps)
    for taps, kept in ((some, slice(None)), (end, slice(2, None))):
        a, b = taps.chosen()
        assert torch.equal(a, every[3][:, kept]) and torch.equal(b, every[1][:, kept])


def reference(made: Drafter, x, context, positions):
    """The drafter written out: projections apart, keys repeated, complex rotation."""
    c = made.config
    weights = dict(drafter.places(made))
    group = c.num_attention_heads // c.num_key_value_heads

    def norm(x, key):
        return x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * weights[key]

    def heads(x, key):
        return (x @ weights[key].T).unflatten(-1, (-1, c.head_dim)).transpose(1, 2)

    def turn(x, positions):
        half = c.head_dim // 2
        angles = positions[..., None] * c.rope_theta ** (-torch.arange(half) / half)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * angles)[:, None]
        return torch.cat((turned.real, turned.imag), -1)
    for n in range(c.num_hidden_layers):
        at, y = f'layers.{n}.', norm(x, f'layers.{n}.input_layernorm.weight')
        both = torch.cat((context, y), 1)
        q = norm(heads(y, f'{at}self_attn.q_proj.weight'), f'{at}self_attn.q_norm.weight')
        k = norm(heads(both, f'{at}self_attn.k_proj.weight'), f'{at}self_attn.k_norm.weight')
        v = heads(both, f'{at}self_attn.v_proj.weight').repeat_interleave(group, 1)
        q, k = turn(q, positions[:, -x.shape[1]:]), turn(k, positions)
        scores = q @ k.repeat_interleave(group, 1).mT / c.head_dim ** 0.5
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ weights[
            f'{at}self_attn.o_proj.weight'].T
        y = norm(x, f'{at}post_attention_layernorm.weight')
        gate, up = (y @ weights[f'{at}mlp.{p}_proj.weight'].T for p in ('gate', 'up'))
        x = x + (F.silu(gate) * up) @ weights[f'{at}mlp.down_proj.weight'].T
    return norm(x, 'norm.weight')


@pytest.mark.parametrize('rows, block, seen', [(1, 8, 8), (3, 5, 2), (2, 2, 3)])
@torch.no_grad()
def test_forward_equals_the_layers_written_out(model, rows, block, seen):
    made = tiny_drafter(model, 1, num_hidden_layers=2)
    generator = torch.Generator().manual_seed(block)
    for name, parameter in made.named_parameters():
        if 'norm' in name:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    context = made.fuse(torch.randn(2, rows, seen, 32, generator=generator))
    x = made.block(torch.randn(rows, 32, generator=generator), block)
    assert torch.equal(x[0, 1:], made.mask_embedding.expand(block - 1, -1))
    first = torch.randint(0, 90, (rows, 1), generator=generator)
    positions = first + torch.arange(seen + block)
    out = made(x, context, positions)
    torch.testing.assert_close(out, reference(made, x, context, positions), rtol=0, atol=2e-5)
    torch.testing.assert_close(made(x, context, positions + 70), out, rtol=0, atol=1e-4)
    hidden = torch.zeros(rows, 1, block, seen + block)
    hidden[..., 0] = -torch.inf  # as if the first token of the context were not there
    torch.testing.assert_close(made(x, context, positions, hidden),
                               made(x, context[:, 1:], positions[:, 1:]), rtol=0, atol=2e-5)


def test_companion_is_found_beside_a_directory(folder, model):
    folder.with_name('tiny').mkdir()
    name = str(folder.with_name('tiny'))
    for spelling in (name, name + '/'):
        assert drafter.load_companion(spelling, model, 'auto') is not None
    assert drafter.load_companion(name, model, 'off') is None
    shutil.rmtree(folder)
    assert drafter.load_companion(name, model, 'auto') is None
    with pytest.raises(CheckpointError, match='drafting is on, but there is no drafter .*-DFlash'):
        drafter.load_companion(name, model, 'on')


def test_companion_of_a_shipped_model(folder, model, monkeypatch):
    shipped = folder.with_name('small')
    shipped.mkdir()
    (shipped / 'config.json').write_text('{}')
    folder.rename(folder.with_name('small-DFlash'))
    monkeypatch.setattr(checkpoint, 'MODELS', shipped.parent)
    assert drafter.load_companion('small', model, 'on') is not None
    with pytest.raises(CheckpointError, match=r"shipped models \['small'\]"):
        checkpoint.find('no such model')


def _raise(error):
    def fail(*_, **__):
        raise error
    return fail


def test_companion_on_the_hub(folder, model, monkeypatch):
    import httpx
    import huggingface_hub
    asked = []
    monkeypatch.setattr(huggingface_hub, 'snapshot_download',
                        lambda name, **_: asked.append(name) or str(folder))
    assert drafter.load_companion('owner/model', model, 'auto') is not None
    assert asked == ['owner/model-DFlash']
    response = httpx.Response(404, request=httpx.Request('GET', 'http://x'))
    for error, text in ((errors.RepositoryNotFoundError('no', response=response),
                         'there is no drafter owner/model-DFlash'),
                        (OSError('offline'), 'could not be reached')):
        monkeypatch.setattr(huggingface_hub, 'snapshot_download', _raise(error))
        assert drafter.load_companion('owner/model', model, 'auto') is None
        with pytest.raises(CheckpointError, match=text):
            drafter.load_companion('owner/model', model, 'on')


def test_companion_that_does_not_fit_is_refused_also_by_auto(folder, model):
    folder.with_name('tiny').mkdir()
    edit(folder, hidden_size=48)
    with pytest.raises(CheckpointError, match='hidden_size is 48'):
        drafter.load_companion(str(folder.with_name('tiny')), model, 'auto')
