"""Primitives with some plans only."""
import pytest
from support.tiny import drive, same, tiny_config, tiny_model, tiny_tokenizer

from flashdrive_ros.core.config import EngineConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.types import InputError


def engine_of(model, **settings):
    return Engine(model, tiny_tokenizer(model.config), EngineConfig(
        **{'device': 'cpu', 'max_new_tokens': 4, 'max_primitive_tokens': 8} | settings))


def test_every_third_plan_draws_and_a_reset_begins_anew(one_thread):
    model = tiny_model(tiny_config())
    asked = {'primitives': ['boxes:1:car']}
    every, some = engine_of(model, **asked), engine_of(model, primitives_every=3, **asked)
    ours, theirs = drive(some, range(1, 6)), drive(every, range(1, 6))
    assert [p.drawn for p in ours] == [True, False, False, True, False]
    assert all(p.drawn for p in theirs) and all(map(same, ours, theirs))
    assert all(p.primitives == () for p in ours if not p.drawn)
    some.reset('asked to')
    assert [p.drawn for p in drive(some, [6, 7])] == [True, False]
    some.configure(primitives_every=1)
    assert [p.drawn for p in drive(some, [8, 9])] == [True, True]
    assert not any(p.drawn for p in drive(engine_of(model), [1, 2]))


def test_every_none_is_refused():
    with pytest.raises(InputError, match='primitives_every = 0 is out of range'):
        EngineConfig(primitives_every=0)
