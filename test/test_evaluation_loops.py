"""Open and closed loop in the embedded world, with the expert and a tiny untrained model."""
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from support.tiny_checkpoint import tiny_checkpoint

from flashdrive_ros.cli import main
from flashdrive_ros.errors import UserError
from flashdrive_ros.evaluation import (
    closed_loop,
    closed_loop_results,
    open_loop,
    open_loop_results,
)
from flashdrive_ros.evaluation.planners import Planners
from flashdrive_ros.world import World

FEW = {'max_new_tokens': 4}
SPEC = importlib.util.spec_from_file_location(
    'readme_tables', Path(__file__).parent.parent / 'bench' / 'readme_tables.py')
readme_tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(readme_tables)


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp('tiny') / 'tiny'))


@pytest.fixture(scope='module')
def planners():
    return Planners()


def measure(module, config, seeds, planners=None):
    return [row for task in module.tasks(config, seeds, [])
            for row in module.run_task(task, planners)]


@pytest.fixture(scope='module')
def baselines():
    config = closed_loop.ClosedLoop({'expert': '', 'constant_velocity': ''}, seconds=12.0)
    rows = measure(closed_loop, config, range(30_000, 30_004))
    return closed_loop_results.summary(config, rows)


def test_the_expert_has_no_fault_and_no_distance_to_itself(baselines):
    expert = baselines['policies']['expert']
    assert baselines['episodes'] == 4 and not baselines['dropped_seeds']
    assert all(expert[k] == 0 for k in ('collision', 'off_road', 'wrong_lane', 'red_light',
                                        'd_traj', 'd_loc'))
    assert expert['plan_dev'] < 1e-9 and expert['p_rel'] == 1.0


def test_the_experts_own_words_are_right_and_it_does_what_it_says(baselines):
    expert = baselines['policies']['expert']
    assert expert['cause_right'] == 1.0 and expert['text_agrees'] > 0.95
    assert baselines['policies']['constant_velocity']['cause_right'] is None


def test_constant_velocity_is_far_worse(baselines):
    still = baselines['policies']['constant_velocity']
    assert still['collision'] + still['off_road'] + still['red_light'] >= 0.5
    assert still['d_loc'] > 5 and still['p_rel'] < 1


def test_who_needs_no_pictures_has_none_drawn(monkeypatch):
    monkeypatch.setattr(World, 'renderer', property(lambda world: pytest.fail('a picture')))
    config = closed_loop.ClosedLoop({'expert': '', 'constant_velocity': ''}, seconds=0.3)
    assert [row['ticks'] for row in measure(closed_loop, config, [30_000])] == [3, 3]


@pytest.fixture(scope='module')
def driven(tiny, planners):
    config = closed_loop.ClosedLoop({'full': tiny, 'streaming': tiny}, 0.6, FEW)
    return config, measure(closed_loop, config, [30_000], planners)


def test_streaming_drives_by_streaming_and_full_by_whole_windows(driven):
    _, rows = driven
    modes = {row['policy']: row['modes'] for row in rows}
    assert modes['full'] == {'prefill': 6}
    assert modes['streaming'] == {'streaming': 5, 'prefill': 1}
    assert all(row['plan_dev'] > 0 and row['texts']['plans'] == 6 for row in rows)


def test_the_same_seed_gives_the_same_figures(driven, planners):
    config, rows = driven
    assert measure(closed_loop, config, [30_000], planners) == rows


@pytest.fixture(scope='module')
def windows(tiny, planners):
    config = open_loop.OpenLoop(
        {'full': tiny, 'streaming': tiny, 'constant_velocity': ''}, seconds=4.0, stretches=1,
        windows=5, every=2, samples=3, probe='streaming', settings=FEW)
    return config, measure(open_loop, config, [20_000, 20_001], planners)


def test_the_streaming_row_streams_and_all_rows_see_the_same_windows(windows):
    config, rows = windows
    by_row = {}
    for row in rows:
        by_row.setdefault(row['row'], []).extend(row['windows'])
    assert [w['age'] for w in by_row['streaming']] == [2, 4, 2, 4]
    assert all(w['mode'] == 'streaming' for w in by_row['streaming'])
    assert all(w['mode'] == 'prefill' for w in by_row['full'])
    for name, found in by_row.items():
        assert [w['tick'] for w in found] == [w['tick'] for w in by_row['full']], name
    body = open_loop_results.summary(config, rows)
    assert {n: r['windows'] for n, r in body['rows'].items()} == {
        'full': 4, 'streaming': 4, 'constant_velocity': 4}
    assert body['rows']['streaming']['modes'] == {'streaming': 4}
    still = body['rows']['constant_velocity']
    assert still['minADE1'] == still['minADE6'] > 0
    assert still['by_horizon']['0.5']['minADE6'] < still['by_horizon']['5']['minADE6']


def test_the_flow_is_explored_from_the_very_plan_that_was_made(windows):
    config, rows = windows
    probed = [w for row in rows if row['row'] == 'streaming' for w in row['windows']
              if 'flow' in w]
    assert [w['age'] for w in probed] == [4, 4]
    for window in probed:
        assert window['flow']['reuse']['none'] == [window['ade'], window['min_ade']]
        assert len(window['flow']['change']) == 7
    body = open_loop_results.summary(config, rows)
    assert list(body['velocity_reuse']) == ['0', '1', '2', '3', '4', '5', '6']
    assert len(body['velocity_reuse']['4']['steps']) == 4
    assert body['velocity_reuse']['0']['minADE6_to_none'] == [1.0, 1.0, 1.0]
    assert set(body['velocity_reuse_all']) >= {'none', '3-6', '1-6', '2-7'}


def test_the_tables_of_the_readme_are_made_of_the_results(windows, driven):
    settings = {'device': 'cpu', 'dtype': 'auto'}
    body = {**open_loop_results.summary(*windows), 'settings': settings}
    text = '\n'.join(readme_tables.open_loop(body))
    assert f'| full | {body["rows"]["full"]["minADE1"]:.2f} (' in text
    assert '4 windows of 2 held-out episodes' in text and 'CPU, float32' in text
    steps = ', '.join(map(str, body['velocity_reuse']['4']['steps']))
    assert f'\n| 4 | {steps} | ' in '\n'.join(readme_tables.velocity_reuse(body))
    body = {**closed_loop_results.summary(*driven), 'settings': settings, 'seeds_asked': 3}
    text = '\n'.join(readme_tables.closed_loop(body))
    assert '| streaming | ' in text and '1 of 3 asked for' in text


def test_open_loop_repeats_itself(windows, planners):
    config, rows = windows
    assert measure(open_loop, config, [20_001], planners) == rows[3:]


def test_open_loop_measures_a_schedule_of_reuse(windows, planners, tiny):
    _, rows = windows
    reuse = open_loop.OpenLoop({'streaming': tiny}, seconds=4.0, stretches=1, windows=5, every=2,
                               samples=3, settings={**FEW, 'velocity_reuse': [3, 4, 5, 6]})
    found, = measure(open_loop, reuse, [20_000], planners)
    probed = rows[1]['windows'][-1]['flow']['reuse']['3-6']
    last = found['windows'][-1]
    assert [last['ade'], last['min_ade']] == pytest.approx(probed)


def test_seeds_that_were_trained_on_are_refused():
    config = open_loop.OpenLoop({'constant_velocity': ''})
    with pytest.raises(UserError, match='never trained on'):
        open_loop.tasks(config, [100_000], [])


def arguments(tiny, tmp_path, *more):
    return ['eval', 'closed-loop', '--model', tiny, '--seconds', '0.5', '--set',
            'max_new_tokens=4', '--workers', '0', '--latency', 'none',
            '--work', str(tmp_path / 'work'), '--out', str(tmp_path / 'out'),
            '--policies', 'streaming', 'expert', *more]


def test_a_run_goes_on_where_it_was_cut(tiny, tmp_path, capsys):
    assert main(arguments(tiny, tmp_path, '--seeds', '1')) == 0
    rows = tmp_path / 'work' / 'closed_loop.jsonl'
    before = rows.read_text()
    assert main(arguments(tiny, tmp_path, '--seeds', '2')) == 0
    assert '1 tasks to do, 2 rows' in capsys.readouterr().out
    assert rows.read_text().startswith(before)
    body = json.loads((tmp_path / 'out' / 'closed_loop.json').read_text())
    assert body['episodes'] == 2 and body['seeds'] == [30_000, 30_001]
    assert set(body['policies']) == {'expert', 'streaming'}
    assert body['settings']['weights']['streaming'] and body['hardware'] and body['commit']
    assert (tmp_path / 'out' / 'closed_loop.png').stat().st_size > 1000
    assert main(arguments(tiny, tmp_path, '--seeds', '1', '--seconds', '0.6')) == 1
    assert 'seconds' in capsys.readouterr().err


def test_engines_shared_by_lanes_drive_as_engines_of_their_own(tiny, tmp_path):
    shared = '--workers', '1', '--lanes', '2', '--servers', '2'
    for name, more in (('own', ()), ('shared', shared)):
        assert main(arguments(tiny, tmp_path / name, '--seeds', '2', '--set', 'flow_steps=1',
                              '--set', 'velocity_reuse=[]',
                              *more)) == 0
    own, shared = (json.loads((tmp_path / name / 'out' / 'closed_loop.json').read_text())
                   ['policies']['streaming'] for name in ('own', 'shared'))
    for key in ('p_rel', 'd_traj', 'd_loc', 'plan_dev'):
        assert own[key] == pytest.approx(shared[key], rel=1e-2, abs=1e-3)
    assert own['modes'] == shared['modes'] == {'streaming': 8, 'prefill': 2}


@pytest.mark.parametrize('setting, problem', [
    ('no_such=1', 'a setting of the engine'), ('streaming=false', 'follows from the other'),
    ('flow_steps=many', 'not supported'), ('noise_temperature=-1', 'out of range')])
def test_settings_that_are_wrong_are_told(tiny, tmp_path, capsys, setting, problem):
    assert main(arguments(tiny, tmp_path, '--set', setting)) == 1
    assert problem in capsys.readouterr().err


def test_results_of_no_rows_are_empty_and_not_an_error():
    config = closed_loop.ClosedLoop({'expert': '', 'constant_velocity': ''})
    body = closed_loop_results.summary(config, [])
    assert body['episodes'] == 0 and 'expert' in closed_loop_results.table(body)
    config = open_loop.OpenLoop({'full': 'x', 'streaming': 'x'}, probe='streaming')
    body = open_loop_results.summary(config, [])
    assert np.isnan(body['rows']['full']['minADE1'])
    assert 'streaming' in open_loop_results.table(body)
