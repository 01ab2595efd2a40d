"""
Features of plans: equal to one plain forward pass over the same tokens, and free when off.

The plain pass is transformers' Qwen3-VL with the same weights.
"""
from functools import lru_cache

import numpy as np
import pytest
from support.flash import ScriptedHead, SlotStream, StandIn
from support.plain_forward import hidden_states
from support.tiny import drive, tiny_config, tiny_engine, tiny_model

from flashdrive_ros.core import engine as engine_module
from flashdrive_ros.core.drafter import Drafter, DrafterConfig
from flashdrive_ros.core.plan_features import FeatureChoice, answer_segments, prompt_segments
from flashdrive_ros.core.primitives import grammar
from flashdrive_ros.core.prompt import question_ids
from flashdrive_ros.core.stream import PromptStream
from flashdrive_ros.core.types import SEGMENTS, InputError

pytestmark = pytest.mark.usefixtures('one_thread')
ALL = tuple(SEGMENTS)
REQUESTS = ('boxes:1:car,pedestrian', 'trajectory_3d:8')
model_of = lru_cache(maxsize=1)(lambda: tiny_model(tiny_config(frames=2)))
PATHS = [{}, {'graphs': 'on'}]


def drafter(**changes):
    return Drafter.random(DrafterConfig.for_target(
        model_of().config, taps=2, block_size=4, context_len=3, **changes), seed=3)


def engine_of(model_drafter=None, **settings):
    return tiny_engine(model_of(), model_drafter, **{
        'features': 'plan', 'feature_dtype': 'float32', 'feature_layers': (0, 1, 2, -1),
        'feature_segments': ALL, 'max_new_tokens': 7, 'max_primitive_tokens': 40} | settings)


def sequences(engine, plan):
    """Token sequences of a plan, and of each the slots whose states it comes with."""
    stream = engine.streams['guided']
    layout, features = stream.layout, plan.features
    text = np.asarray(plan.reasoning.token_ids)
    prompt = features.token_ids[:layout.size].astype(np.int64)
    found = [(np.concatenate((prompt, text)), 0)]
    drawing = engine.drawing
    for ids, answer in zip(drawing.question_ids, drawing.answers) if drawing else ():
        found.append((np.concatenate((prompt[:layout.suffix], ids, answer.token_ids)),
                      layout.suffix))
    return found


def check(engine, plan, rows=slice(None)):
    """Compare all features of a plan with a plain pass over its tokens."""
    features, at = plan.features, 0
    pictures = [e.tokens for view in engine.memory.features(engine.memory.window) for e in view]
    deepstack = [e.deepstack for view in engine.memory.features(engine.memory.window)
                 for e in view]
    for ids, first in sequences(engine, plan):
        states, positions = hidden_states(engine.model, engine.tokenizer, ids,
                                          engine.streams['guided'].layout, pictures, deepstack)
        here = slice(at, at + len(ids) - first)
        valid = features.valid[here]
        assert features.token_ids[here].tolist() == ids[first:].tolist()
        assert features.positions[here].tolist() == positions[first:].tolist()
        assert valid[:-1].all() and not features.values[:, here][:, ~valid].any()
        for layer, ours in zip(features.layer_ids, features.values[:, here]):
            theirs = states[layer][first:].numpy()
            if layer in (1, 2):  # transformers records these before images are added
                valid = valid & (features.segment_ids[here] != SEGMENTS['image'])
            np.testing.assert_allclose(ours[valid], theirs[valid], atol=2e-5 * np.abs(
                theirs).max())
        at = here.stop
    assert at == len(features.token_ids)


CASES = [
    ({}, None), ({'drafting': 'on'}, {}), ({'settle_reasoning': True, 'greedy': True}, None),
    ({'primitives': REQUESTS, 'primitive_decoding': 'autoregressive'}, None),
    *(({'primitives': REQUESTS, 'primitive_decoding': mode, 'drafting': 'on'},
       {'window_context': True}) for mode in ('verified', 'direct', 'fallback'))]


@pytest.mark.parametrize('path', PATHS)
@pytest.mark.parametrize('settings, drafts', CASES)
def test_they_are_those_of_one_plain_pass_over_the_plans_tokens(settings, drafts, path):
    engine = engine_of(None if drafts is None else drafter(**drafts), **settings, **path)
    for plan in drive(engine, [1, 5]):  # a gap: both windows are computed whole
        assert plan.window.mode == 'prefill'
    check(engine, plan)


@pytest.mark.parametrize('path', PATHS)
def test_a_slid_image_keeps_the_states_of_the_window_that_computed_it(path):
    engine = engine_of(feature_layers=(1, -1), **path)
    first, second = drive(engine, [3, 4])
    assert second.window.mode == 'streaming'
    layout = engine.streams['guided'].layout
    (old,), (new,) = ([view[1] for view in layout.images][:1],
                      [view[0] for view in layout.images][:1])
    kept = second.features.values[:, slice(*new)]
    assert np.array_equal(kept, first.features.values[:, slice(*old)])
    assert np.array_equal(second.features.values[:, :layout.prefix],
                          first.features.values[:, :layout.prefix])
    fresh = second.features.values[:, layout.suffix:layout.size]
    assert not np.isclose(fresh, first.features.values[:, layout.suffix:layout.size]).all()


def test_both_paths_stream_the_same_features():
    plain, fast = (engine_of(drafter(window_context=True), primitives=REQUESTS, drafting='on',
                             **path) for path in PATHS)
    for a, b in zip(*(drive(e, [1, 2, 3, 4]) for e in (plain, fast))):
        assert a.features.token_ids.tolist() == b.features.token_ids.tolist()
        assert a.features.valid.tolist() == b.features.valid.tolist()
        np.testing.assert_allclose(a.features.values, b.features.values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('settings', [
    {}, {'drafting': 'on'}, {'primitives': REQUESTS, 'num_trajectories': 2}])
@pytest.mark.parametrize('path', PATHS)
def test_plans_are_the_same_with_and_without_and_no_pass_is_added(settings, path, monkeypatch):
    passes = []
    original = PromptStream.extend
    for kind in (PromptStream, engine_module.FastStream):
        own = kind.extend
        monkeypatch.setattr(kind, 'extend', lambda self, ids, taps=None, own=own: (
            passes.append(len(ids)), own(self, ids, taps))[1])
    counts = []
    plans = []
    for features in ('off', 'plan'):
        engine = engine_of(drafter() if settings.get('drafting') else None, features=features,
                           feature_layers=(-1,), **settings, **path)
        passes.clear()
        plans.append(drive(engine, [1, 2, 3]))
        counts.append(list(passes))
        assert (engine.streams['guided'].states is None) == (features == 'off')
    assert original is not PromptStream.extend and counts[0] == counts[1]
    for off, on in zip(*plans):
        np.testing.assert_array_equal(off.xyz, on.xyz)
        assert off.reasoning == on.reasoning and off.features is None and on.features is not None
        assert 'features' not in off.stage_times_ms


def test_segments_tell_question_subtask_trajectory_and_the_rest():
    engine = engine_of(primitives=REQUESTS, feature_segments=('question', 'subtask', 'image'))
    plan, = drive(engine, [1])
    layout, tokenizer = engine.streams['guided'].layout, engine.tokenizer
    segments = prompt_segments(layout)
    assert (layout.token_ids[segments == SEGMENTS['image']] == tokenizer.id('image_pad')).all()
    words = tokenizer.decode(layout.token_ids[segments == SEGMENTS['question']].tolist())
    assert 'frame' not in words and 'chain-of-thought' in words
    found = plan.features.segment_ids
    assert set(found) <= {0, 1, 3} and (found == 3).sum() == (segments == 3).sum()
    asked = sum(map(len, engine.drawing.question_ids))
    assert (found == 0).sum() == (segments == 0).sum() + asked


def scripted(monkeypatch, request, text, **settings):
    """Plan of a model that answers `request` with `text`."""
    monkeypatch.setattr(engine_module, 'PromptStream', SlotStream)
    model = tiny_model(tiny_config(frames=2))
    model.lm_head = ScriptedHead(model.lm_head)
    engine = tiny_engine(model, StandIn(32, knows=True), primitives=[request], features='plan',
                         feature_dtype='float32', feature_segments=ALL, max_primitive_tokens=80,
                         **settings)
    drive(engine, [1])
    asked = question_ids(model.config, engine.tokenizer, engine.drawing.requests[0].question())
    first = engine.streams['guided'].layout.suffix + len(asked)
    model.lm_head.script = {first + i: t for i, t in enumerate(engine.tokenizer.encode(text))}
    return engine, drive(engine, [2])[0]


@pytest.mark.parametrize('mode', ['autoregressive', 'verified', 'direct', 'fallback'])
def test_a_trajectory_is_marked_from_start_to_end_token(monkeypatch, mode):
    path = np.stack([np.linspace(4, 40, 8), np.linspace(0, 3, 8)], 1)
    engine, plan = scripted(monkeypatch, 'trajectory_3d:8', grammar.write(
        'trajectory_3d', path) + '<|answer_end|>', primitive_decoding=mode)
    primitive, = plan.primitives
    features = plan.features
    drawn = features.segment_ids == SEGMENTS['trajectory']
    assert tuple(features.token_ids[drawn].tolist()) == primitive.token_ids
    assert features.valid[drawn].all()  # what ends the answer was seen by a verification only
    assert features.valid[-1] == (mode == 'verified')
    assert features.token_ids[-1] == engine.tokenizer.id('answer_end')
    assert features.decode_path == {'fallback': 'direct'}.get(mode, mode)
    assert (np.diff(features.positions[drawn]) == 1).all()


def test_boxes_are_no_trajectories(monkeypatch):
    engine, plan = scripted(monkeypatch, 'boxes:1:car', grammar.write_boxes(
        'car', [[0.25, 0.5, 0.5, 1.0]]) + '<|answer_end|>')
    segments = answer_segments(engine.drawing.answers[0])
    assert (segments == SEGMENTS['other']).sum() == 6
    assert SEGMENTS['trajectory'] not in plan.features.segment_ids


def test_types_and_standardising():
    exact, = drive(engine_of(), [1])
    values = exact.features.values
    for dtype, numpy, close in (('float16', np.float16, 2e-3), ('bfloat16', np.uint16, 1e-2)):
        plan, = drive(engine_of(feature_dtype=dtype), [1])
        found = plan.features.values
        assert plan.features.dtype == dtype and found.dtype == numpy
        if dtype == 'bfloat16':
            found = (found.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(found, values, rtol=close, atol=1e-3)
    plan, = drive(engine_of(standardise_features=True), [1])
    found = plan.features.values[:, plan.features.valid]
    assert plan.features.standardised
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(-1, ddof=1), 1, atol=1e-3)


def test_what_is_not_finite_is_not_valid():
    engine = engine_of(feature_dtype='float16', feature_layers=(2,))
    model = tiny_model(tiny_config(frames=2))
    model.language_model.layers[1].mlp.down_proj.weight.mul_(1e9)
    engine.model, engine.streams = model, {}
    plan, = drive(engine, [1])
    assert not plan.features.valid.any()


def test_they_come_with_drawn_plans_only_when_so_set():
    engine = engine_of(features='drawn', primitives=REQUESTS[:1], primitives_every=2)
    plans = drive(engine, [1, 2, 3])
    assert [p.features is not None for p in plans] == [True, False, True]
    assert all(p.drawn == (p.features is not None) for p in plans)


@pytest.mark.parametrize('path', PATHS)
def test_settings_change_between_steps(path):
    engine = engine_of(features='off', **path)
    drive(engine, [1, 2])
    engine.configure(features='plan')
    plan, = drive(engine, [3])
    assert plan.window.reason == 'features changed' and plan.features is not None
    engine.configure(feature_dtype='float16', standardise_features=True)
    plan, = drive(engine, [4])
    assert plan.window.mode == 'streaming' and plan.features.standardised
    engine.configure(feature_layers=(-1,))
    plan, = drive(engine, [5])
    assert plan.window.mode == 'prefill' and plan.features.layer_ids == (3,)
    with pytest.raises(InputError, match='separate_reasonings'):
        engine.configure(separate_reasonings=True, num_trajectories=2)
    assert drive(engine, [6])[0].window.mode == 'streaming'


@pytest.mark.parametrize('wrong, said', [
    ({'features': 'yes'}, "features = 'yes'"),
    ({'feature_layers': ()}, 'feature_layers'),
    ({'feature_layers': (4,)}, r'feature_layers has 4, tiny has 0 .* to 3'),
    ({'feature_segments': ('answer',)}, 'feature_segments'),
    ({'feature_dtype': 'int8'}, 'feature_dtype')])
def test_wrong_settings_are_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        engine_of(**wrong)
    with pytest.raises(InputError, match='feature_layers'):
        FeatureChoice((2, 1))
