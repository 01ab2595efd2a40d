"""A small animated picture of four scenarios."""
import cv2
import numpy as np
import pytest

from flashdrive_ros.errors import UserError
from flashdrive_ros.evaluation import film
from flashdrive_ros.evaluation.policies import Move
from flashdrive_ros.world import EVENTS
from flashdrive_ros.world.cameras import default_rig

pytestmark = pytest.mark.skipif(not hasattr(cv2, 'imwriteanimation'),
                                reason='OpenCV before 4.11 writes no animations')


def tiles(count=4):
    move = Move(np.zeros((64, 3)), np.zeros(64), 'Slow down because the traffic light is red.')
    image = np.random.default_rng(0).integers(256, size=(180, 320, 3), dtype=np.uint8)
    return [film.tile(np.roll(image, 8 * i, 1), default_rig()[1], move, 'light', 10.0)
            for i in range(count)]


def test_four_films_become_one_animation(tmp_path):
    pictures = film.grid([tiles()] * 4)
    assert len(pictures) == 4 and pictures[0].shape == (2 * (180 + film.CAPTION), 640, 3)
    size = film.encode(tmp_path / 'a.gif', pictures, 10 << 20)
    assert size == (tmp_path / 'a.gif').stat().st_size
    _, animation = cv2.imreadanimation(str(tmp_path / 'a.gif'))
    assert len(animation.frames) == 4 and set(animation.durations) == {200}


def test_a_film_is_made_smaller_until_it_fits_or_refused(tmp_path):
    pictures = film.grid([tiles(2)] * 4)
    whole = film.encode(tmp_path / 'a.gif', pictures, 10 << 20)
    assert film.encode(tmp_path / 'a.gif', pictures, whole // 2) <= whole // 2
    with pytest.raises(UserError, match='at the smallest size'):
        film.encode(tmp_path / 'a.gif', pictures, 1000)


def test_every_event_has_a_cause_to_be_shown_and_others_are_refused():
    assert set(film.CAUSES) == set(EVENTS) and set(film.SCENES) <= set(EVENTS)
    for text in ('ufo', 'light:x', ''):
        with pytest.raises(UserError, match='is no scene'):
            film.parse(text, 10)
