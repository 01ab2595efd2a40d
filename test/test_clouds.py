"""Others' motion as PointCloud2."""
import struct

import numpy as np
import pytest

pytest.importorskip('rclpy')

from std_msgs.msg import Header

from flashdrive_ros.core.types import Primitive
from flashdrive_ros.nodes import clouds

WAYS = (
    Primitive('trajectory_3d', 'ego', np.zeros((6, 3)), 'metre'),
    Primitive('trajectory_3d', 'car', np.arange(9.0).reshape(3, 3), 'metre'),
    Primitive('trajectory_2d', 'car', np.zeros((3, 2)), 'pixel', 1),
    Primitive('trajectory_3d', 'pedestrian', np.array([[1, 2, 3], [np.nan] * 3]), 'metre'),
)


def read(cloud):
    """The points as a reader sees them that goes by the message's fields alone."""
    codes = {7: '<f', 6: '<I'}
    return [tuple(struct.unpack_from(codes[f.datatype], bytes(cloud.data),
                                     i * cloud.point_step + f.offset)[0] for f in cloud.fields)
            for i in range(cloud.width * cloud.height)]


def test_visible_points_of_others_have_their_track_and_step():
    cloud = clouds.cloud(clouds.motion_points(WAYS), Header(frame_id='base_link'))
    assert [f.name for f in cloud.fields] == ['x', 'y', 'z', 'track', 'step']
    assert read(cloud) == [(0, 1, 2, 0, 0), (3, 4, 5, 0, 1), (6, 7, 8, 0, 2), (1, 2, 3, 1, 0)]
    assert cloud.header.frame_id == 'base_link' and cloud.is_dense
    assert cloud.row_step == cloud.point_step * cloud.width == len(cloud.data)


def test_no_motion_is_an_empty_cloud():
    cloud = clouds.cloud(clouds.motion_points(WAYS[:1]), Header())
    assert (cloud.width, len(cloud.data)) == (0, 0) and len(cloud.fields) == 5


def test_sensor_msgs_py_and_our_packing_agree(monkeypatch):
    pytest.importorskip('sensor_msgs_py')
    points = clouds.motion_points(WAYS)
    theirs = clouds.cloud(points, Header())
    monkeypatch.setattr(clouds, 'point_cloud2', None)
    ours = clouds.cloud(points, Header())
    assert read(theirs) == read(ours) and theirs.fields == ours.fields
