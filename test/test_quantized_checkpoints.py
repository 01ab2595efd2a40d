"""Low-bit weights in files: ParoQuant's, our own, and plain ones quantised while loading."""
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.paro import awq, marlin, paro_checkpoint, rotation, turned
from support.tiny import drive, same, tiny_tokenizer
from support.tiny_checkpoint import tiny_checkpoint

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.config import CheckpointError, EngineConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.quantization import stored, swap
from flashdrive_ros.core.quantization.linear import QuantLinear
from flashdrive_ros.core.quantization.rotations import Rotation
from flashdrive_ros.core.quantization.swap import QuantizationConfig

CPU = torch.device('cpu')


def load(folder, quantization=None):
    return checkpoint.load(str(folder), CPU, torch.float32, quantization)[0]


@pytest.fixture
def source(tmp_path):
    """A tiny checkpoint whose language model has sizes that ParoQuant can pack."""
    folder = tiny_checkpoint(tmp_path / 'source')
    vlm = json.loads((folder / 'vlm/config.json').read_text())
    vlm['text_config'] |= {'hidden_size': 128, 'intermediate_size': 256, 'head_dim': 64,
                           'num_attention_heads': 2, 'num_key_value_heads': 1}
    vlm['text_config']['rope_scaling']['mrope_section'] = [12, 10, 10]
    vlm['vision_config']['out_hidden_size'] = 128
    (folder / 'vlm/config.json').write_text(json.dumps(vlm))
    config = json.loads((folder / 'config.json').read_text())
    config['expert_cfg'] |= {'head_dim': 64, 'num_attention_heads': 1, 'num_key_value_heads': 1}
    (folder / 'config.json').write_text(json.dumps(config))
    return folder


def engine(model):
    config = EngineConfig(device='cpu', max_new_tokens=4)
    return Engine(model, tiny_tokenizer(model.config), config)


def test_givens_rotations_collapse_into_blocks():
    generator = torch.Generator().manual_seed(0)
    parts, x = rotation(256, generator), torch.randn(3, 256, generator=generator)
    collapsed = Rotation.of_pairs(**parts)
    assert torch.allclose(collapsed(x), turned(x, parts), atol=1e-4)
    blocks = collapsed.blocks / parts['channel_scales'].float().view(2, 128, 1)
    assert torch.allclose(blocks @ blocks.mT, torch.eye(128).expand(2, -1, -1), atol=1e-3)


def test_overflowed_channel_scales_are_bounded():
    parts = rotation(128, torch.Generator().manual_seed(0))
    parts['channel_scales'][0, 5] = float('inf')
    assert Rotation.of_pairs(**parts).blocks.isfinite().all()


@pytest.mark.parametrize('pack', (awq, marlin))
@pytest.mark.parametrize('nested', (True, False))
def test_paro_checkpoint_is_the_rotated_model_it_stands_for(source, tmp_path, pack, nested):
    folder, meant = paro_checkpoint(source, tmp_path / 'low-PARO', pack, nested)
    model = load(folder)
    names = {'self_attn.qkv_proj': ('q_proj', 'k_proj', 'v_proj'), 'self_attn.o_proj': ('o_proj',),
             'mlp.gate_up_proj': ('gate_proj', 'up_proj'), 'mlp.down_proj': ('down_proj',)}
    for number, layer in enumerate(model.language_model.layers):
        for ours, theirs in names.items():
            linear = layer.get_submodule(ours)
            assert isinstance(linear, QuantLinear)
            x = torch.randn(5, linear.in_features)
            prefix = f'vlm.model.language_model.layers.{number}.{ours.partition(".")[0]}.'
            parts = [meant[prefix + name] for name in theirs]
            expected = torch.cat([turned(x, turn) @ weight.T for turn, weight in parts], 1)
            plain = linear.matrix.dequantized()
            assert torch.allclose(x @ plain.T, expected, rtol=1e-3,
                                  atol=2e-3 * float(expected.abs().max()))
            wrong = (linear(x) - expected).norm() / expected.norm()
            assert 1e-4 < wrong < 0.05  # activations of 8 bits
    assert not any(isinstance(m, QuantLinear) for m in model.expert.modules())
    assert all(plan.is_finite for plan in drive(engine(model), (1, 2)))


def test_paro_weights_may_take_plain_activations(source, tmp_path):
    folder, _ = paro_checkpoint(source, tmp_path / 'low-PARO', marlin)
    linear = load(folder, QuantizationConfig('w4a16')).language_model.layers[0].mlp.down_proj
    x = torch.randn(5, linear.in_features)
    assert torch.allclose(linear(x), x @ linear.matrix.dequantized().T, rtol=1e-3, atol=1e-3)


def break_file(folder, change):
    tensors = load_file(folder / 'model.safetensors')
    change(tensors)
    save_file(tensors, folder / 'model.safetensors')


LINEAR = 'vlm.model.language_model.layers.1.mlp.up_proj'


@pytest.mark.parametrize(('change', 'message'), (
    (lambda t: t.pop(f'{LINEAR}.theta'), rf'{LINEAR} lacks theta'),
    (lambda t: t.update({f'{LINEAR}.scales': torch.ones(3, 256).half()}),
     rf'{LINEAR}.scales is \[3, 256\], expected \[1, 256\]'),
    (lambda t: t.update({f'{LINEAR}.qweight': torch.ones(9, 9).int()}),
     r'qweight is \[9, 9\], expected \[128, 32\] or \[8, 512\]'),
    (lambda t: t[f'{LINEAR}.pairs'].fill_(128), r'pairs holds 128, expected channels from 0'),
    (lambda t: [t.pop(k) for k in list(t) if k.startswith(LINEAR)],
     r"gate_proj'\] are quantised, \['.*up_proj'\] are not"),
    (lambda t: t.update({'vlm.lm_head.theta': torch.ones(1)}), 'unexpected quantised linears'),
))
def test_what_is_wrong_with_a_paro_checkpoint_is_named(source, tmp_path, change, message):
    folder, _ = paro_checkpoint(source, tmp_path / 'low-PARO', awq, nested=False)
    break_file(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def trained(source, tmp_path):
    """The tiny checkpoint with its weights in files."""
    model, folder = load(source), tmp_path / 'trained'
    folder.mkdir()
    checkpoint.save(model, folder)
    config = json.loads((source / 'config.json').read_text())
    del config['flashdrive']['random_weights_seed']
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'vlm').symlink_to(source / 'vlm')
    (folder / 'tokenizer.json').symlink_to(source / 'tokenizer.json')
    return folder


@pytest.mark.parametrize('kind', swap.KINDS)
def test_quantising_while_loading_is_quantising_the_loaded(source, tmp_path, kind):
    folder, config = trained(source, tmp_path), QuantizationConfig(kind, expert=True)
    later = load(folder)
    stored.quantize(later, config)
    plans = [drive(engine(model), (1, 2)) for model in (load(folder, config), later)]
    assert all(same(a, b) for a, b in zip(*plans))


def test_shape_checkpoint_is_quantised_after_its_weights_are_drawn(source):
    model = load(source, QuantizationConfig('fp8'))
    assert isinstance(model.language_model.layers[0].mlp.down_proj, QuantLinear)
