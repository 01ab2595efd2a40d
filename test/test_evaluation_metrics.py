"""Metrics by hand-computed cases and by what must always hold."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashdrive_ros.core.ego import EgoHistory
from flashdrive_ros.evaluation import intervals
from flashdrive_ros.evaluation.driving import (
    distance_to_path,
    distances,
    plan_deviation,
    relative_progress,
)
from flashdrive_ros.evaluation.errors import errors
from flashdrive_ros.evaluation.windows import constant_velocity, ego_history, stamp_ns

WAY = np.stack((np.arange(1, 65.0), np.zeros(64), np.zeros(64)), 1)


def shifted(*offsets):
    return np.stack([WAY[:, :2] + [0, offset] for offset in offsets])


def test_ade_is_the_mean_of_the_samples_and_min_ade_that_of_the_best():
    found = errors(shifted(3.0, -1.0, 2.0), WAY)
    assert found['ade'] == pytest.approx(2.0) and found['min_ade'] == pytest.approx(1.0)
    assert found['ade_by'] == pytest.approx({'0.5': 2.0, '1': 2.0, '3': 2.0, '5': 2.0})


def test_the_best_sample_is_chosen_over_the_whole_horizon_for_every_horizon():
    early, late = WAY[:, :2].copy(), WAY[:, :2].copy()
    early[:10, 1] += 4.0   # bad at first, then right
    late[10:, 1] += 1.0    # right at first, then a little off
    found = errors(np.stack((early, late)), WAY)
    assert found['min_ade'] == pytest.approx(40 / 64)
    assert found['min_ade_by']['1'] == pytest.approx(4.0)  # of the one that is best in all
    assert found['ade_by']['1'] == pytest.approx(2.0)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6), st.floats(-20, 20))
def test_min_ade_is_never_above_ade_nor_above_that_of_fewer_samples(offsets, more):
    found, with_more = errors(shifted(*offsets), WAY), errors(shifted(*offsets, more), WAY)
    assert found['min_ade'] <= found['ade'] + 1e-9
    assert with_more['min_ade'] <= found['min_ade'] + 1e-9
    assert errors(shifted(0.0, *offsets), WAY)['min_ade'] == 0


def test_distance_to_a_path_is_that_to_its_segments():
    path = [(0, 0), (10, 0), (10, 10)]
    assert distance_to_path((5, 2), path) == pytest.approx(2)
    assert distance_to_path((-3, 4), path) == pytest.approx(5)
    assert distance_to_path((12, 3), path) == pytest.approx(2)
    assert distance_to_path((1, 1), [(4, 5)]) == pytest.approx(5)
    assert distance_to_path((1, 1), [(4, 5), (4, 5)]) == pytest.approx(5)  # who stood still


def test_being_late_on_the_same_way_is_no_distance_to_the_path():
    to_path, to_place = distances([(0, 0), (1, 0), (2, 0)], [(0, 0), (2, 0), (4, 0), (6, 0)])
    assert to_path == pytest.approx([0, 0, 0]) and to_place == pytest.approx([0, 1, 2])


def test_progress_is_a_share_of_the_reference_and_never_more_than_all_of_it():
    assert relative_progress(30, 60) == 0.5 and relative_progress(90, 60) == 1.0
    assert relative_progress(-5, 60) == 0.0 and relative_progress(0, 0.2) == 1.0


def test_a_plan_that_is_followed_does_not_deviate():
    assert plan_deviation(WAY, WAY[1:]) == 0
    assert np.isnan(plan_deviation(WAY[:1], WAY))  # nothing in common


def test_near_waypoints_weigh_more_in_the_deviation_of_plans():
    near, far = WAY[1:].copy(), WAY[1:].copy()
    near[0, 1], far[-1, 1] = 1.0, 1.0
    weights = np.exp(-0.1 * np.arange(63))
    assert plan_deviation(WAY, near) == pytest.approx(1 / weights.sum())
    assert plan_deviation(WAY, far) == pytest.approx(weights[-1] / weights.sum())
    aside = WAY[1:] + np.array([0, 2.0, 0])
    assert plan_deviation(WAY, aside) == pytest.approx(2.0)


def test_wilson_gives_the_textbook_intervals():
    assert intervals.wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
    assert intervals.wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert intervals.wilson(10, 200) == pytest.approx((0.0274, 0.0896), abs=1e-4)
    assert intervals.wilson(0, 0) == (0, 1)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share(numbers):
    hits, trials = numbers
    low, high = intervals.wilson(hits, trials)
    assert 0 <= low <= hits / trials + 1e-12 and hits / trials - 1e-12 <= high <= 1


def test_the_bootstrap_keeps_seeds_together_and_repeats_itself():
    rng = np.random.default_rng(1)
    values = rng.normal(3, 1, 400)
    low, high = intervals.mean(values)
    assert low < values.mean() < high and high - low == pytest.approx(4 * 0.05, rel=0.2)
    assert intervals.mean(values) == (low, high)
    counts = np.full(400, 10.0)  # ten windows a seed that are all alike are worth one
    assert intervals.ratio(values * counts, counts) == pytest.approx((low, high))
    assert intervals.ratio(2 * values, values) == pytest.approx((2, 2))
    assert np.isnan(intervals.mean([])).all()


def test_constant_velocity_goes_straight_on_at_the_last_speed():
    poses = [(0.5 * i, 2.0, 0.0) for i in range(20)]
    plan = constant_velocity(ego_history(poses, 0))
    assert plan[:, 0] == pytest.approx(0.5 * np.arange(1, 65)) and not plan[:, 1:].any()


def test_ego_history_is_in_the_frame_of_the_last_pose():
    poses = [(3.0, 0.1 * i, np.pi / 2) for i in range(16)]
    history = ego_history(poses, 7)
    assert isinstance(history, EgoHistory) and history.t0_ns == 7
    assert history.xyz[:, 0] == pytest.approx(0.1 * np.arange(-15, 1))
    assert np.allclose(history.xyz[:, 1], 0) and np.allclose(history.rot, np.eye(3))


def test_no_two_windows_of_different_seeds_share_a_stamp():
    assert len({stamp_ns(seed, tick) for seed in range(5) for tick in range(500)}) == 2500
