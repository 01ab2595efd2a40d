"""Coordinates, boxes and trajectories as tokens of the vocabulary, and back."""
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.answers import parse, read, reader

from flashdrive_ros.core.primitives import layouts
from flashdrive_ros.core.primitives.coordinates import (
    BINS,
    EXTRA_TOKENS,
    FORWARD_M,
    IMAGE,
    LEFT_M,
    MARKERS,
    NONE,
)
from flashdrive_ros.core.primitives.grammar import (
    write,
    write_block,
    write_boxes,
    write_call,
    write_label,
)
from flashdrive_ros.core.primitives.layouts import DECLARED, FIXED
from flashdrive_ros.core.tokenizer import expand_tokens


@pytest.fixture(scope='module')
def tokenizer():
    return reader().tokenizer


def test_coordinates_round_half_up_and_stay_in_range():
    assert IMAGE.bins([0.0005, 0.00049, 1.0, 2.0, -1.0, np.nan]).tolist() == [
        1, 0, 1000, 1000, 0, -1]
    assert FORWARD_M.values(0) == -10 and FORWARD_M.values(BINS) == 250
    assert np.isnan(LEFT_M.values(-1))


@given(st.integers(0, BINS), st.sampled_from([IMAGE, FORWARD_M, LEFT_M]))
def test_bins_come_back_exactly(k, axis):
    assert axis.bins(axis.values(k)) == k


def test_coordinates_are_one_token_each_after_the_released_layout(tokenizer):
    ids = tokenizer.encode('<0><1><1000>')
    assert ids == [tokenizer.id('0'), tokenizer.id('0') + 1, tokenizer.id('0') + BINS]
    assert tokenizer.id('0') == tokenizer.id('answer_end') + 1
    for pair in MARKERS.values():
        for name in pair:
            assert tokenizer.encode(f'<|{name}|>') == [tokenizer.id(name)]
    tokens = expand_tokens(EXTRA_TOKENS)
    assert len(tokens) == len(set(tokens)) == BINS + 1 + 12


def test_ranges_of_tokens_are_written_out():
    assert expand_tokens(['<8>..<11>', '<|x_2d|>']) == ['<8>', '<9>', '<10>', '<11>', '<|x_2d|>']


@st.composite
def primitives(draw):
    """A type, a label and rows in range, of which some pairs are out of view."""
    kind = draw(st.sampled_from([*FIXED, *DECLARED]))
    parts = layouts.of(kind, 1).parts
    count = draw(st.integers(1, 12)) if kind in DECLARED else 1
    columns = [np.array([[axis.range.values(draw(st.integers(0, BINS))) for axis in part.axes]
                         for _ in range(count)]) for part in parts]
    if kind == 'box_2d':
        x1, y1 = draw(st.integers(0, BINS - 1)), draw(st.integers(0, BINS - 1))
        x2, y2 = draw(st.integers(x1 + 1, BINS)), draw(st.integers(y1 + 1, BINS))
        columns = [np.array([[x1, y1, x2, y2]]) / BINS]
    else:
        for rows in columns:
            rows[draw(st.lists(st.booleans(), min_size=count, max_size=count))] = np.nan
    return kind, draw(st.sampled_from(['van', 'car', 'red light'])), np.concatenate(columns, 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(primitives(), max_size=4))
def test_answers_come_back_from_the_tokens(tokenizer, answer):
    text = ''.join(write_label(label) + write(kind, rows) for kind, label, rows in answer)
    found, problems = parse(tokenizer.decode(tokenizer.encode(text)))
    assert not problems and len(found) == len(answer)
    for (kind, label, rows), block in zip(answer, found):
        assert (block.type, block.label) == (kind, label)
        np.testing.assert_allclose(block.values, rows, atol=1e-9)


@given(st.lists(st.tuples(st.floats(-1, 2), st.floats(-1, 2)), min_size=1, max_size=8))
def test_values_come_back_within_half_a_bin_of_the_range(points):
    found, = read(write('trajectory_2d', points))
    assert np.abs(found.values - np.clip(points, 0, 1)).max() <= 0.0005 + 1e-9


@settings(max_examples=200, deadline=None)
@given(primitives(), st.data())
def test_nothing_is_read_from_a_primitive_with_a_token_lost_or_added(tokenizer, primitive, data):
    kind, _, rows = primitive
    ids = tokenizer.encode(write(kind, rows))
    added = data.draw(st.sampled_from([[], ['7'], ['none']]))
    at = data.draw(st.integers(1 if added else 0, len(ids) - 1))
    kept = at if added else at + 1
    found, problems = reader().read(
        ids[:at] + [tokenizer.id(name) for name in added] + ids[kept:])
    assert not found
    assert bool(problems) == (at > 0 or kind in DECLARED)  # else it never began


def test_token_counts_of_the_driving_layouts(tokenizer):
    """4 N + 4 with both parts (inferred, spec vflash.md section 1.4): 36, 84 and 260."""
    for n, count in ((8, 36), (20, 84), (64, 260)):
        path = np.linspace(0, 1, 4 * n).reshape(n, 4)
        assert len(tokenizer.encode(write_block('trajectory_2d_3d', path))) == count
        for kind in ('trajectory_2d', 'trajectory_3d'):
            assert len(tokenizer.encode(write_block(kind, path[:, :2]))) == 2 * n + 2
        assert write('trajectory_2d_3d', path) == (
            f'<tool_call>trajectory_2d_3d {n}</tool_call>' + write_block('trajectory_2d_3d', path))
    assert len(tokenizer.encode(write('box_2d', [0.1, 0.2, 0.3, 0.4]))) == 6
    assert len(tokenizer.encode(write('point', [0.1, np.nan]))) == 4


def test_a_call_is_text_between_one_token_and_another(tokenizer):
    ids = tokenizer.encode(write_call('trajectory_2d_3d', 64))
    assert [tokenizer.decode([i]) for i in (ids[0], ids[-1])] == ['<tool_call>', '</tool_call>']
    assert tokenizer.decode(ids[1:-1]) == 'trajectory_2d_3d 64'
    assert max(ids[1:-1]) < min(ids[0], ids[-1])


def test_both_parts_are_one_primitive():
    rows = [[0.5, 0.25, 120.0, 0.0], [np.nan, np.nan, -10.0, 65.0]]
    text = write('trajectory_2d_3d', rows)
    assert text == (
        '<tool_call>trajectory_2d_3d 2</tool_call>'
        '<|trajectory_2d_start|><500><250><|none|><|none|><|trajectory_2d_end|>'
        '<|trajectory_3d_start|><500><500><0><1000><|trajectory_3d_end|>')
    found, = read(text)
    assert found.type == 'trajectory_2d_3d'
    np.testing.assert_allclose(found.values, rows, atol=1e-9)


def test_boxes_keep_label_and_order_and_are_never_empty():
    boxes = [[0.1, 0.2, 0.3, 0.4], [1.0, 1.0, 1.0, 1.0]]
    text = write_boxes('red light', boxes) + write_boxes('car', [])
    found = read(text)
    assert [f.label for f in found] == ['red light', 'red light', 'car']
    np.testing.assert_allclose(found[0].values, [boxes[0]], atol=1e-9)
    np.testing.assert_allclose(found[1].values, [[0.999, 0.999, 1.0, 1.0]], atol=1e-9)
    assert found[2].values.shape == (0, 4)


@pytest.mark.parametrize('kind, values', [
    ('trajectory_2d_3d', [[1, 2]]), ('trajectory_3d', np.zeros((0, 2))), ('trajectory_3d', []),
    ('box_2d', [[0, 0, 1, 1], [0, 0, 1, 1]]), ('box_2d', [0, 0, np.nan, 1]),
    ('point', [[[0, 0]]])])
def test_what_is_no_primitive_is_not_written(kind, values):
    with pytest.raises(ValueError, match=kind):
        write(kind, values)


CALL_2D, CALL_BOTH = (write_call(f'trajectory_{kind}', 1) for kind in ('2d', '2d_3d'))
BLOCK_2D = '<|trajectory_2d_start|><1><2><|trajectory_2d_end|>'
BOX = '<|box_start|><1><2><3><4><|box_end|>'
BLOCK_3D = '<|trajectory_3d_start|><1><2><|trajectory_3d_end|>'


@pytest.mark.parametrize('text, problem', [
    ('<|box_start|><1><2><3><|box_end|>', 'box_2d .* <|box_end|> as token 4, .* a coordinate'),
    ('<|box_start|><5><5><5><9><|box_end|>', 'not legal together'),
    ('<|box_start|><|none|><|none|><|none|><|none|><|box_end|>', 'not legal together'),
    ('<|box_start|><1><2><3><4>', 'as token 5, expected <|box_end|>'),
    ('<|box_start|><1><2><3><4><|point_end|>', '<|point_end|> as token 5, .* <|box_end|>'),
    ('<|point_start|><|point_end|>', 'point .* <|point_end|> as token 1, .* a coordinate'),
    ('<|point_start|><1><2><3><4><|point_end|>', '<3> as token 3, expected <|point_end|>'),
    ('<|point_start|><1><1001><|point_end|>', 'as token 2, expected a coordinate'),
    (BLOCK_2D, 'token 0: trajectory_2d without a call'),
    (CALL_2D, 'trajectory_2d at token .* has , as token 0, expected <|trajectory_2d_start|>'),
    (f'{CALL_2D} {BLOCK_2D}', 'as token 0, expected <|trajectory_2d_start|>'),
    (CALL_2D + BLOCK_3D, '<|trajectory_3d_start|> as token 0, .* <|trajectory_2d_start|>'),
    (CALL_2D + BLOCK_2D.replace('<2>', '<|none|>'), 'not legal together'),
    (CALL_2D.replace('1', '2') + BLOCK_2D, '<|trajectory_2d_end|> as token 3, .* a coordinate'),
    (CALL_2D.replace('1', '0') + BLOCK_2D, 'token 0: <tool_call>trajectory_2d 0</tool_call>'),
    (CALL_2D.replace('1', '999') + BLOCK_2D, 'token 0: <tool_call>trajectory_2d 999<'),
    (CALL_2D.replace('2d', '4d') + BLOCK_2D, 'token 0: <tool_call>trajectory_4d 1'),
    (CALL_2D.replace('</tool_call>', '') + BLOCK_2D, 'token 0: <tool_call>trajectory_2d 1$'),
    (CALL_2D.replace(' 1', '') + BLOCK_2D, 'token 0: <tool_call>trajectory_2d</tool_call>'),
    (CALL_BOTH + BLOCK_2D, 'as token 4, expected <|trajectory_3d_start|>'),
    (CALL_BOTH + BLOCK_3D + BLOCK_2D, 'as token 0, expected <|trajectory_2d_start|>'),
    ('<|box_3d_start|><1><|box_3d_end|>', 'box_3d without a call'),
])
def test_broken_primitives_are_left_out_and_told(text, problem):
    found, problems = parse(f'{text}, {BOX}')
    assert [block.values.round(3).tolist() for block in found] == [
        [[0.001, 0.002, 0.003, 0.004]]]
    assert re.search(problem.replace('|', r'\|'), problems[0])


def test_a_block_may_be_cut_short():
    assert parse('<|box_start|><1><2>') == ((), ('box_2d at token 0 is cut short after 3 tokens',))


def test_an_unclosed_class_names_nothing():
    found, problems = parse(write_label('car') + BOX + '<|object_ref_start|>truck' + BOX)
    assert [block.label for block in found] == ['car', '']
    assert problems == ("the class 'truck' is not closed",)


def test_an_answer_of_nothing_has_neither_primitives_nor_problems():
    assert parse(NONE) == parse('red light') == parse('') == ((), ())
