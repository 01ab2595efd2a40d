"""
Other processes of a graph, which may die: a camera, odometry, a listener, floods.

    python -m flashdrive_ros.evaluation.trust.peers camera 1
    python -m flashdrive_ros.evaluation.trust.peers flood odometry
"""
from __future__ import annotations

import os
import sys
import time

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException
from std_msgs.msg import String

from ... import msg
from ...core.types import GRID_NS, NANOSECONDS
from ...nodes import qos
from . import car

FLOOD_HZ = 2000
"""Messages a second, where the machine can make as many."""


def send_for_ever(node, source: int | str):
    """One camera, or odometry, of a healthy car."""
    publisher = car.Car(node, [] if source == 'odometry' else [int(source)])
    begin = car.next_grid_ns()
    while rclpy.ok():
        end = begin + GRID_NS
        publisher.play(car.odometry_events(begin, end) if source == 'odometry'
                       else car.camera_events(begin, end, int(source)))
        begin = end


def listen_for_ever(node):
    """Hear every plan, reliably and slowly."""
    node.create_subscription(msg.DrivePlan, 'drive/plan', lambda _: time.sleep(0.3), 10)
    rclpy.spin(node)


def flood(node, what: str):
    """Send without end; `what` is garbage, images, odometry, text, route or diagnostics."""
    talker = car.Car(node, [0, 1])
    route = node.create_publisher(String, 'route_text', qos.LATCHED)
    diagnostics = node.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
    front, text = talker.publishers[1], 'turn left ' * 50

    def now():
        return car.Event(0, 1, time.time_ns(), car.PICTURE_JPEG)
    send = {
        'garbage': lambda: front.publish(os.urandom(20_000)),
        'images': lambda: front.publish(car.image(now())),
        'odometry': lambda: talker.publishers['odometry'].publish(car.odometry(car.Event(
            0, 'odometry', time.time_ns(),
            car.SPEED * (time.time_ns() % 10 ** 14) / NANOSECONDS))),
        'text': lambda: talker.nav_text.publish(String(data=text)),
        'route': lambda: route.publish(String(data=text)),
        'diagnostics': lambda: diagnostics.publish(DiagnosticArray()),
    }[what]
    due = time.monotonic()
    while rclpy.ok():
        send()
        due = max(due + 1 / FLOOD_HZ, time.monotonic() - 0.01)
        time.sleep(max(0.0, due - time.monotonic()))


def main(arguments: list[str]):
    """Be what the arguments say until ended."""
    rclpy.init()
    node = rclpy.create_node(f'peer_{os.getpid()}', start_parameter_services=False)
    kind, *rest = arguments
    try:
        if kind == 'listener':
            listen_for_ever(node)
        elif kind == 'flood':
            flood(node, *rest)
        else:
            send_for_ever(node, *rest)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == '__main__':
    main(sys.argv[1:])
