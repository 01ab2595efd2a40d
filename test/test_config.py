"""Shipped YAML files and the RViz view fit the nodes."""
import re
from pathlib import Path

import pytest
import yaml

from flashdrive_ros.core.primitives.requests import PrimitiveRequest
from flashdrive_ros.core.types import CAMERA_NAMES

ROOT = Path(__file__).resolve().parent.parent
def settings(name):
    return yaml.safe_load((ROOT / 'config' / f'{name}.yaml').read_text())['/**']['ros__parameters']


def rviz_displays():
    view = yaml.safe_load((ROOT / 'rviz' / 'drive.rviz').read_text())
    return view['Visualization Manager']['Displays']


def specs_of(name):
    """Return the parameters that a node declares."""
    pytest.importorskip('rclpy')
    pytest.importorskip('flashdrive_ros.msg')
    from flashdrive_ros.nodes import drive_parameters, recording_parameters, world_node
    return {'drive': (*drive_parameters.NODE, *drive_parameters.ENGINE),
            'recorder': recording_parameters.RECORDER, 'replay': recording_parameters.REPLAY,
            'world': world_node.PARAMETERS}[name]


@pytest.mark.parametrize('name', ['drive', 'recorder', 'replay', 'world'])
def test_the_yaml_file_names_every_parameter_with_its_default(name):
    defaults = {spec.name: spec.default for spec in specs_of(name)}
    given = settings(name)
    assert given == {key: defaults[key] for key in given}
    # what has no default that YAML could say (an empty list) stands there as a comment
    text = (ROOT / 'config' / f'{name}.yaml').read_text()
    commented = set(re.findall(r'^ {4}# (\w+): ', text, re.MULTILINE))
    assert set(given) | commented == set(defaults)


def test_what_the_shipped_model_is_asked_to_draw_can_be_asked():
    defaults, given = {s.name: s for s in specs_of('drive')}, settings('small')
    for name, value in given.items():
        assert defaults[name].live and defaults[name].checked(value) == value
    assert all(str(PrimitiveRequest.parse(text)) == text for text in given['primitives'])


def test_rviz_shows_the_cameras_of_the_drive_node():
    shown = [d['Topic']['Value'] for d in rviz_displays() if d['Class'].endswith('/Image')]
    assert shown.pop(0) == '/drive/annotated/front_wide_120/compressed'
    assert shown == [f'/camera/{CAMERA_NAMES[i]}/image_raw/compressed'
                     for i in settings('drive')['camera_ids']]


def test_rviz_shows_what_the_drive_node_publishes():
    pytest.importorskip('rclpy')
    pytest.importorskip('flashdrive_ros.msg')
    from flashdrive_ros.nodes.outputs import TOPICS
    shown = {d['Topic']['Value']: d['Class'] for d in rviz_displays() if 'Topic' in d}
    for topic, display in shown.items():
        if topic.startswith('/drive/') and not topic.startswith('/drive/annotated/'):
            assert TOPICS[topic.removeprefix('/drive/')].__name__ == (
                display.rpartition('/')[2])
    assert {'/drive/path', '/drive/markers'} <= set(shown)
