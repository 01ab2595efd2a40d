"""Topics of other names: the file, the draft of it, and a drive of a bag that needs it."""
import json
import re
from pathlib import Path

import pytest
import yaml
from support.recordings import renamed, write_recording
from test_drive_session import drive as run_drive

from flashdrive_ros.errors import UserError
from flashdrive_ros.session import nodes
from flashdrive_ros.session.topics import TopicMap, draft

ROOT = Path(__file__).parents[1]
FOREIGN = {'/camera/cross_left_120': '/car/fl', '/camera/front_wide_120': '/car/front',
           '/camera/cross_right_120': '/car/camera4', '/camera/front_tele_30': '/car/front_narrow',
           '/odometry': '/localization/kinematic_state'}


@pytest.fixture(scope='module')
def foreign(tmp_path_factory):
    """A bag of 2.5 s with nothing of our names in it."""
    folder = tmp_path_factory.mktemp('foreign')
    return renamed(write_recording(folder / 'ours', ticks=22, plans=False), folder / 'run_7',
                   FOREIGN)


def read(tmp_path, text):
    path = tmp_path / 'topics.yaml'
    path.write_text(text)
    return TopicMap.read(path)


def test_a_draft_names_the_cameras_that_can_be_told_and_keeps_the_rest_as_comments(foreign):
    text = draft(foreign)
    assert yaml.safe_load(text) == {
        'cameras': {'cross_left_120': '/car/fl/image_raw/compressed',
                    'front_wide_120': '/car/front/image_raw/compressed',
                    'front_tele_30': '/car/front_narrow/image_raw/compressed'},
        'odometry': '/localization/kinematic_state'}
    assert '  # which camera?: /car/camera4/image_raw/compressed\n' in text


def test_a_bag_of_other_names_gives_plans_by_its_topics_file_alone(foreign, tmp_path):
    topics = tmp_path / 'my_topics.yaml'
    topics.write_text(draft(foreign).replace('# which camera?', 'cross_right_120'))
    result = run_drive(tmp_path / 'out', '--source', f'bag:{foreign}', '--topics', str(topics),
                       '--rate', '0', '--duration', '0', '--no-pictures')
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / 'out' / 'summary.json').read_text())
    assert summary['windows']['planned_share'] == 1.0 and summary['plans'] >= 5
    assert set(summary['cameras']) == {'cross_left_120', 'front_wide_120', 'cross_right_120',
                                       'front_tele_30'}


def test_live_the_drive_node_listens_to_the_others_names(tmp_path):
    topics = read(tmp_path, 'cameras: {front_wide_120: /car/front/image_raw}\n'
                  'odometry: /odom\ndrive/reasoning: /why\n')
    _, drive = nodes.source_nodes('none', subscribers=1, rate=None, loop=False, topics=topics)
    assert drive.values == {'camera_ids': [1], 'image_transport': 'raw'}
    assert drive.remaps == (
        'camera/front_wide_120/image_raw:=/car/front/image_raw',
        'camera/front_wide_120/camera_info:=/car/front/camera_info', 'odometry:=/odom',
        'drive/reasoning:=/why')
    assert all(nodes.check_remap(rule) for rule in drive.remaps)


def test_from_a_bag_inputs_get_our_names_and_outputs_the_others(foreign, tmp_path):
    topics = read(tmp_path, 'cameras: {front_wide_120: /car/front/image_raw/compressed}\n'
                  'odometry: /localization/kinematic_state\ndrive/reasoning: /why\n')
    replay, drive = nodes.source_nodes(f'bag:{foreign}', subscribers=1, rate=1.0, loop=False,
                                       topics=topics)
    assert replay.values['remap'] == [
        '/car/front/image_raw/compressed:=/camera/front_wide_120/image_raw/compressed',
        '/car/front/camera_info:=/camera/front_wide_120/camera_info',
        '/localization/kinematic_state:=/odometry']
    assert drive.values == {'camera_ids': [1], 'image_transport': 'compressed'}
    assert drive.remaps == ('drive/reasoning:=/why',)


@pytest.mark.parametrize(('text', 'said'), [
    ('cameras: {front: /a}', 'there is no camera front; the cameras are cross_left_120, '),
    ('cameras: {front_wide_120: a b}', "front_wide_120: a b: 'a b' is no topic name"),
    ('cameras: {front_wide_120: 7}', '7 is no topic name'),
    ('cameras: {front_wide_120: /a, front_tele_30: /b/compressed}', 'name one kind'),
    ('- odometry', 'must be a mapping'), ('a: [', 'while parsing'),
])
def test_what_a_topics_file_can_not_say_is_told(tmp_path, text, said):
    with pytest.raises(UserError, match=re.escape(said)):
        read(tmp_path, text)


@pytest.mark.parametrize(('text', 'said'), [
    ('cameras: {front_wide_120: /car/top}', 'no images on /car/top; it has /car/camera4/'),
    ('odometry: /odom', 'the bag has no /odom; its odometry is /localization/kinematic_state'),
])
def test_a_topic_that_the_bag_lacks_is_told_with_what_it_has(foreign, tmp_path, text, said):
    with pytest.raises(UserError, match=re.escape(said)):
        read(tmp_path, text).in_bag(foreign)


def test_the_shipped_file_speaks_the_peers_names():
    topics = nodes.topic_map('alpamayo_autoware')
    assert topics.parameters() == {'camera_ids': [0, 1, 2, 6], 'image_transport': 'compressed'}
    rules = dict(rule.split(':=') for rule in topics.live_rules())
    assert rules['odometry'] == '/localization/kinematic_state'
    assert rules['drive/autoware/trajectory'] == '/alpamayo/predicted_trajectory'
    assert rules['drive/markers'] == '/alpamayo/predicted_trajectory_markers'


def test_the_page_names_shipped_commands_and_parameters():
    page = (ROOT / 'docs' / 'your_topics.md').read_text()
    from flashdrive_ros.cli import make_parser
    for line in re.findall(r'^    flashdrive (.*)$', page, re.M):
        words = line.split('  ')[0].split(' > ')[0].split()
        make_parser().parse_args(words)   # ends the program where it can't
    known = nodes.parameter_names('drive')
    for name in ('flow_steps', 'greedy', 'max_new_tokens', 'camera_ids', 'top_p', 'temperature',
                 'camera_reliability', 'camera_depth', 'gate_max_lateral_acceleration_mps2'):
        assert name in known and name in page
