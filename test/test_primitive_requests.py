"""Requests for primitives: their text, their questions, and what is refused."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashdrive_ros.core.primitives.requests import (
    ARMS,
    FIELDS,
    MOTIONS,
    PATHS,
    PrimitiveRequest,
)
from flashdrive_ros.core.prompt import DISPLAY_NAMES

METRES = 'in metres, x -10 to 250, y -65 to 65.'


@pytest.mark.parametrize('text, request_, question', [
    ('boxes:1:car,red light', PrimitiveRequest('boxes', 1, ('car', 'red light')),
     'Boxes in the front camera, 0 to 1000: car, red light.'),
    ('trajectory_2d:6:8', PrimitiveRequest('trajectory_2d', 6, points=8),
     'Path of the next 4.0 s, 8 points in the front telephoto camera, 0 to 1000.'),
    ('trajectory_3d:64', PrimitiveRequest('trajectory_3d', points=64),
     f'Path of the next 6.4 s, 64 points {METRES}'),
    ('trajectory_2d_3d:1:20', PrimitiveRequest('trajectory_2d_3d', 1, points=20),
     f'Path of the next 5.0 s, 20 points in the front camera, 0 to 1000, then {METRES}'),
    ('motion:6', PrimitiveRequest('motion', points=6),
     f'Motion of others in the next 3.0 s, 6 points {METRES}'),
    ('dual_arm:1:10', PrimitiveRequest('dual_arm', 1, points=10),
     'Paths of both arms in the next 1.3 s, 10 points in the front camera, 0 to 1000, '
     'then in metres, x -5 to 5, y -5 to 5, z 0 to 10.'),
])
def test_text_and_question_of_a_request(text, request_, question):
    assert PrimitiveRequest.parse(text) == request_
    assert str(request_) == text
    assert request_.question() == question


def test_spaces_around_the_parts_do_not_count():
    assert str(PrimitiveRequest.parse(' boxes : 1 : car , truck ')) == 'boxes:1:car,truck'


@st.composite
def requests(draw):
    kind = draw(st.sampled_from(list(FIELDS)))
    has = FIELDS[kind].__contains__
    words = st.lists(st.from_regex('[a-z]{1,9}( [a-z]{1,9})?', fullmatch=True), min_size=1,
                     max_size=4, unique=True)
    return PrimitiveRequest(
        kind, draw(st.sampled_from(list(DISPLAY_NAMES))) if has('camera') else None,
        tuple(draw(words)) if has('classes') else (),
        draw(st.sampled_from(list({'motion': MOTIONS, 'dual_arm': ARMS}.get(kind, PATHS))))
        if has('points') else 0)


@given(requests())
def test_every_request_comes_back_from_its_text(request_):
    assert PrimitiveRequest.parse(str(request_)) == request_


@given(requests(), requests())
def test_different_requests_are_different_questions(a, b):
    assert (a == b) == (a.question() == b.question())


@pytest.mark.parametrize('text, part', [
    ('', "kind must be one of boxes, .* got ''"),
    ('box:1:car', "kind must be one of .* got 'box'"),
    ('boxes:1', 'expected the form boxes:CAMERA:CLASSES'),
    ('boxes:1:', "classes must be words .* got ''"),
    ('boxes:1:car,', "classes must be words .* got ''"),
    ('boxes:1:<|box_start|>', 'classes must be words'),
    ('boxes:1:car,car', 'classes must differ, got car,car'),
    ('boxes:front:car', "camera must be a number, got 'front'"),
    ('boxes:7:car', 'camera must be one of 0, 1, 2, 3, 4, 5, 6, got 7'),
    ('trajectory_2d:8', 'expected the form trajectory_2d:CAMERA:POINTS'),
    ('trajectory_3d:1:8', 'expected the form trajectory_3d:POINTS'),
    ('trajectory_3d:9', 'points must be one of 8, 20, 64, got 9'),
    ('trajectory_3d:-8', "points must be a number, got '-8'"),
    ('trajectory_3d:0', 'trajectory_3d needs points'),
    ('dual_arm:10', 'expected the form dual_arm:CAMERA:POINTS'),
    ('motion:8', 'points must be one of 6, got 8'),
])
def test_a_wrong_text_is_refused_with_its_wrong_part(text, part):
    with pytest.raises(ValueError, match=part) as refused:
        PrimitiveRequest.parse(text)
    assert str(refused.value).startswith(f'primitive request {text!r}: ')


@pytest.mark.parametrize('values, part', [
    ({'kind': 'motion', 'camera_id': 1, 'points': 6}, 'motion takes no camera'),
    ({'kind': 'trajectory_2d', 'points': 8}, 'trajectory_2d needs camera'),
    ({'kind': 'boxes', 'camera_id': 1}, 'boxes needs classes'),
    ({'kind': 'boxes', 'camera_id': 1, 'classes': ('car',), 'points': 8}, 'takes no points'),
])
def test_a_request_holds_what_its_kind_has_and_nothing_else(values, part):
    with pytest.raises(ValueError, match=part):
        PrimitiveRequest(**values)
