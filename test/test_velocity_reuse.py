"""Velocities along the flow may be taken from the step before instead of computed."""
import numpy as np
import pytest
import torch
from support.tiny_checkpoint import tiny_checkpoint

from flashdrive_ros.core.action import check_reuse, integrate
from flashdrive_ros.core.config import EngineConfig
from flashdrive_ros.core.ego import EgoHistory
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.types import GRID_NS, CameraFrame, FrameSet, InputError
from flashdrive_ros.evaluation.flow import PlainPath, calmest, name_of, schedules


def field(x, t):
    return torch.sin(3 * x) * (1 + t) - x


NOISE = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(0))


def test_reusing_nothing_is_the_plain_path_exactly():
    plain, empty = integrate(field, NOISE, 8), integrate(field, NOISE, 8, reuse=())
    assert torch.equal(plain, empty)
    x = NOISE
    for i in range(8):
        x = x + 0.125 * field(x, torch.tensor(i / 8))
    torch.testing.assert_close(plain, x)


def test_reused_steps_take_the_velocity_before_them():
    asked, trace = [], []

    def counting(x, t):
        asked.append(round(float(t) * 8))
        return field(x, t)
    integrate(counting, NOISE, 8, trace, reuse=(3, 4, 5, 6))
    assert asked == [0, 1, 2, 7]
    velocities = [v for _, _, v in trace]
    assert all(torch.equal(velocities[i], velocities[2]) for i in (3, 4, 5, 6))
    assert not torch.equal(velocities[7], velocities[2])


def test_reuse_changes_nothing_where_velocity_is_constant():
    constant = torch.full_like(NOISE, 0.25)
    plain = integrate(lambda x, t: constant, NOISE, 8)
    assert torch.equal(plain, integrate(lambda x, t: constant, NOISE, 8, reuse=(1, 2, 5, 7)))


def test_the_plain_path_is_remembered_up_to_where_a_schedule_leaves_it():
    asked = []

    def counting(x, t):
        asked.append(float(t))
        return field(x, t)
    plain = PlainPath(counting, NOISE, 8)
    assert len(asked) == 8
    again = integrate(plain, NOISE, 8, reuse=(3, 4))
    assert asked[8:] == pytest.approx([5 / 8, 6 / 8, 7 / 8])
    assert torch.equal(again, integrate(field, NOISE, 8, reuse=(3, 4)))
    changes = plain.changes(2)
    assert len(changes) == 2 and len(changes[0]) == 7


def test_schedules_are_runs_and_the_calmest_is_where_least_changes():
    found = schedules(8)
    assert found[0] == () and (3, 4, 5, 6) in found and len(found) == len(set(found)) == 28
    assert all(s == () or (s[0] >= 1 and s == tuple(range(s[0], s[-1] + 1))) for s in found)
    assert [name_of(s) for s in ((), (3,), (3, 4, 5, 6))] == ['none', '3', '3-6']
    u_shape = [0.9, 0.5, 0.2, 0.1, 0.1, 0.2, 0.8]  # changes of steps 1 to 7
    assert calmest(u_shape, 4) == (3, 4, 5, 6) and calmest(u_shape, 2) == (4, 5)


def test_a_schedule_that_can_not_be_followed_is_named():
    assert check_reuse((1, 7), 8) == ''
    assert '[0]' in check_reuse((0, 3), 8) and '[8]' in check_reuse((8,), 8)


@pytest.fixture(scope='module')
def engine(tmp_path_factory):
    directory = tiny_checkpoint(tmp_path_factory.mktemp('tiny') / 'tiny')
    return Engine.from_checkpoint(directory, EngineConfig(device='cpu', max_new_tokens=4))


def plan(engine):
    engine.reset('test')
    image = np.random.default_rng(0).integers(256, size=(48, 64, 3), dtype=np.uint8)
    ego = EgoHistory(GRID_NS, np.zeros((16, 3)), np.tile(np.eye(3), (16, 1, 1)))
    return engine.step(FrameSet(GRID_NS, {1: CameraFrame(image, GRID_NS)}), ego)


def test_the_engine_without_reuse_plans_bit_for_bit_as_ever(engine):
    engine.configure(velocity_reuse=())
    one = plan(engine)
    engine.configure(velocity_reuse=(3, 4, 5, 6))
    fast = plan(engine)
    engine.configure(velocity_reuse=())
    two = plan(engine)
    assert np.array_equal(one.xyz, two.xyz) and not np.array_equal(one.xyz, fast.xyz)


def test_the_engine_refuses_to_reuse_what_is_not_there(engine):
    for wrong in ((0,), (8,)):
        with pytest.raises(InputError, match='velocity_reuse'):
            engine.configure(velocity_reuse=wrong)
    with pytest.raises(InputError, match='of 4 flow steps'):
        engine.configure(velocity_reuse=(5,), flow_steps=4)
    assert engine.config.velocity_reuse == ()


def test_the_flow_observer_sees_the_noise_that_the_plan_came_from(engine):
    seen = []
    engine.flow_observer = lambda velocity, noise: seen.append((velocity, noise))
    planned = plan(engine)
    engine.flow_observer = None
    from flashdrive_ros.evaluation.flow import explore
    ego = EgoHistory(GRID_NS, np.zeros((16, 3)), np.tile(np.eye(3), (16, 1, 1)))
    (velocity, noise), = seen
    explored, = explore(engine.model, velocity, noise[None], engine.flow_steps, [ego])
    assert np.array_equal(explored.xy['none'], planned.xyz[..., :2])
    assert not np.array_equal(explored.xy['3-6'], planned.xyz[..., :2])
