"""Shipped YAML files and the RViz view fit the nodes."""
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from flashdrive_ros.core.types import CAMERA_NAMES

ROOT = Path(__file__).resolve().parent.parent
VIDEO = ROOT / 'test' / 'data' / 'dashcam_highway.mp4'
NODES = {
    'drive': ['drive_node', 'autostart:=false'],
    'recorder': ['recorder', 'bag:={folder}/bag'],
    'replay': ['replay', f'source:={VIDEO}'],
    'world': ['world_node'],
}
"""Executable of each node and the parameters that it needs to stay up."""
STANDARD = ('use_sim_time', 'start_type_description_service', 'qos_overrides.')


def settings(name):
    return yaml.safe_load((ROOT / 'config' / f'{name}.yaml').read_text())['/**']['ros__parameters']


def rviz_displays():
    view = yaml.safe_load((ROOT / 'rviz' / 'drive.rviz').read_text())
    return view['Visualization Manager']['Displays']


def parameters_of(ros, name, arguments, timeout_s=60):
    """Start a node as it is and return what it declares: {name: value}."""
    from rcl_interfaces.srv import GetParameters, ListParameters
    from rclpy.parameter import parameter_value_to_python

    executable, *assignments = arguments
    options = [word for assignment in assignments for word in ('-p', assignment)]
    process = subprocess.Popen(
        [sys.executable, ROOT / 'scripts' / executable, '--ros-args', *options])
    node = ros.create_node('asker')

    def call(kind, service, request):
        client = node.create_client(kind, f'/{name}/{service}')
        end = time.monotonic() + timeout_s
        while not client.wait_for_service(0.2):
            assert process.poll() is None, f'{executable} ended with {process.returncode}'
            assert time.monotonic() < end, f'{executable} did not start'
        future = client.call_async(request)
        ros.spin_until_future_complete(node, future, timeout_sec=timeout_s)
        return future.result()

    try:
        names = call(ListParameters, 'list_parameters', ListParameters.Request()).result.names
        names = [n for n in names if not n.startswith(STANDARD)]
        values = call(GetParameters, 'get_parameters', GetParameters.Request(names=names)).values
    finally:
        node.destroy_node()
        process.terminate()
        process.wait(20)
    return {n: parameter_value_to_python(v) for n, v in zip(names, values, strict=True)}


@pytest.mark.parametrize('name', NODES)
def test_the_yaml_file_names_every_parameter_with_its_default(ros, name, tmp_path):
    arguments = [word.format(folder=tmp_path) for word in NODES[name]]
    declared = parameters_of(ros, name, arguments)
    text = (ROOT / 'config' / f'{name}.yaml').read_text()
    named = set(re.findall(r'^ {4}(?:# )?(\w+): ', text, re.MULTILINE))
    assert named == set(declared)
    given = {word.partition(':=')[0] for word in arguments[1:]}
    defaults = {key: value for key, value in settings(name).items() if key not in given}
    assert {key: declared[key] for key in defaults} == defaults


def test_rviz_shows_the_cameras_of_the_drive_node():
    shown = [d['Topic']['Value'] for d in rviz_displays() if d['Class'].endswith('/Image')]
    assert shown == [f'/camera/{CAMERA_NAMES[i]}/image_raw/compressed'
                     for i in settings('drive')['camera_ids']]


def test_rviz_shows_what_the_drive_node_publishes():
    drive_node = pytest.importorskip('flashdrive_ros.nodes.drive_node')
    shown = {d['Topic']['Value']: d['Class'] for d in rviz_displays() if 'Topic' in d}
    for topic, display in shown.items():
        if topic.startswith('/drive/'):
            assert drive_node.OUTPUTS[topic.removeprefix('/drive/')].__name__ == (
                display.rpartition('/')[2])
    assert {'/drive/path', '/drive/markers'} <= set(shown)
