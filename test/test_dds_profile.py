"""The Fast DDS profile for large images, in the Fast DDS that is installed."""
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

PROFILE = Path(__file__).resolve().parent.parent / 'config' / 'large_images.xml'
SPACE = {'dds': 'http://www.eprosima.com'}
SEGMENT = 128 * 2**20

SEND_ONE = """
import array, sys, time
import rclpy
from sensor_msgs.msg import Image
from flashdrive_ros.nodes import qos
rclpy.init()
node = rclpy.create_node('profiled')
heard = []
node.create_subscription(Image, 'large', heard.append, qos.camera())
out = node.create_publisher(Image, 'large', qos.camera())
image = Image(width=1920, height=1080, step=5760, data=array.array('B', bytes(1920 * 1080 * 3)))
end = time.monotonic() + 30
while not heard and time.monotonic() < end:
    if out.get_subscription_count():
        out.publish(image)
    rclpy.spin_once(node, timeout_sec=0.2)
segments = []
for line in open('/proc/self/maps'):
    if '/fast' in line and 'shm' in line:
        first, last = (int(x, 16) for x in line.split()[0].split('-'))
        segments.append(last - first)
print(len(heard[0].data) if heard else 0, max(segments, default=0), flush=True)
rclpy.shutdown()
"""


def value(path):
    return int(ElementTree.parse(PROFILE).getroot().find(f'.//dds:{path}', SPACE).text)


def test_the_profile_holds_several_images_of_the_largest_camera():
    """Field report 12: large images are lost in pieces over the default transports."""
    image = 3840 * 2160 * 3 / 2  # 4K as NV12; in RGB, 1920 x 1080 is half of that
    assert value('maxMessageSize') > image
    assert value('segment_size') == SEGMENT > 4 * 2 * 1920 * 1080 * 3


def test_the_installed_fast_dds_takes_the_profile_and_carries_a_large_image():
    pytest.importorskip('rclpy')
    from rclpy.utilities import get_rmw_implementation_identifier
    if 'fastrtps' not in get_rmw_implementation_identifier():
        pytest.skip('not Fast DDS')
    ran = subprocess.run([sys.executable, '-c', SEND_ONE], capture_output=True, text=True,
                         env={**os.environ, 'FASTDDS_DEFAULT_PROFILES_FILE': str(PROFILE)},
                         timeout=120)
    assert ran.returncode == 0, ran.stderr
    received, segment = map(int, ran.stdout.split())
    assert 'XMLPARSER' not in ran.stderr + ran.stdout
    assert received == 1920 * 1080 * 3 and segment >= SEGMENT
