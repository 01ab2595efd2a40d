"""
Parameters of a node as data: name, kind, default, range and what it does.

They are declared with dynamic typing, because a launch file or a command line
turns `0` into an integer where a float is meant and rclpy would then end the
node; the kind is checked here, and integers are taken where floats are meant.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import InvalidParameterValueException
from rclpy.parameter import Parameter

_TYPES = {
    'bool': Parameter.Type.BOOL, 'int': Parameter.Type.INTEGER, 'float': Parameter.Type.DOUBLE,
    'string': Parameter.Type.STRING, 'int[]': Parameter.Type.INTEGER_ARRAY,
    'string[]': Parameter.Type.STRING_ARRAY,
}


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter; `live` ones can be changed while the node is configured."""

    name: str
    kind: str
    default: object
    text: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = False

    def checked(self, value):
        """Return the value in this parameter's kind; raises ValueError saying what is wrong."""
        if self.kind == 'float' and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if self.kind == 'string' and isinstance(value, (int, float, bool)):
            value = str(value)
        if self.kind.endswith('[]'):
            value = self._checked_list(value)
        elif not isinstance(value, {'bool': bool, 'int': int, 'float': float,
                                    'string': str}[self.kind]) or (
                self.kind == 'int' and isinstance(value, bool)):
            raise ValueError(f'{self.name} must be a {self.kind}, got {value!r}')
        if self.low is not None and not self.low <= value <= self.high:
            raise ValueError(
                f'{self.name} must be from {self.low} to {self.high}, got {value!r}')
        if self.choices and value not in self.choices:
            raise ValueError(
                f'{self.name} must be one of {", ".join(self.choices)}, got {value!r}')
        return value

    def _checked_list(self, value):
        kind = int if self.kind == 'int[]' else str
        try:
            items = list(value)
        except TypeError:
            items = [None]
        if isinstance(value, str) or not all(type(v) is kind for v in items):
            raise ValueError(f'{self.name} must be a {self.kind}, got {value!r}')
        return items

    def descriptor(self) -> ParameterDescriptor:
        """What `ros2 param describe` shows."""
        text = self.text if not self.choices else f'{self.text} ({" | ".join(self.choices)})'
        changes = 'at any time' if self.live else 'while unconfigured'
        d = ParameterDescriptor(
            name=self.name, type=_TYPES[self.kind].value, dynamic_typing=True,
            description=f'{text} [{self.kind}, can be set {changes}]',
            additional_constraints=f'a {self.kind}')
        if self.kind == 'float' and self.low is not None:
            d.floating_point_range = [
                FloatingPointRange(from_value=float(self.low), to_value=float(self.high))]
        if self.kind == 'int' and self.low is not None:
            d.integer_range = [IntegerRange(from_value=int(self.low), to_value=int(self.high))]
        return d


class NodeParameters(Mapping):
    """
    The declared parameters of a node, checked and by name.

    While `fixed()` is true only live ones may be set; `accept(changes)` may
    refuse the rest by raising with the reason.  Raises ValueError itself when
    a value given at the start is wrong.
    """

    def __init__(self, node, specs: Iterable[ParameterSpec], fixed=lambda: False,
                 accept=lambda changes: None):
        self._node = node
        self._specs = {spec.name: spec for spec in specs}
        self._fixed, self._accept = fixed, accept
        for spec in self._specs.values():
            try:
                node.declare_parameter(spec.name, spec.default, spec.descriptor())
            except InvalidParameterValueException as error:
                raise ValueError(str(error)) from None
            value = node.get_parameter(spec.name).value
            if value is None and spec.kind.endswith('[]'):
                value = []  # an empty list has no type of its own
            value = spec.checked(value)
            node.set_parameters([Parameter(spec.name, _TYPES[spec.kind], value)])
        node.add_on_set_parameters_callback(self._on_set)

    def __getitem__(self, name: str):
        return self._specs[name].checked(self._node.get_parameter(name).value)

    def __iter__(self):
        return iter(self._specs)

    def __len__(self):
        return len(self._specs)

    def _on_set(self, parameters) -> SetParametersResult:
        try:
            changes = {}
            for p in parameters:
                spec = self._specs.get(p.name)
                if spec is None:
                    continue
                if self._fixed() and not spec.live:
                    raise ValueError(f'{p.name} is fixed while the node is configured: '
                                     'clean up, set it, then configure')
                changes[p.name] = spec.checked(p.value)
            self._accept(changes)
        except Exception as error:  # raised out of here it would end the node
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)
