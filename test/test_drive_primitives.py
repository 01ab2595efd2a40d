"""What a plan draws, over real DDS: primitives, markers, annotated images, detections."""
import threading
import types

import cv2
import numpy as np
import pytest

rclpy = pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from sensor_msgs.msg import CameraInfo, CompressedImage, PointCloud2  # noqa: E402
from support.drive_rig import MS, T0, jpeg, rig  # noqa: E402
from support.engine_double import EngineDouble  # noqa: E402

from flashdrive_ros.core.types import Primitive  # noqa: E402
from flashdrive_ros.nodes import detections, messages, qos  # noqa: E402
from flashdrive_ros.view import draw  # noqa: E402

SIZE = (320, 180)
ANNOTATED = 'drive/annotated/front_wide_120/compressed'
CAR = Primitive('box_2d', 'car', np.array([[100.0, 60, 180, 110]]), 'pixel', 1,
                np.array([0.9, 0.8, 0.95, 0.7]), 'fallback', (7, 8))
PATH = Primitive('trajectory_2d', 'ego', np.array([[160.0, 170], [np.nan] * 2, [165, 120]]),
                 'pixel', 1, decode_path='direct')
OTHER = Primitive('trajectory_3d', 'car', np.array([[20.0, 3, 0], [30, 3, 0]]), 'metre',
                  decode_path='direct')
BOX = Primitive('box_3d', 'truck', np.array([[20, 1, 0.8, 4.5, 1.8, 1.6, np.pi / 2]]), 'metre')


@pytest.fixture
def engine():
    double = EngineDouble()
    double.primitives = (CAR, PATH, OTHER, BOX)
    double.trained = True
    return double


@pytest.fixture
def drive(engine):
    with rig(lambda model, config: engine) as r:
        r.started()
        yield r


def listen(r, kind, topic):
    """Subscribe to a topic, wait for its publisher, and return what it hears."""
    heard = []
    r.car.node.create_subscription(kind, topic, heard.append, 10)
    assert r.until(lambda: r.drive.count_subscribers(f'/{topic}') > 0)
    return heard


def pixels(message):
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR),
                        cv2.COLOR_BGR2RGB).astype(int)


def has(image, colour, at):
    """True when the colour is around a pixel, as far as JPEG keeps thin lines."""
    x, y = at
    return (np.abs(image[y - 2:y + 3, x - 2:x + 3] - colour).max(-1) < 90).any()


def test_primitives_go_out_with_the_stamp_of_their_image(drive):
    drive.plan_at(0, data=jpeg(size=SIZE))
    assert drive.until(lambda: drive.car.heard['primitives'])
    array = drive.car.heard['primitives'][0]
    assert messages.stamp_ns(array.header.stamp) == T0
    car, path, other, _ = array.primitives
    assert (car.type, car.label, car.camera_id, car.units, car.dimension) == (
        'box_2d', 'car', 1, 'pixel', 4)
    assert car.header.frame_id == 'front_wide_120_optical' and list(car.values) == [
        100, 60, 180, 110]
    assert car.decode_path == 'fallback' and list(car.token_ids) == [7, 8]
    assert np.isnan(path.values[2:4]).all() and np.isfinite(path.values[4:]).all()
    assert other.header.frame_id == 'base_link' and other.camera_id == -1
    assert drive.until(lambda: drive.car.heard['markers'])
    assert {m.ns for m in drive.car.heard['markers'][-1].markers} == {
        'trajectories', 'reasoning', 'boxes', 'motion', 'labels'}


def test_plans_that_were_not_asked_for_primitives_publish_none(drive, engine):
    drive.plan_at(0)
    assert drive.until(lambda: len(drive.car.heard['primitives']) == 1)
    engine.primitives = None
    drive.plan_at(100)
    engine.primitives = ()
    drive.plan_at(200)
    assert drive.until(lambda: len(drive.car.heard['primitives']) == 2)
    assert [(messages.stamp_ns(a.header.stamp) - T0) // MS
            for a in drive.car.heard['primitives']] == [0, 200]
    assert drive.car.heard['primitives'][1].primitives == []


def test_annotated_images_are_the_plans_own_with_its_drawing_on_them(drive):
    heard = listen(drive, CompressedImage, ANNOTATED)
    for ms, red in ((0, 60), (100, 120)):
        drive.plan_at(ms, data=jpeg(red=red, size=SIZE))
        assert drive.until(lambda ms=ms: len(heard) == ms // 100 + 1)
    for message, ms, red in zip(heard, (0, 100), (60, 120)):
        assert messages.stamp_ns(message.header.stamp) == T0 + ms * MS
        assert message.header.frame_id == 'front_wide_120_optical'
        image = pixels(message)
        assert image.shape == (180, 320, 3)
        assert abs(image[80:90, 130:150, 0].mean() - red) < 12   # inside the box: the image
        for at in ((140, 60), (140, 110), (100, 85), (180, 85)):
            assert has(image, draw.DRAWN, at)
        assert has(image, draw.OWN_PATH, (160, 170)) or has(image, draw.OWN_PATH, (165, 120))


def test_nothing_is_drawn_for_nobody(drive, monkeypatch):
    from flashdrive_ros.nodes import annotations
    drawn = []

    def annotate(image, plan, camera_id, view):
        drawn.append((plan.t0_ns, camera_id))
        return image
    monkeypatch.setattr(annotations, 'annotate', annotate)
    drive.plan_at(0)
    assert drive.until(lambda: drive.drive.health.counts['plans'] == 1)
    # a camera of its own: the graph may still hold subscriptions of other tests
    heard = listen(drive, CompressedImage, 'drive/annotated/cross_left_120/compressed')
    drive.plan_at(100)
    assert drive.until(lambda: heard)
    assert [d for d in drawn if d[1] == 0] == [(T0 + 100 * MS, 0)]


def test_published_calibration_is_used_and_names_the_frame(drive):
    publisher = drive.car.node.create_publisher(
        CameraInfo, 'camera/front_wide_120/camera_info', qos.camera('reliable'))
    info = CameraInfo(width=640, height=360, k=[200.0, 0, 320, 0, 200, 180, 0, 0, 1],
                      d=[0.0] * 5, distortion_model='plumb_bob')
    info.header.frame_id = 'mycar_front_optical'
    calibration = drive.drive._outputs.calibration
    assert calibration.view(1, *SIZE).assumed.startswith('a 120 degree lens')
    assert drive.until(publisher.get_subscription_count)
    assert drive.until(lambda: publisher.publish(info) or calibration.frame_id(1) == (
        'mycar_front_optical'))
    view = calibration.view(1, *SIZE)
    assert view.k[0, 0] == 100 and view.assumed == 'nominal mounting (no tf_static)'
    heard = listen(drive, CompressedImage, ANNOTATED)
    drive.plan_at(0, data=jpeg(size=SIZE))
    assert drive.until(lambda: heard and drive.car.heard['primitives'])
    assert heard[0].header.frame_id == 'mycar_front_optical'
    car, *_ = drive.car.heard['primitives'][0].primitives
    assert car.header.frame_id == 'mycar_front_optical'


def test_a_drawing_that_fails_is_reported_and_plans_go_on(drive, monkeypatch):
    from flashdrive_ros.nodes import annotations

    def fail(image, plan, camera_id, view):
        if camera_id == 1:  # the graph may still hold subscriptions of other tests
            raise RuntimeError('no ink')
        return image
    listen(drive, CompressedImage, ANNOTATED)
    with monkeypatch.context() as broken:
        broken.setattr(annotations, 'annotate', fail)
        drive.plan_at(0)
        assert drive.until(lambda: drive.drive.health.counts['annotate'] == 1)
    drive.plan_at(100)


def test_a_closed_node_leaves_no_thread(engine):
    before = set(threading.enumerate())
    with rig(lambda model, config: engine) as r:
        r.started()
        r.plan_at(0)
    assert [t.name for t in set(threading.enumerate()) - before] == []


def test_requests_can_be_changed_while_driving_or_are_refused_with_the_reason(engine):
    from flashdrive_ros.core.primitives.requests import PrimitiveRequest
    configs = []

    def load(model, config):
        configs.append(config)
        return engine

    def configure(**changes):
        for text in changes.get('primitives', ()):
            PrimitiveRequest.parse(text)
        engine.settings |= changes
    engine.configure = configure
    asked = ['boxes:1:car,red light', 'trajectory_2d:1:8']
    with rig(load, parameters={'primitives': asked, 'primitives_every': 3}) as r:
        r.started()
        assert configs[0].primitives == tuple(asked) and configs[0].primitives_every == 3
        assert r.car.set_parameter('primitives', ['motion:6']).successful
        assert engine.settings['primitives'] == ['motion:6']
        refused = r.car.set_parameter('primitives', ['boxes:9:car'])
        assert not refused.successful and "request 'boxes:9:car': camera must be" in refused.reason
        assert r.drive.parameters['primitives'] == ['motion:6']
        assert r.car.set_parameter('primitives', []).successful
        assert engine.settings['primitives'] == [] == r.drive.parameters['primitives']
        assert 'one of auto, ' in r.car.set_parameter('primitive_decoding', 'fast').reason


def test_diagnostics_tell_rounds_and_how_primitives_were_decoded(drive, engine):
    engine.reasoning = {'drafted': 14, 'accepted': 9, 'rounds': 2}
    drive.plan_at(0)
    drive.plan_at(100)
    assert drive.until(lambda: drive.car.values('plan').get('primitives direct') == '4')
    values = drive.car.values('plan')
    assert values['primitives fallback'] == '2' and values['primitives autoregressive'] == '2'
    assert (values['rounds'], values['drafted'], values['accepted']) == ('2', '14', '9')
    assert values['tokens per round'] == '1.5' and values['drafting'] == 'off: no drafter'
    told = drive.car.heard['reasoning_stamped'][-1]
    assert (told.rounds, told.drafted, told.accepted) == (2, 14, 9)


# ---- vision_msgs

def test_motion_of_others_goes_out_as_a_cloud(drive):
    heard = listen(drive, PointCloud2, 'drive/motion')
    drive.plan_at(0)
    assert drive.until(lambda: heard)
    assert heard[0].width == 2 and heard[0].header.frame_id == 'base_link'
    assert messages.stamp_ns(heard[0].header.stamp) == T0


def stand_in():
    """vision_msgs with the fields that boxes have, for machines without it."""
    def kind(**defaults):
        def init(self, **given):
            self.__dict__.update({k: v() for k, v in defaults.items()} | given)
        return type('Message', (), {'__init__': init})
    pose = kind(position=kind(), theta=float)
    return types.SimpleNamespace(
        Detection2D=kind(bbox=kind(center=pose)), Detection2DArray=kind(),
        Detection3D=kind(bbox=kind()), Detection3DArray=kind(),
        ObjectHypothesisWithPose=kind(hypothesis=kind()))


@pytest.mark.parametrize('package', ['installed', 'stand-in'])
def test_boxes_become_detections(package, monkeypatch):
    if package == 'stand-in':
        monkeypatch.setattr(detections, 'vision', stand_in())
    elif not detections.INSTALLED:
        pytest.skip('vision_msgs is not installed')
    header = messages.Header(frame_id='front')
    hidden = Primitive('box_2d', 'car', np.full((1, 4), np.nan), 'pixel', 1)
    elsewhere = Primitive('box_2d', 'car', np.array([[0.0, 0, 1, 1]]), 'pixel', 6)
    found = detections.image_detections((CAR, hidden, elsewhere, BOX, PATH), 1, header)
    one, = found.detections
    assert found.header.frame_id == one.header.frame_id == 'front'
    box = one.bbox
    assert (box.center.position.x, box.center.position.y, box.size_x, box.size_y) == (
        140, 85, 80, 50)
    result, = one.results
    assert result.hypothesis.class_id == 'car' and result.hypothesis.score == pytest.approx(0.7)
    one, = detections.space_detections((CAR, BOX, OTHER), header).detections
    assert (one.bbox.center.position.x, one.bbox.center.position.y) == (20, 1)
    assert (one.bbox.size.x, one.bbox.size.y, one.bbox.size.z) == (4.5, 1.8, 1.6)
    assert one.bbox.center.orientation.z == pytest.approx(np.sqrt(0.5))
    assert one.results[0].hypothesis.score == 1.0


@pytest.mark.skipif(not detections.INSTALLED, reason='vision_msgs is not installed')
def test_detections_go_out_for_each_camera(drive):
    heard = {name: listen(drive, kind, f'drive/{name}') for name, kind in (
        ('detections/front_wide_120', detections.vision.Detection2DArray),
        ('detections/cross_left_120', detections.vision.Detection2DArray),
        ('detections_3d', detections.vision.Detection3DArray))}
    drive.plan_at(0)
    assert drive.until(lambda: all(heard.values()))
    front, left, space = (found[0] for found in heard.values())
    assert [len(a.detections) for a in (front, left, space)] == [1, 0, 1]
    assert {messages.stamp_ns(a.header.stamp) for a in (front, left, space)} == {T0}
    assert [a.header.frame_id for a in (front, left, space)] == [
        'front_wide_120_optical', 'cross_left_120_optical', 'base_link']


def test_without_vision_msgs_there_are_no_such_topics(engine, monkeypatch):
    monkeypatch.setattr(detections, 'INSTALLED', False)
    with rig(lambda model, config: engine) as r:
        r.started()
        r.plan_at(0)
        topics = [p.topic_name for p in r.drive.publishers]
        assert '/drive/plan' in topics and not any('detections' in name for name in topics)
