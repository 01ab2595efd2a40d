"""Run a node of ours in this process, its parameters given as command-line options."""
from __future__ import annotations

import argparse

from ..errors import UserError

_TYPES = {'int': int, 'float': float, 'string': str}


def add_node_arguments(parser, specs, positional: str = ''):
    """Add an option for every parameter of a node (`plan_timeout_s` -> `--plan-timeout-s`)."""
    group = parser.add_argument_group('parameters of the node')
    for spec in specs:
        if spec.name == positional:
            parser.add_argument(spec.name, help=spec.text)
            continue
        flag = '--' + spec.name.replace('_', '-')
        text = f'{spec.text} (default: {_shown(spec.default)})'.replace('%', '%%')
        if spec.kind == 'bool':
            group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
            continue
        kind = spec.kind.removesuffix('[]')
        group.add_argument(
            flag, type=_TYPES[kind], nargs='+' if kind != spec.kind else None,
            choices=spec.choices or None, help=text,
            metavar=None if spec.choices else kind.upper())
    group.add_argument('--namespace', default='', metavar='STRING', help='namespace of the node')


def _shown(value) -> str:
    if isinstance(value, list | tuple):
        return ' '.join(map(str, value)) or 'none'
    return str(value).lower() if isinstance(value, bool) else str(value) or 'none'


def overrides(args, specs) -> list:
    """Return rclpy parameters for the options that were given."""
    from rclpy.parameter import Parameter
    return [Parameter(spec.name, value=value) for spec in specs
            if (value := getattr(args, spec.name, None)) is not None]


def ros_arguments(namespace: str) -> list[str]:
    """Arguments for rclpy.init that put nodes into a namespace."""
    from ..session.nodes import namespace_remap
    remap = namespace_remap(namespace)
    return ['--ros-args', *remap] if remap else []


def need_ros():
    """Raise `UserError` with a hint where ROS or our messages are not installed."""
    try:
        import rclpy  # noqa: F401
    except ImportError as error:
        raise UserError(f'ROS 2 is not installed ({error}); "flashdrive doctor" says '
                        'what to do') from error
    try:
        import flashdrive_ros.msg  # noqa: F401
    except ImportError as error:
        raise UserError(f'the messages of flashdrive_ros are not built ({error}); '
                        '"flashdrive doctor" says what to do') from error
