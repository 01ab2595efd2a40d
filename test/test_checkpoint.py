"""The checkpoint loader: what fits loads to the bit, what does not is named."""
import json
import shutil

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from support.golden import DATA
from support.tiny import drive, same

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.config import CheckpointError, DecoderConfig, EngineConfig, ModelConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.types import InputError

GOLDEN = DATA / 'golden/alpamayo1_5/checkpoint'
CPU = torch.device('cpu')


def load(folder):
    return checkpoint.load(str(folder), CPU, torch.float32)[0]


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny released checkpoint, in shards."""
    return shutil.copytree(GOLDEN, tmp_path / 'model')


def edit(folder, change):
    """Apply `change` to the tensors of the last shard, and list them in the index."""
    path = sorted(folder.glob('*.safetensors'))[-1]
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def edit_config(folder, name='config.json', **values):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def write(model, folder):
    """Save a tiny model as a checkpoint directory with the golden one's configuration files."""
    folder.mkdir()
    checkpoint.save(model, folder, shard_bytes=40_000)
    for name in ('config.json', 'vlm/config.json', 'vlm/tokenizer.json'):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(GOLDEN / name, folder / name)


def test_every_tensor_of_the_released_checkpoint_finds_its_place(folder):
    model = load(folder)
    stored = {}
    for shard in folder.glob('*.safetensors'):
        stored |= load_file(shard)
    placed = dict(checkpoint.public_tensors(model))
    assert set(placed) == set(stored)
    for key, tensor in stored.items():
        assert torch.equal(placed[key], tensor), key


def test_saved_model_loads_bit_for_bit_from_many_shards(tmp_path):
    model = load(GOLDEN)
    write(model, tmp_path / 'saved')
    assert len(list((tmp_path / 'saved').glob('*.safetensors'))) > 10
    for (name, a), b in zip(model.named_parameters(), load(tmp_path / 'saved').parameters()):
        assert torch.equal(a, b), name


def test_single_file_without_an_index_loads(tmp_path):
    model = load(GOLDEN)
    write(model, tmp_path / 'saved')
    folder, tensors = tmp_path / 'saved', {}
    (folder / 'model.safetensors.index.json').unlink()
    for shard in folder.glob('*.safetensors'):
        tensors |= load_file(shard)
        shard.unlink()
    save_file(tensors, folder / 'model.safetensors')
    assert torch.equal(load(folder).lm_head.weight, model.lm_head.weight)


def test_vocabulary_is_padded_with_zeros():
    model = load(GOLDEN)
    size = model.config.vocab_size
    assert size == 5054 and len(model.embed_tokens.weight) == 5056
    assert not model.embed_tokens.weight[size:].any() and not model.lm_head.weight[size:].any()


def test_projections_are_fused():
    model = load(GOLDEN)
    layer, text = model.language_model.layers[0], model.config.text
    assert len(layer.self_attn.qkv_proj.weight) == (
        text.num_attention_heads + 2 * text.num_key_value_heads) * text.head_dim
    assert len(layer.mlp.gate_up_proj.weight) == 2 * text.intermediate_size


def test_missing_key_is_named(folder):
    key = 'vlm.model.language_model.norm.weight'
    for shard in folder.glob('*.safetensors'):
        tensors = load_file(shard)
        if tensors.pop(key, None) is not None:
            save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=f'missing keys: {key}'):
        load(folder)


def test_missing_part_of_a_fused_projection_is_named(folder):
    key = 'expert.layers.2.self_attn.k_proj.weight'
    for shard in folder.glob('*.safetensors'):
        tensors = load_file(shard)
        if tensors.pop(key, None) is not None:
            save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=key):
        load(folder)


def test_unexpected_key_is_named(folder):
    edit(folder, lambda t: t.update({'expert.layers.9.surprise': torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r'unexpected keys: expert\.layers\.9\.surprise'):
        load(folder)


def test_wrong_shape_is_named_with_both_shapes(folder):
    def change(tensors):
        key = sorted(tensors)[0]
        tensors[key] = torch.zeros(3, 5)
        change.key = key
    edit(folder, change)
    with pytest.raises(CheckpointError, match=r'wrong tensors: \S+ \[3, 5\] instead of \[') as e:
        load(folder)
    assert change.key in str(e.value)


def test_buffers_that_are_recomputed_are_ignored(folder):
    edit(folder, lambda t: t.update({
        'action_space.accel_mean': torch.zeros(1), 'action_in_proj.sinus.0.freqs': torch.ones(10),
        'action_in_proj.timestep_fourier_encoder.freqs': torch.ones(10)}))
    load(folder)


def test_corrupt_shard_is_named(folder):
    shard = sorted(folder.glob('*.safetensors'))[1]
    shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=f'{shard.name} can not be read'):
        load(folder)


def test_missing_shard_is_named(folder):
    shard = sorted(folder.glob('*.safetensors'))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f'shards that do not exist.*{shard.name}'):
        load(folder)


def test_folder_without_weights_is_refused_and_pickles_are_never_opened(folder, monkeypatch):
    opened = []
    monkeypatch.setattr(torch, 'load', lambda *a, **k: opened.append(a))
    for shard in folder.glob('model*'):
        shard.unlink()
    torch.save({'vlm.lm_head.weight': torch.zeros(1)}, folder / 'pytorch_model.bin')
    with pytest.raises(CheckpointError, match=r'holds no \*\.safetensors'):
        load(folder)
    assert not opened


@pytest.mark.parametrize('change, message', [
    ({'model_type': 'llama'}, "model_type is 'llama', expected 'alpamayo1_5' or 'alpamayo_r1'"),
    ({'vlm_name_or_path': 'no_such_vlm'}, r'model/no_such_vlm does not exist'),
    ({'flashdrive': []}, r'config\.json: flashdrive is \[\], expected an object'),
    ({'vocab_size': 'many'}, r"config\.json: vocab_size is 'many', expected a whole number"),
    ({'expert_cfg': 'x'}, "expert_cfg is 'x', expected an object"),
    ({'expert_cfg': {'hidden_size': -8}}, 'hidden_size is -8'),
    ({'diffusion_cfg': []}, r'diffusion_cfg is \[\], expected an object'),
    ({'diffusion_cfg': {'num_inference_steps': 'ten'}}, "num_inference_steps is 'ten'"),
    ({'diffusion_cfg': {'num_inference_steps': 0}}, 'num_inference_steps is 0, expected more'),
    ({'min_pixels': 1.5}, r'min_pixels is 1\.5'),
    ({'camera_ids': 7}, 'camera_ids is 7, expected a list'),
    ({'extra_tokens': [7]}, r'extra_tokens is \(7,\), expected a list of texts'),
    ({'expert_cfg': {'num_key_value_heads': 1}}, 'expert num_key_value_heads is 1'),
    ({'vocab_size': 3000}, 'the tokenizer has 5054 tokens, config.json allows 3000'),
    ({'traj_token_start_idx': 900}, 'the tokenizer has 1026 tokens, config.json puts'),
])
def test_configuration_that_does_not_fit_is_refused(folder, monkeypatch, change, message):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    edit_config(folder, **change)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


@pytest.mark.parametrize('content', ['{', '[1, 2]'])
def test_broken_configuration_is_named(folder, content):
    (folder / 'config.json').write_text(content)
    with pytest.raises(CheckpointError, match=r'config\.json'):
        load(folder)


def test_broken_tokenizer_is_named(folder):
    (folder / 'vlm/tokenizer.json').write_text('{}')
    with pytest.raises(CheckpointError, match=r'tokenizer\.json is not a tokenizer'):
        load(folder)


@pytest.mark.parametrize('weight_map', [[], {'vlm.lm_head.weight': 3}, None])
def test_broken_index_is_named(folder, weight_map):
    (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': weight_map}))
    with pytest.raises(CheckpointError, match=r'index\.json: weight_map must give'):
        load(folder)


@pytest.mark.parametrize('change, message', [
    ({'text_config': 3}, 'text_config is 3, expected an object'),
    ({'text_config': {'hidden_size': 'a'}}, "hidden_size is 'a'")])
def test_broken_sizes_are_named(folder, change, message):
    edit_config(folder, 'vlm/config.json', **change)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_a_tokenizer_of_bytes_is_named(folder):
    (folder / 'vlm/tokenizer.json').write_bytes(bytes(range(256)))
    with pytest.raises(CheckpointError, match=r'tokenizer\.json is not a tokenizer'):
        load(folder)


def test_weights_that_need_a_scale_are_refused(folder):
    def quantise(tensors):
        key = next(iter(tensors))
        tensors[key] = tensors[key].to(torch.int8)
    edit(folder, quantise)
    with pytest.raises(CheckpointError, match=r'is stored as torch\.int8'):
        load(folder)


def test_weights_that_are_not_numbers_are_found_before_the_drive(folder):
    engine = Engine.from_checkpoint(folder, EngineConfig(device='cpu'))
    for parameter in engine.model.action_out_proj.parameters():
        parameter.fill_(torch.nan)
    with pytest.raises(CheckpointError, match='plans values that are not finite'):
        engine.warm_up(height=64, width=96)


def test_unknown_name_lists_the_shipped_models():
    with pytest.raises(CheckpointError, match=r"no checkpoint 'nothing'.*shipped models.*small"):
        checkpoint.find('nothing')


def hub_says(monkeypatch, error):
    def fail(name, allow_patterns):
        assert '*.bin' not in allow_patterns
        raise error
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', fail)


@pytest.mark.parametrize('kind, message', [
    (errors.GatedRepoError, 'is gated: accept its licence on its page, then log in'),
    (errors.RepositoryNotFoundError, 'the hub has no model nvidia/Alpamayo-1.5-10B'),
    (errors.LocalEntryNotFoundError, 'the hub could not be reached'),
    (errors.OfflineModeIsEnabled, 'give a local directory'),
    (TimeoutError, 'the hub could not be reached .TimeoutError.'),
])
def test_hub_answers_in_plain_words(monkeypatch, kind, message):
    hub_says(monkeypatch, kind.__new__(kind))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load('nvidia/Alpamayo-1.5-10B', CPU, torch.float32)


def test_hub_name_gives_its_directory(monkeypatch):
    monkeypatch.setattr(huggingface_hub, 'snapshot_download',
                        lambda name, allow_patterns: str(GOLDEN))
    assert checkpoint.find('nvidia/Alpamayo-1.5-10B') == GOLDEN


def test_full_size_configuration_needs_no_base_model_on_disk(tmp_path, monkeypatch):
    """A released config.json names its base model; the known ones have the default sizes."""
    hub_says(monkeypatch, TimeoutError())
    shutil.copyfile(GOLDEN / 'vlm/tokenizer.json', tmp_path / 'tokenizer.json')
    (tmp_path / 'config.json').write_text(json.dumps({
        'model_type': 'alpamayo1_5', 'vlm_name_or_path': 'nvidia/Cosmos-Reason2-8B',
        'expert_cfg': {'hidden_size': 2048, 'intermediate_size': 8256,
                       'num_attention_heads': 16, 'head_dim': 128}}))
    config, tokenizer = checkpoint.read_config(tmp_path)
    assert tokenizer.name == 'tokenizer.json'
    assert config.text == DecoderConfig() and config.expert.intermediate_size == 8256
    assert config.vocab_size == 155697


def test_full_size_model_has_the_released_number_of_parameters():
    with torch.device('meta'):
        model = checkpoint.Alpamayo(ModelConfig())
    keys = dict(checkpoint.public_tensors(model))
    billions = {part: sum(t.numel() for k, t in keys.items() if k.startswith(part)) / 1e9
                for part in ('vlm.model.visual.', 'vlm.model.language_model.layers.', 'expert.')}
    assert billions['vlm.model.visual.'] == pytest.approx(0.576, abs=1e-3)
    assert billions['vlm.model.language_model.layers.'] == pytest.approx(6.946, abs=1e-3)
    assert billions['expert.'] == pytest.approx(2.279, abs=1e-3)
    assert sum(k.startswith('expert.') for k in keys) == 397
    assert len(model.lm_head.weight) == 155712


@pytest.mark.parametrize('model_type, cameras, labels', [
    ('alpamayo1_5', None, True), ('alpamayo_r1', (0, 1, 2, 6), False)])
def test_only_alpamayo_1_insists_on_its_cameras(folder, model_type, cameras, labels):
    edit_config(folder, model_type=model_type)
    prompt = checkpoint.read_config(folder)[0].prompt
    assert prompt.camera_ids == cameras
    assert prompt.include_camera_ids == prompt.include_frame_nums == labels


def test_device_that_is_not_there_is_named():
    with pytest.raises(CheckpointError, match="device 'cuda:77' can not be used"):
        checkpoint.resolve_device('cuda:77', 'auto')


def test_device_that_holds_no_numbers_is_named():
    with pytest.raises(CheckpointError, match="device 'meta' can not be used"):
        checkpoint.resolve_device('meta', 'auto')


def test_automatic_dtype_is_float32_on_the_cpu():
    assert checkpoint.resolve_device('cpu', 'auto') == (CPU, torch.float32)


@pytest.mark.parametrize('settings', [
    {'num_trajectories': 0}, {'top_p': 1.5}, {'temperature': 0.0}, {'max_new_tokens': 0},
    {'recompute_labels': 'some'}, {'grid_tolerance_s': 0.06}, {'dtype': 'int8'},
    {'nav_guidance_weight': float('nan')}, {'nav_guidance_weight': float('inf')}])
def test_settings_out_of_range_are_named(settings):
    with pytest.raises(InputError, match=f'{next(iter(settings))} = .* is out of range'):
        EngineConfig(**settings)


def test_shipped_model_loads_by_name_and_drives():
    engines = [Engine.from_checkpoint('small', EngineConfig(device='cpu', max_new_tokens=2))
               for _ in range(2)]
    plans = [drive(e, [1], shape=(90, 160))[0] for e in engines]
    assert same(*plans) and plans[0].model == 'small'
