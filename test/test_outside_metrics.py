"""Scores of NAVSIM and Waymo against numbers worked out by hand from the published formulas."""
import numpy as np
import pytest

from flashdrive_ros.outside.metrics import comfort, pdms, waymo

POINTS = np.arange(1, 21)
STRAIGHT = np.stack([POINTS * 2.5, np.zeros(20)], 1)  # 10 m/s


def moved(path, x, y):
    return path + np.array([x, y])


def drive(speed, seconds=4.0, yaw=0.0):
    way = speed * 0.1 * np.arange(round(seconds * 10) + 1)
    return np.stack([way * np.cos(yaw), way * np.sin(yaw), np.full(len(way), yaw)], 1)


def car(x, y=0.0, speed=0.0, yaw=0.0, agent=True):
    way = x + speed * 0.1 * np.arange(51) * np.cos(yaw)
    side = y + speed * 0.1 * np.arange(51) * np.sin(yaw)
    row = np.ones(51)
    return pdms.Track(np.stack([way, side, row * yaw, row * 4, row * 2], 1), agent)


def test_thresholds_of_the_trust_region_grow_with_speed():
    for speed, scale in ((0, 0.5), (1.4, 0.5), (6.2, 0.75), (11, 1), (30, 1)):
        lateral, longitudinal = waymo.thresholds(speed)
        np.testing.assert_allclose(lateral, np.array([1.0, 1.8]) * scale)
        np.testing.assert_allclose(longitudinal, np.array([4.0, 7.2]) * scale)


def test_inside_the_trust_region_the_score_is_the_raters():
    assert waymo.rater_feedback_score(moved(STRAIGHT, 0, 0.99), [STRAIGHT], [7], 11) == 7
    assert waymo.rater_feedback_score(moved(STRAIGHT, 3.99, 0), [STRAIGHT], [7], 11) == 7


def test_outside_the_score_decays_by_ten_for_each_threshold():
    # 1.5 m aside: 1.5 thresholds at 3 s, inside at 5 s (1.8 m): (10 * 0.1^0.5 + 10) / 2
    score = waymo.rater_feedback_score(moved(STRAIGHT, 0, 1.5), [STRAIGHT], [10], 11)
    assert score == pytest.approx((10 * 0.1 ** 0.5 + 10) / 2)
    # 8 m ahead: 2 thresholds at 3 s, 8/7.2 at 5 s: 10 * (0.1 + 0.1^(1/9)) / 2
    score = waymo.rater_feedback_score(moved(STRAIGHT, 8, 0), [STRAIGHT], [10], 11)
    assert score == pytest.approx(10 * (0.1 + 0.1 ** (1 / 9)) / 2)


def test_outside_every_trust_region_the_score_is_four_at_least():
    assert waymo.rater_feedback_score(moved(STRAIGHT, 0, 50), [STRAIGHT], [10], 11) == 4
    assert waymo.rater_feedback_score(moved(STRAIGHT, 0, 50), [STRAIGHT] * 2, [9, 3], 11) == 4


def test_the_best_rated_path_counts_at_each_time():
    left = moved(STRAIGHT, 0, 3.5)
    assert waymo.rater_feedback_score(STRAIGHT, [left, STRAIGHT], [10, 6], 11) == 6
    assert waymo.rater_feedback_score(left, [left, STRAIGHT], [10, 6], 11) == 10


def test_predictions_count_by_their_probability():
    both = np.stack([STRAIGHT, moved(STRAIGHT, 0, 50)])
    assert waymo.rater_feedback_score(both, [STRAIGHT], [10], 11, [0.75, 0.25]) == 8.5


def test_a_path_that_stands_keeps_its_direction_and_a_short_one_its_end():
    standing = np.zeros((20, 2))
    # direction (1, 0): 3.9 m ahead is 3.9/(0.5 * 4) thresholds at 3 s, 3.9/3.6 at 5 s
    score = waymo.rater_feedback_score(moved(standing, 3.9, 0), [standing], [10], 0)
    assert score == pytest.approx(max(4, 5 * (0.1 ** 0.95 + 0.1 ** (3.9 / 3.6 - 1))))
    assert waymo.rater_feedback_score(standing, [standing[:3]], [10], 0) == 10


def test_displacement_is_against_the_highest_rated_path():
    off = STRAIGHT + np.stack([np.zeros(20), POINTS * 0.1], 1)
    found = waymo.average_displacement(off, [moved(STRAIGHT, 0, 9), STRAIGHT], [3, 8])
    assert found['ade_3s'] == pytest.approx(0.65)    # mean of 0.1 … 1.2
    assert found['ade_5s'] == pytest.approx(1.05)    # mean of 0.1 … 2.0


@pytest.mark.parametrize('change, said', [
    ({'predicted': STRAIGHT[:12]}, r'\[20, 2\]'), ({'scores': [11]}, 'from 0 to 10'),
    ({'scores': []}, '1 rated trajectories with 0'), ({'rated': [], 'scores': []}, '0 rated'),
    ({'predicted': np.stack([STRAIGHT] * 2)}, 'need probabilities')])
def test_wrong_arguments_of_the_score_are_named(change, said):
    with pytest.raises(ValueError, match=said):
        waymo.rater_feedback_score(**{'predicted': STRAIGHT, 'rated': [STRAIGHT], 'scores': [5],
                                      'speed': 5, **change})


def test_driving_into_a_standing_car_is_a_collision_and_a_thing_costs_half():
    assert pdms.no_collision(drive(10), [car(30)]) == 0
    assert pdms.no_collision(drive(10), [car(30, agent=False)]) == 0.5
    assert pdms.no_collision(drive(10), [car(30, y=4)]) == 1
    assert pdms.no_collision(drive(10), [car(60)]) == 1


def test_being_hit_from_behind_or_while_standing_is_not_at_fault():
    assert pdms.no_collision(drive(5), [car(-20, speed=15)]) == 1
    assert pdms.no_collision(drive(0), [car(-20, speed=15)]) == 1


def test_the_front_is_at_fault_and_a_side_only_when_astray():
    assert pdms.no_collision(drive(10), [car(15, speed=4)]) == 0
    crossing = car(0.5, y=-12, speed=8, yaw=np.pi / 2)  # into the side of a slow ego
    assert pdms.no_collision(drive(0.5), [crossing]) == 1
    assert pdms.no_collision(drive(0.5), [crossing], np.ones(41, bool)) == 0


def test_what_touches_at_the_start_is_left_out():
    assert pdms.no_collision(drive(10), [car(2)]) == 1


def test_time_to_collision_looks_up_to_nine_tenths_ahead():
    # front edge at 4.049 + 40 m after 4 s, and 9 m more by the look ahead at 10 m/s
    assert pdms.time_to_collision(drive(10), [car(55.2)]) == 1    # rear edge at 53.2
    assert pdms.time_to_collision(drive(10), [car(54.9)]) == 0    # rear edge at 52.9
    assert pdms.time_to_collision(drive(10), [car(54.9, speed=10)]) == 1
    assert pdms.time_to_collision(drive(0), [car(4.5)]) == 1      # standing


def test_what_is_beside_counts_for_time_to_collision_only_when_astray():
    beside = car(4, y=-6, speed=5, yaw=np.pi / 2)
    assert pdms.time_to_collision(drive(0.5), [beside]) == 1
    assert pdms.time_to_collision(drive(0.5), [beside], np.ones(41, bool)) == 0


def test_progress_is_the_way_along_the_reference():
    line = np.array([[-10, 0], [20, 0], [20, 50]])
    # the middle of the body goes from 1.461 m to where the line turns away, at 20 m
    assert pdms.progress_m(drive(5), line) == pytest.approx(20 - 1.461)
    assert pdms.progress_m(drive(2)[::-1], line) == 0
    assert pdms.ego_progress(15, 20) == 0.75 and pdms.ego_progress(20, 15) == 1
    assert pdms.ego_progress(15, 20, 0.5) == 0.375
    assert pdms.ego_progress(2, 3) == 1 and pdms.ego_progress(2, 3, 0) == 0


def test_scores_are_composed_by_the_published_weights():
    good = {'nc': 1, 'dac': 1, 'ttc': 1, 'ep': 1, 'c': 1}
    assert pdms.pdms(good) == 1
    assert pdms.pdms({**good, 'ep': 0.5, 'c': 0}) == pytest.approx((5 + 2.5) / 12)
    assert pdms.pdms({**good, 'nc': 0.5, 'ttc': 0}) == pytest.approx(0.5 * 7 / 12)
    assert pdms.pdms({**good, 'dac': 0}) == 0
    every = dict.fromkeys((*pdms.EPDMS_FACTORS, *pdms.EPDMS_WEIGHTS), 1)
    assert sum(pdms.EPDMS_WEIGHTS.values()) == 16
    low = {**every, 'ddc': 0.5, 'lk': 0, 'ep': 0.8}
    assert pdms.epdms(low) == pytest.approx(0.5 * (5 + 4 + 0 + 2 + 2) / 16)
    # what the human broke too is forgiven
    assert pdms.epdms(low, {'lk': 0, 'ddc': 0.5}) == pytest.approx(0.5 * (5 + 4 + 2 + 2 + 2) / 16)
    with pytest.raises(ValueError, match='lack tlc'):
        pdms.epdms({n: v for n, v in every.items() if n != 'tlc'})
    with pytest.raises(ValueError, match='ep must be from 0 to 1'):
        pdms.pdms({**good, 'ep': 1.2})


def test_the_mask_of_the_drivable_area_decides():
    assert pdms.drivable_area(np.ones((41, 4))) == 1
    assert pdms.drivable_area([[1, 1, 1, 1], [1, 1, 0, 1]]) == 0


def accelerating(a, v0=5.0, n=41):
    t = 0.1 * np.arange(n)
    return np.stack([v0 * t + a * t * t / 2, 0 * t, 0 * t], 1)


def test_a_steady_acceleration_is_found_and_its_bound_kept():
    found = comfort.motion(accelerating(2.0))
    np.testing.assert_allclose(found['longitudinal_acceleration'][3:-3], 2.0, atol=1e-6)
    assert comfort.comfort(accelerating(2.3)) == 1 and comfort.comfort(accelerating(2.6)) == 0
    assert comfort.comfort(accelerating(-3.9, 20)) == 1
    assert comfort.comfort(accelerating(-4.3, 20)) == 0


def turning(rate, speed, n=41):
    yaw = rate * 0.1 * np.arange(n)
    return np.stack([speed / rate * np.sin(yaw), speed / rate * (1 - np.cos(yaw)), yaw], 1)


def test_turning_is_bounded_by_rate_and_by_lateral_acceleration():
    np.testing.assert_allclose(comfort.motion(turning(0.5, 4))['yaw_rate'], 0.5, atol=1e-9)
    assert comfort.comfort(turning(0.9, 2)) == 1 and comfort.comfort(turning(1.0, 2)) == 0
    assert comfort.comfort(turning(0.4, 11.9)) == 1       # 4.76 m/s^2
    assert comfort.comfort(turning(0.4, 12.5)) == 0       # 5 m/s^2


def test_two_plans_that_differ_are_uncomfortable():
    assert comfort.extended_comfort(accelerating(1.0), accelerating(1.5)) == 1
    assert comfort.extended_comfort(accelerating(1.0), accelerating(1.8)) == 0


def test_a_polynomial_passes_the_filter_unchanged():
    t = np.arange(30.0)
    np.testing.assert_allclose(comfort.smooth(t ** 2, 15, 2), t ** 2, atol=1e-9)
    np.testing.assert_allclose(comfort.smooth(t ** 2, 5, 2, 1), 2 * t, atol=1e-9)
    even = comfort.smooth(t, 8, 2)
    np.testing.assert_allclose(even[4:-4], t[4:-4] + 0.5)    # half a step later
    np.testing.assert_allclose(even[:4], t[:4], atol=1e-12)
