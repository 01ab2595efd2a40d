"""What is measured of a drafter: metrics against brute force, and runs with a tiny model."""
import importlib.util
import itertools
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.answers import read
from support.tiny_checkpoint import tiny_checkpoint

from flashdrive_ros.cli import main
from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.drafter import Drafter, DrafterConfig, save
from flashdrive_ros.core.primitives.requests import PrimitiveRequest
from flashdrive_ros.errors import UserError
from flashdrive_ros.evaluation import (
    drafted_reasoning,
    drawn_primitives,
    drawn_primitives_results,
    held_out,
)
from flashdrive_ros.evaluation import primitive_metrics as metrics
from flashdrive_ros.evaluation.drafters import companion
from flashdrive_ros.evaluation.planners import Planners
from flashdrive_ros.training.questions import ask

RNG = np.random.default_rng(0)
SEED = 30_000
SPEC = importlib.util.spec_from_file_location(
    'readme_tables', Path(__file__).parent.parent / 'bench' / 'readme_tables.py')
readme_tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(readme_tables)


def paths(n=6, d=2):
    return RNG.normal(size=(n, d)), RNG.normal(size=(n, d))


def leash(a, b, i, j):
    """Discrete Fréchet distance by its definition: the best of all walks, tried one by one."""
    far = float(np.linalg.norm(a[i] - b[j]))
    ways = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
    return max(far, min((leash(a, b, *w) for w in ways if min(w) >= 0), default=far))


@pytest.mark.parametrize('n, m', [(1, 1), (1, 5), (5, 1), (4, 5), (6, 6)])
def test_frechet_and_hausdorff_are_those_of_brute_force(n, m):
    for _ in range(20):
        a, b = RNG.normal(size=(n, 2)), RNG.normal(size=(m, 2))
        assert metrics.discrete_frechet(a, b) == pytest.approx(leash(a, b, n - 1, m - 1))
        near = [[min(float(np.linalg.norm(p - q)) for q in to) for p in of]
                for of, to in ((a, b), (b, a))]
        assert metrics.hausdorff(a, b) == pytest.approx(max(map(max, near)))
        assert metrics.discrete_frechet(a, b) >= metrics.hausdorff(a, b) - 1e-12


def test_errors_of_a_path_are_those_of_points_in_view_in_both():
    truth = np.stack([np.arange(5.0), np.zeros(5)], 1)
    ours = truth + np.array([3.0, 4.0])
    assert metrics.path_errors(ours, truth) == pytest.approx(
        {'ade': 5, 'fde': 5, 'rmse': 5, 'hd': metrics.hausdorff(ours, truth),
         'dfd': metrics.discrete_frechet(ours, truth)})
    ours[4], truth[0] = np.nan, np.nan
    ours[3] = truth[3] + np.array([0.0, 1.0])
    found = metrics.path_errors(ours, truth)
    assert (found['ade'], found['fde']) == pytest.approx((11 / 3, 1.0))
    assert found['rmse'] == pytest.approx(np.sqrt(51 / 3))
    assert found['dfd'] == pytest.approx(metrics.discrete_frechet(ours[:4], truth[1:]))
    assert metrics.path_errors(np.full((5, 2), np.nan), truth) is None
    with pytest.raises(ValueError, match=r'\[4, 2\].*\[5, 2\]'):
        metrics.path_errors(ours[:4], truth)


def random_box():
    low = RNG.uniform(0, 0.6, 2)
    return np.concatenate((low, low + RNG.uniform(0.1, 0.4, 2)))


def test_iou_is_the_share_of_a_fine_grid():
    x, y = np.meshgrid((np.arange(1000) + 0.5) / 1000, (np.arange(1000) + 0.5) / 1000)
    boxes = [random_box() for _ in range(4)]
    inside = [(x > b[0]) & (x < b[2]) & (y > b[1]) & (y < b[3]) for b in boxes]
    found = metrics.iou(boxes, boxes)
    for i, j in itertools.product(range(4), repeat=2):
        share = (inside[i] & inside[j]).sum() / (inside[i] | inside[j]).sum()
        assert found[i, j] == pytest.approx(share, abs=0.02)
    assert metrics.iou([[0, 0, 0, 0]], [[0, 0, 0, 0]]) == 0


def greedy(predicted, truth, threshold):
    free, found = list(predicted), 0
    for label, box in truth:
        fitting = [p for p in free if p[0] == label]
        best = max(fitting, key=lambda p: float(metrics.iou(p[1], box)[0, 0]), default=None)
        if best is not None and float(metrics.iou(best[1], box)[0, 0]) >= threshold:
            free = [p for p in free if p is not best]
            found += 1
    return found


def test_boxes_are_matched_greedily_within_their_class():
    for _ in range(50):
        truth = [(str(RNG.choice(['car', 'truck'])), random_box()) for _ in range(5)]
        predicted = [(str(RNG.choice(['car', 'truck'])), b + RNG.normal(0, 0.02, 4))
                     for _, b in truth] + [('car', random_box())]
        told = metrics.box_scores(predicted, truth)
        assert told['hits'] == [greedy(predicted, truth, t) for t in metrics.THRESHOLDS]
        assert told['f1'] == pytest.approx(np.mean([2 * n / 11 for n in told['hits']]))


def test_f1_of_the_truth_is_one_and_of_nothing_where_there_is_something_is_zero():
    truth = [('car', random_box()), ('truck', random_box())]
    assert metrics.box_scores(truth, truth)['f1'] == metrics.box_scores([], [])['f1'] == 1
    assert metrics.box_scores([], truth)['f1'] == metrics.box_scores(truth, [])['f1'] == 0
    other = [(label[::-1], box) for label, box in truth]
    assert metrics.box_scores(other, truth)['hits'] == [0] * 10


def test_paths_of_others_are_paired_by_class_and_nearness():
    near, far = np.zeros((3, 2)), np.full((3, 2), 9.0)
    hidden = np.full((3, 2), np.nan)
    truth = [('car', near), ('car', far), ('truck', near), ('cyclist', near)]
    ours = [('car', far + 1), ('car', near + 2), ('truck', near[:2]), ('cyclist', hidden)]
    assert metrics.pair_paths(ours, truth) == [(0, 1), (1, 0)]


@pytest.fixture(scope='module')
def window():
    return next(held_out.windows(SEED, 1, 16.0))


@pytest.fixture(scope='module')
def target(tmp_path_factory):
    directory = tiny_checkpoint(tmp_path_factory.mktemp('drafted') / 'tiny')
    config = checkpoint.read_config(directory)[0]
    save(Drafter.random(DrafterConfig.for_target(config, taps=1, window_context=True), 0),
         directory.with_name('tiny-DFlash'))
    return str(directory)


def test_windows_lie_apart_and_repeat_exactly(window):
    episode = held_out.episode_of(SEED, 16.0)
    ticks = held_out.ticks_of(episode, SEED, 4)
    assert len(ticks) == 4 and ticks == sorted(set(ticks))
    assert all(episode.learnable()[tick] for tick in ticks)
    again = held_out.window(episode, SEED, window.tick)
    assert [f.t0_ns for f in again.before] == [again.frames.t0_ns - n * 10 ** 8 for n in (3, 2, 1)]
    for camera, frame in again.frames.frames.items():
        np.testing.assert_array_equal(frame.image, window.frames.frames[camera].image)
    np.testing.assert_array_equal(again.facts.path, window.facts.path)


@pytest.mark.parametrize('text', drawn_primitives.REQUESTS)
def test_the_truth_has_no_error(window, text):
    request = PrimitiveRequest.parse(text)
    truth = read(ask(request, window.facts).answer)
    told = drawn_primitives.scores(request, truth, truth)
    if request.kind == 'boxes':
        assert told['f1'] == 1 and told['predicted'] == told['true']
    elif request.kind == 'motion':
        assert len(told['3d']) <= told['predicted'] == told['true']
        assert all(set(errors.values()) == {0} for errors in told['3d'])
    else:
        assert told['answered'] and told['view'][0] == told['view'][1] == request.points
        assert set(told['2d'].values()) == set(told['3d'].values()) == {0}
        assert not drawn_primitives.scores(request, [], truth)['answered']


@pytest.fixture(scope='module')
def reasoned(target):
    config = drafted_reasoning.DraftedReasoning(
        {'target': target}, blocks=(4, 8), windows=2, seconds=14.0,
        settings={'max_new_tokens': 9})
    task, = drafted_reasoning.tasks(config, [SEED], [])
    rows = list(drafted_reasoning.run_task(task, Planners()))
    assert drafted_reasoning.tasks(config, [SEED], rows) == []
    return config, rows


def test_drafted_tokens_are_the_plain_ones(reasoned):
    config, rows = reasoned
    body = drafted_reasoning.summary(config, json.loads(json.dumps(rows)))
    assert body['mismatches'] == body['sampled_mismatches'] == []
    assert set(body['rows']) == {'B4', 'B8'} and body['drafter_block'] == 8
    for row in (*body['rows'].values(), *body['sampled_rows'].values()):
        assert row['windows'] == 2 and row['equal_to_plain'] == 1 and row['speedup'] > 0
        assert row['tokens_per_round'] == pytest.approx((row['tokens'] - 1) / row['rounds'])
        assert 1 <= row['tokens_per_round'] <= row['most_per_round'] <= 8
    assert len(body['rows']['B4']['acceptance_by_position']) == 3
    for window in rows[0]['windows']:
        for way in window['greedy'].values():
            assert way['rounds'] == len(way['accepted']) or not way['accepted']
    text = drafted_reasoning.table(body)
    assert 'B8, greedy' in text and '100.00 %' in text and 'NOT THE SAME' not in text


def test_another_token_is_told_with_its_seed(reasoned):
    config, rows = reasoned
    rows = json.loads(json.dumps(rows))
    rows[0]['windows'][1]['greedy']['B8'] |= {'equal': False, 'ids': [1], 'plain': [2]}
    body = drafted_reasoning.summary(config, rows)
    assert [(w['seed'], w['block'], w['plain']) for w in body['mismatches']] == [(SEED, 'B8', [2])]
    assert body['rows']['B8']['equal_to_plain'] == 0.5
    assert f'NOT THE SAME TOKENS: seed {SEED}' in drafted_reasoning.table(body)


@pytest.fixture(scope='module')
def drawn(target):
    config = drawn_primitives.DrawnPrimitives(
        {'target': target}, windows=1, seconds=14.0, settings={'max_primitive_tokens': 40})
    task, = drawn_primitives.tasks(config, [SEED], [])
    return config, list(drawn_primitives.run_task(task, Planners()))


def test_every_mode_answers_every_request(drawn):
    config, rows = drawn
    answers = rows[0]['windows'][0]['answers']
    assert list(answers) == ['autoregressive', 'verified', 'direct', 'fallback']
    for found in answers.values():
        assert list(found) == list(config.requests)
        for answer in found.values():
            assert answer['tokens'] > 0 and answer['target_passes'] > 0
    assert all(a['draft_passes'] == 0 for a in answers['autoregressive'].values())
    assert all(a['draft_passes'] > 0 for a in answers['verified'].values())


def block(name, tokens, passes, path):
    return [name, tokens, 1, passes, path]


def test_figures_of_a_mode(drawn):
    config, rows = drawn
    rows = json.loads(json.dumps(rows))
    for mode, answers in rows[0]['windows'][0]['answers'].items():
        for text, answer in answers.items():
            slow = mode == 'autoregressive'
            answer |= {'ms': 500.0, 'blocks': [block('box_2d', 6, 6 if slow else 1, mode)]}
            if text.startswith('boxes'):
                answer['scores'] = {'f1': 0.5, 'hits': [1] * 10, 'predicted': 3, 'true': 1}
            elif text.startswith('traj'):
                ade = 2.0 if slow else 1.0
                answer['scores'] = {'answered': True, 'view': [7, 8], '2d': None, '3d': {
                    'ade': ade, 'fde': 3.0, 'rmse': 4.0, 'hd': 5.0, 'dfd': 6.0}}
    body = drawn_primitives_results.summary(config, rows)
    row = body['rows']['direct']
    assert (row['ade_2d'], row['ade_3d_m'], row['fde_3d_m'], row['box_f1']) == (None, 1, 3, 0.5)
    assert row['boxes_per_s'] == 6.0 and row['box_f1_pooled'] == 0.5 and row['view_right'] == 7 / 8
    assert (row['tokens_per_round'], row['target_passes']) == (6, 1)
    assert body['rows']['autoregressive']['target_passes'] == 6
    assert body['relations']['direct / autoregressive']['ade_3d'][0] == 0.5
    assert all(holds for what, holds in body['findings'].items() if 'err less' in what)
    assert '| direct ' in drawn_primitives_results.table(body)


@pytest.mark.parametrize('what', ['reasoning', 'primitives'])
def test_a_missing_drafter_is_named(tmp_path, what, capsys):
    alone = tiny_checkpoint(tmp_path / 'alone')
    with pytest.raises(UserError, match='alone-DFlash'):
        companion(str(alone))
    assert main(['eval', what, '--model', str(alone), '--work', str(tmp_path)]) != 0
    assert 'alone-DFlash' in capsys.readouterr().err
    assert not list(tmp_path.glob('*.jsonl'))


@pytest.mark.parametrize('what, extra', [('reasoning', ['--block', '4']), ('primitives', [
    '--set', 'max_primitive_tokens=16'])])
def test_the_command_writes_results_that_the_readme_can_show(target, tmp_path, what, extra,
                                                             capsys, monkeypatch):
    command = partial(main, ['eval', what, '--model', target, '--seeds', '1', '--windows', '1',
                             '--seconds', '14', '--workers', '0', '--work', str(tmp_path),
                             '--out', str(tmp_path), *extra])
    assert command() == 0
    body = json.loads((tmp_path / f'{what}.json').read_text())
    assert {'commit', 'hardware', 'versions', 'command', 'seeds', 'rows'} <= set(body)
    assert str(tmp_path) not in json.dumps(body)
    assert '|' in capsys.readouterr().out
    monkeypatch.setattr(readme_tables, 'ROOT', tmp_path)
    monkeypatch.setattr(readme_tables, 'RESULTS', tmp_path)
    text = readme_tables.section(what, readme_tables.ROOT / 'README.md')
    assert all(f'| {name} |' in text for name in body['rows'])
