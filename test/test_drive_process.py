"""The drive node as a process: how it ends, and the shipped model in it."""
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def start(*parameters, node='drive_node'):
    arguments = [a for p in parameters for a in ('-p', p)]
    return subprocess.Popen(
        [sys.executable, '-u', '-m', f'flashdrive_ros.nodes.{node}', '--ros-args', *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return
    pytest.fail(f'{text!r} was never said in:\n{"".join(lines)}')


def end(process, signal_, never=('Traceback', 'terminate called', '[ERROR]')):
    process.send_signal(signal_)
    try:
        output, _ = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f'still running after {signal_!r}')
    for bad in never:
        assert bad not in output
    assert process.returncode == 0, output


@pytest.mark.parametrize('signal_', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_node_that_is_loading(signal_):
    process = start()
    read_until(process, 'loading model')
    end(process, signal_)


@pytest.mark.parametrize('signal_', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_node_whose_model_is_not_there(signal_):
    process = start('model:=no/such/model')
    read_until(process, 'not configured: CheckpointError')
    # the signal may meet the end of the transition, of which rcl then says that it failed
    end(process, signal_, never=('Traceback', 'terminate called'))


def test_a_wrong_parameter_is_said_without_a_traceback():
    process = start('top_p:=7.0')
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert 'top_p' in output and 'Traceback' not in output


def test_an_integer_is_good_enough_for_a_float():
    process = start('timeout_s:=2', 'temperature:=1', 'autostart:=false',
                    'camera_topics:=["a","b","c","d"]')
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
    finally:
        end(process, signal.SIGINT)
