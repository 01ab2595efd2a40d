"""A shared engine plans what an engine of one's own does."""
import multiprocessing
import threading

import numpy as np
import pytest
from support.tiny_checkpoint import tiny_checkpoint

from flashdrive_ros.core.types import GRID_NS, InputError
from flashdrive_ros.evaluation.batched import BatchedEngine, kind
from flashdrive_ros.evaluation.plan_server import PlanServer
from flashdrive_ros.evaluation.planners import Planners, RemotePlanners, request_of
from flashdrive_ros.evaluation.windows import ego_history, frame_set

CAMERAS, FRAMES = (1, 6), 4
NAVIGATION = 'Limit 50 km/h. Go straight for 90 m.', 'Limit 36 km/h. Turn left in 40 m.'


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp('tiny') / 'tiny'))


def drives(count=2, ticks=6):
    """Frames and poses of some episodes."""
    rng = np.random.default_rng(0)
    return [[(frame_set({c: rng.integers(256, size=(90, 160, 3), dtype=np.uint8)
                         for c in CAMERAS}, (t + 1) * GRID_NS + e),
              ego_history([(0.8 * i, 0.02 * i * i, 0.04 * i) for i in range(t + 17)],
                          (t + 1) * GRID_NS + e)) for t in range(ticks)] for e in range(count)]


def one_by_one(tiny, episodes, **settings):
    plans = []
    for episode, words in zip(episodes, NAVIGATION):
        planner = Planners()(tiny)
        before = [frames for frames, _ in episode[:FRAMES - 1]]
        row = []
        for frames, ego in episode[FRAMES - 1:]:
            row.append(planner.plan(frames, ego, words, before,
                                    explore=frames is episode[-1][0], **settings))
            before = []
        plans.append(row)
    return plans


def together(tiny, episodes, **settings):
    engine, plans = BatchedEngine(tiny, 'cpu'), [[] for _ in episodes]
    for tick in range(FRAMES - 1, len(episodes[0])):
        first = 0 if tick == FRAMES - 1 else tick
        requests = [request_of(tiny, tick == FRAMES - 1,
                               [f for f, _ in episode[first:tick + 1]], episode[tick][1],
                               words, tick == len(episode) - 1, **settings)
                    for episode, words in zip(episodes, NAVIGATION)]
        assert len({kind(r) for r in requests}) == 1
        for row, planned in zip(plans, engine.step(requests, range(len(requests)))):
            row.append(planned)
    return plans


@pytest.mark.parametrize('settings', [
    {'streaming': True, 'num_trajectories': 3, 'flow_steps': 1},
    {'streaming': False, 'num_trajectories': 1, 'flow_steps': 3, 'velocity_reuse': (1,)},
    {'streaming': True, 'greedy': True, 'flow_steps': 3, 'seed': 5}],
    ids=['streaming', 'full', 'greedy'])
def test_batched_plans_equal_the_engines(tiny, settings):
    settings = {'max_new_tokens': 5, **settings}
    episodes = drives()
    # random weights make much of little: what is off grows a hundredfold a step
    close = {'rtol': 1e-3, 'atol': 1e-4 if settings['flow_steps'] == 1 else 2e-2}
    expected, found = (f(tiny, episodes, **settings) for f in (one_by_one, together))
    for mine, theirs in zip(found, expected):
        for a, b in zip(mine, theirs):
            assert a.plan.reasoning == b.plan.reasoning
            for name in ('acceleration', 'curvature', 'speed'):
                np.testing.assert_allclose(getattr(a.plan, name), getattr(b.plan, name), **close)
            np.testing.assert_allclose(a.plan.xyz, b.plan.xyz, atol=10 * close['atol'])
            assert (a.plan.window.mode, a.plan.window.computed_tokens) == (
                b.plan.window.mode, b.plan.window.computed_tokens)
            assert a.plan.chosen == b.plan.chosen and a.plan.t0_ns == b.plan.t0_ns
        np.testing.assert_allclose(mine[-1].flow.change, theirs[-1].flow.change, rtol=1e-2)
        assert mine[-1].flow.xy.keys() == theirs[-1].flow.xy.keys()
        for name, xy in mine[-1].flow.xy.items():
            np.testing.assert_allclose(xy, theirs[-1].flow.xy[name], atol=10 * close['atol'])
    modes = [planned.plan.window.mode for planned in found[0]]
    assert modes == (['prefill'] + ['streaming'] * 2 if settings['streaming']
                     else ['prefill'] * 3)


def test_whole_windows_and_streaming_ones_share_a_batch(tiny):
    settings = {'max_new_tokens': 5, 'flow_steps': 1}
    episodes = drives(3)
    engine, own = BatchedEngine(tiny, 'cpu'), [Planners()(tiny) for _ in episodes]
    for tick in range(FRAMES - 1, 6):
        requests, expected = [], []
        for e, (episode, planner) in enumerate(zip(episodes, own)):
            if tick < FRAMES and e == 1:  # it begins when the others are under way
                continue
            fresh = tick == FRAMES - 1 or (e == 1 and tick == FRAMES)
            sets = [f for f, _ in episode[tick - FRAMES + 1 if fresh else tick:tick + 1]]
            how = {**settings, 'streaming': e != 0}
            requests.append((e, request_of(tiny, fresh, sets, episode[tick][1], '', **how)))
            expected.append(planner.plan(sets[-1], episode[tick][1], '', sets[:-1], **how).plan)
        assert len({kind(r) for _, r in requests}) == 1
        found = engine.step([r for _, r in requests], [e for e, _ in requests])
        for mine, theirs in zip((planned.plan for planned in found), expected):
            assert mine.reasoning == theirs.reasoning and mine.t0_ns == theirs.t0_ns
            np.testing.assert_allclose(mine.xyz, theirs.xyz, atol=1e-3)
            assert (mine.window.mode, mine.window.computed_tokens) == (
                theirs.window.mode, theirs.window.computed_tokens)


def test_settings_that_batches_do_not_follow_are_refused(tiny):
    episode, = drives(1)
    request = request_of(tiny, True, [f for f, _ in episode[:FRAMES]], episode[FRAMES - 1][1], '',
                         streaming=True, recompute_labels='all')
    with pytest.raises(InputError, match="recompute_labels = 'all'"):
        BatchedEngine(tiny, 'cpu').step([request], [0])


def test_the_server_answers_many_pipes_in_one_batch_and_tells_what_fails(tiny):
    episode, = drives(1)
    server, pipes, threads, answers = PlanServer('cpu'), [], [], {}

    def ask(i, theirs):
        planner = RemotePlanners(theirs)(tiny)
        before = [f for f, _ in episode[:planner.frames - 1]] if i else []
        try:
            answers[i] = planner.plan(*episode[FRAMES - 1], '', before, streaming=True,
                                      max_new_tokens=3)
        except RuntimeError as error:
            answers[i] = error
    for i in range(3):
        ours, theirs = multiprocessing.Pipe()
        pipes.append(ours)
        threads.append(threading.Thread(target=ask, args=(i, theirs), daemon=True))
        threads[-1].start()
    for _ in range(2):  # the checkpoint's name, then the request
        for pipe in pipes:
            assert pipe.poll(60)
            server.take(pipe)
    assert len(server.waiting) == 3
    server.work()  # the window without a past spoils its batch, and its batch only
    assert not server.waiting
    assert multiprocessing.active_children() == []
    for thread in threads:
        thread.join(30)
    assert all('begins with 4 frame sets' in str(answers[i]) for i in range(3))


def test_a_planner_tells_that_its_server_has_ended():
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    with pytest.raises(RuntimeError, match='has ended'):
        RemotePlanners(theirs)('small')
