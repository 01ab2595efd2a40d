"""The example of docs/action_models.md runs, and the page tells the settings as they are."""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from support.plans import make_plan

from flashdrive_ros.core.types import SEGMENTS, PlanFeatures
from flashdrive_ros.msg import PlanFeatures as Message
from flashdrive_ros.nodes import drive_parameters, qos
from flashdrive_ros.nodes.features import features_message

DOCS = Path(__file__).resolve().parent.parent / 'docs'


def test_the_example_has_30_lines_and_hears_a_plan(ros):
    script = DOCS / 'action_model.py'
    assert len(script.read_text().splitlines()) <= 30
    node = ros.create_node('feed')
    child = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True,
                             env={**os.environ, 'RCUTILS_COLORIZED_OUTPUT': '0'})
    features = PlanFeatures(
        np.ones((1, 5, 12), np.float32), (3,), np.arange(5), np.arange(5),
        np.array([0, 0, 1, 2, 255], np.uint8), np.array([1, 1, 1, 0, 1], bool))
    message = features_message(make_plan(features=features), 'base_link')
    publisher = node.create_publisher(Message, 'drive/features', qos.PLAN)
    try:
        end = time.monotonic() + 60
        while not publisher.get_subscription_count() and time.monotonic() < end:
            assert child.poll() is None, child.stderr.read()
            time.sleep(0.1)
        publisher.publish(message)
        line = child.stderr.readline()
        assert 'plan 7: [1, 3, 12] [1, 8, 64]' in line
    finally:
        child.terminate()
        child.wait(10)
        node.destroy_node()


def test_the_page_names_every_setting_and_segment():
    page = (DOCS / 'action_models.md').read_text()
    names = {s.name for s in (*drive_parameters.NODE, *drive_parameters.ENGINE)
             if 'feature' in s.name}
    told = set(re.findall(r'^\| `(\w+)` \|', page, re.MULTILINE))
    assert told == names and len(names) == 6
    assert set(re.findall(r'^\| (\w+) \| (?!tokens)', page, re.MULTILINE)) >= set(SEGMENTS)
