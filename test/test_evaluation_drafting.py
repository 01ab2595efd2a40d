"""Closed loop plain and drafted, with a tiny untrained model."""
import pytest
from support.tiny_checkpoint import tiny_checkpoint

from flashdrive_ros.core import drafter as drafters
from flashdrive_ros.core.drafter import Drafter, DrafterConfig
from flashdrive_ros.evaluation import drafted_driving
from flashdrive_ros.evaluation.planners import Planners

pytestmark = pytest.mark.usefixtures('one_thread')


@pytest.fixture(scope='module')
def driven(tmp_path_factory):
    """Configuration and row of one short drive."""
    path = tiny_checkpoint(tmp_path_factory.mktemp('tiny') / 'tiny')
    planners = Planners()
    target = planners(str(path)).engine.model
    config = DrafterConfig.for_target(target.config, target_layer_ids=(0, 1))
    drafters.save(Drafter.random(config, 0), path.with_name('tiny-DFlash'))
    planners = Planners()
    config = drafted_driving.DraftedDriving(
        {'target': str(path), 'drafter': ''}, seconds=0.6,
        settings={'max_new_tokens': 6, 'flow_steps': 2})
    task, = drafted_driving.tasks(config, [30_000], [])
    return config, *drafted_driving.run_task(task, planners)


def test_drafted_and_plain_drives_are_compared_window_by_window(driven):
    config, row = driven
    assert not row['fault'] and drafted_driving.tasks(config, [30_000], [row]) == []
    for way in ('as computed', 'settled'):
        windows = row[way]['windows']
        assert len(windows) == config.ticks
        assert all(equal and apart < 1e-3 and rounds < tokens == 6
                   for equal, apart, tokens, rounds in windows)
    assert any(apart > 0 for _, apart, *_ in row['as computed']['windows'])
    assert all(apart == 0 for _, apart, *_ in row['settled']['windows'])
    assert row['settled']['episode']['apart_m'] == 0


def test_what_differs_is_told(driven):
    config, row = driven
    body = drafted_driving.summary(config, [row, {'seed': 30_001, 'fault': 'collision'}])
    settled = body['rows']['settled']
    assert body['seeds'] == [30_000] and body['mismatches'] == []
    assert settled['same_plans'] == settled['same_tokens'] == settled['windows'] == config.ticks
    assert settled['same_flags'] == settled['same_path'] == settled['episodes'] == 1
    assert 1 <= settled['tokens_per_round'] <= 5
    assert 'settled' in drafted_driving.table(body)
    other = {**row, 'settled': {**row['settled'], 'windows': [[False, 0.5, 6, 2]]}}
    body = drafted_driving.summary(config, [other, {**row, 'seed': 30_002}])
    assert body['mismatches'] == [30_000]
    assert body['rows']['settled']['same_tokens'] == config.ticks


