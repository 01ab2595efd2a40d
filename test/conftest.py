"""
What all tests share: a ROS domain of their own, and a context when ROS is there.

Every test session talks in a domain that no other session of this machine uses and
that stays on this machine, so that parallel runs never hear each other.
"""
import fcntl
import os
import random
import tempfile
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile('untimed', deadline=None)
hypothesis.settings.load_profile('untimed')

if not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # is read when Triton is imported
DOMAINS = range(20, 100)  # above 101 the ports collide with those of outgoing connections
OVER_DDS = {'test_drive_inputs.py', 'test_drive_node.py', 'test_drive_process.py',
            'test_drive_session.py', 'test_drive_primitives.py', 'test_drive_small_model.py',
            'test_drive_trust.py', 'test_launch.py', 'test_messages_dds.py',
            'test_record_and_replay.py', 'test_topics.py', 'test_world_node.py'}
"""Discovery now and then misses an endpoint of a node that has just begun: these get a second
and a third chance, which the summary counts as `rerun`."""
_locks = []


def pytest_configure(config):
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    os.environ['ROS_DOMAIN_ID'] = str(_free_domain())
    os.environ.pop('RMW_IMPLEMENTATION', None)


def _free_domain():
    """Take a domain; the lock on its file ends with this process."""
    for domain in random.sample(DOMAINS, len(DOMAINS)):
        path = Path(tempfile.gettempdir(), f'flashdrive_ros_test_domain_{domain}')
        lock = path.open('w')
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        _locks.append(lock)
        return domain
    return random.choice(DOMAINS)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in OVER_DDS:
            item.add_marker(pytest.mark.flaky(reruns=2))
    if os.environ.get('FLASHDRIVE_SLOW') != '1':
        for item in items:
            if item.get_closest_marker('slow'):
                item.add_marker(pytest.mark.skip(reason='slow: set FLASHDRIVE_SLOW=1'))


@pytest.fixture
def ros():
    """Give rclpy, initialised; skips where ROS or the generated messages are missing."""
    rclpy = pytest.importorskip('rclpy')
    pytest.importorskip('flashdrive_ros.msg')
    rclpy.init()
    yield rclpy
    rclpy.try_shutdown()


@pytest.fixture(scope='module')
def one_thread():
    """Small matrices: more threads would mostly wait for each other."""
    import torch
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
