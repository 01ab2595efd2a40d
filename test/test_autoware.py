"""Plans in Autoware's messages, with classes that rosidl makes of the same fields."""
import math

import numpy as np
import pytest
from support.generated import generate, load
from support.plans import make_plan

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')
pytest.importorskip('rosidl_generator_py')

from flashdrive_ros.nodes import autoware, messages
from flashdrive_ros.nodes.fixed_frame import FixedPose

PLANNING = {
    'TrajectoryPoint': 'builtin_interfaces/Duration time_from_start\ngeometry_msgs/Pose pose\n'
    + ''.join(f'float32 {name}\n' for name in (
        'longitudinal_velocity_mps', 'lateral_velocity_mps', 'acceleration_mps2',
        'heading_rate_rps', 'front_wheel_angle_rad', 'rear_wheel_angle_rad')),
    'Trajectory': 'std_msgs/Header header\nautoware_planning_msgs/TrajectoryPoint[] points\n'}
CANDIDATE = {
    'TrajectoryGeneratorInfo': 'unique_identifier_msgs/UUID generator_id\n'
                               'std_msgs/String generator_name\n',
    'CandidateTrajectory': 'std_msgs/Header header\nunique_identifier_msgs/UUID generator_id\n'
                           'autoware_planning_msgs/TrajectoryPoint[] points\n',
    'CandidateTrajectories':
        'autoware_internal_planning_msgs/CandidateTrajectory[] candidate_trajectories\n'
        'autoware_internal_planning_msgs/TrajectoryGeneratorInfo[] generator_info\n'}
DEBUG = {'StringStamped': 'builtin_interfaces/Time stamp\nstring data\n'}
T0 = make_plan().t0_ns
SECOND = 1_000_000_000


@pytest.fixture(scope='module')
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp('autoware')
    for name, definitions in (('autoware_planning_msgs', PLANNING),
                              ('autoware_internal_planning_msgs', CANDIDATE),
                              ('autoware_internal_debug_msgs', DEBUG)):
        generate(folder, name, definitions)
    return folder


@pytest.fixture
def installed(packages, monkeypatch):
    """Let the node find Autoware's messages."""
    for attribute, name in (('planning', 'autoware_planning_msgs'),
                            ('candidate', 'autoware_internal_planning_msgs'),
                            ('debug', 'autoware_internal_debug_msgs')):
        monkeypatch.setattr(autoware, attribute, load(monkeypatch, packages, name))


def test_without_autoware_there_are_no_such_topics():
    assert autoware.topics() == {}


def test_the_topics_have_autowares_types(installed):
    assert {name: kind.__name__ for name, kind in autoware.topics().items()} == {
        'autoware/trajectory': 'Trajectory', 'autoware/reasoning': 'StringStamped',
        'autoware/candidate_trajectories': 'CandidateTrajectories'}


def test_a_trajectory_bears_the_frames_stamp_and_begins_a_tenth_of_a_second_later(installed):
    plan = make_plan()
    ours = messages.plan_message(plan, 'base_link')
    found = autoware.trajectory(ours.trajectories[plan.chosen])
    assert messages.stamp_ns(found.header.stamp) == T0 and found.header.frame_id == 'base_link'
    assert [messages.stamp_ns(p.time_from_start) / SECOND for p in found.points] == pytest.approx(
        0.1 * np.arange(1, 65))
    point = found.points[9]
    assert point.pose.position.x == pytest.approx(plan.xyz[plan.chosen, 9, 0])
    assert point.longitudinal_velocity_mps == pytest.approx(9.0)
    assert point.heading_rate_rps == pytest.approx(9.0 * 0.02)
    assert point.lateral_velocity_mps == point.acceleration_mps2 == 0.0


def test_candidates_are_all_trajectories_in_the_map_the_chosen_one_first(installed):
    plan = make_plan(trajectories=3)
    ours = messages.plan_message(plan, 'base_link')
    left_turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    found = autoware.candidate_trajectories(
        ours, FixedPose('map', np.array([100.0, 50, 0]), left_turn))
    first = found.candidate_trajectories[0]
    assert len(found.candidate_trajectories) == 3 and first.header.frame_id == 'map'
    assert messages.stamp_ns(first.header.stamp) == T0
    x, y, _ = plan.xyz[plan.chosen, 20]
    assert (first.points[20].pose.position.x, first.points[20].pose.position.y) == pytest.approx(
        (100 - y, 50 + x), abs=1e-3)
    q = first.points[20].pose.orientation
    assert 2 * math.atan2(q.z, q.w) == pytest.approx(math.pi / 2 + plan.yaw[plan.chosen, 20])
    assert found.generator_info[0].generator_name.data == 'flashdrive double'
    assert all((c.generator_id.uuid == found.generator_info[0].generator_id.uuid).all()
               for c in found.candidate_trajectories)
    # our own message is as before
    assert ours.trajectories[plan.chosen].points[20].pose.position.x == pytest.approx(x)


def test_the_text_goes_out_stamped(installed):
    found = autoware.reasoning(messages.plan_message(make_plan(), 'base_link'))
    assert messages.stamp_ns(found.stamp) == T0 and found.data == 'Keep the lane.'
