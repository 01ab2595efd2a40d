"""Answers to questions are the ground truth of the window."""
import numpy as np
import pytest

from flashdrive_ros.core.primitives.grammar import read
from flashdrive_ros.training import questions
from flashdrive_ros.training.questions import Facts, ask_boxes, ask_light, ask_path
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
    return Facts(boxes, SIZE, path, default_rig(*SIZE))


def test_boxes_are_shares_of_the_image_by_class(facts):
    asked = ask_boxes(facts, 1, ['car', 'truck'])
    assert asked.question == 'Boxes in the front camera, 0 to 1000: car, truck.'
    left, right, none = read(asked.answer)
    np.testing.assert_allclose(left.values, [[.05, .5, .1, .6]])
    np.testing.assert_allclose(right.values, [[.5, .5, .625, .667]], atol=1e-9)
    assert none.label == 'truck' and len(none.values) == 0


def test_only_the_largest_boxes_are_told(facts):
    many = [Box2D(i, 'car', i, 0, i + 1 + i % 15, 10, 99) for i in range(30)]
    asked = ask_boxes(Facts({1: many}, SIZE, facts.path, facts.rig), 1, ['car'])
    assert len(read(asked.answer)) == questions.MAX_BOXES


def test_a_path_is_told_in_the_image_and_in_metres(facts):
    image, metres = read(ask_path(facts, 1, 8, 'both').answer)
    np.testing.assert_allclose(metres.values[:, 0], np.arange(1, 9) * 5.0, atol=0.14)
    np.testing.assert_allclose(metres.values[:, 1], 0, atol=0.07)
    uv, inside = facts.rig[1].project(np.array([[5.0 * i, 0, 0] for i in range(1, 9)]))
    assert np.array_equal(np.isnan(image.values[:, 0]), ~inside)
    np.testing.assert_allclose(image.values[inside], ((uv + .5) / SIZE)[inside], atol=0.001)
    one, = read(ask_path(facts, 1, 20, 'metres').answer)
    assert one.values.shape == (20, 2)


def test_the_light_that_shows_largest_is_told(facts):
    assert ask_light(facts).answer == 'red light'
    assert ask_light(Facts({}, SIZE, facts.path, facts.rig)).answer == 'no light'


def test_every_drawn_question_has_an_answer_that_fits(facts):
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(200):
        asked = questions.draw(facts, rng)
        kinds.add(asked.question.split()[0])
        assert asked.answer in questions.PLAIN_ANSWERS or read(asked.answer)
    assert kinds == {'Boxes', 'Path', 'Which'}
