"""The shipped RViz configuration, display by display, against the messages of the real node."""
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

rclpy = pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from nav_msgs.msg import Path as PathMessage  # noqa: E402
from rclpy.qos import (  # noqa: E402
    DurabilityPolicy,
    HistoryPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)
from sensor_msgs.msg import CompressedImage, Image, PointCloud2  # noqa: E402
from support.drive_rig import jpeg, rig  # noqa: E402
from support.engine_double import EngineDouble  # noqa: E402
from visualization_msgs.msg import Marker, MarkerArray  # noqa: E402

from flashdrive_ros.core.types import Primitive  # noqa: E402
from flashdrive_ros.world.cameras import default_rig  # noqa: E402

FILES = sorted((Path(__file__).parents[1] / 'rviz').glob('*.rviz'))
CAMERAS = (0, 1, 2, 6)
LISTENERS = {'Path': PathMessage, 'MarkerArray': MarkerArray, 'PointCloud2': PointCloud2}
"""What a display of this class subscribes to; an image display goes by the topic's ending."""
WITHOUT_TOPIC = {'Grid', 'Axes'}
DRAWN = (
    Primitive('box_3d', 'truck', np.array([[20, 1, 0.8, 4.5, 1.8, 1.6, 0.1]]), 'metre'),
    Primitive('trajectory_3d', 'ego', np.array([[5.0, 0, 0], [10, 0, 0]]), 'metre'),
    Primitive('trajectory_3d', 'car', np.array([[20.0, 3, 0], [30, 3, 0]]), 'metre'))


@dataclass(frozen=True)
class Display:
    """One display that shows a topic."""

    name: str
    topic: str
    kind: type
    qos: QoSProfile
    settings: dict


def displays(file):
    """Every display of a configuration that has a topic."""
    found = []
    for d in yaml.safe_load(file.read_text())['Visualization Manager']['Displays']:
        shown = d['Class'].removeprefix('rviz_default_plugins/')
        if 'Topic' not in d:
            assert shown in WITHOUT_TOPIC, f'{d["Name"]} shows nothing'
            continue
        topic = d['Topic']
        kind = LISTENERS.get(shown) or (
            CompressedImage if topic['Value'].endswith('/compressed') else Image)
        assert shown in (*LISTENERS, 'Image'), f'{d["Name"]}: {shown} is not known here'
        found.append(Display(d['Name'], topic['Value'], kind, QoSProfile(
            history=HistoryPolicy.KEEP_LAST, depth=topic['Depth'],
            reliability=ReliabilityPolicy[topic['Reliability Policy'].upper().replace(' ', '_')],
            durability=DurabilityPolicy[topic['Durability Policy'].upper().replace(' ', '_')]), d))
    return found


@pytest.fixture(scope='module', params=FILES, ids=lambda f: f.name)
def shown(request):
    """A configuration, and what each of its displays heard of one plan."""
    engine = EngineDouble()
    engine.primitives, engine.trained = DRAWN, True
    wanted = displays(request.param)
    with rig(lambda model, config: engine, cameras=CAMERAS) as r:
        heard = {}
        for d in wanted:
            heard[d.name] = []
            r.car.node.create_subscription(d.kind, d.topic, heard[d.name].append, d.qos)
        r.started()
        assert r.until(lambda: all(r.car.node.count_publishers(d.topic) for d in wanted)), [
            d.topic for d in wanted if not r.car.node.count_publishers(d.topic)]
        offers = {d.name: [(p.topic_type, p.qos_profile) for p in
                           r.car.node.get_publishers_info_by_topic(d.topic)] for d in wanted}
        for ms in range(0, 2000, 100):   # discovery of the last subscription takes its time
            r.plan_at(ms, data=jpeg(size=(320, 180)))
            if all(heard.values()):
                break
        yield yaml.safe_load(request.param.read_text()), wanted, heard, offers


def test_there_is_a_configuration():
    assert FILES


def test_every_display_hears_the_real_node(shown):
    _, wanted, heard, _ = shown
    assert [d.name for d in wanted if not heard[d.name]] == []


def test_every_display_asks_for_what_is_published(shown):
    _, wanted, _, offers = shown
    for d in wanted:
        package, _, name = d.kind.__module__.partition('.msg')[0], '', d.kind.__name__
        for kind, offered in offers[d.name]:
            assert kind == f'{package}/msg/{name}', d.topic
            fits, why = qos_check_compatible(offered, d.qos)
            assert fits != QoSCompatibility.ERROR, f'{d.topic}: {why}'


def test_what_is_shown_is_in_the_fixed_frame_and_needs_no_transforms(shown):
    settings, wanted, heard, _ = shown
    fixed = settings['Visualization Manager']['Global Options']['Fixed Frame']
    for d in wanted:
        if d.kind is MarkerArray:
            frames = {m.header.frame_id for a in heard[d.name] for m in a.markers
                      if m.action == Marker.ADD}
        elif d.kind in (CompressedImage, Image):
            continue   # shown flat
        else:
            frames = {m.header.frame_id for m in heard[d.name]}
        assert frames == {fixed}, d.name


def test_the_namespaces_of_markers_are_those_that_are_published(shown):
    _, wanted, heard, _ = shown
    listed = {ns: on for d in wanted for ns, on in d.settings.get('Namespaces', {}).items()}
    published = {m.ns for d in wanted if d.kind is MarkerArray for a in heard[d.name]
                 for m in a.markers if m.action == Marker.ADD}
    assert published == set(listed) and all(listed.values())


def test_the_coloured_channel_of_clouds_is_one_of_theirs(shown):
    _, wanted, heard, _ = shown
    for d in wanted:
        if d.kind is PointCloud2:
            for message in heard[d.name]:
                assert d.settings['Channel Name'] in {f.name for f in message.fields}
                assert message.width == 2


def test_the_cameras_shown_are_those_of_the_world_and_of_the_node(shown):
    _, wanted, _, _ = shown
    raw = {d.topic.split('/')[2] for d in wanted if d.topic.startswith('/camera/')}
    assert raw == {default_rig()[c].name for c in CAMERAS}
