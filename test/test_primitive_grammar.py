"""Coordinates, boxes and trajectories as tokens of the vocabulary, and back."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.primitives.coordinates import (
    BINS,
    EXTRA_TOKENS,
    FORWARD_M,
    IMAGE,
    LEFT_M,
    MARKERS,
)
from flashdrive_ros.core.primitives.grammar import read, write, write_boxes
from flashdrive_ros.core.tokenizer import Tokenizer, expand_tokens


@pytest.fixture(scope='module')
def tokenizer():
    config, file = checkpoint.read_config(checkpoint.find('small'))
    return Tokenizer.from_file(file, config)


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


rows = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8)


@given(rows, st.integers(0, 255))
def test_trajectories_come_back_within_half_a_bin(tokenizer, points, hidden):
    points = np.array(points)
    points[[i for i in range(len(points)) if hidden >> i & 1]] = np.nan
    text = write('trajectory_2d', points)
    found, = read(tokenizer.decode(tokenizer.encode(text)))
    assert found.type == 'trajectory_2d' and found.values.shape == points.shape
    assert np.array_equal(np.isnan(found.values), np.isnan(points))
    assert np.nanmax(np.abs(found.values - points), initial=0) <= 0.0005 + 1e-9
    assert len(tokenizer.encode(text)) == 2 * len(points) + 2


def test_token_counts_of_the_driving_layouts(tokenizer):
    """4 N + 4 with both parts (inferred, spec vflash.md section 1.4): 36, 84 and 260."""
    for n, count in ((8, 36), (20, 84), (64, 260)):
        path = np.linspace(0, 1, 2 * n).reshape(n, 2)
        text = write('trajectory_2d', path) + write('trajectory_3d', path)
        assert len(tokenizer.encode(text)) == count


def test_boxes_keep_label_and_order_and_are_never_empty(tokenizer):
    boxes = [[0.1, 0.2, 0.3, 0.4], [1.0, 1.0, 1.0, 1.0]]
    text = write_boxes('red light', boxes) + write_boxes('car', [])
    found = read(text)
    assert [f.label for f in found] == ['red light', 'red light', 'car']
    np.testing.assert_allclose(found[0].values, [boxes[0]], atol=1e-9)
    np.testing.assert_allclose(found[1].values, [[0.999, 0.999, 1.0, 1.0]], atol=1e-9)
    assert found[2].values.shape == (0, 4)
    assert len(tokenizer.encode(write('box_2d', boxes[0]))) == 6


@pytest.mark.parametrize('text', [
    '<|box_start|><1><2><3><|box_end|>', '<|box_start|><5><5><5><9><|box_end|>',
    '<|trajectory_2d_start|><1><|none|><|trajectory_2d_end|>',
    '<|trajectory_2d_start|><1><2><|trajectory_3d_end|>', '<|box_start|><1><2><3><4>',
    '<|point_start|><|point_end|>'])
def test_broken_primitives_are_left_out(text):
    assert read(text) == []
