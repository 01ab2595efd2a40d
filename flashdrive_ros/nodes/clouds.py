"""Points of others' motion as PointCloud2, for whoever watches or plans with clouds."""
from __future__ import annotations

import array
from collections.abc import Iterable

import numpy as np
from sensor_msgs.msg import PointCloud2, PointField
from std_msgs.msg import Header

try:
    from sensor_msgs_py import point_cloud2
except ImportError:  # not on PyPI
    point_cloud2 = None

from ..core.types import Primitive

EGO = 'ego'
POINT = np.dtype([('x', '<f4'), ('y', '<f4'), ('z', '<f4'), ('track', '<u4'), ('step', '<u4')])
"""Metres; `track` numbers what moves, from 0, and `step` its points in time, from 0."""
_DATATYPES = {'f': PointField.FLOAT32, 'u': PointField.UINT32}
_FIELDS = [PointField(name=name, offset=offset, count=1, datatype=_DATATYPES[kind.kind])
           for name, (kind, offset) in POINT.fields.items()]


def motion_points(primitives: Iterable[Primitive]) -> np.ndarray:
    """Return `POINT` [n]: every visible point of the metric ways that are not the vehicle's."""
    tracks = [np.asarray(p.values, np.float32)[:, :3] for p in primitives
              if p.type == 'trajectory_3d' and p.camera_id is None and p.label != EGO]
    points = np.zeros(sum(map(len, tracks)), POINT)
    if tracks:
        points['x'], points['y'], points['z'] = np.concatenate(tracks).T
        points['track'] = np.repeat(np.arange(len(tracks)), [len(t) for t in tracks])
        points['step'] = np.concatenate([np.arange(len(t)) for t in tracks])
    return points[np.isfinite(points['x']) & np.isfinite(points['y']) & np.isfinite(points['z'])]


def cloud(points: np.ndarray, header: Header) -> PointCloud2:
    """PointCloud2 of `POINT` [n]."""
    if point_cloud2 is not None:
        message = point_cloud2.create_cloud(header, _FIELDS, points)
        message.is_dense = True  # it can't know
        return message
    return PointCloud2(
        header=header, height=1, width=len(points), fields=_FIELDS, is_bigendian=False,
        is_dense=True, point_step=POINT.itemsize, row_step=POINT.itemsize * len(points),
        data=array.array('B', points.tobytes()))
