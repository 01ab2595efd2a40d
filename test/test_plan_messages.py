"""A plan as ROS messages."""
import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from support.plans import make_plan
from visualization_msgs.msg import Marker

from flashdrive_ros.core.types import Primitive
from flashdrive_ros.nodes import messages
from flashdrive_ros.nodes.markers import PlanMarkers

SECOND = 1_000_000_000


def lifetime_s(marker):
    return messages.stamp_ns(marker.lifetime) / SECOND


def test_stamps_and_durations_keep_every_nanosecond():
    for ns in (0, 1, 999_999_999, 1_700_000_000_123_456_789):
        assert messages.stamp_ns(messages.stamp(ns)) == ns
    assert messages.duration(0.1).nanosec == 100_000_000
    assert (messages.duration(6.4).sec, messages.duration(6.4).nanosec) == (6, 400_000_000)


def test_every_part_carries_the_plans_stamp_and_id():
    plan = make_plan(primitives=(box(),))
    m = messages.plan_message(plan, 'base_link')
    parts = [m, *m.trajectories, m.reasoning, m.primitives, *m.primitives.primitives, m.latency]
    assert {messages.stamp_ns(p.header.stamp) for p in parts} == {plan.t0_ns}
    assert {p.plan_id for p in parts} == {plan.plan_id}
    assert {p.header.frame_id for p in parts} == {'base_link'}


def test_points_begin_at_a_tenth_of_a_second_and_hold_the_plans_numbers():
    plan = make_plan(trajectories=3)
    m = messages.plan_message(plan, 'base_link')
    assert len(m.trajectories) == 3 and m.chosen_index == plan.chosen
    for k, trajectory in enumerate(m.trajectories):
        times = [messages.stamp_ns(p.time_from_start) / SECOND for p in trajectory.points]
        assert times == pytest.approx(0.1 * np.arange(1, 65))
        for i in (0, 63):
            p = trajectory.points[i]
            assert (p.pose.position.x, p.pose.position.y) == pytest.approx(plan.xyz[k, i, :2])
            yaw = 2 * np.arctan2(p.pose.orientation.z, p.pose.orientation.w)
            assert yaw == pytest.approx(plan.yaw[k, i])
            assert p.heading_rate == pytest.approx(plan.speed[k, i] * plan.curvature[k, i])
        assert trajectory.score == pytest.approx(plan.scores[k])


def test_stage_times_and_the_age_of_the_frames_are_told():
    plan = make_plan()
    latency = messages.plan_message(
        plan, 'base_link', image_ms=3.5, now_ns=plan.t0_ns + 250_000_000).latency
    assert latency.camera_to_plan_ms == 250.0 and latency.image_ms == 3.5
    assert latency.total_ms == plan.stage_times_ms['total']


def test_path_poses_are_stamped_when_they_are_reached():
    m = messages.plan_message(make_plan(), 'base_link')
    path = messages.path_message(m.trajectories[0])
    start = messages.stamp_ns(m.header.stamp)
    assert messages.stamp_ns(path.header.stamp) == start
    assert [messages.stamp_ns(p.header.stamp) - start for p in path.poses] == [
        (i + 1) * SECOND // 10 for i in range(64)]


def box(**changes):
    return Primitive(**{'type': 'box_3d', 'label': 'car', 'units': 'metre',
                        'values': np.array([[20, 1, 0.8, 4.5, 1.8, 1.6, 0.1]]), **changes})


def test_primitives_in_an_image_are_in_that_cameras_frame():
    drawn = Primitive('box_2d', 'car', np.array([[1, 2, 3, 4], [5, 6, 7, np.nan]]), 'pixel',
                      camera_id=1, confidences=np.array([0.5, 0.25]), token_ids=(7, 8))
    m = messages.plan_message(make_plan(primitives=(drawn,)), 'base_link').primitives.primitives[0]
    assert m.header.frame_id == 'front_wide_120_optical' and m.camera_id == 1
    assert m.dimension == 4 and list(m.values[:7]) == [1, 2, 3, 4, 5, 6, 7]
    assert list(m.confidences) == [0.5, 0.25] and list(m.token_ids) == [7, 8]
    named = messages.plan_message(make_plan(primitives=(drawn,)), 'base_link',
                                  image_frame=lambda camera: f'cam{camera}')
    assert named.primitives.primitives[0].header.frame_id == 'cam1'
    assert messages.plan_message(
        make_plan(primitives=(box(),)), 'x').primitives.primitives[0].camera_id == -1


# ---- markers

def markers_of(maker, plan):
    return maker.of(plan, messages.plan_message(plan, 'base_link')).markers


def test_markers_show_each_trajectory_boxes_and_text():
    plan = make_plan(trajectories=3, primitives=(box(), box()))
    markers = markers_of(PlanMarkers(), plan)
    lines = [m for m in markers if m.ns == 'trajectories']
    assert [m.type for m in lines] == [Marker.LINE_STRIP] * 3
    widths = [m.scale.x for m in lines]
    assert widths.index(max(widths)) == plan.chosen and widths.count(max(widths)) == 1
    assert [m.type for m in markers if m.ns == 'boxes'] == [Marker.CUBE] * 2
    text, = (m for m in markers if m.ns == 'reasoning')
    assert plan.reasoning.text in text.text
    assert all(messages.stamp_ns(m.header.stamp) == plan.t0_ns for m in markers)
    assert all(m.pose.orientation.w != 0 for m in markers)


def test_an_untrained_plan_says_so_in_the_scene():
    def text(trained):
        markers = markers_of(PlanMarkers(), make_plan(trained=trained))
        return next(m.text for m in markers if m.text)
    assert 'UNTRAINED' in text(False) and 'UNTRAINED' not in text(True)


def test_values_out_of_view_are_not_drawn():
    half = box(values=np.array([[np.nan] * 7, [1, 2, 3, 4, 5, 6, 0]]))
    markers = markers_of(PlanMarkers(), make_plan(primitives=(half,)))
    assert len([m for m in markers if m.ns == 'boxes']) == 1


def path(label, *rows):
    return Primitive('trajectory_3d', label, np.array(rows, float), 'metre')


def test_the_own_path_and_the_motions_of_others_are_lines_with_labels():
    plan = make_plan(primitives=(path('ego', (5, 0, 0), (10, 1, 0)),
                                 path('car', (20, 3, 0), [np.nan] * 3, (30, 4, 0)),
                                 path('pedestrian', (8, -4, 0)), path('car', [np.nan] * 3)))
    markers = markers_of(PlanMarkers(), plan)

    def points(ns):
        return [[(p.x, p.y) for p in m.points] for m in markers if m.ns == ns]
    assert points('drawn') == [[(0, 0), (5, 0), (10, 1)]]   # from the vehicle on
    assert points('motion') == [[(20, 3), (30, 4)], [(8, -4)]]
    assert [(m.text, m.pose.position.x) for m in markers if m.ns == 'labels'] == [
        ('car', 20), ('pedestrian', 8)]
    assert len({(m.ns, m.id) for m in markers}) == len(markers)


def test_what_was_drawn_stays_until_the_next_drawing():
    maker = PlanMarkers()
    for i in range(9):   # every third plan draws
        drawn = i % 3 == 0
        plan = make_plan(t0_ns=10 * SECOND + i * SECOND, drawn=drawn,
                         primitives=(box(),) * (2 if i < 6 else 1) if drawn else ())
        markers = markers_of(maker, plan)
        boxes = [m for m in markers if m.ns == 'boxes']
        if not drawn:
            assert boxes == []   # neither again nor deleted
        elif i:
            assert lifetime_s(boxes[0]) >= 2 * 3
    gone = markers_of(maker, make_plan(t0_ns=20 * SECOND, primitives=()))
    assert [(m.ns, m.id) for m in gone if m.action == Marker.DELETE] == [
        ('boxes', 0), ('labels', 0)]


@pytest.mark.parametrize('period_s', [0.1, 0.2, 1.0, 3.0])
def test_markers_live_at_least_two_periods(period_s):
    maker = PlanMarkers()
    for i in range(10):
        plan = make_plan(t0_ns=10 * SECOND + round(i * period_s * SECOND))
        markers = markers_of(maker, plan)
        if i > 1:
            assert all(lifetime_s(m) >= 2 * period_s for m in markers)
    # and go away within a few periods when plans stop
    assert lifetime_s(markers[0]) <= max(5 * period_s, 1.0)


def test_what_a_plan_no_longer_has_is_deleted_by_name():
    maker = PlanMarkers()
    markers_of(maker, make_plan(trajectories=3, primitives=(box(), box())))
    markers = markers_of(maker, make_plan(trajectories=1, primitives=(box(),)))
    deleted = {(m.ns, m.id) for m in markers if m.action == Marker.DELETE}
    assert deleted == {('trajectories', 1), ('trajectories', 2), ('boxes', 1), ('labels', 1)}
    again = markers_of(maker, make_plan(trajectories=1, primitives=(box(),)))
    assert not [m for m in again if m.action == Marker.DELETE]


def test_reset_deletes_all_markers():
    assert [m.action for m in PlanMarkers().reset().markers] == [Marker.DELETEALL]
