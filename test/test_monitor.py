"""What the monitor of `flashdrive drive` makes of a ROS graph."""
import time

import pytest
from support.recordings import MESSAGES, START_NS

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.context import Context

from flashdrive_ros.nodes import qos
from flashdrive_ros.nodes.interfaces import message_class
from flashdrive_ros.recording.bag import PLAN_TYPE
from flashdrive_ros.session.monitor import Monitor


@pytest.fixture
def monitor():
    rclpy.init()
    node = Monitor('car')
    yield node
    node.destroy_node()
    rclpy.shutdown()


def failed(name, level=DiagnosticStatus.ERROR):
    return DiagnosticArray(status=[DiagnosticStatus(
        name=name, level=level, message='broken', values=[KeyValue(key='state', value='failed')])])


@pytest.mark.parametrize('name', ['lidar: self test', 'drive: engine', 'car/drive: camera'])
def test_a_drive_goes_on_when_others_say_they_failed(monitor, name):
    monitor._on_diagnostics(failed(name))
    assert monitor.failure == ''


def test_a_model_that_did_not_load_is_a_failure(monitor):
    monitor._on_diagnostics(failed('car/drive: engine'))
    assert monitor.failure == 'car/drive: engine: broken'


def test_a_second_drive_is_told_once(monitor):
    executor = rclpy.executors.SingleThreadedExecutor()
    executor.add_node(monitor)
    context = Context()
    rclpy.init(context=context)
    nodes = [rclpy.create_node('drive', namespace='car', context=context) for _ in 'ab']
    for node in nodes:
        node.create_publisher(message_class(PLAN_TYPE), 'drive/plan', qos.PLAN)
    end = time.monotonic() + 20
    while monitor.count_publishers('drive/plan') < 2:
        assert time.monotonic() < end
        executor.spin_once(timeout_sec=0.1)
    monitor._count_drives()
    monitor._count_drives()
    assert sum('2 nodes publish /car/drive/plan' in alarm for alarm in monitor.new_alarms) == 1
    for node in nodes:
        node.destroy_node()
    rclpy.shutdown(context=context)


def test_the_time_driven_is_that_of_the_frames_without_the_gaps_between_episodes(monitor):
    for time_ms in (0, 100, 200, 2700, 2800):
        monitor._on_plan(MESSAGES.cdr(MESSAGES.plan(START_NS + time_ms * 1_000_000)))
    assert monitor.driven_s == pytest.approx(0.3)
    assert '0.3 s driven, 5 plans' in monitor.line(9.0)
