"""
Whatever comes as images and messages is decoded or refused with `InputError`; nothing else.

A short run here; `bench/fuzz.py` gives the same properties a hundred thousand inputs.
"""
import array
import json
import math
import os
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nav_msgs.msg import Odometry
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from flashdrive_ros.core.types import InputError
from flashdrive_ros.nodes import drive_parameters
from flashdrive_ros.nodes.cameras import header_stamp_ns, transport
from flashdrive_ros.nodes.frames import FrameSelector
from flashdrive_ros.nodes.images import SUPPORTED
from flashdrive_ros.nodes.inputs import StepInputs

INPUTS = int(os.environ.get('FLASHDRIVE_FUZZ_INPUTS', 1200))
COUNTS_FILE = os.environ.get('FLASHDRIVE_FUZZ_COUNTS')
counts = Counter()
T0 = 1_700_000_000_000_000_000
TOPIC = '/camera'


def fuzz(share, **strategies):
    """Run a property on a share of all inputs."""
    def wrap(test):
        return settings(max_examples=max(1, round(share * INPUTS)), deadline=None, database=None,
                        derandomize=INPUTS < 10_000,
                        suppress_health_check=list(HealthCheck))(given(**strategies)(test))
    return wrap


@pytest.fixture(scope='module', autouse=True)
def tell():
    yield
    if COUNTS_FILE:
        Path(COUNTS_FILE).write_text(json.dumps(counts))


def is_rgb(image):
    return image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3


rng = np.random.default_rng(0)
PICTURE = cv2.resize(rng.integers(0, 256, (6, 8, 3), np.uint8), (64, 48))
STORED = [cv2.imencode(kind, picture, options)[1].tobytes() for kind, picture, options in (
    ('.jpg', PICTURE, []), ('.jpg', PICTURE, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
    ('.jpg', PICTURE[..., 0], []), ('.png', PICTURE, []), ('.png', PICTURE[..., 0], []),
    ('.png', PICTURE.astype(np.uint16) << 8, []),
    ('.png', np.dstack((PICTURE, PICTURE[..., :1])), []))]
numbers = st.integers(0, 2 ** 16)


def damaged(whole):
    """Strategy: bytes of `whole` with some changed, cut off, or repeated."""
    changes = st.lists(st.tuples(st.integers(0, max(0, len(whole) - 1)), st.integers(0, 255)),
                       max_size=12)

    def damage(changes, begin, end):
        data = bytearray(whole)
        for at, value in changes:
            data[at] = value
        return bytes(data[begin:end])
    ends = st.one_of(st.just(len(whole)), st.integers(0, len(whole)))
    return st.builds(damage, changes, st.sampled_from([0, 0, 0, 1, 4]), ends)


@fuzz(0.25, data=st.one_of(st.binary(max_size=200), *map(damaged, STORED)),
      name=st.text(max_size=20))
def test_compressed_images_are_decoded_or_refused(data, name):
    counts['compressed image'] += 1
    message = CompressedImage(format=name.replace('\0', ''), data=array.array('B', data))
    try:
        assert is_rgb(transport('compressed').decode(message, TOPIC))
    except InputError as error:
        assert TOPIC in str(error)


@fuzz(0.25, encoding=st.one_of(st.sampled_from(SUPPORTED), st.text(max_size=12)),
      width=st.one_of(st.integers(0, 40), st.integers(0, 2 ** 32 - 1)),
      height=st.one_of(st.integers(0, 40), st.integers(0, 2 ** 32 - 1)),
      step=st.one_of(st.integers(0, 300), st.integers(0, 2 ** 32 - 1)),
      bigendian=st.integers(0, 255), size=st.integers(0, 6000))
def test_raw_images_are_decoded_or_refused(encoding, width, height, step, bigendian, size):
    counts['raw image'] += 1
    message = Image(encoding=encoding.replace('\0', ''), width=width, height=height, step=step,
                    is_bigendian=bigendian, data=array.array('B', bytes(size)))
    try:
        image = transport('raw').decode(message, TOPIC)
    except InputError as error:
        assert TOPIC in str(error)
    else:
        assert is_rgb(image) and image.shape[:2] == (height, width)


WIRE = {kind: serialize_message(message) for kind, message in {
    'raw': Image(encoding='rgb8', width=16, height=16, step=48,
                 data=array.array('B', bytes(16 * 48))),
    'compressed': CompressedImage(format='jpeg', data=array.array('B', STORED[0]))}.items()}


@fuzz(0.2, given_=st.sampled_from(sorted(WIRE)).flatmap(lambda kind: st.tuples(
    st.just(kind), st.one_of(st.binary(max_size=80), damaged(WIRE[kind])))))
def test_bytes_from_the_wire_are_read_or_refused(given_):
    kind, cdr = given_
    counts['serialized image'] += 1
    try:
        header_stamp_ns(cdr)
        assert is_rgb(transport(kind).read(TOPIC, cdr))
    except InputError:
        pass


@fuzz(0.1, cdr=damaged(serialize_message(Odometry())))
def test_serialized_odometry_never_ends_the_process(cdr):
    counts['serialized odometry'] += 1
    try:
        deserialize_message(cdr, Odometry)
    except Exception as error:  # what rclpy raises; the executor's guard takes it
        assert str(error)


stamps = st.one_of(st.integers(-30, 30).map(lambda i: T0 + i * 33_333_333),
                   st.integers(-2 ** 62, 2 ** 62), st.sampled_from([0, T0, T0 + 10 ** 12]))


@fuzz(0.1, events=st.lists(st.tuples(st.sampled_from([0, 1, 2, None]), stamps), max_size=60))
def test_any_order_of_stamps_gives_sets_in_order_and_bounded_memory(events):
    counts['series of stamps'] += 1
    selector = FrameSelector([0, 1, 2])
    for camera, stamp in events:
        if camera is None:
            taken = selector.take(history=3)
            if taken is not None:
                assert set(taken.frames) == {0, 1, 2}
                times = [s.t0_ns for s in (*taken.history, taken)]
                assert times == sorted(set(times))
                assert all(abs(f.stamp_ns - taken.t0_ns) <= selector.tolerance_ns
                           for f in taken.frames.values())
        else:
            selector.add(camera, stamp, None)
    assert sum(len(track.pending) + len(track.foreign)
               for track in selector.tracks.values()) <= 3 * 20


@fuzz(0.05, text=st.text(max_size=700))
def test_any_text_is_used_or_ignored_with_the_reason(text):
    counts['text'] += 1
    inputs = StepInputs(FrameSelector([1]), lambda camera, payload: None)
    message = deserialize_message(serialize_message(String(data=text.encode(
        'utf-8', 'ignore').decode().replace('\0', ''))), String)
    inputs.set_nav_text(message.data)
    assert inputs.nav_text == '' or not inputs.ignored_texts


values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
                   st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=4))


@fuzz(0.05, spec=st.sampled_from((*drive_parameters.NODE, *drive_parameters.ENGINE)), value=values)
def test_any_value_of_a_parameter_is_taken_in_its_kind_or_refused(spec, value):
    counts['parameter'] += 1
    try:
        taken = spec.checked(value)
    except ValueError as error:
        assert spec.name in str(error)
    else:
        if spec.low is not None and spec.kind in ('int', 'float'):
            assert spec.low <= taken <= spec.high and math.isfinite(taken)
