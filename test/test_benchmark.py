"""`flashdrive bench`: the shape model, the floors, the released pipeline, and the results file."""
import json

import numpy as np
import pytest
import torch
from support.golden import DATA, full_tokenizer
from support.tiny_model import write_tiny_checkpoint

from flashdrive_ros.benchmark import rows
from flashdrive_ros.benchmark.correctness import Oracles, compare, outcome
from flashdrive_ros.benchmark.drives import noise_drive
from flashdrive_ros.benchmark.first_plan import time_first_plan
from flashdrive_ros.benchmark.floors import Ceilings, Work, floors
from flashdrive_ros.benchmark.measure import Load, Sample, repeat
from flashdrive_ros.benchmark.results import Results
from flashdrive_ros.benchmark.rows import ROWS, NotAvailable, Row
from flashdrive_ros.benchmark.shape_tokenizer import cut
from flashdrive_ros.cli import main
from flashdrive_ros.core import checkpoint, drafter
from flashdrive_ros.core.config import ModelConfig
from flashdrive_ros.core.model import Alpamayo
from flashdrive_ros.core.prompt import build_layout
from flashdrive_ros.core.reasoning import Reasoned, follow, written
from flashdrive_ros.core.streaming import computed_slots
from flashdrive_ros.core.tokenizer import Tokenizer
from flashdrive_ros.core.trajectories import start_of

SHAPE = 'alpamayo-1.5-shape'
CPU = torch.device('cpu')
H200 = Ceilings(copy=4.27e12, matmul=788e12, matmul_8bit=1461e12)


@pytest.fixture(scope='module')
def shape():
    """Configuration, tokenizer and prompt layout of the model without weights."""
    config, file = checkpoint.read_config(checkpoint.find(SHAPE))
    tokenizer = Tokenizer.from_file(file, config)
    return config, tokenizer, build_layout(config, tokenizer, (0, 1, 2, 6), [(10, 18)] * 4)


def test_shape_has_the_sizes_of_alpamayo(shape):
    config, _, _ = shape
    full = ModelConfig()
    assert (config.text, config.vision, config.expert) == (full.text, full.vision, full.expert)
    assert config.prompt == full.prompt and config.vocab_size == full.vocab_size
    with torch.device('meta'):
        model = Alpamayo(config)
    gib = sum(p.numel() for p in model.parameters()) * 2 / 2 ** 30
    assert gib == pytest.approx(20.64, abs=0.01)
    assert not config.trained and config.random_weights_seed is not None


def test_shape_prompt_has_the_ids_of_the_full_tokenizer(shape):
    _, tokenizer, layout = shape
    case = json.loads((DATA / 'golden/preprocess/full_vocab_prompts.json').read_text())['a15_c4f4']
    ids = np.repeat(*np.asarray(case['input_ids_rle_id_count']).T)
    assert np.array_equal(layout.token_ids, ids) and layout.size == 3086
    assert len(computed_slots(layout, 1)) == 802
    assert len(computed_slots(layout, 1, 'newest')) == 818
    assert tokenizer.id('traj_future_start') == 155681


def test_shape_tokenizer_is_cut_from_the_full_one():
    stored = json.loads((checkpoint.find(SHAPE) / 'tokenizer.json').read_text(encoding='utf-8'))
    assert stored == cut(full_tokenizer())


def test_shape_drafter_has_the_published_size(shape):
    config, _, _ = shape
    directory = checkpoint.find_companion(SHAPE, checkpoint.DRAFTER_SUFFIX)
    found = drafter.DrafterConfig.from_directory(directory)
    drafter.check_fit(found, config, directory)
    assert (found.num_hidden_layers, found.block_size, found.context_len) == (2, 8, 8)
    assert found.target_layer_ids == (24, 30, 31, 32, 34)


def step(full: bool, **changes) -> Work:
    """Work of a step at full size, everything or only what is new."""
    blocks = [np.arange(a, a + 182) for a in (586, 1333, 2081, 2830)]
    streaming = np.concatenate([*blocks, np.arange(3012, 3086)])
    work = dict(images=16, slots=np.arange(3086), passes=16, tokens_a_pass=1, drafts=0,
                evaluations=8) if full else dict(
        images=4, slots=streaming, passes=3, tokens_a_pass=8, drafts=3, evaluations=4)
    return Work(**{'patches': 720, 'prompt': 3086, 'samples': 1, **work, **changes})


@pytest.mark.parametrize(('work', 'expected'), [  # gpu_baseline.md section 5
    (step(True), {'encode': 14.6, 'prefill': 58.0, 'decode': 58.5, 'action': 9.4}),
    (step(True, samples=6), {'action': 21.4}),
    (step(True, quantization='fp8', quantize_expert=True), {'prefill': 32.9, 'action': 5.1}),
    (step(False), {'encode': 3.6, 'decode': 12.6, 'action': 4.7}),
    (step(False, samples=6, quantization='fp8', quantize_expert=True), {'action': 6.6})])
def test_floors_are_those_counted_by_hand(shape, work, expected):
    config, _, _ = shape
    own = drafter.DrafterConfig.from_directory(
        checkpoint.find_companion(SHAPE, checkpoint.DRAFTER_SUFFIX))
    found = floors(config, own, work, H200)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=0.1)
    assert found['total'] == pytest.approx(sum(v for k, v in found.items() if k != 'total'))


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    """A checkpoint with random weights, and its drafter."""
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp('tiny') / 'tiny')
    config = {'model_type': 'qwen3', 'num_hidden_layers': 1, 'hidden_size': 32,
              'intermediate_size': 48, 'num_attention_heads': 4, 'num_key_value_heads': 2,
              'head_dim': 16, 'block_size': 8, 'context_len': 4, 'target_layer_ids': [0, 2],
              'mask_token_id': 2739, 'flashdrive': {'random_weights_seed': 1}}
    beside = folder.with_name('tiny-DFlash')
    beside.mkdir()
    (beside / 'config.json').write_text(json.dumps(config))
    return folder


def load(tiny, **changes) -> Load:
    return Load(**{'model': str(tiny), 'device': CPU, 'trained': False, 'size': (64, 96),
                   'repeats': 3, 'limit_s': 5.0, 'settings': {'cpu_threads': 1}, **changes})


def test_random_drafter_is_drawn_from_its_seed(tiny):
    model, _ = checkpoint.load(str(tiny), CPU, torch.float32)
    one, other = (drafter.load_companion(str(tiny), model, 'on') for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    assert one.fc.weight.std() > 0 and one.mask_embedding.std() > 0


def test_released_pipeline_computes_what_the_engine_computes(tiny, one_thread):
    pytest.importorskip('transformers')
    from flashdrive_ros.benchmark.released import ReleasedPipeline
    model, tokenizer = checkpoint.load(str(tiny), CPU, torch.float32)
    windows = noise_drive(0, (0, 1, 2, 6), (64, 96), CPU)
    pairs = [next(windows) for _ in range(4)]
    sets, ego = [s for s, _ in pairs], pairs[-1][1]
    pipeline = ReleasedPipeline(model, tokenizer, tokens=5)
    theirs = pipeline.step(sets, ego, 2, 4, torch.Generator().manual_seed(3))
    assert theirs.shape == (2, 64, 3) and pipeline.visible.tolist() == [
        pipeline.layout.size + 5] * 2
    engine = load(tiny).engine(ROWS['eager'])
    engine.configure(num_trajectories=2, flow_steps=4)
    for frames, at in pairs:
        engine.reset('test')
        engine.step(frames, at, history=sets)
    stream = engine.streams['guided']
    size = stream.layout.size
    keys = torch.stack([layer.keys for layer in pipeline.cache.layers])
    assert float((keys[:, 0, :, :size] - stream.cache.k[:, :, :size]).abs().max()) < 1e-4
    ids = pipeline.ids[:, :5]
    stream.truncate(size)
    texts = tuple(written(tokenizer, row, 'length') for row in ids.tolist())
    reasoned = follow(stream, Reasoned(texts, (), ()))
    engine.generator.manual_seed(3)
    ours = engine._act(stream, None, reasoned, start_of(ego, model.config.action))
    assert np.allclose(ours.xyz, theirs, atol=1e-3)


def test_a_row_on_the_plain_path_equals_its_oracle(tiny, one_thread):
    row = ROWS['streaming']
    oracles = Oracles()
    oracles.make(load(tiny).engine(ROWS['eager']), load(tiny), [row])
    found = oracles.check(load(tiny).engine(row), load(tiny), row)
    assert found == {'keys': 0, 'values': 0, 'equal_tokens': 1, 'waypoints_m': 0}


def test_a_deviation_is_seen(tiny, one_thread):
    whole, streamed = (outcome(load(tiny).engine(ROWS[name]), load(tiny), ROWS[name].streams)
                       for name in ('eager', 'streaming'))
    found = compare(streamed, whole)
    assert found['keys'] > 1e-3 and found['waypoints_m'] >= 0


def test_a_row_says_which_setting_the_engine_lacks(monkeypatch):
    monkeypatch.setitem(rows.SWITCHED, 'wings', False)
    row = Row('flying', '', {'wings': True})
    with pytest.raises(NotAvailable, match='no setting wings'):
        row.config(cuda=False, quantization='fp8')


def test_repetition_ends_at_its_limit_but_not_before_three():
    calls = []
    repeat(lambda: calls.append(1), 30, limit_s=0)
    assert len(calls) == 3


def test_summary_has_median_and_ninetieth_percentile():
    sample = Sample()
    for ms in range(1, 12):
        sample.add(dict.fromkeys(('encode', 'prefill', 'decode', 'action'), ms), 4 * ms, 16, 3)
    assert sample.summary()['encode'] == 6 and sample.summary()['total_p90'] == 40


def test_command_writes_every_row_and_the_chart(tiny, tmp_path, one_thread, capsys):
    pytest.importorskip('transformers')
    code = main(['bench', '--model', str(tiny), '--device', 'cpu', '--image-size', '96x64',
                 '--repeats', '3', '--limit-s', '1', '--out', str(tmp_path), '--set',
                 'cpu_threads=1', '--rows', 'released', 'eager', 'streaming', 'low_bit'])
    data = json.loads((tmp_path / 'cpu_tiny.json').read_text())
    printed = capsys.readouterr().out
    assert code == (1 if 'failed' in data['not_available'].get('low_bit', '') else 0)
    assert set(data['rows']) >= {'released', 'eager', 'streaming'}
    for name in ('eager', 'streaming'):
        for count in ('1', '6'):
            row = data['rows'][name][count]
            assert row['total'] > 0 and row['total_p90'] >= row['total']
            assert data['floors_ms'][name][count]['total'] > 0
    assert data['encode_early']['streaming']['1']['total'] > 0
    assert data['details']['eager']['1']['tokens'] == rows.TOKENS + 1
    assert data['details']['released']['6']['tokens'] == rows.TOKENS
    assert data['correctness']['eager']['keys'] == 0
    assert data['correctness']['released']['keys'] < 1e-5
    assert data['start']['eager']['first_plan_s'] > 0 and data['ceilings']['copy_tb_s'] > 0
    assert (tmp_path / 'cpu_tiny.png').stat().st_size > 1000
    assert '| streaming' in printed and 'x)' in printed


def test_first_plan_of_a_new_process_is_timed_with_a_written_checkpoint(tiny, one_thread):
    times = time_first_plan(load(tiny), 'streaming')
    parts = {name: times[name] for name in ('imports_s', 'load_s', 'warm_up_s', 'step_s')}
    assert min(parts.values()) > 0
    assert sum(parts.values()) == pytest.approx(times['first_plan_s'])


def test_results_are_continued_only_by_equal_sources_and_machine(tmp_path, monkeypatch):
    monkeypatch.setenv('FLASHDRIVE_COMMIT', 'a' * 40)
    about = {'model': 'm', 'settings': {'image_size': '96x64'}}
    first = Results(tmp_path / 'x.json', about)
    first.put('rows', 'eager', '1', value={'total': 2.0, 'encode': 1.0, 'prefill': 0.5,
                                           'decode': 0.3, 'action': 0.2, 'total_p90': 2.0})
    first.save()
    again = Results(tmp_path / 'x.json', about)
    assert again.data['rows'] == first.data['rows'] and 'continued' in again.note
    other = Results(tmp_path / 'x.json', {**about, 'settings': {}})
    assert not other.data['rows'] and 'settings' in other.note
    monkeypatch.setenv('FLASHDRIVE_COMMIT', 'b' * 40)
    newer = Results(tmp_path / 'x.json', about)
    assert not newer.data['rows'] and 'commit' in newer.note
