"""Prompts at full size with the real vocabulary: counts, slots and positions."""
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import full_tokenizer
from support.tiny import r1_config, tiny_config, tiny_tokenizer

from flashdrive_ros.core.config import ModelConfig
from flashdrive_ros.core.prompt import build_layout, prompt_text
from flashdrive_ros.core.streaming import computed_slots, new_blocks
from flashdrive_ros.core.tokenizer import Tokenizer
from flashdrive_ros.core.types import InputError

CAMERAS = (0, 1, 2, 6)
GRID = (10, 18)


@pytest.fixture(scope='module')
def layouts():
    """Layouts of the two model generations at full size."""
    text = json.dumps(full_tokenizer())
    found = {}
    for model_type in ('alpamayo1_5', 'alpamayo_r1'):
        config = ModelConfig(model_type=model_type)
        labels = not config.is_r1
        config = replace(config, prompt=replace(
            config.prompt, include_camera_ids=labels, include_frame_nums=labels))
        tokenizer = Tokenizer.from_text(text, config, 'tokenizer.json')
        assert tokenizer.vocab_size == 155697
        found[model_type] = build_layout(config, tokenizer, CAMERAS, [GRID] * 4)
    return found


@pytest.mark.parametrize('model_type, slots, next_position, kept, newest, everything', [
    ('alpamayo_r1', 3006, 414, 802, 802, 802),
    ('alpamayo1_5', 3086, 494, 802, 818, 882),
])
def test_counts_at_full_size(layouts, model_type, slots, next_position, kept, newest, everything):
    layout = layouts[model_type]
    assert layout.size == slots
    assert layout.prefix == 20
    assert layout.size - layout.suffix == 74
    assert layout.next_position == next_position and layout.rope_delta == -2592
    counts = [len(computed_slots(layout, 1, labels)) for labels in ('keep', 'newest', 'all')]
    assert counts == [kept, newest, everything]
    assert len(computed_slots(layout, 4)) == slots
    assert len(new_blocks(layout, 1)) == 4
    assert len(new_blocks(layout, 4)) == 16


def test_image_blocks_stand_where_the_released_prompt_has_them(layouts):
    r1, labelled = layouts['alpamayo_r1'], layouts['alpamayo1_5']
    assert [s for view in r1.images for s, _ in view] == [
        20, 202, 384, 566, 748, 930, 1112, 1294, 1476, 1658, 1840, 2022, 2204, 2386, 2568, 2750]
    assert [s for view in labelled.images for s, _ in view] == [
        28, 214, 400, 586, 775, 961, 1147, 1333, 1523, 1709, 1895, 2081, 2272, 2458, 2644, 2830]
    for layout, starts, step in (
            (r1, [20, 100, 180, 260], 20), (labelled, [28, 127, 227, 328], 24)):
        for view, start in zip(layout.images, starts):
            found = [layout.positions[:, s].tolist() for s, _ in view]
            assert found == [[start + step * f] * 3 for f in range(4)]
    assert (r1.suffix, labelled.suffix) == (2932, 3012)


def test_every_label_token_stands_before_its_image(layouts):
    layout = layouts['alpamayo1_5']
    lengths = [[b - a for a, b in view] for view in layout.labels]
    assert lengths == [[8, 4, 4, 4], [7, 4, 4, 4], [8, 4, 4, 4], [9, 4, 4, 4]]
    assert sum(map(sum, lengths)) == 80


def test_prompts_follow_settings():
    config = tiny_config(frames=2)
    text = prompt_text(config, (1, 6), 'Turn left')
    assert 'Front camera: frame 0 <|vision_start|>' in text and 'frame 1 ' in text
    assert '<|route_start|>Turn left<|route_end|>output the chain' in text
    assert text.endswith('<|im_start|>assistant\n<|cot_start|>')
    question = prompt_text(config, (1,), question='Is it raining?')
    assert '<|question_start|>Is it raining?<|question_end|>' in question
    assert 'traj_history' not in question and question.endswith('<|answer_start|>')
    r1 = prompt_text(r1_config(), CAMERAS, 'Turn left')
    assert 'camera' not in r1 and 'frame 0' not in r1 and 'Turn left' not in r1


@pytest.mark.parametrize('kind', ['nav_text', 'question'])
def test_long_free_text_is_refused_with_the_limit(kind):
    config = tiny_config()
    with pytest.raises(InputError, match='has 513 characters, at most 512 are allowed'):
        build_layout(config, tiny_tokenizer(config), (1,), [(2, 3)], **{kind: 'a' * 513})


@pytest.mark.parametrize('marker', ['<|im_end|>', '<|', '<i3>', '<5>'])
@pytest.mark.parametrize('kind', ['nav_text', 'question'])
def test_marker_tokens_in_free_text_are_refused(kind, marker):
    config = tiny_config()
    with pytest.raises(InputError, match='must not hold marker tokens'):
        build_layout(config, tiny_tokenizer(config), (1,), [(2, 3)], **{kind: f'a {marker} b'})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(range(7)), min_size=1, max_size=7, unique=True),
       st.integers(1, 6), st.data())
def test_positions_equal_a_walk_over_the_tokens(cameras, frames, data):
    """Token by token: text advances by one, an image by its larger side after its last token."""
    cameras = sorted(cameras)
    grids = [data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5))) for _ in cameras]
    nav = ' '.join(data.draw(st.lists(st.sampled_from(['turn', 'left', 'in', '40m']), max_size=9)))
    config = tiny_config(frames=frames)
    tokenizer = tiny_tokenizer(config)
    layout = build_layout(config, tokenizer, cameras, grids, nav_text=nav)
    pad = tokenizer.id('image_pad')
    position, inside, number, found = 0, 0, 0, []
    for token in layout.token_ids:
        if token == pad:
            rows, columns = grids[number // frames]
            found.append((position, position + inside // columns, position + inside % columns))
            inside += 1
            if inside == rows * columns:
                position, inside, number = position + max(rows, columns), 0, number + 1
        else:
            found.append((position,) * 3)
            position += 1
    assert number == len(cameras) * frames
    assert np.array_equal(layout.positions, np.array(found).T)
    assert layout.next_position == position
    assert tokenizer.decode(layout.token_ids[layout.suffix:]).count('<|traj_history|>') == 48
