"""A plan drawn on the image it was made from: what is where.  No ROS needed."""
from dataclasses import replace

import numpy as np
import pytest
from support.plans import make_plan

from flashdrive_ros.core.types import Primitive
from flashdrive_ros.view import draw
from flashdrive_ros.view.annotate import annotate
from flashdrive_ros.view.birds_eye import BirdsEye
from flashdrive_ros.view.camera import CameraView
from flashdrive_ros.view.overlay import Motion, draw_image_primitives, finite_runs
from flashdrive_ros.world.cameras import default_rig

FRONT, TELE = 1, 6
GREY = 90


def view_of(camera_id=FRONT, width=640, height=360):
    camera = replace(default_rig()[camera_id], width=width, height=height)
    return CameraView(width, height, camera.intrinsics, camera.rotation,
                      np.array(camera.position))


def grey(width=640, height=360):
    return np.full((height, width, 3), GREY, np.uint8)


def shows(image, colour, at, radius=2):
    """True when a pixel near `at` is of about this colour."""
    x, y = np.round(at).astype(int)
    part = image[max(y - radius, 0):y + radius + 1, max(x - radius, 0):x + radius + 1]
    return part.size > 0 and (np.abs(part.astype(int) - colour).max(-1) < 60).any()


def boxes(label='car', rows=((100, 120, 200, 180),), camera_id=FRONT):
    return Primitive('box_2d', label, np.array(rows, float), 'pixel', camera_id)


OWN_IMAGE = Primitive('trajectory_2d', 'ego', np.array(
    [[320, 330], [322, 300], [np.nan, np.nan], [330, 240], [340, 220]]), 'pixel', FRONT)
STRAIGHT = make_plan(trajectories=1, yaw=np.zeros((1, 64)), primitives=(), xyz=np.stack(
    [np.arange(1, 65) * 0.5, np.zeros(64), np.zeros(64)], -1)[None])


def test_boxes_have_their_edges_in_the_colour_of_their_label():
    found = annotate(grey(), replace(STRAIGHT, primitives=(
        boxes(), boxes('red light', [[400, 40, 420, 90]]))), FRONT, view_of())
    for x, y in ((150, 120), (150, 180), (100, 150), (200, 150)):
        assert shows(found, draw.DRAWN, (x, y))
    assert shows(found, draw.LABELS['red light'], (400, 60), 1)
    assert (found[140:160, 120:180] == GREY).all()   # nothing inside


def test_a_label_is_written_at_each_box():
    def labelled(label):
        image = grey()
        draw_image_primitives(image, [boxes(label)], FRONT, 1.0)
        return image[104:118, 100:140]
    assert (labelled('car') != GREY).any() and (labelled('') == GREY).all()
    assert (labelled('car') != labelled('bus')).any()


def test_a_box_at_the_upper_edge_has_its_label_below():
    image = grey()
    draw_image_primitives(image, [boxes(rows=[[100, 0, 200, 50]])], FRONT, 1.0)
    assert (image[54:66, 100:140] != GREY).any()


def test_what_belongs_to_another_camera_is_not_drawn():
    plan = replace(STRAIGHT, primitives=(boxes(), OWN_IMAGE))
    bare = annotate(grey(), STRAIGHT, TELE, None)
    assert (annotate(grey(), plan, TELE, None) == bare).all()
    assert (annotate(grey(), plan, FRONT, None) != bare).any()


def test_the_drafted_path_is_cut_where_it_is_out_of_view():
    image = grey()
    draw_image_primitives(image, [OWN_IMAGE], FRONT, 1.0)
    for point in OWN_IMAGE.values[[0, 1, 3, 4]]:
        assert shows(image, draw.OWN_PATH, point, 1)
    assert shows(image, draw.OWN_PATH, (321, 315), 1)
    assert (image[255:290] == GREY).all()   # no line over the gap


def test_rows_out_of_view_part_a_path():
    values = np.array([[np.nan, 0], [1, 1], [2, 2], [np.nan, np.nan], [4, 4], [5, np.nan]])
    assert [run.tolist() for run in finite_runs(values)] == [[[1, 1], [2, 2]], [[4, 4]]]
    assert finite_runs(np.full((3, 2), np.nan)) == []


def test_values_scale_with_the_image():
    small = grey(320, 180)
    draw_image_primitives(small, [boxes(), Primitive(
        'point', 'goal', np.array([[500.0, 300.0]]), 'pixel', FRONT)], FRONT, 0.5)
    assert shows(small, draw.DRAWN, (75, 60), 1) and shows(small, draw.DRAWN, (250, 150), 1)


def test_the_plan_lies_where_the_vehicle_will_be():
    view = view_of()
    found = annotate(grey(), STRAIGHT, FRONT, view)
    middle, beside = view.pixels(view.to_optical([[8, 0, 0], [8, 3, 0]]))
    assert shows(found, draw.CHOSEN, middle) and (found[tuple(beside[::-1].astype(int))]
                                                  == GREY).all()


def test_motions_in_metres_are_projected():
    view = view_of()
    rows = np.array([[12, 3, 0], [16, 3.2, 0], [np.nan] * 3, [24, 3.5, 0]])
    plan = replace(STRAIGHT, primitives=(Primitive('trajectory_3d', 'car', rows, 'metre'),))
    found = annotate(grey(), plan, FRONT, view)
    for pixel in view.pixels(view.to_optical(rows[[0, 1, 3]])):
        assert shows(found, draw.DRAWN, pixel, 1)
    eye = BirdsEye(512, 576)
    before = eye.image.copy()
    eye.paths(plan.primitives, Motion())
    for pixel in eye.pixels(rows[[0, 1, 3]]):
        assert shows(eye.image, draw.DRAWN, pixel, 1)
    x, y = np.round(eye.pixels([[20, 3.35]])[0]).astype(int)
    assert (eye.image[y, x] == before[y, x]).all()


def test_the_reasoning_stands_on_the_lower_edge():
    def edge(text):
        plan = replace(STRAIGHT, reasoning=replace(STRAIGHT.reasoning, text=text))
        return annotate(grey(), plan, TELE, view_of(TELE))[340:]
    assert (edge('Stop for the red light.') != edge('Keep the lane.')).any()
    assert (edge('Keep the lane.').max(-1) > 200).any() and (edge('')[:, :200] == GREY).all()


@pytest.mark.parametrize('size', [(16, 16), (64, 36), (320, 180), (1920, 1080)])
def test_images_of_any_size_stay_as_they_were(size):
    image = grey(*size)
    text = 'slow down because the lead vehicle brakes ' * 5
    plan = make_plan(primitives=(boxes(), OWN_IMAGE), trained=False)
    plan = replace(plan, reasoning=replace(plan.reasoning, text=text))
    found = annotate(image, plan, FRONT, view_of(FRONT, *size))
    assert found.shape == image.shape and (image == GREY).all() and (found != image).any()


def test_an_untrained_plan_and_an_unknown_camera_are_said_on_the_image():
    trained, untrained = (annotate(grey(), replace(STRAIGHT, trained=t), FRONT, None)
                          for t in (True, False))
    red = (untrained[..., 0].astype(int) - untrained[..., 1] > 60).sum()
    assert red > 300 and (trained[..., 0].astype(int) - trained[..., 1] > 60).sum() == 0
    known = annotate(grey(), STRAIGHT, FRONT, view_of())
    assert (trained[:20, :200] != GREY).any() and (known[:20, :200] == GREY).all()


def test_a_broken_plan_leaves_the_rest():
    xyz = STRAIGHT.xyz.copy()
    xyz[0, 3] = np.inf
    found = annotate(grey(), replace(STRAIGHT, xyz=xyz, primitives=(boxes(),)), FRONT, view_of())
    assert shows(found, draw.DRAWN, (150, 120))
