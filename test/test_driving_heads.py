"""Heads for driving: shapes, masks, sampling, driven plans, their score, and training."""
import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from flashdrive_ros.core.config import CheckpointError
from flashdrive_ros.heads import scoring
from flashdrive_ros.heads.diffusion import Schedule, log_likelihoods, sample
from flashdrive_ros.heads.head import DrivingHead, Scales, new_head, resampled, times_of
from flashdrive_ros.heads.interpolation import dense
from flashdrive_ros.heads.network import HeadConfig
from flashdrive_ros.heads.settings import HeadSettings
from flashdrive_ros.heads.status import COMMANDS, command_of, status_of
from flashdrive_ros.heads.surroundings import (
    AGENTS,
    BEHIND_M,
    FAR_M,
    HORIZON,
    JUNCTIONS,
    ROAD,
    ROAD_STEP_M,
    Surroundings,
)
from flashdrive_ros.heads.tracking import drive_plans
from flashdrive_ros.heads.trainer import HeadTrainer, advantages
from flashdrive_ros.heads.windows import Windows, joined
from flashdrive_ros.world.vehicle import LENGTH_M, MIDDLE_M, Tracker, VehicleState

CHANNELS = 16
SPEED = 8.0


def straight_road(batch=1):
    """An empty straight road with a kerb 4 m to both sides; the expert drives at 8 m/s."""
    agents = np.zeros((HORIZON + 1, AGENTS, 5))
    agents[..., :2], agents[..., 3:] = FAR_M, 1.0
    arc = ROAD_STEP_M * np.arange(ROAD) - BEHIND_M
    road = np.stack((arc, 0 * arc, 0 * arc, 0 * arc), 1)
    junctions = np.full((JUNCTIONS, 6), FAR_M)
    one = Surroundings(agents, road, np.float64(4.0), junctions,
                       np.zeros((HORIZON + 1, JUNCTIONS), bool),
                       BEHIND_M + SPEED * 0.1 * np.arange(HORIZON + 1))
    return Surroundings.stack([one] * batch)


def going(speed, rows=64, aside=0.0):
    """A straight plan [1, rows, 3] at a speed that drifts `aside` by its end."""
    plan = np.zeros((1, rows, 3))
    plan[0, :, 0] = speed * 0.1 * np.arange(1, rows + 1)
    plan[0, :, 1] = aside * np.arange(1, rows + 1) / rows
    return plan


def rated(plan, around, speed=SPEED):
    return scoring.score(plan, np.array([speed]), np.zeros(1), around)


def toy_windows(count=24, tokens=6, seed=0):
    """Windows whose first feature says how fast they will be."""
    rng = np.random.default_rng(seed)
    gain = rng.uniform(-1, 1, count)
    states = rng.normal(0, 0.1, (count, tokens, CHANNELS)).astype(np.float16)
    states[:, :, 0] = gain[:, None]
    t = 0.1 * np.arange(1, 65)
    future = np.zeros((count, 64, 3), np.float32)
    future[..., 0] = SPEED * t + 0.5 * gain[:, None] * t ** 2
    history = np.zeros((count, 16, 3), np.float32)
    history[..., 0] = SPEED * 0.1 * np.arange(-15, 1)
    return Windows(states, np.tile(np.uint8([0, 0, 1, 1, 2, 3]), (count, 1)), history, future,
                   np.ones(count, np.int64), np.full((count, 64, 3), np.nan, np.float32),
                   np.arange(count), np.arange(count), straight_road(count))


@pytest.fixture(scope='module')
def head():
    windows = toy_windows()
    made = new_head(HeadConfig('plan', CHANNELS, hidden=32, blocks=2),
                    Scales.fit(windows.history, windows.command, windows.future))
    with torch.no_grad():  # its last layers begin at zero
        for name, p in made.network.named_parameters():
            if 'steer' in name or name.startswith('out'):
                torch.nn.init.normal_(p, 0, 0.2, generator=torch.Generator().manual_seed(1))
    made.network.eval()
    return made


def conditions_of(head, windows):
    return head.conditions(windows.states, np.ones(windows.segments.shape, bool),
                           windows.history, windows.command)


def settings(tmp_path, **changed):
    return HeadSettings(**{'steps': 20, 'minutes': 0.0, 'batch': 12, 'noises': 4, 'ema': 0.9,
                           'out': str(tmp_path / 'head'), **changed})


@pytest.mark.parametrize('points, seconds', [(8, 4.0), (20, 5.0), (64, 6.4)])
def test_one_head_gives_every_layout_of_waypoints(head, points, seconds):
    plan = head.plan(conditions_of(head, toy_windows(3)), points, samples=2)
    assert plan.shape == (3, 2, points, 3)
    assert np.isfinite(plan).all()
    assert times_of(points)[-1] == pytest.approx(seconds)
    with pytest.raises(ValueError, match='waypoints must be one of 8, 20, 64, got 9'):
        head.plan(conditions_of(head, toy_windows(1)), 9)


def test_shipped_size_stays_below_two_million_parameters():
    made = new_head(HeadConfig(), Scales.fit(*(getattr(toy_windows(), n) for n in (
        'history', 'command', 'future'))))
    assert sum(p.numel() for p in made.network.parameters()) < 2e6


def test_hidden_tokens_do_not_change_a_plan(head):
    windows = toy_windows(2)
    mask = np.ones((2, 6), bool)
    mask[0, 3:] = False
    poisoned = windows.states.copy()
    poisoned[0, 3:] = 500.0
    plans = [head.plan(head.conditions(s, mask, windows.history, windows.command))
             for s in (windows.states, poisoned)]
    np.testing.assert_array_equal(*plans)
    alone = head.conditions([windows.states[0, :3]], None, windows.history[:1],
                            windows.command[:1])
    np.testing.assert_allclose(head.plan(alone)[0], _plan_of_first(head, windows, mask),
                               atol=1e-4)


def _plan_of_first(head, windows, mask):
    first = head.conditions(windows.states[:1], mask[:1], windows.history[:1],
                            windows.command[:1])
    return head.plan(first)[0]


def test_visible_tokens_change_a_plan(head):
    windows = toy_windows(2)
    changed = replace(windows, states=windows.states + np.float16(1))
    a, b = (head.plan(conditions_of(head, w)) for w in (windows, changed))
    assert np.abs(a - b).max() > 1e-3


def test_same_seed_gives_the_same_plan_and_another_one_another(head):
    seen = conditions_of(head, toy_windows(2))
    np.testing.assert_array_equal(head.plan(seen, seed=3), head.plan(seen, seed=3))
    assert np.abs(head.plan(seen, seed=3) - head.plan(seen, seed=4)).max() > 1e-3


def test_saved_head_plans_as_before_up_to_half_precision(head, tmp_path):
    head.save(tmp_path)
    seen = conditions_of(head, toy_windows(2))
    again = DrivingHead.load(tmp_path)
    np.testing.assert_allclose(again.plan(seen), head.plan(seen), atol=0.05)
    (tmp_path / 'model.safetensors').unlink()
    with pytest.raises(CheckpointError, match='holds no driving head'):
        DrivingHead.load(tmp_path)


def test_exact_denoiser_recovers_what_was_clean():
    clean = torch.randn(2, 3, 8, 3, generator=torch.Generator().manual_seed(0))
    schedule = Schedule(100, 5)
    for eta in (0.0, 1.0):
        found = sample(lambda x, t: clean, torch.randn(clean.shape), schedule, eta)
        torch.testing.assert_close(found.clean, clean, atol=1e-5, rtol=0)
    noise = torch.randn(clean.shape)
    at = torch.full((2, 3), 100)
    noised = schedule.noised(clean, at, noise)
    assert float(schedule.signal[100]) < 1e-3
    torch.testing.assert_close(noised, noise, atol=0.05, rtol=0.05)


def test_likelihood_of_a_chain_is_that_of_its_draws():
    schedule = Schedule(100, 5)

    def half(x, t):
        return 0.5 * x

    chain = sample(half, torch.randn(4, 2, 8, 3, generator=torch.Generator().manual_seed(0)),
                   schedule, 1.0, torch.Generator().manual_seed(1))
    found = log_likelihoods(half, chain, schedule)
    assert len(found) == 4  # the last step is not drawn
    for values in found:  # squares of unit normals, halved
        assert values.mean() == pytest.approx(-0.5, abs=0.15)


def test_plans_are_driven_as_the_world_drives_them():
    rng = np.random.default_rng(0)
    t = 0.1 * np.arange(1, 65)
    plans, states = [], []
    for _ in range(4):
        speed, change, bend = rng.uniform(2, 12), rng.uniform(-3, 2), rng.uniform(-.03, .03)
        v = np.maximum(speed + change * t, 0)
        s = np.cumsum(v) * 0.1
        plans.append(np.stack((np.sin(bend * s) / bend, (1 - np.cos(bend * s)) / bend,
                               bend * s), 1))
        states.append(VehicleState(0.0, 0.0, 0.0, speed, 0.0, 0.0))
    driven = drive_plans(np.array(plans), np.array([s.speed for s in states]), np.zeros(4), 40)
    for b, state in enumerate(states):
        tracker = Tracker(0.0, (0.0, 0.0, 0.0), plans[b])
        for substep in range(80):
            state = state.advance(*tracker.control(state, substep * 0.05, 0.05), 0.05)
        np.testing.assert_allclose(driven.poses[b, 40], state.pose, atol=1e-8)
        assert driven.speeds[b, 40] == pytest.approx(state.speed, abs=1e-8)


def test_good_plan_scores_one():
    found = rated(going(SPEED), straight_road())
    for field in fields(found):
        assert getattr(found, field.name)[0] == pytest.approx(1.0), field.name
    assert found.total[0] == pytest.approx(1.0)


def test_half_the_way_costs_half_of_the_progress():
    found = rated(going(SPEED / 2), straight_road(), SPEED / 2)
    assert found.progress[0] == pytest.approx(0.5, abs=0.01)
    assert found.total[0] == pytest.approx((5 + 5 * found.progress[0] + 2) / 12)


def with_car(x, speed=0.0, y=0.0):
    around = straight_road()
    around.agents[0, :, 0, 0] = x + speed * 0.1 * np.arange(HORIZON + 1)
    around.agents[0, :, 0, 1:] = y, 0.0, 4.5, 1.84
    return around


def test_running_into_a_standing_car_scores_nothing():
    found = rated(going(SPEED), with_car(25.0))
    assert found.no_collision[0] == 0 and found.total[0] == 0


def test_being_hit_from_behind_is_no_fault():
    found = rated(going(SPEED / 2), with_car(-12.0, SPEED), SPEED / 2)
    assert found.no_collision[0] == 1


def test_stopping_short_is_no_collision_but_too_late():
    reach = SPEED * 4.0 + MIDDLE_M + LENGTH_M / 2
    found = rated(going(SPEED), with_car(reach + 2.25 + 2.0))
    assert found.no_collision[0] == 1 and found.ttc[0] == 0
    assert found.total[0] == pytest.approx(7 / 12)


def test_leaving_the_road_scores_nothing():
    assert rated(going(SPEED, aside=8.0), straight_road()).on_road[0] == 0
    assert rated(going(SPEED, aside=1.0), straight_road()).on_road[0] == 1


def test_red_light_counts_while_it_is_red():
    around = straight_road()
    around.junctions[0, 0] = 20.0, 0.0, 0.0, 10.0, BEHIND_M + 10.0, BEHIND_M + 30.0
    assert rated(going(SPEED), around).no_red_light[0] == 1
    around.red[0, :, 0] = True
    assert rated(going(SPEED), around).no_red_light[0] == 0
    assert rated(going(0.5), around, 0.5).no_red_light[0] == 1


def test_hard_braking_is_uncomfortable():
    plan = going(SPEED)
    t = 0.1 * np.arange(1, 65)
    plan[0, :, 0] = np.where(t < 1, SPEED * t - 4 * t ** 2, SPEED - 4)
    found = rated(plan, straight_road())
    assert found.comfort[0] == 0


def test_rectangles_overlap_by_separating_axes():
    a = np.array([0.0, 0.0, 0.0, 4.0, 2.0])
    turned = np.array([2.6, 1.6, np.pi / 4, 2.0, 2.0])
    assert scoring.overlap(a, np.array([3.9, 0.0, 0.0, 4.0, 2.0]))
    assert not scoring.overlap(a, np.array([4.1, 0.0, 0.0, 4.0, 2.0]))
    assert scoring.overlap(a, turned)
    assert not scoring.overlap(a, np.add(turned, [0.6, 0.6, 0, 0, 0]))


def test_spline_passes_through_the_waypoints_and_keeps_the_speed():
    waypoints = resampled(going(SPEED)[:, :64], 8)
    rows = dense(waypoints, np.array([SPEED]), np.zeros(1))
    np.testing.assert_allclose(rows[0, 4::5, 0], waypoints[0, :, 0], atol=1e-9)
    np.testing.assert_allclose(np.diff(rows[0, :, 0]), SPEED * 0.1, atol=1e-9)


def test_status_says_command_velocity_and_acceleration():
    t = np.arange(-15, 1) * 0.1
    history = np.zeros((16, 3))
    history[:, 0] = SPEED * t + 0.5 * 2.0 * t ** 2
    past, status = status_of(history, COMMANDS.index('left'))
    assert past.shape == (12,) and status[:4].tolist() == [1, 0, 0, 0]
    assert status[4] == pytest.approx(SPEED, abs=0.15)
    assert status[6] == pytest.approx(2.0, abs=1e-5)
    assert [COMMANDS[command_of(text)] for text in (
        'Limit 50 km/h. Turn left in 40 m.', 'Go straight for 90 m.', '')] == [
            'left', 'straight', 'unknown']
    with pytest.raises(ValueError, match='a history is'):
        status_of(history[:5], 0)


def test_advantages_are_relative_to_their_group():
    found = advantages(np.array([[0.0, 1.0], [5.0, 5.0]]))
    assert found[0, 0] < 0 < found[0, 1]
    np.testing.assert_array_equal(found[1], 0)


def test_supervised_training_learns_what_features_say(tmp_path):
    trainer = HeadTrainer(settings(tmp_path, steps=60, learning_rate=3e-3), toy_windows())
    rows = np.arange(24)
    trainer.generator.manual_seed(5)
    before = float(trainer.loss(rows, 8).detach())
    trainer.run()
    trainer.generator.manual_seed(5)
    assert float(trainer.loss(rows, 8).detach()) < 0.6 * before


def test_run_that_was_cut_goes_on_where_it_was(tmp_path):
    windows = toy_windows()
    HeadTrainer(settings(tmp_path, steps=3), windows).run()
    part = HeadTrainer(settings(tmp_path, steps=6, resume=True), windows)
    assert part.step == 3
    part.run()
    assert part.step == 6
    # the same three steps without the cut: draws, weights and moments are those of the state
    other = HeadTrainer(settings(tmp_path / 'other', steps=3), windows)
    other.run()
    again = HeadTrainer(replace(other.settings, steps=6), windows)
    for name in ('head', 'averaged', 'optimiser', 'rng', 'generator', 'step'):
        setattr(again, name, getattr(other, name))
    again.averaged = copy.deepcopy(other.averaged)
    again.run()
    for name, value in again.averaged.state_dict().items():
        torch.testing.assert_close(value, part.averaged.state_dict()[name], atol=0, rtol=0)
    with pytest.raises(CheckpointError, match='no state to go on from'):
        HeadTrainer(settings(tmp_path / 'nothing', resume=True), windows)


def test_reinforcement_moves_plans_towards_their_reward(tmp_path):
    windows = toy_windows()
    HeadTrainer(settings(tmp_path, steps=40, learning_rate=3e-3), windows).run()
    trainer = HeadTrainer(settings(
        tmp_path, stage='reinforce', begin=str(tmp_path / 'head'), steps=12, noises=8,
        reinforce_rate=1e-3, imitation=0.0), windows)
    trainer.scores = lambda plans, rows: -np.abs(plans[..., -1, 0] - 20.0) / 20
    figures = [trainer.reinforce(np.arange(24))['score'] for _ in range(14)]
    assert np.mean(figures[-3:]) > np.mean(figures[:3])


def test_joined_windows_of_unequal_length_are_padded_with_no_token():
    short = toy_windows(2, tokens=6)
    cut = replace(short, states=short.states[:, :4], segments=short.segments[:, :4])
    both = joined([short, cut])
    assert both.states.shape == (4, 6, CHANNELS)
    assert both.segments[2:, 4:].tolist() == [[255, 255]] * 2


@pytest.mark.parametrize('name, value', [('stage', 'dream'), ('batch', 0), ('drop', 1.0)])
def test_settings_that_do_not_fit_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        HeadSettings(**{name: value})
