"""Answers with primitives in one pass each: on a tiny network, scripted where it must be."""
import re
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flash import ScriptedHead, SlotStream, StandIn
from support.tiny import image, tiny_config, tiny_model, tiny_tokenizer

from flashdrive_ros.core import images
from flashdrive_ros.core.config import EngineConfig
from flashdrive_ros.core.primitives import digits, grammar
from flashdrive_ros.core.primitives.acceptance import Confidence
from flashdrive_ros.core.primitives.flash import MODES, FlashDecoder, FlashSettings
from flashdrive_ros.core.primitives.writer import Writer
from flashdrive_ros.core.prompt import build_layout, question_ids
from flashdrive_ros.core.stream import PromptStream

pytestmark = pytest.mark.usefixtures('one_thread')
GREEDY = EngineConfig(greedy=True)
QUESTION = 'Boxes?'


@lru_cache(maxsize=1)
def target():
    """A network with a scripted head, its tokenizer, and one window's layout and features."""
    config = tiny_config(frames=2)
    model, tokenizer = tiny_model(config), tiny_tokenizer(config)
    model.lm_head = ScriptedHead(model.lm_head)
    raw = torch.stack([torch.from_numpy(image((0, t))).permute(2, 0, 1) for t in range(2)])
    patches, grid = images.prepare(raw, config.vision, config.prompt)
    layout = build_layout(config, tokenizer, (1,), [tuple(n // 2 for n in grid)])
    with torch.inference_mode():
        return model, tokenizer, layout, [model.visual(patches, grid)]


def ready_stream(drafter=None, tail=400, kind=SlotStream):
    model, _, layout, features = target()
    stream = kind(model, layout, tail, drafter)
    with torch.inference_mode():
        stream.prefill(features, layout.frames, None)
    stream.truncate(layout.suffix)
    return stream


def decode(script=(), mode='fallback', drafter=None, settings=None, config=GREEDY, seed=0,
           tail=400):
    """The answer of the target when `script` holds the tokens that it prefers, by place."""
    model, tokenizer, layout, _ = target()
    question = torch.tensor(question_ids(model.config, tokenizer, QUESTION))
    first = layout.suffix + len(question)
    script = script if isinstance(script, dict) else dict(enumerate(script))
    model.lm_head.script = {first + i: t for i, t in script.items()}
    window = drafter is not None and drafter.config.window_context
    stream = ready_stream(drafter if window else None, tail)
    decoder = FlashDecoder(model, tokenizer,
                           FlashSettings(mode=mode, **settings or {}), drafter)
    with torch.inference_mode():
        answer = decoder.decode(stream, question, config, torch.Generator().manual_seed(seed))
    return answer, stream, first


def stand_in(**settings):
    return StandIn(32, **settings)


def encode(text):
    return target()[1].encode(text)


RNG = np.random.default_rng(0)
PATH = RNG.uniform(0.1, 0.9, (8, 2))
PATH[3] = np.nan
BOTH = np.concatenate((PATH, PATH * [100, 20] - [0, 10]), 1)
ANSWER = ('Two of them: ' + grammar.write_boxes('car', [[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.6, 1]])
          + grammar.write_boxes('pedestrian', []) + grammar.write_boxes('truck', [[0, 0, 1, 1]])
          + ' and the way ' + grammar.write('trajectory_2d', PATH)
          + grammar.write('trajectory_2d_3d', BOTH) + '<|answer_end|>')


@pytest.mark.parametrize('window', [True, False])
@pytest.mark.parametrize('mode', MODES)
def test_an_answer_with_everything_in_it_comes_out_the_same_in_every_mode(mode, window):
    ids = encode(ANSWER)
    drafter = stand_in(window_context=window, knows=True)
    answer, stream, first = decode(ids, mode, drafter)
    assert list(answer.token_ids) == ids and answer.stop == 'end' and not answer.problems
    assert [(d.block.type, d.block.label) for d in answer.primitives] == [
        *[('box_2d', label) for label in ('car', 'car', 'pedestrian', 'truck')],
        ('trajectory_2d', 'truck'), ('trajectory_2d_3d', 'truck')]
    for drawn in answer.primitives:
        assert len(drawn.confidences) == (1 if drawn.block.is_absent
                                          else len(drawn.block.symbols))
        if not drawn.block.is_absent:
            assert (drawn.confidences > 0.99).all()
    for drawn, half in zip(answer.primitives[-2:], (0.0005, [0.0005, 0.0005, 0.13, 0.065])):
        true = PATH if drawn.block.type == 'trajectory_2d' else BOTH
        assert (np.isnan(drawn.block.values) == np.isnan(true)).all()
        assert (np.nan_to_num(np.abs(drawn.block.values - true)) <= np.add(half, 1e-9)).all()
    paths = {d.decode_path for d in answer.primitives}
    assert paths == {{'direct': 'direct', 'fallback': 'direct'}.get(mode, mode)}
    assert first + len(ids) - stream.length in (0, 1)  # the last token is not needed any more


@pytest.mark.parametrize('size, kind, points', [
    (6, 'box_2d', 0), (18, 'trajectory_2d', 8), (36, 'trajectory_2d_3d', 8),
    (84, 'trajectory_2d_3d', 20), (260, 'trajectory_2d_3d', 64)])
def test_a_primitive_takes_one_pass_of_the_drafter_and_one_of_the_target(size, kind, points):
    values = ([0.1, 0.2, 0.3, 0.4] if kind == 'box_2d' else
              np.tile(RNG.uniform(0, 1, (points, 2)), 2 if '3d' in kind else 1))
    ids = encode(grammar.write(kind, values) + '<|answer_end|>')
    drafter = stand_in(knows=True)
    answer, _, _ = decode(ids, 'fallback', drafter, {'text_block': 1})
    drawn, = answer.primitives
    assert len(drawn.block.token_ids) == size
    assert (drawn.draft_passes, drawn.target_passes) == (1, 1)
    assert drawn.decode_path == 'direct'
    announced = len(ids) - size - 1
    # the first token comes from the question's pass, the last from the commit pass
    assert answer.target_passes == announced + 1 and answer.draft_passes == 1
    plain, _, _ = decode(ids, 'autoregressive')
    assert plain.token_ids == answer.token_ids
    # markers are certain and need no pass of their own
    assert plain.primitives[0].target_passes == len(drawn.block.symbols) + 1
    assert [c[2] for c in drafter.calls] == [size]


def test_primitive_blocks_see_the_whole_branch_and_text_the_last_tokens():
    ids = encode('A box ' + grammar.write_boxes('car', [[0.1, 0.2, 0.3, 0.4]]) + '<|answer_end|>')
    for window in (True, False):
        drafter = stand_in(knows=True, window_context=window)
        _, _, first = decode(ids, 'direct', drafter)
        (text_from, seen, size), *_ = drafter.calls
        assert (text_from, seen, size) == (first - 4, 4, 16)  # behind the first token
        start = first + ids.index(target()[1].id('box_start'))
        box_from, seen, size = next(c for c in drafter.calls if c[2] == 6)
        assert size == 6 and box_from + seen == start
        assert box_from == (0 if window else start - 4)


def test_verified_text_takes_fewer_passes_and_stops_at_a_start_token():
    ids = encode('The car ahead is slow, so keep a distance. '
                 + grammar.write_boxes('car', [[0.1, 0.2, 0.3, 0.4]]) + 'Done.<|answer_end|>')
    fast, stream, first = decode(ids, 'direct', stand_in(knows=True))
    slow, _, _ = decode(ids, 'autoregressive')
    assert fast.token_ids == slow.token_ids == tuple(ids)
    assert fast.target_passes < len(ids) / 3 < slow.target_passes
    assert first + len(ids) - stream.length in (0, 1)
    foolish, _, _ = decode(ids, 'verified', stand_in(knows=False))
    assert foolish.token_ids == slow.token_ids


@pytest.mark.parametrize('greedy', [True, False])
def test_verified_answers_are_those_of_the_target(greedy):
    """Without a script: whatever random weights say, drafts change nothing, sampled or not."""
    config = EngineConfig(greedy=greedy)
    limit = {'max_tokens': 24}
    plain, _, _ = decode((), 'autoregressive', None, limit | {'constrained': False}, config)
    for knows in (True, False):
        drafted, _, _ = decode((), 'verified', stand_in(knows=knows), limit, config)
        assert len(drafted.token_ids) == 24 == len(plain.token_ids)
        assert drafted.token_ids == plain.token_ids


def check_cache(stream, ids, first):
    """Keys and values behind the prompt equal those of plain decoding, token by token."""
    model, tokenizer, *_ = target()
    plain = ready_stream(kind=PromptStream)
    with torch.inference_mode():
        plain.extend(torch.tensor(question_ids(model.config, tokenizer, QUESTION)))
        for token in ids:
            plain.extend(torch.tensor([token]))
    end = stream.length
    assert end == first + len(ids) == plain.length
    for ours, theirs in ((stream.cache.k, plain.cache.k), (stream.cache.v, plain.cache.v)):
        torch.testing.assert_close(ours[:, :, :end], theirs[:, :, :end], rtol=0, atol=1e-5)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('knows', [True, False])
def test_the_cache_is_that_of_plain_decoding_of_the_same_tokens(mode, knows):
    answer, stream, first = decode(encode(ANSWER), mode, stand_in(knows=knows))
    check_cache(stream, answer.token_ids[:stream.length - first], first)
    assert len(answer.token_ids) - (stream.length - first) <= 1


pieces = st.lists(st.sampled_from([
    'some text', '<|object_ref_start|>car<|object_ref_end|>', '<|object_ref_start|>',
    '<|object_ref_end|>', '<|box_start|>', '<|box_end|>', '<|none|>', '<3>', '<|point_start|>',
    '<tool_call>trajectory_2d 3</tool_call>', '<tool_call>trajectory_3d 2</tool_call>',
    '<tool_call>trajectory_2d_3d 2</tool_call>', '<tool_call>trajectory_2d_3d 200</tool_call>',
    '<tool_call>', '</tool_call>', 'trajectory_2d x', '<|trajectory_2d_start|>',
    '<|trajectory_3d_start|>', '<|trajectory_2d_end|>', '<|trajectory_2d_3d_start|>',
    '<tool_call>trajectory_2d 3</tool_call><|trajectory_2d_start|>', '<|answer_end|>',
    '<tool_call>trajectory_2d_3d 2</tool_call><|trajectory_2d_start|>', '<|im_end|>']),
    max_size=10).map(''.join)


@settings(max_examples=100, deadline=None)
@given(pieces, st.sampled_from(MODES), st.booleans(), st.booleans(), st.integers(0, 1 << 32),
       st.integers(1, 60), st.booleans(), st.sampled_from([1.0, 40.0]))
def test_whatever_target_and_drafter_say_primitives_are_legal_and_nothing_fails(
        text, mode, knows, window, seed, limit, greedy, scale):
    model, tokenizer, *_ = target()
    model.lm_head.scale = scale
    drafter = stand_in(window_context=window, knows=knows, seed=seed)
    try:
        answer, _, _ = decode(
            encode(text), mode, drafter, {'max_tokens': limit, 'text_block': 1 + seed % 9},
            EngineConfig(greedy=greedy), seed)
    finally:
        model.lm_head.scale = 1.0
    ids = answer.token_ids
    assert 0 < len(ids) <= limit
    assert (answer.stop == 'length') == (ids[-1] not in encode('<|answer_end|><|im_end|>'))
    for drawn in answer.primitives:
        block = drawn.block
        assert ids[block.start:block.start + len(block.token_ids)] == block.token_ids
        if not block.is_absent:  # written anew, it is the same text
            again = grammar.write_block(block.type, block.values)
            assert tokenizer.encode(again) == list(block.token_ids)
    if mode != 'verified' and answer.stop != 'length':  # whatever was opened was well closed
        assert all('nothing begins' in p or 'token 0' in p or 'not closed' in p
                   for p in answer.problems)


def test_boxes_go_on_with_the_target_from_the_first_uncertain_coordinate(monkeypatch):
    ids = encode(grammar.write_boxes('car', [[0.1, 0.2, 0.3, 0.4]]) + '<|answer_end|>')
    start = ids.index(target()[1].id('box_start'))
    other = dict(enumerate(ids))
    drafter = stand_in(knows=True)
    for doubtful in range(4):
        monkeypatch.setattr(Confidence, 'uncertain', lambda self, logits, choices, d=doubtful: (
            torch.arange(len(logits)) == d))
        answer, _, _ = decode(other, 'fallback', drafter)
        drawn, = answer.primitives
        assert drawn.decode_path == 'fallback' and list(answer.token_ids) == ids
        # one pass for start and accepted coordinates, one for each that the target adds,
        # the last with the end token
        assert (drawn.draft_passes, drawn.target_passes) == (1, 5 - doubtful)
        assert drawn.block.start == start
        direct, _, _ = decode(other, 'direct', drafter)
        assert direct.primitives[0].decode_path == 'direct'


def test_trajectories_are_drafted_whole_or_not_at_all(monkeypatch):
    ids = encode(grammar.write('trajectory_2d', PATH) + '<|answer_end|>')
    draft = Writer.draft

    def broken(self, block, schema=None):
        logits = draft(self, block, schema)
        if schema is not None:
            logits[9] = torch.nan
        return logits
    monkeypatch.setattr(Writer, 'draft', broken)
    answer, _, _ = decode(ids, 'direct', stand_in(knows=True))
    assert list(answer.token_ids) == ids
    drawn, = answer.primitives
    assert drawn.decode_path == 'fallback'
    assert (drawn.draft_passes, drawn.target_passes) == (1, 17)


MILLIMETRES = RNG.integers(-9000, 99_000, (4, 3, 3))
SEEN = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0]], bool)
FRAMES = {3 + t: digits.to_grid(mm, seen) for t, (mm, seen) in enumerate(zip(MILLIMETRES, SEEN))}
TRACKS = ''.join(f';{digits.to_text(t, grid)}' for t, grid in FRAMES.items())


@pytest.mark.parametrize('broken', [None, 4])
@pytest.mark.parametrize('mode', MODES)
def test_frames_of_digits_are_drafted_as_grids_and_written_as_text(monkeypatch, mode, broken):
    ids = encode('All of it: ' + grammar.write_call('tracks', 3) + TRACKS + '<|answer_end|>')
    draft, stamps = Writer.draft, []

    def knowing(self, block, schema=None):
        if schema is None:
            return draft(self, block)
        stamps.append(schema.stamp)
        self.draft_passes += 1
        logits = torch.zeros(block - 1, 2752)
        for row, token in zip(logits, digits.tokens(FRAMES[schema.stamp])):
            row[target()[1].encode(token)] = 20.0
        if schema.stamp == broken:
            logits[0, target()[1].id('mask')] = 30.0  # digits without a sign
        return logits
    monkeypatch.setattr(Writer, 'draft', knowing)
    answer, stream, first = decode(ids, mode, stand_in(knows=True))
    assert list(answer.token_ids) == ids and not answer.problems
    check_cache(stream, ids[:stream.length - first], first)
    grids = mode in ('direct', 'fallback')
    assert stamps == ([4, 5, 6] if grids else [])  # the target tells the first stamp
    for drawn, mm, seen, stamp in zip(answer.primitives, MILLIMETRES, SEEN, FRAMES, strict=True):
        assert (drawn.block.type, len(drawn.confidences)) == ('tracks', 9)
        true = np.where(seen[:, None], mm / 1000, np.nan)
        np.testing.assert_allclose(drawn.block.values, true, atol=1e-9)
        if grids and stamp > 3 and stamp != broken:
            assert (drawn.decode_path, drawn.draft_passes, drawn.target_passes) == ('direct', 1, 1)
        elif grids and stamp == broken:
            assert drawn.decode_path == 'fallback' and drawn.target_passes > 1


def test_what_is_no_frame_ends_the_tracks():
    reader = FlashDecoder(*target()[:2], FlashSettings(mode='autoregressive')).reader
    call = grammar.write_call('tracks', 2)
    for text, count, problem in (
            (f'{call};3.0 1 1 2 3;4.0 and so on', 2, None), (f'{call};3.0;4.0', 2, None),
            (f'{call};3.0 2 1 1 1 1 1 1 1;4.0', 0, 'tracks at token .* is no frame: ;3.0 2 1 1'),
            (f'{call};3.0 1 1 2', 0, 'is no frame'), (call, 0, None), ('a;3.0 1 1 2 3', 0, None)):
        blocks, problems = reader.read(encode(text))
        assert len(blocks) == count
        assert bool(problems) == bool(problem) and (not problem or re.search(problem, problems[0]))
    assert reader.opened(encode(f'{call};')) is None
    opened = reader.opened(encode(f'{call};9.0 2 -1 -2 -3;'))
    assert (opened.stamp, opened.layout.size) == (10, 37)


def test_a_block_that_does_not_fit_is_not_begun():
    ids = encode(grammar.write('trajectory_2d', PATH) + '<|answer_end|>')
    for mode in ('autoregressive', 'fallback'):
        answer, _, _ = decode(ids, mode, stand_in(knows=True), {'max_tokens': 20})
        assert answer.stop == 'length' and answer.primitives == ()
        assert answer.problems == ('trajectory_2d at token 10 is cut short after 1 tokens',)
    answer, _, _ = decode(ids, 'verified', stand_in(knows=True), {'max_tokens': 20})
    assert list(answer.token_ids) == ids[:20] and answer.primitives == ()
    cramped, _, _ = decode(ids, 'fallback', stand_in(knows=True), tail=1)
    assert cramped.stop in ('length', 'end')


def test_a_drafting_mode_without_a_drafter_is_refused():
    model, tokenizer, *_ = target()
    with pytest.raises(ValueError, match="mode 'direct' needs a drafter"):
        FlashDecoder(model, tokenizer, FlashSettings(mode='direct'))
    with pytest.raises(ValueError, match="mode is 'quick', expected one of autoregressive"):
        FlashSettings(mode='quick')
