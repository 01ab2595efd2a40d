"""Answers to questions are the ground truth of the window."""
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from support.answers import parse, read, reader
from support.tiny_clips import tiny_maker

from flashdrive_ros.core.primitives.coordinates import NONE
from flashdrive_ros.core.primitives.requests import PrimitiveRequest
from flashdrive_ros.training import questions, samples, small_tokenizer
from flashdrive_ros.training.drafter_settings import LONGEST, DrafterSettings
from flashdrive_ros.training.questions import ask_light, path_request
from flashdrive_ros.training.settings import RunSettings
from flashdrive_ros.world.boxes import Box2D
from flashdrive_ros.world.cameras import default_rig

SIZE = 320, 180


@pytest.fixture
def facts():
    path = np.stack((np.arange(1, 65) * 1.0, np.zeros(64)), 1)
    boxes = {1: [Box2D(5, 'car', 160, 90, 200, 120, 900), Box2D(4, 'car', 16, 90, 32, 108, 200),
                 Box2D(9, 'traffic_light_red', 150, 10, 156, 24, 70),
                 Box2D(7, 'traffic_cone', 0, 0, 9, 9, 80)],
             6: [Box2D(9, 'traffic_light_red', 150, 10, 170, 60, 700)]}
    return questions.Facts(boxes, SIZE, path, default_rig(*SIZE), going_on)


def going_on(ticks):
    """Things 5 and 4 ahead at 10 m/s, the light where it is, 3 unseen and 8 coming near."""
    t = np.array(ticks) / 10
    places = {5: (30 + 10 * t, 0 * t), 4: (20 + 10 * t, 3 + 0 * t), 9: (40 + 0 * t, 5 + 0 * t),
              3: (5 + t, 5 + t), 8: (10 - 15 * t, -4 + 0 * t)}
    return {i: np.stack(xy, 1) for i, xy in places.items()}


def ask(text, facts):
    return questions.ask(PrimitiveRequest.parse(text), facts)


def test_boxes_are_shares_of_the_image_by_class(facts):
    asked = ask('boxes:1:car,truck', facts)
    assert asked.question == 'Boxes in the front camera, 0 to 1000: car, truck.'
    left, right, none = read(asked.answer)
    np.testing.assert_allclose(left.values, [[.05, .5, .1, .6]])
    np.testing.assert_allclose(right.values, [[.5, .5, .625, .667]], atol=1e-9)
    assert none.label == 'truck' and len(none.values) == 0


def test_only_the_largest_boxes_are_told(facts):
    many = [Box2D(i, 'car', i, 0, i + 1 + i % 15, 10, 99) for i in range(30)]
    asked = ask('boxes:1:car', replace(facts, boxes={1: many}))
    assert len(read(asked.answer)) == questions.MAX_BOXES


def test_a_path_is_told_in_the_image_and_in_metres(facts):
    both, = read(ask('trajectory_2d_3d:1:8', facts).answer)
    image, metres = both.values[:, :2], both.values[:, 2:]
    np.testing.assert_allclose(metres[:, 0], np.arange(1, 9) * 5.0, atol=0.14)
    np.testing.assert_allclose(metres[:, 1], 0, atol=0.07)
    uv, inside = facts.rig[1].project(np.array([[5.0 * i, 0, 0] for i in range(1, 9)]))
    assert inside.any()
    assert np.array_equal(np.isnan(image[:, 0]), ~inside)
    np.testing.assert_allclose(image[inside], ((uv + .5) / SIZE)[inside], atol=0.001)
    alone, = read(ask('trajectory_2d:1:8', facts).answer)
    np.testing.assert_array_equal(alone.values, image)
    one, = read(ask('trajectory_3d:20', facts).answer)
    assert one.type == 'trajectory_3d' and one.values.shape == (20, 2)


def test_others_motion_is_told_the_nearest_first(facts):
    asked = ask('motion:6', facts)
    near, far = read(asked.answer)
    assert asked.answer.startswith('<|object_ref_start|>car<|object_ref_end|>'
                                   '<tool_call>trajectory_3d 6</tool_call>')
    np.testing.assert_allclose(near.values[:, 0], 20 + 5 * np.arange(1, 7), atol=0.14)
    np.testing.assert_allclose(near.values[:, 1], 3, atol=0.07)
    np.testing.assert_allclose(far.values[:, 0], 30 + 5 * np.arange(1, 7), atol=0.14)


def test_others_motion_ends_where_the_coordinates_do(facts):
    truck = Box2D(8, 'truck', 300, 90, 320, 120, 500)
    first, *others = read(ask('motion:6', replace(facts, boxes={6: [truck], **facts.boxes} | {
        1: [*facts.boxes[1], truck]})).answer)
    assert (first.label, len(others)) == ('truck', 2)
    np.testing.assert_allclose(first.values[:2, 0], [2.5, -5], atol=0.14)
    assert np.isnan(first.values[2:]).all()


def test_only_three_others_are_told_and_none_is_said_when_there_is_none(facts):
    boxes = {6: [Box2D(i, 'pedestrian', 0, 0, 9, 9, 80) for i in range(20, 26)]}
    many = replace(facts, boxes=boxes, motions=lambda ticks: {
        i: np.full((len(ticks), 2), i, float) for i in range(20, 26)})
    found = read(ask('motion:6', many).answer)
    assert [round(f.values[0, 0]) for f in found] == [20, 21, 22]
    assert ask('motion:6', replace(facts, boxes={})).answer == NONE
    assert ask('motion:6', replace(facts, motions=lambda ticks: {})).answer == NONE


def test_the_light_that_shows_largest_is_told(facts):
    assert ask_light(facts).answer == 'red light'
    assert ask_light(replace(facts, boxes={})).answer == 'no light'


def test_every_drawn_question_has_an_answer_that_fits(facts):
    rng = np.random.default_rng(0)
    kinds = []
    for _ in range(400):
        asked = questions.draw(facts, rng)
        kinds.append(asked.question.split()[0])
        found, problems = parse(asked.answer)
        assert not problems
        assert asked.answer in (*questions.PLAIN_ANSWERS, NONE) or found
    shares = {kind: kinds.count(kind) / len(kinds) for kind in set(kinds)}
    expected = {'Boxes': .60, 'Path': .22, 'Motion': .12, 'Which': .06}
    assert shares == pytest.approx(expected, abs=.05)


def test_the_longest_questions_and_answers_fit_a_clip(facts):
    clip, maker = samples.ClipConfig(), tiny_maker()
    boxes = [Box2D(i, list(questions.LABELS)[i % 7], 20 * i, 0, 20 * i + 9, 9, 80)
             for i in range(questions.MAX_BOXES)]
    full = replace(facts, boxes=dict.fromkeys(facts.rig, boxes))
    requests = [PrimitiveRequest('boxes', 6, tuple(questions.LABELS.values())),
                path_request('trajectory_2d_3d', 6, 20), PrimitiveRequest('motion', points=6)]
    for request in requests:
        asked = questions.ask(request, full)
        assert len(maker.tail_of('', asked.question)[0]) <= clip.question_tokens
        assert len(maker.tokenizer.encode(asked.answer + '<|answer_end|>')) <= clip.answer_tokens


def test_long_paths_are_asked_for_where_there_is_room(facts):
    clip = RunSettings(steps=1, long_paths=0.5).clips()
    assert RunSettings(steps=1).clips().answer_tokens < clip.answer_tokens
    rng, found = np.random.default_rng(0), []
    while len(found) < 12:
        asked = questions.draw(facts, rng, clip.long_paths)
        if asked.question.startswith('Path'):
            found.append('64 points' in asked.question)
            ids = reader().tokenizer.encode(asked.answer + '<|answer_end|>')
            assert len(ids) <= clip.answer_tokens and len(read(asked.answer)) == 1
    assert 3 <= sum(found) <= 9
    longest = max(layout.size for layout in questions.LAYOUTS)
    assert longest == LONGEST
    with pytest.raises(ValueError, match='primitive_tokens'):
        DrafterSettings(steps=1, long_paths=0.1, primitive_tokens=longest - 1)


def test_the_words_that_the_vocabulary_was_made_from_stay():
    """Another corpus would be another vocabulary, and the weights would have to start anew."""
    text = json.dumps(small_tokenizer.corpus())
    assert hashlib.sha1(text.encode()).hexdigest() == '0a2458147db4df1321bdd060d083980655a368a8'
