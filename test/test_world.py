"""The embedded world as a simulation: expert, traffic, causes, tracking."""
import numpy as np
import pytest

from flashdrive_ros.world import EVENTS, Trajectory, World
from flashdrive_ros.world.agents import Signal
from flashdrive_ros.world.expert import Cause
from flashdrive_ros.world.map import RoadShape, RouteBuilder
from flashdrive_ros.world.metrics import overlap, rectangle
from flashdrive_ros.world.reason import CAUSES, describe
from flashdrive_ros.world.scenario import Scenario
from flashdrive_ros.world.stage import Snapshot, things_of
from flashdrive_ros.world.traffic import follow
from flashdrive_ros.world.vehicle import Tracker, VehicleState, from_map, to_map

ROUTE_M = 700.0


def drive(world, seconds):
    """Let the expert drive; the statuses of every 0.1 s."""
    return [world.step(0.1) for _ in range(round(seconds * 10))]


def poses_ahead(world, seconds=6.4):
    """Where the expert will be at 10 Hz, in the ego frame of now; moves the world."""
    start, rows = world.state.pose, []
    for _ in range(round(seconds * 10)):
        world.step(0.1)
        rows.append(world.state.pose)
    return from_map(start, rows)


@pytest.mark.parametrize('seed', range(0, 60, 5))
def test_expert_keeps_to_the_rules_and_to_its_lane(seed):
    world = World(seed, route_length=ROUTE_M)
    errors = []
    for _ in range(200):
        status = world.step(0.1)
        assert not (status.collision or status.off_road or status.red_light
                    or status.wrong_lane), (status, world.scenario.event, world.decision)
        errors.append(abs(world.d - world.expert.offset))
    assert max(errors) < 0.25


@pytest.mark.parametrize('event', sorted(EVENTS))
def test_each_scenario_brings_its_cause(event):
    expected = {
        'free': {'clear_road'}, 'follow': {'lead_slower'}, 'lead_brake': {'lead_braking'},
        'stop_and_go': {'lead_braking', 'lead_stopped'}, 'cut_in': {'cut_in'}, 'curve': {'curve'},
        'light': {'red_light', 'yellow_light'}, 'pedestrian': {'pedestrian'},
    }.get(event, {event})
    seen = []
    for seed in range(4):
        world = World(seed, event, route_length=ROUTE_M)
        names = set()
        for _ in range(200):
            world.step(0.1)
            names.add(world.decision.cause.name)
        seen.append(bool(names & expected))
    assert sum(seen) >= 3, f'{event}: cause seen in {sum(seen)} of 4 episodes'


def test_vehicles_never_overlap():
    for seed in (1, 5, 8):
        world = World(seed, route_length=ROUTE_M)
        for _ in range(150):
            world.step(0.1)
            t = world.director.traffic
            boxes = [rectangle(*pose, *size[:2]) for pose, size in zip(
                t.poses().tolist(), t.sizes.tolist(), strict=True)]
            near = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]
                    if np.abs(a[0] - b[0]).max() < 12]
            assert not any(overlap(a, b) for a, b in near)


def test_following_settles_at_the_model_s_distance():
    gap, speed, lead = 60.0, 14.0, 9.0
    for _ in range(1200):
        speed = max(speed + 0.05 * float(follow(speed, 15.0, gap, lead)), 0)
        gap += 0.05 * (lead - speed)
        assert gap > 3
    expected = (3.0 + 1.5 * lead) / np.sqrt(1 - (lead / 15) ** 4)
    assert abs(gap - expected) < 0.3 and abs(speed - lead) < 0.05


def test_follower_stops_behind_a_vehicle_that_brakes_to_a_standstill():
    gap, speed, lead = 20.0, 13.0, 13.0
    for _ in range(400):
        a = float(follow(speed, 15.0, gap, lead, -6.0 if lead > 0 else 0.0))
        speed = max(speed + 0.05 * a, 0)
        lead = max(lead - 0.05 * 6.0, 0)
        gap += 0.05 * (lead - speed)
    assert 1.0 < gap < 5.0 and speed < 0.3


def test_same_seed_and_steps_give_the_same_numbers():
    a, b = World(7, route_length=ROUTE_M), World(7, route_length=ROUTE_M)
    drive(a, 6), drive(b, 6)
    assert a.state == b.state and a.text == b.text
    assert np.array_equal(a.director.traffic.s, b.director.traffic.s)
    b.reset()
    assert b.time == 0
    drive(b, 6)
    assert a.state == b.state


def test_two_half_steps_equal_one():
    a, b = World(3, route_length=ROUTE_M), World(3, route_length=ROUTE_M)
    for _ in range(30):
        a.step(0.1)
        b.step(0.05), b.step(0.05)
    assert a.state == b.state


def test_a_step_that_is_no_multiple_of_the_substep_is_refused():
    with pytest.raises(ValueError, match=r'dt must be a multiple of 0.05 s, got 0.07'):
        World(0, route_length=ROUTE_M).step(0.07)


@pytest.mark.parametrize('seed, event', [(0, 'curve'), (1, 'light'), (2, 'lead_brake')])
@pytest.mark.parametrize('age_s', [0.0, 0.3])
def test_tracking_the_expert_s_future_reproduces_it(seed, event, age_s):
    teacher = World(seed, event, route_length=ROUTE_M)
    student = World(seed, event, route_length=ROUTE_M)
    drive(teacher, 2), drive(student, 2)
    plan = Trajectory(student.time, poses_ahead(teacher))
    drive(student, age_s)   # the plan comes later than the frames that it was made from
    worst = 0.0
    reference = World(seed, event, route_length=ROUTE_M)
    drive(reference, 2 + age_s)
    for _ in range(round((6.0 - age_s) * 10)):
        student.step(0.1, plan)
        reference.step(0.1)
        worst = max(worst, np.hypot(student.state.x - reference.state.x,
                                    student.state.y - reference.state.y))
    assert worst < 0.06


def test_a_plan_into_the_verge_leaves_the_road_and_is_noticed():
    world = World(4, 'free', route_length=ROUTE_M)
    t = 0.1 * np.arange(1, 65)
    plan = np.stack([8 * t, -2.0 * t, np.full(64, np.arctan2(-2.0, 8))], 1)
    statuses = [world.step(0.1, plan) for _ in range(60)]
    assert any(s.off_road for s in statuses) and world.metrics.left_road


def test_a_plan_into_a_lead_vehicle_collides_and_is_noticed():
    world = World(2, 'follow', route_length=ROUTE_M)
    drive(world, 1)
    for _ in range(12):
        v = world.state.speed + 6.0
        s = world.s + v * 0.1 * np.arange(1, 65)
        x, y, yaw = world.route.pose(s, world.expert.offset)
        plan = from_map(world.state.pose, np.stack([x, y, yaw], 1))
        statuses = [world.step(0.1, plan) for _ in range(10)]
        if any(s.collision for s in statuses):
            break
    assert world.metrics.collided


def test_expert_recovers_the_lane_after_someone_else_drove():
    world = World(0, 'free', route_length=ROUTE_M)
    t = 0.1 * np.arange(1, 65)
    plan = np.stack([9 * t, 0.5 * t, np.full(64, 0.055)], 1)
    for _ in range(20):
        world.step(0.1, plan)
    drive(world, 8)
    assert abs(world.d - world.expert.offset) < 0.05


@pytest.mark.parametrize('points, message', [
    (np.zeros((64, 2)), r'must be \[n, 3\].*\[64, 2\]'),
    (np.full((64, 3), np.nan), 'not finite'),
])
def test_a_trajectory_that_makes_no_sense_is_refused(points, message):
    with pytest.raises(ValueError, match=message):
        World(0, route_length=ROUTE_M).step(0.1, points)


def test_a_trajectory_from_a_forgotten_time_is_refused():
    world = World(0, route_length=ROUTE_M)
    drive(world, 6)
    with pytest.raises(ValueError, match=r'the pose at 0\.50 s is not known'):
        world.step(0.1, Trajectory(0.5, np.zeros((64, 3))))


def test_frames_of_poses_are_inverse():
    pose = (3.0, -2.0, 0.7)
    rows = np.random.default_rng(0).normal(size=(5, 3))
    assert np.allclose(from_map(pose, to_map(pose, rows)), rows)


def test_tracker_stops_when_its_trajectory_is_over():
    state = VehicleState(0, 0, 0, 5.0)
    points = np.stack([0.5 * np.arange(1, 65), np.zeros(64), np.zeros(64)], 1)
    assert Tracker(0.0, (0, 0, 0), points).control(state, 7.0, 0.05) == (-3.0, 0.0)


def test_route_locates_what_it_places():
    rng = np.random.default_rng(5)
    route = (RouteBuilder(RoadShape(), rng).straight(60).curve(40).straight(50).junction('left')
             .straight(80).build())
    for s in np.arange(5.0, route.length - 5, 7.3):
        for d in (-8.0, -1.75, 0.0, 5.25):
            x, y, _ = route.pose(s, d)
            back = route.locate(float(x), float(y), s)
            assert abs(back[0] - s) < 0.1 and abs(back[1] - d) < 0.03


def test_lights_are_never_green_for_both_roads():
    route = RouteBuilder(RoadShape(), np.random.default_rng(0)).straight(60).junction().straight(
        60).build()
    signal = Signal(route.junctions[0], green=10.0, red=15.0, offset=3.0)
    states = [(signal.state(t), signal.cross_state(t)) for t in np.arange(0, 60, 0.1)]
    assert {'red'} <= {a for a, _ in states} and ('green', 'red') in states
    assert ('red', 'green') in states
    assert all('red' in pair for pair in states)
    order = [a for i, (a, _) in enumerate(states) if not i or a != states[i - 1][0]]
    assert all(b == {'green': 'yellow', 'yellow': 'red', 'red': 'green'}[a]
               for a, b in zip(order, order[1:], strict=False))


def test_every_cause_has_words_and_the_numbers_are_in_them():
    for name in CAUSES:
        for a in (-4.0, -1.0, 0.0, 1.0):
            cause = Cause(name, a, 8.0, 17.4, 3.0, 5, 'left')
            for seed in range(6):
                text = describe(cause, np.random.default_rng(seed))
                assert ' because ' in text and '{' not in text and text.endswith('.')
    assert '17 m' in describe(Cause('lead_slower', -1.0, 8.0, 17.4, 3.0, 5))


def test_an_unknown_scenario_is_refused_by_name():
    with pytest.raises(ValueError, match=r"scenario must be one of .*got 'snow'"):
        Scenario.sample(np.random.default_rng(0), 'snow')


@pytest.mark.slow
def test_expert_errs_in_none_of_a_thousand_held_out_episodes():
    faults = []
    for seed in range(10_000, 11_000):
        world = World(seed, route_length=ROUTE_M)
        while world.time < 20 and not world.done:
            world.step(0.1)
        m = world.metrics
        if m.collided or m.left_road or m.ran_red or m.was_wrong:
            faults.append((seed, world.scenario.event, m.collided, m.left_road, m.ran_red))
    assert not faults, faults


def test_a_snapshot_keeps_its_moment_while_the_world_goes_on():
    world = World(seed=4, scenario='cut_in')
    taken, seen = [], []
    for _ in range(60):
        world.step(0.1)
        taken.append(Snapshot(world.director, world.time))
        seen.append(tuple(things_of(world.director, world.time)))
    assert [snapshot.things for snapshot in taken] == seen
    assert len(set(seen)) == len(seen)
