"""Message classes by name."""
from __future__ import annotations

from importlib import import_module

from ..recording.definitions import UnknownTypeError


def message_class(type_name: str):
    """Return the Python class of `package/msg/Name`; raises `UnknownTypeError` without it."""
    package, kind, name = type_name.split('/')
    try:
        return getattr(import_module(f'{package}.{kind}'), name)
    except (ImportError, AttributeError):
        raise UnknownTypeError(f'message type {type_name} is not installed') from None
