"""Low-bit weights in files: ParoQuant's, our own, and plain ones quantised while loading."""
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.paro import awq, marlin, paro_checkpoint, rotation, turned
from support.tiny import drive, ego_history, frame_set, same, tiny_tokenizer
from support.tiny_checkpoint import tiny_checkpoint

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.config import CheckpointError, EngineConfig, ModelConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.quantization import scaling, stored, swap
from flashdrive_ros.core.quantization.convert import CalibrationWindow, convert
from flashdrive_ros.core.quantization.footprint import fitting, memory_needed
from flashdrive_ros.core.quantization.linear import QuantLinear
from flashdrive_ros.core.quantization.rotations import Rotation
from flashdrive_ros.core.quantization.swap import QuantizationConfig
from flashdrive_ros.core.types import GRID_NS, InputError

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
    model, folder = load(source).bfloat16(), tmp_path / 'trained'
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


# conversion

def windows(count=3):
    return [CalibrationWindow(frame_set(t * GRID_NS), ego_history(t * GRID_NS), fresh=t == 1)
            for t in range(1, count + 1)]


@pytest.mark.parametrize('kind', swap.KINDS)
def test_converted_checkpoint_is_the_one_quantised_while_loading(source, tmp_path, kind):
    folder, out = trained(source, tmp_path), tmp_path / 'low'
    config = QuantizationConfig(kind, expert=True, high=('*.layers.0.self_attn.o_proj',))
    convert(str(folder), out, config, device='cpu')
    at_load = checkpoint.load(str(folder), CPU, torch.float32)[0]
    stored.quantize(at_load, config)
    converted = load(out)
    for (name, a), (_, b) in zip(at_load.state_dict().items(), converted.state_dict().items()):
        assert torch.equal(a.float(), b.float()), name
    assert isinstance(converted.language_model.layers[0].self_attn.o_proj, torch.nn.Linear)
    plans = [drive(engine(model), (1, 2)) for model in (at_load, converted)]
    assert all(same(a, b) for a, b in zip(*plans))
    assert stored.described(out) == config
    assert converted.config.name == 'low'


def test_scaling_keeps_the_network_and_lowers_the_error_of_its_products(source, tmp_path):
    folder = trained(source, tmp_path)
    plain, scaled = load(folder), load(folder)
    with torch.no_grad():  # one channel of the norms far above the others, as in trained models
        for model in (plain, scaled):
            for layer in model.language_model.layers:
                layer.input_layernorm.weight[3] = layer.post_attention_layernorm.weight[3] = 40
    config = QuantizationConfig('w4a16', expert=True)
    with scaling.recording(scaled, config) as recorded:
        drive(engine(scaled), (1, 2))
    found = scaling.scale(scaled, config, recorded)
    assert len(found) == 3 * (len(scaled.language_model.layers) + len(scaled.expert.layers))
    assert all(f.after <= f.before for f in found.values())
    assert found['language_model.layers.0.mlp.gate_up_proj'].after < \
        0.8 * found['language_model.layers.0.mlp.gate_up_proj'].before
    for a, b in zip(drive(engine(plain), (1, 2)), drive(engine(scaled), (1, 2))):
        assert a.reasoning.token_ids == b.reasoning.token_ids
        assert abs(a.xyz - b.xyz).max() < 1e-3


def test_calibrated_conversion_says_what_it_did_and_loads(source, tmp_path):
    folder, out, said = trained(source, tmp_path), tmp_path / 'low', []
    convert(str(folder), out, QuantizationConfig('w4a8'), windows(2), 'cpu', said.append)
    section = json.loads((out / 'config.json').read_text())['quantization_config']
    assert section['calibration_windows'] == 2 and section['kind'] == 'w4a8'
    assert set(section['alpha'].values()) <= set(scaling.GRID)
    assert any('alpha' in line for line in said)
    loaded = Engine.from_checkpoint(str(out), EngineConfig(device='cpu', max_new_tokens=4))
    assert all(plan.is_finite for plan in drive(loaded, (1, 2)))


def test_drafter_comes_along(source, tmp_path):
    folder = trained(source, tmp_path)
    (tmp_path / 'trained-DFlash').mkdir()
    (tmp_path / 'trained-DFlash/config.json').write_text('{}')
    convert(str(folder), tmp_path / 'low', QuantizationConfig('fp8'), device='cpu')
    assert (tmp_path / 'low-DFlash/config.json').is_file()


def test_conversion_refuses_what_it_can_not_do(source, tmp_path):
    folder, out = trained(source, tmp_path), tmp_path / 'low'
    with pytest.raises(CheckpointError, match='no weights of its own'):
        convert(str(source), out, QuantizationConfig('fp8'), device='cpu')
    convert(str(folder), out, QuantizationConfig('fp8'), device='cpu')
    with pytest.raises(CheckpointError, match='low exists already'):
        convert(str(folder), out, QuantizationConfig('fp8'), device='cpu')
    with pytest.raises(CheckpointError, match='quantised already'):
        convert(str(out), tmp_path / 'again', QuantizationConfig('fp8'), device='cpu')
    with pytest.raises(CheckpointError, match="quantised as 'fp8' already, quantization asks"):
        Engine.from_checkpoint(str(out), EngineConfig(device='cpu', quantization='w4a8'))


def test_stored_low_bit_weights_of_another_type_are_named(source, tmp_path):
    out = tmp_path / 'low'
    convert(str(trained(source, tmp_path)), out, QuantizationConfig('fp8'), device='cpu')
    (shard,) = out.glob('*.safetensors')
    tensors = load_file(shard)
    key = 'vlm.model.language_model.layers.0.self_attn.k_proj.weight'
    tensors[key] = tensors[key].bfloat16()
    save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=rf'{key} is stored as torch.bfloat16, expected '
                       'torch.float8_e4m3fn'):
        load(out)


def test_engine_quantises_as_its_settings_say(source, tmp_path):
    folder = str(trained(source, tmp_path))
    low = Engine.from_checkpoint(folder, EngineConfig(
        device='cpu', quantization='w4a16', quantize_expert=True))
    assert isinstance(low.model.expert.layers[0].mlp.down_proj, QuantLinear)
    with pytest.raises(InputError, match='quantization can not change'):
        low.configure(quantization='fp8')
    with pytest.raises(InputError, match='quantize_expert'):
        EngineConfig(quantize_expert=True)


# memory

def test_memory_is_that_of_the_tensors(source):
    model = load(source)
    plain = memory_needed(model.config, EngineConfig(), torch.float32)
    assert plain.weights == sum(p.nbytes for p in model.parameters())
    for kind in swap.KINDS:
        config = EngineConfig(quantization=kind, quantize_expert=True)
        low = load(source, swap.asked_for(config))
        tensors = [*low.parameters(), *low.buffers()]
        needed = memory_needed(model.config, config, torch.float32)
        assert needed.weights == pytest.approx(sum(t.nbytes for t in tensors), rel=0.05)
        assert needed.weights < plain.weights


def test_full_size_fits_where_it_is_said_to():
    full = ModelConfig()
    plain = memory_needed(full, EngineConfig())
    assert plain.weights / 2 ** 30 == pytest.approx(20.64, abs=0.05)
    fits = fitting(full, EngineConfig(num_trajectories=6), 24 * 2 ** 30)
    assert 'none' not in fits or fits['none'].total < 24 * 2 ** 30
    assert {'fp8', 'w4a16', 'w4a8 with quantize_expert'} <= set(fits)
    assert fits['w4a16'].total < fits['fp8'].total < plain.total
    more = memory_needed(full, EngineConfig(num_trajectories=6, nav_guidance_weight=2.0))
    assert more.cache > 2 * plain.cache
    assert not fitting(full, EngineConfig(), 8 * 2 ** 30)
