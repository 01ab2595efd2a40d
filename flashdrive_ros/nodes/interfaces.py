"""Message classes by name, and parameter descriptors in one line."""
from __future__ import annotations

from importlib import import_module

from rcl_interfaces.msg import IntegerRange, ParameterDescriptor
from rclpy.parameter import Parameter

from ..recording.definitions import UnknownTypeError


def message_class(type_name: str):
    """The Python class of `package/msg/Name`; raises `UnknownTypeError` without it."""
    package, kind, name = type_name.split('/')
    try:
        return getattr(import_module(f'{package}.{kind}'), name)
    except (ImportError, AttributeError):
        raise UnknownTypeError(f'message type {type_name} is not installed') from None


def describe(kind: Parameter.Type, description: str, *, read_only: bool = False,
             low=None, high=None) -> ParameterDescriptor:
    """
    Descriptor of a parameter, with an optional range.

    A number with a fraction also takes whole numbers (`rate:=1`): ROS calls
    them another type and would end the node.
    """
    descriptor = ParameterDescriptor(
        type=kind.value, description=description, read_only=read_only)
    if kind == Parameter.Type.DOUBLE:
        descriptor.dynamic_typing = True
        if low is not None:
            descriptor.description += f' [{low:g} to {high:g}]'
    elif low is not None:
        descriptor.integer_range = [IntegerRange(from_value=low, to_value=high)]
    return descriptor


def number(name: str, value, low=None, high=None) -> float:
    """Check a parameter declared with a fraction; raises `ValueError` that names it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'parameter {name} must be a number, got {value!r}')
    if low is not None and not low <= value <= high:
        raise ValueError(f'parameter {name} must be within {low:g} to {high:g}, got {value!r}')
    return float(value)
