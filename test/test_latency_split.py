"""The split of a visual plan's time."""
import importlib.util
import json
from pathlib import Path

import pytest
from support.tiny import tiny_config, tiny_engine, tiny_model

from flashdrive_ros.benchmark.measure import Load
from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.drafter import Drafter, DrafterConfig

PATH = Path(__file__).resolve().parent.parent / 'bench' / 'latency_split.py'
spec = importlib.util.spec_from_file_location('latency_split', PATH)
latency_split = importlib.util.module_from_spec(spec)
spec.loader.exec_module(latency_split)
pytestmark = pytest.mark.usefixtures('one_thread')


def test_ways_share_all_stages_but_decoding():
    model = tiny_model(tiny_config())
    drafter = Drafter.random(DrafterConfig.for_target(model.config, taps=2), 3)
    engine = tiny_engine(model, drafter, drafting='on')
    load = Load('tiny', model.device, False, cameras=(1,), size=(64, 96), repeats=3, limit_s=1.0)
    engine.measure_acceptance = 2
    rows = latency_split.split(engine, load, sizes=(9, 20))
    assert list(rows) == ['9', '20']
    for ways in rows.values():
        assert list(ways) == ['autoregressive', 'flash']
        a, b = ways.values()
        assert all(a[s] == b[s] > 0 for s in ('images', 'prefill', 'action'))
        assert a['decode'] != b['decode']
        for row in (a, b):
            assert row['total'] == pytest.approx(sum(row[s] for s in latency_split.STAGES))
    assert latency_split.table(rows).count('flash') == 2


def test_the_shape_of_4b_is_one_that_loads(tmp_path):
    target = latency_split.write_4b(tmp_path)
    config, _ = checkpoint.read_config(target)
    assert (config.text.hidden_size, config.text.num_hidden_layers) == (2560, 36)
    assert config.vision.out_hidden_size == 2560 and config.prompt.frames_per_camera == 1
    assert not config.trained and config.random_weights_seed is not None
    drafter = DrafterConfig.from_directory(Path(f'{target}-DFlash'))
    assert (drafter.hidden_size, drafter.num_hidden_layers, drafter.block_size) == (2560, 5, 16)
    assert json.loads((target / 'config.json').read_text())['flashdrive']['name'] == '4b-shape'
