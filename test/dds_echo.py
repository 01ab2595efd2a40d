"""The other process of test_messages_dds: sends back every message that it hears."""
from contextlib import suppress

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.qos import DurabilityPolicy, QoSProfile

import flashdrive_ros.msg
import flashdrive_ros.srv

QOS = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def types_of(module):
    """Return the interfaces of a generated module by name, without the parts of services."""
    return {name: value for name, value in vars(module).items()
            if isinstance(value, type) and '_' not in name}


def answer(request, response):
    """Return the question as the answer."""
    response.answer, response.success = request.question, True
    response.message = 'echo'
    response.stamp.sec, response.stamp.nanosec = 12, 34
    return response


def main():
    """Echo until told to stop."""
    rclpy.init()
    node = rclpy.create_node('echo')
    for name, kind in types_of(flashdrive_ros.msg).items():
        publisher = node.create_publisher(kind, f'from_echo/{name}', QOS)
        node.create_subscription(kind, f'to_echo/{name}', publisher.publish, QOS)
    node.create_service(flashdrive_ros.srv.AskQuestion, 'ask', answer)
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(node)


if __name__ == '__main__':
    main()
