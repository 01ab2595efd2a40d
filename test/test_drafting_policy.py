"""Drafting stops while it does not pay, comes back, and only changes the speed."""
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drafts import tiny_drafter
from support.tiny import drive, ego_history, frame_set, same, tiny_engine, tiny_model
from support.tiny_checkpoint import tiny_checkpoint

from flashdrive_ros.core import drafter as drafters
from flashdrive_ros.core import drafting
from flashdrive_ros.core.drafting import PROBE_PERIOD, DraftingPolicy
from flashdrive_ros.core.engine import Engine, EngineConfig
from flashdrive_ros.core.types import GRID_NS, InputError, Reasoning

pytestmark = pytest.mark.usefixtures('one_thread')


def text(tokens, rounds, drafted=7):
    return (Reasoning('', tuple(range(tokens)), drafted=drafted, rounds=rounds),)


def window(policy, gain):
    """One window of a drafter that brings `gain` tokens a round; says whether it was drafted."""
    drafted = policy.due('auto')
    policy.note(text(10 * gain, 10) if drafted else text(10 * gain, 10 * gain, drafted=0))
    return drafted


@given(st.integers(1, 9), st.floats(0.5, 8))
def test_settles_on_drafting_exactly_where_it_pays(gain, cost):
    policy = DraftingPolicy(cost)
    decisions = [window(policy, gain) for _ in range(2 * PROBE_PERIOD + 2)]
    assert decisions[0]
    if gain >= cost:
        assert all(decisions)
    else:
        again = [i for i, drafted in enumerate(decisions) if drafted]
        assert again[0] == 0 and again[1:] == [PROBE_PERIOD + 1]


def test_goes_off_when_it_gets_worse_and_comes_back_by_a_probe():
    policy = DraftingPolicy(cost=2)
    assert all(window(policy, 6) for _ in range(10))
    off = [window(policy, 1) for _ in range(20)]
    assert off[0] and not off[-1]
    waiting = [window(policy, 6) for _ in range(PROBE_PERIOD)]
    back = waiting.index(True)
    assert back > PROBE_PERIOD / 2 and all(waiting[back:])


def test_a_gain_as_large_as_the_cost_keeps_it_as_it_is():
    policy = DraftingPolicy(cost=4)
    assert all(window(policy, 4) for _ in range(20))
    for _ in range(20):
        window(policy, 1)
    assert not any(window(policy, 4) for _ in range(PROBE_PERIOD - 20))
    while not window(policy, 4):
        pass
    assert not window(policy, 4)  # the probe brought too little more


def test_the_longest_of_a_batch_counts():
    policy = DraftingPolicy(cost=3)
    policy.note((*text(4, 1), *text(12, 6), *text(9, 2)))
    assert policy.gain == 2 and not policy.due('auto')


def test_setting_overrules():
    policy = DraftingPolicy()
    assert policy.due('on') and not policy.due('off')
    policy.pays = False
    assert policy.due('on') and not policy.due('auto')
    policy.reset()
    assert policy.due('auto') and policy.gain is None


@pytest.fixture(scope='module')
def model():
    return tiny_model()


def test_random_drafter_is_left_alone_after_one_window(model):
    made = tiny_engine(model, drafter=tiny_drafter(model), max_new_tokens=8)
    plans = drive(made, [1, 2, 3])
    assert [bool(p.reasoning.drafted) for p in plans] == [True, False, False]
    assert made.policy.gain < drafting.ASSUMED_COST
    made.configure(drafting='on')
    on = drive(made, [4])[0].reasoning
    assert on.drafted == on.rounds * 7 and on.accepted < on.drafted
    made.configure(drafting='off')
    plain = drive(made, [5])[0].reasoning
    assert plain.drafted == plain.accepted == 0 and plain.rounds == len(plain.token_ids)


def test_taps_are_collected_in_drafted_windows_only(model, monkeypatch):
    collected, whole = [], drafters.Taps.append
    monkeypatch.setattr(drafters.Taps, 'append',
                        lambda self, x: collected.append(x) or whole(self, x))
    made = tiny_engine(model, drafter=tiny_drafter(model), max_new_tokens=8)
    drive(made, [1])
    assert collected
    collected.clear()
    drive(made, [2, 3])
    assert not collected


def test_reset_equals_a_fresh_engine(model):
    settings = {'max_new_tokens': 8}
    made = tiny_engine(model, drafter=tiny_drafter(model), **settings)
    drive(made, [1, 2, 3])
    made.reset('again')
    fresh = tiny_engine(model, drafter=tiny_drafter(model), **settings)
    for again, first in zip(drive(made, [6, 7, 8]), drive(fresh, [6, 7, 8])):
        assert same(again, first)


def test_drafting_needs_a_drafter(model):
    made = tiny_engine(model)
    with pytest.raises(InputError, match='tiny was loaded without a drafter'):
        made.configure(drafting='on')
    assert made.config.drafting == 'auto'
    with pytest.raises(InputError, match='drafting'):
        made.configure(drafting='sometimes')
    made.configure(drafting='off')
    assert drive(made, [1])[0].is_finite


def test_failed_step_leaves_a_fresh_policy(model):
    made = tiny_engine(model, drafter=tiny_drafter(model), max_new_tokens=8)
    drive(made, [1])
    assert made.policy.gain
    model.expert.forward = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        made.step(frame_set(2 * GRID_NS), ego_history(2 * GRID_NS))
    del model.expert.forward
    assert made.policy.gain is None and made.policy.pays


def test_warm_up_measures_the_cost_of_a_round(model):
    made = tiny_engine(model, drafter=tiny_drafter(model), max_new_tokens=8)
    made.warm_up(height=64, width=96)
    assert 0 < made.policy.cost != drafting.ASSUMED_COST and made.policy.gain is None
    assert made.config.drafting == 'auto' and made.plan_id == 0
    off = tiny_engine(model, drafter=tiny_drafter(model), drafting='off')
    off.warm_up(height=64, width=96)
    assert off.policy.cost == drafting.ASSUMED_COST


def test_engine_loads_the_companion_of_its_checkpoint(tmp_path):
    name = tiny_checkpoint(tmp_path / 'tiny')
    settings = {'device': 'cpu', 'cpu_threads': 1}
    plain = Engine.from_checkpoint(str(name), EngineConfig(**settings))
    assert plain.drafter is None
    made = tiny_drafter(plain.model, target_layer_ids=(0, 1))
    drafters.save(made, tmp_path / 'tiny-DFlash')
    engine = Engine.from_checkpoint(str(name), EngineConfig(**settings))
    assert torch.equal(engine.drafter.fc.weight, made.fc.weight)
    assert not engine.drafter.fc.weight.requires_grad
    shutil.rmtree(tmp_path / 'tiny-DFlash')
    assert Engine.from_checkpoint(str(name), EngineConfig(
        drafting='off', **settings)).drafter is None


def test_it_says_whether_it_drafts_and_why_not():
    policy = DraftingPolicy(cost=2.0)
    assert policy.state('auto') == policy.state('on') == 'on'
    assert policy.state('off') == 'off: as set'
    policy.note([Reasoning('', tuple(range(12)), 14, 9, 3)])
    assert policy.state('auto') == 'on, 4.0 tokens a round'
    while policy.due('auto'):
        policy.note([Reasoning('', tuple(range(3)), 14, 0, 3)])
    gain = f'{policy.gain:.1f} tokens a round'
    assert policy.state('auto') == f'off: {gain} do not pay for 2.0 plain steps'
    assert policy.state('on') == f'on, {gain}'
    assert tiny_engine().drafting_state == 'off: no drafter'
