"""The stages of static shape compute what the plain path does."""
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.tiny import (
    drive,
    ego_history,
    frame_set,
    same,
    tiny_config,
    tiny_engine,
    tiny_model,
)

from flashdrive_ros.core.drafter import Drafter, DrafterConfig
from flashdrive_ros.core.fast import reference
from flashdrive_ros.core.graphs import GraphPool
from flashdrive_ros.core.quantization import matrices
from flashdrive_ros.core.quantization.activations import FP8, LARGEST
from flashdrive_ros.core.quantization.products import Activation
from flashdrive_ros.core.quantization.swap import QuantizationConfig, quantize
from flashdrive_ros.core.types import GRID_NS, CameraFrame, FrameSet

SETTINGS = [
    {},
    {'num_trajectories': 6},
    {'flow_steps': 5, 'velocity_reuse': (2, 3), 'greedy': True},
    {'recompute_labels': 'all', 'top_p': 1.0},
    {'separate_reasonings': True, 'num_trajectories': 2, 'drafting': 'off'},
    {'nav_guidance_weight': 1.5, 'num_trajectories': 2},
]
CONFIG = tiny_config()
MODEL = tiny_model(replace(CONFIG, action=replace(CONFIG.action, max_freq=2.0)))
"""Low frequencies of the flow's features: they amplify rounding less."""


REQUESTS = ('boxes:1:car,pedestrian', 'trajectory_3d:8')


def drafter(**changes):
    return Drafter.random(DrafterConfig.for_target(MODEL.config, taps=2, **changes), seed=3)


def close(a, b):
    assert a.all_reasonings == b.all_reasonings
    assert (a.window, a.chosen) == (b.window, b.chosen)
    for name in ('xyz', 'yaw', 'speed', 'acceleration', 'curvature'):
        values = getattr(a, name)
        # positions are sums: what rounds off is a share of the whole path, not of a coordinate
        atol = max(2e-5, 1e-6 * np.abs(values).max()) if name == 'xyz' else 2e-5
        np.testing.assert_allclose(values, getattr(b, name), rtol=2e-4, atol=atol)


@pytest.mark.parametrize('settings', SETTINGS)
@pytest.mark.parametrize('drafts', [False, True])
def test_a_drive_is_that_of_the_plain_path(settings, drafts):
    model_drafter = drafter(block_size=4, context_len=3) if drafts else None
    engines = [tiny_engine(MODEL, model_drafter, max_new_tokens=7, graphs=graphs, **settings)
               for graphs in ('off', 'on')]
    for plain, fast in zip(*(drive(e, [9, 10, 11, 12, 13, 15, 20, 21]) for e in engines)):
        close(plain, fast)
    for engine in engines:
        engine.reset('test')
    for text in ('', 'Turn left'):
        for plain, fast in zip(*(drive(e, [30, 31, 33], text) for e in engines)):
            close(plain, fast)
        for engine in engines:
            engine.configure(num_trajectories=3)


def engines(model_drafter=None, model=MODEL, **settings):
    """The plain engine and the fast one."""
    return [tiny_engine(model, model_drafter, max_new_tokens=7, graphs=graphs, **settings)
            for graphs in ('off', 'on')]


def test_windows_are_refilled_from_frames_that_come_late():
    plain, fast = engines()
    for now, late in ((9, ()), (12, (10, 11)), (14, (13,)), (15, ()), (19, (18,)), (20, (17,))):
        plans = [engine.step(frame_set(now * GRID_NS), ego_history(now * GRID_NS),
                             history=[frame_set(t * GRID_NS) for t in late])
                 for engine in (plain, fast)]
        close(*plans)


def test_after_a_reset_and_a_failure_the_fast_path_equals_a_fresh_one(monkeypatch):
    engine = engines(drafter(block_size=4, context_len=3))[1]
    fresh = engines(drafter(block_size=4, context_len=3))[1]
    drive(engine, [3, 4, 5])
    engine.reset('test')
    for a, b in zip(drive(engine, [9, 10]), drive(fresh, [9, 10])):
        assert same(a, b)
    with monkeypatch.context() as broken:
        broken.setattr(engine.streams['guided'].flow, 'run', None)
        with pytest.raises(TypeError):
            drive(engine, [11])
    fresh.reset('test')
    for a, b in zip(drive(engine, [12, 13]), drive(fresh, [12, 13])):
        assert same(a, b)


@pytest.mark.parametrize('window_context', [False, True])
def test_primitives_and_answers_are_those_of_the_plain_path(window_context):
    pair = engines(drafter(block_size=4, context_len=3, window_context=window_context),
                   primitives=REQUESTS, max_primitive_tokens=40, settle_reasoning=True)
    for plain, fast in zip(*(drive(engine, [9, 10, 11]) for engine in pair)):
        close(plain, fast)
        assert [p.token_ids for p in plain.primitives] == [p.token_ids for p in fast.primitives]
    answers = [[a.token_ids for a in engine.drawing.answers] for engine in pair]
    assert answers[0] == answers[1]
    assert pair[0].ask('What is ahead?') == pair[1].ask('What is ahead?')
    close(*(drive(engine, [12])[0] for engine in pair))


@pytest.mark.parametrize('kind', ['fp8', 'w4a8', 'w4a16'])
@pytest.mark.parametrize('rounded', [True, False])
def test_quantised_projections_are_read_as_by_the_plain_path(monkeypatch, kind, rounded):
    """
    Exactly, but for numbers that float32 puts on different sides of a step of 8 bits.

    A plan moves by decimetres when one does; without rounding none can.
    """
    if not rounded:
        for module, name in ((matrices, 'quantize_rows'), (reference, 'quantise')):
            monkeypatch.setattr(module, name, scaled_only)
    model = tiny_model(MODEL.config)
    quantize(model, QuantizationConfig(kind, expert=True))
    plain, fast = (drive(e, [9, 10]) for e in engines(model=model, greedy=True))
    for a, b in zip(plain, fast):
        if rounded and kind != 'w4a16':
            assert np.abs(a.xyz - b.xyz).max() < 0.5
            assert np.abs(a.acceleration - b.acceleration).max() < 0.3
        else:
            close(a, b)


def scaled_only(x, dtype=FP8):
    """Activations over the scale of their row, as they are before they are rounded."""
    scale = x.float().abs().amax(-1).clamp_min(1e-12) / LARGEST[dtype]
    return Activation(x.float() / scale[:, None], scale)


@pytest.mark.parametrize('graphs', ['off', 'on'])
def test_accepted_drafts_can_be_set_to_measure_times(graphs):
    engine = tiny_engine(MODEL, drafter(block_size=8, context_len=8), max_new_tokens=16,
                         drafting='on', graphs=graphs)
    engine.measure_acceptance = 4
    for plan in drive(engine, [9, 10]):
        assert plan.reasoning.accepted_by_round == (4, 4, 4)
        assert (len(plan.reasoning.token_ids), plan.reasoning.stop_reason) == (16, 'length')


def test_images_may_be_tensors():
    engine = tiny_engine(MODEL)
    arrays = frame_set(GRID_NS)
    tensors = FrameSet(GRID_NS, {c: CameraFrame(torch.from_numpy(f.image), f.stamp_ns)
                                 for c, f in arrays.frames.items()})
    a = engine.step(arrays, ego_history(GRID_NS))
    engine.reset('test')
    assert same(a, engine.step(tensors, ego_history(GRID_NS)))


def test_settings_of_the_path_change_between_steps():
    engine, plain = tiny_engine(MODEL), tiny_engine(MODEL)
    for settings, time in (({}, 9), ({'graphs': 'on'}, 10), ({}, 11),
                           ({'graphs': 'off', 'fusion': 'on'}, 12), ({'fusion': 'off'}, 13)):
        engine.configure(**settings)
        plan = drive(engine, [time])[0]
        if settings:  # all of the window is computed again
            plain.streams = {}
            plain.memory.invalidate(plan.window.reason)
        close(drive(plain, [time])[0], plan)


def test_a_graph_belongs_to_one_thread():
    pool = GraphPool(torch.device('cpu'))
    pool.check_thread()
    failed = []

    def elsewhere():
        try:
            pool.check_thread()
        except RuntimeError as error:
            failed.append(error)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert failed
