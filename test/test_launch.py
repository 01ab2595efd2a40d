"""The launch file for real: `ros2 launch`, where launch is installed (it is not on PyPI)."""
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip('launch_ros')
pytest.importorskip('ros2launch')

ROOT = Path(__file__).resolve().parent.parent
PARAMETERS = """
/**:
  ros__parameters:
    autostart: false
    seed: 5
"""


@pytest.fixture
def prefix(monkeypatch):
    """Let launch find the package where pip put it, when no workspace is sourced."""
    if 'AMENT_PREFIX_PATH' not in os.environ:
        monkeypatch.setenv('AMENT_PREFIX_PATH', sys.prefix)


@contextlib.contextmanager
def launched(*arguments, log):
    """Run `ros2 launch` as a user does, and end it as Ctrl-C does."""
    command = ['ros2', 'launch', 'flashdrive_ros', 'drive.launch.py', *map(str, arguments)]
    with log.open('w') as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)  # the terminal sends it to all of them
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            print(log.read_text())


def read_parameters(ros, node_name, *names):
    """Ask a node for parameters; waits until it is there."""
    from rcl_interfaces.srv import GetParameters
    from rclpy.parameter import parameter_value_to_python

    node = ros.create_node('asker')
    client = node.create_client(GetParameters, f'{node_name}/get_parameters')
    assert client.wait_for_service(40), f'{node_name} did not start'
    future = client.call_async(GetParameters.Request(names=list(names)))
    ros.spin_until_future_complete(node, future, timeout_sec=20)
    node.destroy_node()
    return [parameter_value_to_python(value) for value in future.result().values]


def test_arguments_reach_the_drive_node_as_written(ros, prefix, tmp_path):
    parameters = tmp_path / 'mine.yaml'
    parameters.write_text(PARAMETERS)
    log = tmp_path / 'log'
    with launched('source:=none', 'namespace:=car', 'model:=007', 'use_sim_time:=true',
                  f'params_file:={parameters}', log=log) as process:
        values = read_parameters(
            ros, '/car/drive', 'model', 'use_sim_time', 'seed', 'camera_ids')
    assert values == ['007', True, 5, [0, 1, 2, 6]]
    assert process.returncode == 0
    assert 'has died' not in log.read_text()


def test_a_video_is_replayed_until_its_end_and_recorded(ros, prefix, tmp_path):
    parameters = tmp_path / 'mine.yaml'
    parameters.write_text(PARAMETERS + '    wait_s: 0.5\n    duration_s: 1.0\n')
    log = tmp_path / 'log'
    video = ROOT / 'test' / 'data' / 'dashcam_highway.mp4'
    with launched(f'source:=video:{video}', f'record:={tmp_path}/on', f'params_file:={parameters}',
                  log=log) as process:
        assert read_parameters(ros, '/drive', 'camera_ids') == [[1]]
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        assert process.poll() == 0
    assert list((tmp_path / 'on').glob('*.mcap'))


@pytest.mark.parametrize(('argument', 'complaint'), [
    ('source:=radar', 'radar: no such file or folder; it must be world, '),
    ('source:=bag:/no/such/bag', "there is no bag '/no/such/bag'"),
    ('params_file:=/no/such.yaml', "there is no file '/no/such.yaml'"),
    ('viewer:=paper', "'rviz'"),
])
def test_a_wrong_argument_is_named(prefix, argument, complaint, tmp_path):
    ended = subprocess.run(
        ['ros2', 'launch', 'flashdrive_ros', 'drive.launch.py', argument],
        capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert complaint in ended.stdout + ended.stderr


def test_rviz_topics_follow_the_namespace(prefix):
    spec = importlib.util.spec_from_file_location('drive', ROOT / 'launch' / 'drive.launch.py')
    drive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drive)
    rviz, = drive.viewer('rviz', 'car')
    assert ('/drive/markers', '/car/drive/markers') in [
        tuple(''.join(part.text for part in side) for side in pair)
        for pair in rviz._Node__remappings]
