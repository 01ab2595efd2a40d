"""Plans in odom or map, cameras on the vehicle, and the frames of both (REP 103, REP 105)."""
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import make_plan

from flashdrive_ros.core.ego import EgoHistory, quaternion_to_matrix
from flashdrive_ros.core.types import InputError
from flashdrive_ros.nodes.annotations import Calibration
from flashdrive_ros.nodes.cameras import camera_mounts
from flashdrive_ros.nodes.fixed_frame import FixedFrame, quaternion
from flashdrive_ros.nodes.messages import plan_message
from flashdrive_ros.recording.calibration import camera_info_of
from flashdrive_ros.view.camera import BODY_OF_OPTICAL, camera_view

LEFT_TURN = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])


def transform(parent, child, xyz, q=(0, 0, 0, 1)):
    """A TFMessage of one transform."""
    named = dict(zip('xyzw', q))
    return SimpleNamespace(transforms=[SimpleNamespace(
        header=SimpleNamespace(frame_id=parent), child_frame_id=child,
        transform=SimpleNamespace(translation=SimpleNamespace(**dict(zip('xyz', xyz))),
                                  rotation=SimpleNamespace(**named)))])


def ego_at(xyz, rot):
    return EgoHistory(0, np.zeros((16, 3)), np.tile(np.eye(3), (16, 1, 1)), np.array(xyz), rot)


def straight():
    xyz = np.zeros((1, 64, 3))
    xyz[..., 0] = np.arange(1, 65)
    plan = make_plan(trajectories=1, xyz=xyz, yaw=np.zeros((1, 64)))
    return plan_message(plan, 'base_link').trajectories[0]


# ---- output in another frame

@pytest.mark.parametrize('name', ['odom', ''])
def test_the_frame_of_the_odometry_needs_no_transform(name):
    moved = FixedFrame(name).pose(ego_at([100, 50, 2], LEFT_TURN), 'odom').place(straight())
    assert moved.header.frame_id == 'odom' and moved.header.stamp == straight().header.stamp
    p, q = moved.points[9].pose.position, moved.points[9].pose.orientation
    assert (p.x, p.y, p.z) == pytest.approx((100, 60, 2))
    assert (q.z, q.w) == pytest.approx((np.sqrt(0.5), np.sqrt(0.5)))
    assert moved.points[9].speed == straight().points[9].speed
    assert moved.points[9].time_from_start == straight().points[9].time_from_start


def test_a_map_frame_is_reached_over_the_newest_transforms_without_waiting():
    """Field report 18: late transforms; nothing blocks, the newest counts."""
    frame = FixedFrame('map')
    ego = ego_at([10, 0, 0], np.eye(3))
    with pytest.raises(InputError, match="no transform from 'odom', the frame of the odometry, "
                                         "to output_frame 'map'"):
        frame.pose(ego, 'odom')
    half = np.sqrt(0.5)
    frame.on_transforms(transform('world', 'odom', (1, 2, 0), (0, 0, half, half)))
    frame.on_transforms(transform('map', 'world', (1000, 0, 0)))
    pose = frame.pose(ego, 'odom')
    assert pose.xyz == pytest.approx([1001, 12, 0]) and pose.rot == pytest.approx(LEFT_TURN)
    frame.on_transforms(transform('map', 'world', (2000, 0, 0)))
    assert frame.pose(ego, 'odom').xyz == pytest.approx([2001, 12, 0])


def test_transforms_in_a_circle_end_in_a_refusal():
    frame = FixedFrame('map')
    frame.on_transforms(transform('a', 'odom', (0, 0, 0)))
    frame.on_transforms(transform('odom', 'a', (0, 0, 0)))
    with pytest.raises(InputError, match='no transform'):
        frame.pose(ego_at([0, 0, 0], np.eye(3)), 'odom')


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(
    lambda q: np.linalg.norm(q) > 0.1))
def test_quaternions_of_any_rotation_give_it_back(q):
    rot = quaternion_to_matrix(np.array(q) / np.linalg.norm(q))
    back = quaternion(rot)
    assert quaternion_to_matrix((back.x, back.y, back.z, back.w)) == pytest.approx(rot, abs=1e-9)
    assert back.w >= 0


# ---- cameras on the vehicle

def info(width=1920, height=1080, roi=(0, 0, 0, 0), binning=(0, 0), fx=1000.0):
    return SimpleNamespace(
        header=SimpleNamespace(frame_id='front_wide_120_optical'), width=width, height=height,
        k=[fx, 0, width / 2, 0, fx, height / 2, 0, 0, 1], distortion_model='plumb_bob', d=[],
        binning_x=binning[0], binning_y=binning[1],
        roi=SimpleNamespace(x_offset=roi[0], y_offset=roi[1], width=roi[2], height=roi[3]))


def test_calibration_follows_a_cropped_image():
    """Issue 7: cropped or resized camera info."""
    found = camera_info_of(info(roi=(200, 100, 1280, 720)))
    assert (found.width, found.height) == (1280, 720)
    assert found.k[:2, 2] == pytest.approx([760, 440]) and found.k[0, 0] == 1000


@pytest.mark.parametrize('roi, size, centre', [
    ((0, 0, 0, 0), (960, 270), (480, 135)), ((200, 100, 1280, 720), (640, 180), (380, 110))])
def test_calibration_follows_binning_and_a_region_with_it(roi, size, centre):
    found = camera_info_of(info(roi=roi, binning=(2, 4)))
    assert (found.width, found.height) == size and found.k[:2, 2] == pytest.approx(centre)
    assert (found.k[0, 0], found.k[1, 1]) == (500, 250)


@pytest.mark.parametrize('size', [(1920, 1080), (960, 540), (640, 480)])
def test_calibration_follows_an_image_that_was_resized_on_its_way(size):
    view = camera_view('front_wide_120', 'front_wide_120_optical', size,
                       {'front_wide_120_optical': camera_info_of(info())}, {})
    assert view.pixels(np.array([[0, 0, 10.0]]))[0] == pytest.approx(np.array(size) / 2)
    assert view.k[0, 0] == pytest.approx(1000 * size[0] / 1920)


def test_a_camera_info_without_calibration_is_none():
    assert camera_info_of(info(fx=0.0)) is None
    assert camera_info_of(info(width=0)) is None


def test_a_camera_frame_that_is_not_optical_is_turned_and_named():
    """REP 103: images are in optical frames, z forward; many drivers give the body's."""
    transforms = {'camera_link': ('base_link', np.eye(3), np.array([1.0, 0, 1.5]))}
    view = camera_view('front_wide_120', 'camera_link', (640, 360), {}, transforms)
    assert view.to_optical([[11.0, 0, 1.5]])[0] == pytest.approx([0, 0, 10])
    assert 'camera_link is not optical' in view.assumed
    transforms = {'camera_optical': ('base_link', BODY_OF_OPTICAL, np.array([1.0, 0, 1.5]))}
    view = camera_view('front_wide_120', 'camera_optical', (640, 360), {}, transforms)
    assert view.to_optical([[11.0, 0, 1.5]])[0] == pytest.approx([0, 0, 10])
    assert 'optical' not in view.assumed


def test_mounts_stand_in_for_transforms_until_those_come():
    """Field report 18: latest static extrinsics, else the parameter."""
    calibration = Calibration('base_link', camera_mounts(['1 2.0 0.5 1.5 0 0 1.5707963']))
    view = calibration.view(1, 640, 360)
    assert view.position == pytest.approx([2, 0.5, 1.5])
    assert view.to_optical([[2, 10.5, 1.5]])[0] == pytest.approx([0, 0, 10], abs=1e-6)
    assert 'mounting' not in view.assumed
    calibration._on_transforms(transform(
        'base_link', 'front_wide_120_optical', (1, 0, 1), (-0.5, 0.5, -0.5, 0.5)))
    assert calibration.view(1, 640, 360).position == pytest.approx([1, 0, 1])
    assert 'nominal mounting' in calibration.view(0, 640, 360).assumed


def test_a_mount_that_looks_down_looks_down():
    rotation, _ = camera_mounts(['1 0 0 0 0 0.1 0'])[1]
    assert rotation[:, 2] == pytest.approx([np.cos(0.1), 0, -np.sin(0.1)])


@pytest.mark.parametrize('entry', ['', '1', '1 0 0 0', '9 0 0 0 0 0 0', 'front 0 0 0 0 0 0',
                                   '1 0 0 0 0 0 nan', '1 0 0 0 0 0 0 0', '1 a 0 0 0 0 0'])
def test_a_mount_that_makes_no_sense_is_refused_by_name(entry):
    with pytest.raises(InputError, match='must be ID X Y Z ROLL PITCH YAW'):
        camera_mounts([entry])
