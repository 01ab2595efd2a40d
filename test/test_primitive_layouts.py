"""Layouts of primitives: sizes, round trips through tokens, and what their schemas refuse."""
import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import tiny_config, tiny_tokenizer

from flashdrive_ros.core.primitives import digits, layouts
from flashdrive_ros.core.primitives.acceptance import Confidence, Schema
from flashdrive_ros.core.primitives.coordinates import BINS
from flashdrive_ros.core.tokenizer import expand_tokens

TOKENIZER = tiny_tokenizer(tiny_config())
schema_of = lru_cache(maxsize=None)(lambda layout: Schema(layout, TOKENIZER))
every_layout = st.one_of(
    st.just(layouts.point()), st.just(layouts.box()),
    st.integers(1, 64).map(layouts.trajectory_2d), st.integers(1, 64).map(layouts.trajectory_3d),
    st.integers(1, 30).map(lambda n: layouts.trajectory_3d(n, layouts.ROBOT_AXES)),
    st.sampled_from([8, 20, 64]).map(layouts.trajectory_2d_3d),
    st.integers(1, 12).map(lambda n: layouts.trajectory_2d_3d(n, layouts.ROBOT_AXES)),
    st.integers(1, 8).map(layouts.dual_arm))


def symbols_of(layout, rng, out_of_view=0.2):
    """Random legal coordinates."""
    if layout.is_box:
        if rng.random() < out_of_view:
            return np.full(4, -1)
        low = rng.integers(0, BINS, 2)
        return np.concatenate((low, [rng.integers(k + 1, BINS + 1) for k in low]))
    symbols = rng.integers(0, BINS + 1, len(layout.coordinates))
    return np.where(rng.random(layout.groups.max() + 1)[layout.groups] < out_of_view, -1, symbols)


@pytest.mark.parametrize('layout, size', [
    (layouts.point(), 4), (layouts.box(), 6),
    (layouts.trajectory_2d(8), 18), (layouts.trajectory_3d(8), 18),
    (layouts.trajectory_3d(10, layouts.ROBOT_AXES), 32),
    (layouts.trajectory_2d_3d(8), 36), (layouts.trajectory_2d_3d(20), 84),  # inferred
    (layouts.trajectory_2d_3d(64), 260),  # inferred
    (layouts.trajectory_2d_3d(10, layouts.ROBOT_AXES), 54),  # inferred
    (layouts.dual_arm(10), 108)])
def test_sizes_are_those_of_the_published_blocks(layout, size):
    assert layout.size == size == len(layout.slots)
    assert len(schema_of(layout).token_ids(np.full(len(layout.coordinates), 500))) == size


def test_a_frame_of_eight_points_in_digits_has_145_tokens():
    assert len(digits.slots(8)) == 145


@given(every_layout, st.integers(0, 1 << 32))
def test_blocks_come_back_from_their_tokens(layout, seed):
    schema, symbols = schema_of(layout), symbols_of(layout, np.random.default_rng(seed))
    ids = schema.token_ids(symbols)
    assert ids == TOKENIZER.encode(''.join(layout.tokens(symbols)))
    assert all(t in expand_tokens(slot.allowed) for slot, t in zip(
        layout.slots, layout.tokens(symbols))) or symbols[0] < 0
    read, size = schema.read([*ids, 1, 2, 3])
    assert np.array_equal(read, symbols) and size == len(ids)
    assert schema.read(ids[:-1]) is None
    assert int(schema.first_violation(symbols)) == len(symbols)


def test_kinds_of_slots_name_type_and_axis():
    both, box = layouts.trajectory_2d_3d(2).kinds.tolist(), layouts.box().kinds.tolist()
    start, u, v, *_, end = both[:6]
    assert both == [start, u, v, u, v, end, start, *both[7:9] * 2, end]
    assert len({start, end, *both, *box[1:5]}) == 2 + 4 + 4 and (box[0], box[5]) == (start, end)
    arms = layouts.dual_arm(3).kinds
    assert len(set(arms)) == 2 + 2 + 3 and arms.max() < layouts.SLOT_KINDS
    grid = digits.frame(2).kinds.tolist()
    assert grid[0] == start and grid[1:19] == grid[19:] and len(set(grid)) == 19
    assert min(grid[1:]) >= layouts.SLOT_KINDS  # none of those of other layouts


@given(every_layout, st.integers(0, 1 << 32))
def test_values_come_back_within_half_a_bin(layout, seed):
    rng = np.random.default_rng(seed)
    bins = symbols_of(layout, rng)
    values = layout.read(bins)
    assert np.array_equal(layout.write(*values), bins)
    moved = [v + np.array([(a.range.high - a.range.low) / BINS for a in part.axes])
             * rng.uniform(-0.49, 0.49, v.shape) for part, v in zip(layout.parts, values)]
    assert np.array_equal(layout.write(*moved), bins)
    assert [v.shape for v in values] == [(p.points, len(p.axes)) for p in layout.parts]


def test_declarations_name_type_and_length():
    assert layouts.declared('trajectory_2d_3d 20') is layouts.trajectory_2d_3d(20)
    assert layouts.declared('dual_arm 10').size == 108
    for call in ('', 'trajectory_2d', 'trajectory_2d x', 'box_2d 1', 'trajectory_2d 0',
                 'trajectory_2d -3', 'trajectory_2d 99999999', 'trajectory_2d 8 8'):
        assert layouts.declared(call) is None


@given(every_layout, st.integers(0, 1 << 32))
def test_choosing_among_legal_symbols_always_ends_in_a_legal_block(layout, seed):
    rng, schema, written = np.random.default_rng(seed), schema_of(layout), []
    for _ in range(len(layout.coordinates)):
        legal = np.flatnonzero(schema.legal(written))
        assert len(legal)
        chosen = int(rng.choice([legal[0], legal[-1], rng.choice(legal)]))
        written.append(chosen if chosen <= BINS else -1)
        if layout.is_box and written[0] < 0:
            written = [-1] * 4
            break
    assert int(schema.first_violation(written)) == len(written)
    assert schema.read(schema.token_ids(written)) is not None


@given(every_layout, st.integers(0, 1 << 32), st.lists(st.integers(0, 1 << 32), min_size=1,
                                                      max_size=3))
def test_a_violation_is_found_where_the_legal_symbols_end(layout, seed, changes):
    """The vectorised validator against the step-by-step one."""
    rng, schema = np.random.default_rng(seed), schema_of(layout)
    blocks = []
    for change in changes:
        block = symbols_of(layout, rng)
        block[change % len(block)] = rng.choice([-1, 0, 1, BINS - 1, BINS, rng.integers(BINS)])
        blocks.append(block)
    found = schema.first_violation(np.stack(blocks))
    for block, violation in zip(blocks, found):
        if layout.is_box and block[0] < 0:
            expected = 4 if (block < 0).all() else int(np.argmax(block >= 0))
        else:
            expected = next((m for m in range(len(block)) if not schema.legal(block[:m])[block[m]]
                             ), len(block))
        assert violation == expected


@given(every_layout, st.integers(0, 1 << 32), st.sampled_from([0.1, 3.0, 30.0]))
def test_a_draft_keeps_to_vocabulary_and_pairs_whatever_the_logits(layout, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    schema = schema_of(layout)
    logits = torch.randn(layout.size - 1, 2752, generator=generator) * scale
    symbols, chances, taken = schema.accept(logits, None)
    assert ((chances >= 0) & (chances <= 1)).all()
    if layout.is_box:
        assert taken == int(schema.first_violation(symbols)) != 0
    else:
        assert taken == len(symbols)
        assert schema.read(schema.token_ids(symbols)) is not None


def draft_of(schema, symbols, sure=20.0, vocabulary=2752):
    """Logits that draw `symbols` with certainty."""
    logits = torch.zeros(schema.layout.size - 1, vocabulary)
    for place, symbol in zip(schema.layout.coordinates - 1, symbols):
        logits[place, schema.choices[int(symbol)]] = sure
    return logits


def test_out_of_view_is_decided_for_a_point_as_a_whole():
    schema = schema_of(layouts.trajectory_2d(2))
    logits = draft_of(schema, [10, 20, 30, 40])
    logits[0, schema.choices[-1]] = 25.0  # u would rather be out of view, by 5
    logits[1, schema.choices[-1]] = 14.0  # v would not, by 6
    assert schema.fill(logits[:4])[0].tolist() == [10, 20, 30, 40]
    logits[1, schema.choices[-1]] = 16.0  # by 4
    assert schema.fill(logits[:4])[0].tolist() == [-1, -1, 30, 40]


def test_boxes_keep_what_stands_before_the_first_doubt():
    schema, check = schema_of(layouts.box()), Confidence()
    logits = draft_of(schema, [100, 200, 300, 400])
    assert schema.accept(logits, check)[2] == 4
    for slot in range(4):
        doubtful = logits.clone()
        doubtful[slot, schema.choices[900]] = 19.0  # a rival, 500 bins away or more
        assert schema.accept(doubtful, None)[2] == 4
        symbols, _, taken = schema.accept(doubtful, check)
        assert taken == slot and symbols.tolist() == [100, 200, 300, 400]
        assert schema.accept(doubtful, Confidence(sure=0.5))[2] == 4
        assert schema.accept(doubtful, Confidence(spread=1000))[2] == 4
    # knows nothing, whatever its likeliest tokens are
    flat = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0))
    flat[:, schema.choices[[1, 2, 3, 4]]] = torch.diag(torch.full((4,), 2.0)).repeat(2, 1)[:5]
    assert schema.accept(flat, None)[2] == 4 and schema.accept(flat, check)[2] == 0
    absent = torch.zeros_like(logits)
    for chance, taken in ((0.1, 0), (0.3, 4)):
        absent[0, schema.choices[-1]] = math.log(chance * (absent.shape[1] - 1) / (1 - chance))
        assert schema.accept(absent, check)[1][0] == pytest.approx(chance, abs=1e-4)
        assert schema.accept(absent, None)[2] == 4 and schema.accept(absent, check)[2] == taken
    near = logits.clone()  # rivals within 60 bins are no doubt
    for k in (90, 110, 120):
        near[0, schema.choices[k]] = 19.5
    assert schema.accept(near, check)[2] == 4
    crossed = draft_of(schema, [100, 200, 50, 400])
    assert schema.accept(crossed, None)[2] == 2


def test_a_draft_that_is_not_finite_is_not_taken():
    for layout in (layouts.box(), layouts.trajectory_2d(3)):
        schema = schema_of(layout)
        logits = draft_of(schema, [1, 2, 3, 4, 5, 6])
        logits[1, 7] = torch.nan
        assert schema.accept(logits, None)[2] == (1 if layout.is_box else 0)


millimetres = st.lists(st.tuples(*[st.integers(-99_999, 99_999)] * 3), min_size=1, max_size=8)


@given(millimetres, st.integers(0, 255), st.integers(0, 99))
def test_digit_grids_come_back_from_tokens_and_from_text(points, seen, stamp):
    values = np.array(points)
    visible = np.array([seen >> i & 1 for i in range(len(points))], dtype=bool)
    grid = digits.to_grid(values, visible)
    assert digits.valid(grid)
    back, back_visible = digits.from_grid(grid)
    assert np.array_equal(back_visible, visible)
    assert np.array_equal(back[visible], values[visible]) and not back[~visible].any()
    texts = digits.tokens(grid)
    assert len(texts) == len(digits.slots(len(points))) - 1
    assert all(t in slot.allowed for t, slot in zip(texts, digits.slots(len(points))[1:]))
    assert np.array_equal(digits.symbols(texts, len(points)), grid)
    text = digits.to_text(stamp, grid)
    found_stamp, found = digits.from_text(text, len(points))
    assert found_stamp == stamp and np.array_equal(found, grid)
    pieces = text.split()
    assert pieces[0] == f'{stamp}.0' and len(pieces) == 1 + 4 * visible.sum()


@given(st.lists(st.lists(st.integers(-1, 9), min_size=18, max_size=18), min_size=1, max_size=3))
def test_valid_grids_are_exactly_those_that_conversion_writes(numbers):
    grid = np.array(numbers).reshape(-1, 3, 6)
    values, visible = digits.from_grid(grid)
    rewritten = digits.to_grid(values, visible)
    assert bool(digits.valid(grid)) == (np.array_equal(rewritten, grid))


def test_broken_grids_and_texts_are_refused():
    good = digits.to_grid([[[5, -20, 0]]])[0]
    assert good.tolist() == [[[0, -1, -1, -1, -1, 5], [1, -1, -1, -1, 2, 0],
                              [0, -1, -1, -1, -1, 0]]]
    assert digits.valid(np.stack([good, good])).all()
    for place, symbol in (((0, 0, 0), -1), ((0, 0, 5), -1), ((0, 1, 1), 3), ((0, 2, 0), 1),
                          ((0, 0, 4), 0), ((0, 0, 0), 2)):
        broken = good.copy()
        broken[place] = symbol
        assert not digits.valid(broken)
    assert digits.to_grid([[[200_000, 0, 0]]])[0, 0, 0].tolist() == [0, 9, 9, 9, 9, 9]
    for text in ('', '3', '3.0 1 2 3', '3.0 2 1 1 1 1 1 1 1', '3.0 9 1 1 1', '3.0 1 1 1 100000'):
        assert digits.from_text(text, 8) is None
