"""Plans that come with primitives: unchanged by them, and with values in pixels and metres."""
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from support.flash import ScriptedHead, SlotStream, StandIn
from support.tiny import (
    SHAPES,
    drive,
    r1_config,
    same,
    tiny_config,
    tiny_engine,
    tiny_model,
    tiny_tokenizer,
)

from flashdrive_ros.core import engine as engine_module
from flashdrive_ros.core.config import EngineConfig
from flashdrive_ros.core.drafter import Drafter, DrafterConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.primitives import grammar
from flashdrive_ros.core.primitives.requests import PrimitiveRequest
from flashdrive_ros.core.prompt import build_layout, question_ids
from flashdrive_ros.core.stream import PromptStream
from flashdrive_ros.core.types import InputError

pytestmark = pytest.mark.usefixtures('one_thread')
REQUESTS = ('boxes:1:car,pedestrian', 'trajectory_2d_3d:1:8', 'motion:6')
HEIGHT, WIDTH = SHAPES[0]
model_of = lru_cache(maxsize=2)(lambda: tiny_model(tiny_config()))


def drafter_of(window_context=True):
    config = DrafterConfig.for_target(model_of().config, taps=2, window_context=window_context)
    return Drafter.random(config, 3)


def engine_of(drafter=None, model=None, **settings):
    model = model or model_of()
    return Engine(model, tiny_tokenizer(model.config), EngineConfig(
        **{'device': 'cpu', 'max_new_tokens': 4, 'max_primitive_tokens': 30} | settings), drafter)


@pytest.fixture
def scripted(monkeypatch):
    """Give a function that has the model answer a request with a text, in any window."""
    monkeypatch.setattr(engine_module, 'PromptStream', SlotStream)
    model = tiny_model(tiny_config())
    model.lm_head = ScriptedHead(model.lm_head)
    tokenizer = tiny_tokenizer(model.config)

    def answer(request, text, engine):
        asked = question_ids(model.config, tokenizer, PrimitiveRequest.parse(request).question())
        first = engine.streams['guided'].layout.suffix + len(asked)
        model.lm_head.script = {first + i: t for i, t in enumerate(tokenizer.encode(text))}
    return model, answer


DECODING = [('autoregressive', None), ('auto', None), *(
    (mode, window) for mode in ('auto', 'verified', 'direct', 'fallback')
    for window in (True, False))]


@pytest.mark.parametrize('mode, window', DECODING)
@pytest.mark.parametrize('settings', [
    {}, {'num_trajectories': 3, 'separate_reasonings': True},
    {'nav_guidance_weight': 2.0, 'num_trajectories': 2}])
def test_plans_and_later_windows_are_the_same_without_primitives(mode, window, settings):
    drafter = None if window is None else drafter_of(window)
    drawn = engine_of(drafter, primitives=REQUESTS, primitive_decoding=mode, **settings)
    plain = engine_of(drafter, **settings)
    times = [1, 2, 3, 6, 7]
    ours, theirs = (drive(e, times, nav_text='Turn left') for e in (drawn, plain))
    for a, b in zip(ours, theirs):
        assert same(a, b) and a.window == b.window
        assert 'draw' in a.stage_times_ms and b.primitives == ()
    assert len(drawn.drawing.answers) == len(REQUESTS)
    assert all(a.token_ids for a in drawn.drawing.answers)


BOXES = [[0.25, 0.5, 0.5, 1.0], [0.0, 0.0, 0.125, 0.25]]
PATH = np.stack([np.linspace(4, 40, 8), np.linspace(0, 3, 8)], 1)
SHARES = np.stack([np.linspace(0.5, 0.6, 8), np.linspace(0.9, 0.5, 8)], 1)
SHARES[0] = np.nan


@pytest.mark.parametrize('mode', ['autoregressive', 'verified', 'direct', 'fallback'])
def test_boxes_come_in_pixels_of_the_original_image(scripted, mode):
    model, answer = scripted
    engine = engine_of(StandIn(32, knows=True), model, primitives=REQUESTS[:1],
                       primitive_decoding=mode)
    drive(engine, [1])
    answer(REQUESTS[0], grammar.write_boxes('car', BOXES) + grammar.write_boxes('pedestrian', [])
           + '<|answer_end|>', engine)
    for plan in drive(engine, [2, 3]):
        assert [(p.type, p.label, p.units, p.camera_id) for p in plan.primitives] == [
            ('box_2d', 'car', 'pixel', 1)] * 2
        for p, box in zip(plan.primitives, BOXES):
            np.testing.assert_allclose(p.values, [np.array(box) * [WIDTH, HEIGHT, WIDTH, HEIGHT]])
            assert p.confidences.shape == (4,) and (p.confidences > 0.99).all()
            assert len(p.token_ids) == 6
            assert p.decode_path == {'fallback': 'direct'}.get(mode, mode)
    told, = engine.drawing.answers
    if mode in ('direct', 'fallback'):
        assert [(d.draft_passes, d.target_passes) for d in told.primitives] == [(1, 1)] * 3


def test_a_trajectory_comes_in_pixels_and_in_metres(scripted):
    model, answer = scripted
    request = 'trajectory_2d_3d:1:8'
    engine = engine_of(StandIn(32, knows=True), model, primitives=[request],
                       max_primitive_tokens=60)
    drive(engine, [1])
    answer(request, grammar.write('trajectory_2d_3d', np.concatenate((SHARES, PATH), 1))
           + '<|answer_end|>', engine)
    plan, = drive(engine, [2])
    image, metres = plan.primitives
    assert (image.type, image.label, image.units, image.camera_id) == (
        'trajectory_2d', 'ego', 'pixel', 1)
    assert (metres.type, metres.label, metres.units, metres.camera_id) == (
        'trajectory_3d', 'ego', 'metre', None)
    np.testing.assert_allclose(image.values, SHARES * [WIDTH, HEIGHT] - 0.5, atol=WIDTH / 1999)
    assert np.isnan(image.values[0]).all()
    np.testing.assert_allclose(metres.values[:, :2], PATH, atol=0.131)
    assert not metres.values[:, 2].any()
    for p in plan.primitives:
        assert p.confidences.shape == (p.values.size,)
    assert [len(p.token_ids) for p in plan.primitives] == [18, 18]
    drawn, = engine.drawing.answers[0].primitives
    assert (drawn.draft_passes, drawn.target_passes, drawn.decode_path) == (1, 1, 'direct')


def test_both_arms_come_in_the_image_and_in_the_frame_of_their_camera(scripted):
    model, answer = scripted
    request, rng = 'dual_arm:1:10', np.random.default_rng(0)
    arms = [np.concatenate((rng.uniform(0, 1, (10, 2)), rng.uniform(0, 4, (10, 3))), 1)
            for _ in range(2)]
    arms[1][4, :2] = np.nan
    engine = engine_of(StandIn(32, knows=True), model, primitives=[request],
                       max_primitive_tokens=140)
    drive(engine, [1])
    answer(request, grammar.write('dual_arm', np.concatenate(arms, 1)) + '<|answer_end|>', engine)
    plan, = drive(engine, [2])
    assert [(p.type, p.label, p.units, p.camera_id, len(p.token_ids)) for p in plan.primitives
            ] == [(f'trajectory_{d}', side, unit, 1, size) for side in ('left', 'right')
                  for d, unit, size in (('2d', 'pixel', 22), ('3d', 'metre', 32))]
    for p, true in zip(plan.primitives, [a[:, c] for a in arms
                                         for c in (slice(0, 2), slice(2, 5))]):
        if p.units == 'pixel':
            true = true * [WIDTH, HEIGHT] - 0.5
        np.testing.assert_allclose(p.values, true, atol=0.00501 if p.units == 'metre' else 0.1)
    drawn, = engine.drawing.answers[0].primitives
    assert (drawn.draft_passes, drawn.target_passes, drawn.decode_path) == (1, 1, 'direct')
    assert len(drawn.block.token_ids) == 108  # two arms of 5 N + 4


def test_others_keep_their_label_and_unseen_places(scripted):
    model, answer = scripted
    engine = engine_of(None, model, primitives=['motion:6'], max_primitive_tokens=60)
    drive(engine, [1])
    places = PATH[:6].copy()
    places[4] = np.nan
    answer('motion:6', grammar.write_label('truck') + grammar.write('trajectory_3d', places)
           + '<|answer_end|>', engine)
    p, = drive(engine, [2])[0].primitives
    assert (p.type, p.label, p.decode_path) == ('trajectory_3d', 'truck', 'autoregressive')
    assert np.isnan(p.values[4]).all() and np.isfinite(np.delete(p.values, 4, 0)).all()


def test_cameras_that_are_not_there_are_not_asked_about():
    engine = engine_of(primitives=('boxes:1:car', 'boxes:2:car', 'trajectory_3d:8'))
    drive(engine, [1], cameras=(0, 2))
    assert len(engine.drawing.answers) == 2


def test_features_of_the_window_slide_along_with_its_images():
    drafter = drafter_of()
    engine = engine_of(drafter, primitives=REQUESTS[:1])
    drive(engine, [1, 2, 3, 4])
    stream = engine.streams['guided']
    layout = stream.layout
    before = stream.prompt_features().clone()
    assert before.isfinite().all() and (before[1:] != before[:-1]).any(1).all()
    drive(engine, [5])
    assert engine.memory.last_prefill_ns == 100_000_000
    after = stream.prompt_features()
    assert torch.equal(after[:layout.prefix], before[:layout.prefix])
    for view in layout.images:
        for here, there in zip(view, view[1:]):
            assert torch.equal(after[slice(*here)], before[slice(*there)])
        assert not torch.equal(after[slice(*view[-1])], before[slice(*view[-1])])
    # a full prefill of a new window has the same features as a fresh engine
    engine.reset('test')
    fresh = engine_of(drafter, primitives=REQUESTS[:1])
    for e in (engine, fresh):
        drive(e, [9])
    assert torch.equal(stream.prompt_features(), fresh.streams['guided'].prompt_features())


def test_features_are_kept_only_for_a_drafter_that_sees_the_window():
    for drafter, settings in ((None, {}), (drafter_of(False), {}),
                              (drafter_of(), {'primitive_decoding': 'autoregressive'})):
        engine = engine_of(drafter, primitives=REQUESTS[:1], **settings)
        drive(engine, [1])
        assert engine.streams['guided'].features is None
    engine = engine_of(drafter_of())
    drive(engine, [1])
    assert engine.streams['guided'].features is None


@pytest.mark.parametrize('question', ['Which light is ahead?', 'What is ahead? ' * 20])
def test_a_question_is_answered_as_in_a_prompt_of_its_own(question):
    """Short ones behind the window's images, long ones separately: the same tokens."""
    engine = engine_of(greedy=True, max_new_tokens=12)
    drive(engine, [1])
    stream = engine.streams['guided']
    tokenizer, config = engine.tokenizer, engine.model.config
    layout = build_layout(config, tokenizer, stream.layout.camera_ids, stream.layout.grids,
                          question=question)
    asked = question_ids(config, tokenizer, question)
    assert layout.suffix == stream.layout.suffix
    assert layout.token_ids[layout.suffix:].tolist() == asked
    assert np.array_equal(layout.positions[:, layout.suffix:],
                          layout.positions[:, layout.suffix, None] + np.arange(len(asked)))
    with torch.inference_mode():
        other = PromptStream(engine.model, layout, 13)
        expected, _ = other.prefill(engine.memory.features(engine.memory.window), 4, None)
        if stream.room_behind(layout.suffix) >= len(asked) + 12:
            with stream.branch(layout.suffix):
                hidden = stream.extend(torch.tensor(asked))
            torch.testing.assert_close(hidden, expected[layout.suffix:], rtol=0, atol=1e-5)
    answers = []
    original = engine._answer
    engine._answer = lambda s, hidden: answers.append(hidden.clone()) or original(s, hidden)
    assert isinstance(engine.ask(question), str)
    torch.testing.assert_close(answers[0], expected[-1], rtol=0, atol=1e-5)


def test_settings_of_drawing_change_between_steps():
    engine = engine_of()
    drive(engine, [1, 2])
    engine.configure(primitives=REQUESTS[:1])
    plan, = drive(engine, [3])
    assert plan.window.reason == 'primitives changed' and len(engine.drawing.answers) == 1
    engine.configure(primitives=REQUESTS, box_spread=80)
    assert drive(engine, [4])[0].window.mode == 'streaming'
    assert len(engine.drawing.answers) == 3
    with pytest.raises(InputError, match='needs a drafter'):
        engine.configure(primitive_decoding='direct')
    engine.configure(primitives=())
    assert engine.drawing is None and drive(engine, [5])[0].primitives == ()


def test_a_way_of_decoding_that_needs_features_of_the_window_computes_it_again():
    engine = engine_of(drafter_of(), primitives=REQUESTS[:1], primitive_decoding='autoregressive')
    drive(engine, [1, 2])
    engine.configure(primitive_decoding='fallback')
    assert drive(engine, [3])[0].window.reason == 'primitives changed'
    assert engine.streams['guided'].features is not None
    engine.configure(primitive_decoding='direct')
    assert drive(engine, [4])[0].window.mode == 'streaming'


def test_what_can_not_be_drawn_is_refused():
    with pytest.raises(InputError, match="primitive request 'boxes:1': expected the form"):
        engine_of(primitives=['boxes:1'])
    with pytest.raises(InputError, match='answers no questions'):
        tiny_engine(tiny_model(r1_config()), primitives=REQUESTS)
    config = tiny_config()
    released = replace(config, prompt=replace(config.prompt, extra_tokens=()))
    with pytest.raises(InputError, match='draws no primitives: its vocabulary lacks <0>'):
        tiny_engine(tiny_model(released), primitives=REQUESTS)
    for wrong in ({'primitive_decoding': 'quick'}, {'max_primitive_tokens': 0},
                  {'box_confidence': 1.5}, {'box_spread': -1}):
        with pytest.raises(InputError, match=f'{next(iter(wrong))} = .* is out of range'):
            EngineConfig(**wrong)
