"""Two processes exchange every message and service type over DDS."""
import itertools
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

import dds_echo
from rosidl_parser import definition

from flashdrive_ros import msg, srv

HERE = Path(__file__).resolve().parent
MESSAGES = dds_echo.types_of(msg)


def filled(kind, numbers=None):
    """Return a message in which every field, at every depth, has a value of its own."""
    numbers = numbers or itertools.count(1)
    message = kind()
    for field, slot in zip(message.get_fields_and_field_types(), kind.SLOT_TYPES, strict=True):
        setattr(message, field, value_of(slot, numbers))
    return message


def value_of(slot, numbers):
    if isinstance(slot, definition.Array):
        return [value_of(slot.value_type, numbers) for _ in range(slot.size)]
    if isinstance(slot, definition.AbstractSequence):
        return [value_of(slot.value_type, numbers) for _ in range(3)]
    if isinstance(slot, definition.NamespacedType):
        return filled(getattr(import_module('.'.join(slot.namespaces)), slot.name), numbers)
    number = next(numbers)
    if isinstance(slot, definition.AbstractString):
        return f'text {number} äöü'
    if slot.typename == 'boolean':
        return True
    return number + 0.5 if slot.typename in ('float', 'double') else number % 100


def spin_until(ros, node, done, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not done() and time.monotonic() < end:
        ros.spin_once(node, timeout_sec=0.1)
    return done()


@pytest.fixture
def node(ros):
    """Give a node, while the other process echoes."""
    echo = subprocess.Popen([sys.executable, HERE / 'dds_echo.py'], cwd=HERE)
    node = ros.create_node('tester')
    yield node
    node.destroy_node()
    echo.terminate()
    try:
        echo.wait(10)
    except subprocess.TimeoutExpired:
        echo.kill()


def test_every_interface_file_has_a_generated_type():
    for folder, module in (('msg', msg), ('srv', srv)):
        files = {path.stem for path in (HERE.parent / folder).glob(f'*.{folder}')}
        assert files == set(dds_echo.types_of(module))


def test_every_message_comes_back_equal_from_another_process(ros, node):
    received = {}
    sent = {name: filled(kind) for name, kind in MESSAGES.items()}
    publishers = []
    for name, kind in MESSAGES.items():
        node.create_subscription(kind, f'from_echo/{name}',
                                 lambda m, name=name: received.setdefault(name, m), dds_echo.QOS)
        publishers.append(node.create_publisher(kind, f'to_echo/{name}', dds_echo.QOS))
        publishers[-1].publish(sent[name])
    spin_until(ros, node, lambda: len(received) == len(sent))
    assert set(received) == set(sent)
    for name, message in sent.items():
        assert received[name] == message, name
        assert message != MESSAGES[name](), f'{name} was sent without values'


def test_a_question_is_answered_by_another_process(ros, node):
    client = node.create_client(srv.AskQuestion, 'ask')
    assert spin_until(ros, node, client.service_is_ready)
    future = client.call_async(srv.AskQuestion.Request(question='Why does the car slow down?'))
    assert spin_until(ros, node, future.done)
    response = future.result()
    assert (response.success, response.answer, response.message) == (
        True, 'Why does the car slow down?', 'echo')
    assert (response.stamp.sec, response.stamp.nanosec) == (12, 34)
