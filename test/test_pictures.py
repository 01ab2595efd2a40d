"""Pictures, video and contact sheet of a synthetic recording.  No ROS needed."""
from dataclasses import replace
from math import cos, radians, sin

import cv2
import numpy as np
import pytest
from support.recordings import MOUNTS, START_NS, TICK_NS, write_recording

from flashdrive_ros.recording.plans import DrawnPrimitive
from flashdrive_ros.recording.recording import Recording
from flashdrive_ros.view import draw, overlay
from flashdrive_ros.view.birds_eye import BirdsEye
from flashdrive_ros.view.camera import CameraView, camera_views
from flashdrive_ros.view.pictures import MAIN, DrivePictures, fit
from flashdrive_ros.view.video import VideoWriteError, _sheet_ticks, contact_sheet, render
from flashdrive_ros.world.cameras import default_rig

SIZES = dict.fromkeys(MOUNTS, (320, 180))


@pytest.fixture(scope='module')
def recording(tmp_path_factory):
    return Recording(write_recording(tmp_path_factory.mktemp('bag') / 'bag', ticks=12, every=2))


def front(width=320, height=180):
    camera = replace(default_rig()[1], width=width, height=height)
    return CameraView(width, height, camera.intrinsics, camera.rotation,
                      np.array(camera.position))


def shows(image, colour, at, radius=2):
    """True when a pixel near `at` is of about this colour."""
    x, y = np.round(at).astype(int)
    part = image[max(y - radius, 0):y + radius + 1, max(x - radius, 0):x + radius + 1]
    return part.size > 0 and (np.abs(part.astype(int) - colour).max(-1) < 60).any()


def test_points_fall_where_the_worlds_cameras_see_them():
    rng = np.random.default_rng(0)
    points = rng.uniform([1, -30, 0], [60, 30, 4], (200, 3))
    for camera in default_rig().values():
        view = CameraView(camera.width, camera.height, camera.intrinsics, camera.rotation,
                          np.array(camera.position))
        pixels, visible = camera.project(points)
        np.testing.assert_allclose(view.pixels(view.to_optical(points[visible])),
                                   pixels[visible], atol=1e-9)


def test_recorded_calibration_is_used(recording):
    views = camera_views(recording, SIZES)
    for name, (x, y, z, yaw) in MOUNTS.items():
        assert views[name].assumed == ''
        # 10 m straight ahead of the camera, 2 m below it
        point = [[x + 10 * cos(yaw), y + 10 * sin(yaw), z - 2]]
        u, v = views[name].pixels(views[name].to_optical(point))[0]
        assert (u, v) == pytest.approx((160, 90 + 2 / 10 * views[name].k[1, 1]), abs=1e-6)


def test_without_calibration_the_nominal_rig_is_assumed_and_said(recording):
    bare = Recording.__new__(Recording)
    bare.__dict__.update({**recording.__dict__, 'infos': {}, 'transforms': {}})
    view = camera_views(bare, {'front_wide_120': (960, 540)})['front_wide_120']
    assert '120 degree lens' in view.assumed and 'nominal mounting' in view.assumed
    assert view.k[0, 0] == pytest.approx(480 / np.tan(radians(60)))


def test_a_lens_with_distortion_is_followed():
    view = front()
    bent = replace(view, distortion=('plumb_bob', np.array([-0.2, 0.02, 0, 0, 0])))
    points = view.to_optical([[20, 6, 0], [10, -3, 1]])
    expected = cv2.projectPoints(points, np.zeros(3), np.zeros(3), view.k,
                                 bent.distortion[1])[0].reshape(-1, 2)
    np.testing.assert_allclose(bent.pixels(points), expected)
    assert np.abs(expected - view.pixels(points)).max() > 0.5


def test_a_line_is_cut_where_it_goes_behind_the_camera():
    view = front()
    pieces = view.polyline([[-5, 0, 0], [10, 0, 0], [20, 0, 0], [-5, 1, 0]])
    assert len(pieces) == 1 and len(pieces[0]) == 4
    assert np.isfinite(pieces[0]).all()
    assert view.polyline([[-5, 0, 0], [-1, 0, 0]]) == []
    assert view.polygon(np.array([[-5, 1, 0], [-5, -1, 0], [-9, 0, 0]])) is None


def test_the_plan_is_drawn_where_the_vehicle_will_be(recording):
    plan = recording.plans[0]
    view, image = front(768, 432), np.zeros((432, 768, 3), np.uint8)
    overlay.draw_plan(image, view, plan, overlay.Motion())
    ahead = view.pixels(view.to_optical([[15, 0, 0], [15, 0.9, 0], [15, 2.5, 0], [15, -2.5, 0]]))
    assert shows(image, draw.CHOSEN, ahead[0])
    assert image[tuple(np.round(ahead[1][::-1]).astype(int))].any()
    assert not image[tuple(np.round(ahead[2][::-1]).astype(int))].any()
    assert not image[tuple(np.round(ahead[3][::-1]).astype(int))].any()
    assert not image[:200].any()   # nothing above the horizon


def test_an_old_plan_is_moved_by_odometry(recording):
    motion = overlay.Motion.between(recording.pose_at(START_NS),
                                    recording.pose_at(START_NS + 3 * TICK_NS))
    np.testing.assert_allclose(motion([[10, 1, 0]]), [[7, 1, 0]], atol=1e-6)


def test_motion_turns_with_the_vehicle():
    left = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]])
    motion = overlay.Motion.between((np.zeros(3), np.eye(3)), (np.array([5.0, 0, 0]), left))
    np.testing.assert_allclose(motion([[5, 3, 0]]), [[3, 0, 0]], atol=1e-9)


def test_a_plan_that_is_not_finite_is_not_drawn(recording):
    broken = recording.plans[0].xyz.copy()
    broken[0, 5] = np.nan
    image = np.zeros((180, 320, 3), np.uint8)
    plan = replace(recording.plans[0], xyz=broken)
    overlay.draw_plan(image, front(), plan, overlay.Motion())
    BirdsEye(64, 64).plan(plan, overlay.Motion())
    assert not image.any()


def test_box_corners_are_those_of_a_turned_box():
    corners = overlay.box_corners([10, 2, 1, 4, 2, 1.5, radians(90)])
    assert corners.min(0) == pytest.approx([9, 0, 0.25])
    assert corners.max(0) == pytest.approx([11, 4, 1.75])


def test_boxes_and_points_are_drawn_where_they_are():
    view, image = front(768, 432), np.zeros((432, 768, 3), np.uint8)
    box = DrawnPrimitive('box_3d', 'car', -1, np.array([[15, 3, 0.75, 4.5, 1.9, 1.5, 0.0]]))
    overlay.draw_boxes(image, view, [box], overlay.Motion(), draw.TRUTH)
    for corner in view.pixels(view.to_optical(overlay.box_corners(box.values[0]))):
        assert shows(image, draw.TRUTH, corner)
    point = DrawnPrimitive('point', 'goal', 1, np.array([[100.0, 50.0], [np.nan, 0.0]]))
    overlay.draw_image_primitives(image, [point], 1, 2.0)
    assert shows(image, draw.DRAWN, (200, 100))
    before = image.copy()
    overlay.draw_image_primitives(image, [point], 6, 2.0)   # another camera's
    assert (image == before).all()


def test_seen_from_above_forward_is_up_and_left_is_left():
    eye = BirdsEye(512, 576, ahead_m=60)
    (x0, y0), (x1, y1), (x2, y2) = eye.pixels([[0, 0], [10, 0], [0, 10]])
    assert x1 == x0 and y0 - y1 == pytest.approx(80)
    assert y2 == y0 and x0 - x2 == pytest.approx(80)


def test_pictures_show_the_plan_of_their_own_frames_or_say_how_old_it_is(recording):
    pictures = DrivePictures(recording)
    assert pictures.plan_at(START_NS + 4 * TICK_NS) == (recording.plans[2], True)
    assert pictures.plan_at(START_NS + 5 * TICK_NS) == (recording.plans[2], False)
    assert pictures.plan_at(START_NS - TICK_NS) == (None, False)
    assert pictures.plan_at(START_NS + 60 * TICK_NS) == (None, False)
    drawn = list(pictures)
    assert [stamp for stamp, _ in drawn] == [START_NS + i * TICK_NS for i in range(12)]
    fresh, old = drawn[4][1], drawn[5][1]
    assert fresh.shape == (720, 1280, 3)
    ahead = (MAIN[0] / 2, MAIN[1] * 0.75)
    assert shows(fresh, draw.CHOSEN, ahead) and not shows(old, draw.CHOSEN, ahead, 0)


def red(picture, rows=slice(300, 430)):
    """Pixels of the colour of warnings in the lower part of the front image."""
    part = picture[rows, :MAIN[0]].astype(int)
    return ((part[..., 0] - part[..., 1] > 60) & (part[..., 0] - part[..., 2] > 60)).sum()


BOX = ('box_2d', 'car', 1, [[100, 60, 180, 110]])
OWN = ('trajectory_2d', 'ego', 1, [[160, 170], [162, 150], [165, 120]])


def test_what_plans_draw_is_in_their_pictures_and_dim_in_the_next(tmp_path):
    drive = Recording(write_recording(tmp_path / 'bag', ticks=8, every=7, primitives=(BOX, OWN)))
    drawn = [picture for _, picture in DrivePictures(drive)]
    scale = MAIN[0] / 320
    corner, start = np.array([100, 60]) * scale, np.array([160, 170]) * scale
    for picture in (drawn[0], drawn[7]):
        assert shows(picture, draw.DRAWN, corner) and shows(picture, draw.OWN_PATH, start)
    assert shows(drawn[3], draw.DIM, corner) and not shows(drawn[3], draw.DRAWN, corner)
    assert not shows(drawn[6], draw.DIM, corner)   # too long ago
    assert DrivePictures(drive).drawing_at(START_NS + 6 * TICK_NS).primitives == ()


def test_the_sheet_shows_plans_that_draw_when_there_are_enough(recording, tmp_path):
    def with_boxes(share):
        plans = [replace(p, primitives=(DrawnPrimitive(*BOX[:3], np.array(BOX[3])),)
                         if i % share == 0 else ()) for i, p in enumerate(many.plans)]
        some = Recording.__new__(Recording)
        some.__dict__.update({**many.__dict__, 'plans': plans})
        return _sheet_ticks(some, some.anchor.stamps_ns)
    many = Recording(write_recording(tmp_path / 'bag', ticks=20))
    assert all(i % 2 == 0 for i in with_boxes(2)) and len(with_boxes(2)) == 8
    assert any(i % 4 for i in with_boxes(4)) and len(with_boxes(4)) == 8


def test_pictures_of_an_untrained_model_say_so(tmp_path, recording):
    untrained = Recording(write_recording(tmp_path / 'bag', ticks=2, trained=False))
    assert red(next(iter(DrivePictures(untrained)))[1]) > 2000
    assert red(next(iter(DrivePictures(recording)))[1]) == 0


def test_one_camera_is_shown_with_the_frames_before(tmp_path):
    single = Recording(write_recording(tmp_path / 'bag', ticks=5, cameras=('front_wide_120',)))
    *_, (_, picture) = DrivePictures(single)
    tiles = picture[MAIN[1] + 20:MAIN[1] + 140, :MAIN[0]].reshape(120, 3, 256, 3)
    assert all(tiles[:, i].mean() > 30 for i in range(3))


def test_images_of_any_shape_fit_a_tile_without_being_stretched():
    tile, scale, (x, y) = fit(np.full((100, 100, 3), 255, np.uint8), 256, 144)
    assert (scale, x, y) == (1.44, 56, 0)
    assert tile[:, 56:200].min() == 255 and tile[:, :56].max() == tile[:, 200:].max() == 0


def test_damaged_images_leave_a_gap_in_the_picture(recording):
    picture = DrivePictures(recording).picture(START_NS, {})
    assert picture.shape == (720, 1280, 3)


def test_the_video_plays_and_lasts_as_long_as_the_drive(tmp_path, recording):
    shown = []
    count = render(recording, tmp_path / 'drive.mp4', tmp_path / 'sheet.png',
                   lambda done, total: shown.append((done, total)))
    assert count == 12 and shown[-1] == (12, 12)
    capture = cv2.VideoCapture(str(tmp_path / 'drive.mp4'))
    assert capture.get(cv2.CAP_PROP_FPS) == 10
    frames = 0
    while capture.read()[0]:
        frames += 1
    assert frames == 12
    sheet = cv2.imread(str(tmp_path / 'sheet.png'))
    assert sheet.shape[1] == 2 * 960 + 18 and sheet.mean() > 20


def test_a_contact_sheet_needs_pictures():
    with pytest.raises(VideoWriteError, match='no pictures'):
        contact_sheet([])


def test_a_video_that_can_not_be_written_is_named(tmp_path, recording):
    (tmp_path / 'drive.mp4').mkdir()
    with pytest.raises(VideoWriteError, match=r'drive\.mp4 can\'t be written'):
        render(recording, tmp_path / 'drive.mp4', tmp_path / 'sheet.png')


@pytest.mark.parametrize('words', ['', 'one', 'slow down because the lead vehicle brakes ' * 3,
                                   'x' * 300, 'Straße – 30 m … “left”'])
def test_text_is_wrapped_into_its_width(words):
    for line in draw.wrap(words, 300, 0.5):
        assert draw.text_width(line, 0.5) <= 300
