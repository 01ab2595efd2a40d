"""Parameters as data: kinds, ranges, what launch files make of values."""
import uuid

import pytest

rclpy = pytest.importorskip('rclpy')

from rclpy.parameter import Parameter  # noqa: E402

from flashdrive_ros.core.config import EngineConfig  # noqa: E402
from flashdrive_ros.nodes import drive_parameters  # noqa: E402
from flashdrive_ros.nodes.parameters import NodeParameters, ParameterSpec  # noqa: E402

SPECS = (
    ParameterSpec('scale', 'float', 0.5, 'a scale', 0.0, 2.0, live=True),
    ParameterSpec('count', 'int', 3, 'a count', 1, 10),
    ParameterSpec('names', 'string[]', [], 'names'),
    ParameterSpec('ids', 'int[]', [0, 1], 'ids'),
    ParameterSpec('mode', 'string', 'a', 'a mode', choices=('a', 'b')),
    ParameterSpec('on', 'bool', True, 'a switch'),
)


@pytest.fixture
def make():
    context = rclpy.Context()
    context.init()
    nodes = []

    def make(overrides=(), **arguments):
        node = rclpy.create_node(
            f'n{uuid.uuid4().hex[:8]}', context=context,
            parameter_overrides=[Parameter(k, value=v) for k, v in dict(overrides).items()])
        nodes.append(node)
        return node, NodeParameters(node, SPECS, **arguments)
    yield make
    for node in nodes:
        node.destroy_node()
    context.shutdown()


def set_(node, name, value):
    return node.set_parameters([Parameter(name, value=value)])[0]


def test_defaults_are_as_given(make):
    _, p = make()
    assert dict(p) == {s.name: s.default for s in SPECS}


def test_an_integer_is_taken_where_a_float_is_meant(make):
    node, p = make({'scale': 1})
    assert p['scale'] == 1.0 and isinstance(p['scale'], float)
    assert set_(node, 'scale', 2).successful and p['scale'] == 2.0


@pytest.mark.parametrize('name', ['names', 'ids'])
def test_a_list_can_be_given_empty_at_the_start(make, name):
    _, p = make({name: []})
    assert p[name] == []


def test_lists_of_strings_can_be_given_where_the_default_is_empty(make):
    node, p = make({'names': ['x', 'y']})
    assert p['names'] == ['x', 'y']
    assert set_(node, 'names', ['z']).successful and p['names'] == ['z']


def test_a_number_is_taken_as_text_where_text_is_meant(make):
    spec = ParameterSpec('model', 'string', '', '')
    assert spec.checked(7) == '7'


@pytest.mark.parametrize('name, value, complaint', [
    ('scale', 2.5, 'scale out of range'),
    ('scale', 'x', "scale must be a float, got 'x'"),
    ('scale', True, 'scale must be a float'),
    ('count', 1.5, 'count must be a int, got 1.5'),
    ('count', 0, 'count out of range'),
    ('mode', 'c', "mode must be one of a, b, got 'c'"),
    ('ids', ['a'], r'ids must be a int\[\]'),
    ('names', 'x', r'names must be a string\[\]'),
    ('on', 1, 'on must be a bool'),
])
def test_wrong_values_are_refused_with_the_reason(make, name, value, complaint):
    with pytest.raises(ValueError, match=complaint):
        make({name: value})
    node, p = make()
    before = p[name]
    result = set_(node, name, value)
    assert not result.successful and name in result.reason
    assert p[name] == before


def test_only_live_parameters_can_be_set_while_fixed(make):
    node, p = make(fixed=lambda: True)
    result = set_(node, 'count', 4)
    assert not result.successful and 'fixed while the node is configured' in result.reason
    assert set_(node, 'scale', 1.5).successful
    assert p['count'] == 3 and p['scale'] == 1.5


@pytest.mark.parametrize('kind', [ValueError, TimeoutError, RuntimeError])
def test_what_is_not_accepted_is_refused_with_the_reason(make, kind):
    def accept(changes):
        raise kind(f'no {changes}')
    node, p = make(accept=accept)
    assert set_(node, 'scale', 1).reason == "no {'scale': 1.0}"
    assert p['scale'] == 0.5


def test_each_parameter_is_described(make):
    node, _ = make()
    d = node.describe_parameter('scale')
    assert 'a scale' in d.description and d.floating_point_range[0].to_value == 2.0
    assert 'a | b' in node.describe_parameter('mode').description
    assert node.describe_parameter('count').integer_range[0].from_value == 1


def test_every_engine_parameter_is_a_setting_of_the_engine():
    config = EngineConfig(**{s.name: s.default for s in drive_parameters.ENGINE})
    assert config == EngineConfig()
    for spec in drive_parameters.ENGINE:
        for value in (spec.low, spec.high, *spec.choices):
            if value is not None:
                EngineConfig(**{spec.name: value})
