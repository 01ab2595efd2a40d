"""
Protocol Buffers messages made at run time from a table of their fields.

The other side's definitions are facts (names, types, numbers); a table of those
that are used keeps generated code out of the tree.  The messages live in a pool
of their own, so the other side's package may be imported in the same process.
Fields that are not in the table are kept as unknown fields and survive a copy.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

from ..errors import UserError

FIELD = re.compile(r'(?:(repeated|optional) )?([\w.]+) (\w+) (\d+)$')


def make_messages(files: Sequence[tuple[str, str, Mapping[str, str]]]) -> dict[str, type]:
    """
    Message classes by full name.

    `files` are (package, syntax, messages); each message is 'type name number, …',
    'repeated' before it where it is so, its name dotted where it is nested.  A type that is
    no scalar is a full message name, or 'enum' for a closed number (sent as int32, which has
    the same form on the wire).  Raises `UserError` where protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ModuleNotFoundError:
        raise UserError('this needs protobuf: pip install "flashdrive_ros[outside]"') from None
    pool, names, before = descriptor_pool.DescriptorPool(), [], []
    for package, syntax, messages in files:
        file = descriptor_pb2.FileDescriptorProto(
            name=f'{package}.{len(before)}.proto', package=package, syntax=syntax,
            dependency=before)
        for name, fields in messages.items():
            _add_fields(_message(file, name), fields, syntax)
            names.append(f'{package}.{name}')
        pool.Add(file)
        before.append(file.name)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
            for name in names}


def by_last_name(classes: Mapping[str, type], package: str) -> SimpleNamespace:
    """The messages of one package as attributes; nested ones are reached through theirs."""
    return SimpleNamespace(**{name[len(package) + 1:]: made for name, made in classes.items()
                              if name.startswith(f'{package}.')
                              and '.' not in name[len(package) + 1:]})


def _message(file, name: str):
    """Descriptor of a message, in the one it is nested in, which is made where it is missing."""
    outer, *inner = name.split('.')
    found = next((m for m in file.message_type if m.name == outer), None)
    found = found or file.message_type.add(name=outer)
    for part in inner:
        nested = next((m for m in found.nested_type if m.name == part), None)
        found = nested or found.nested_type.add(name=part)
    return found


def _add_fields(message, fields: str, syntax: str) -> None:
    for text in filter(None, (part.strip() for part in fields.split(','))):
        match = FIELD.match(text)
        if match is None:
            raise ValueError(f'{message.name}: {text!r} is not "type name number"')
        label, kind, name, number = match.groups()
        field = message.field.add(name=name, number=int(number))
        field.label = field.LABEL_REPEATED if label == 'repeated' else field.LABEL_OPTIONAL
        kind = 'int32' if kind == 'enum' else kind
        scalar = getattr(field, f'TYPE_{kind.upper()}', None)
        if scalar is None:
            field.type, field.type_name = field.TYPE_MESSAGE, f'.{kind}'
            continue
        field.type = scalar
        if syntax == 'proto2' and label == 'repeated' and kind not in ('string', 'bytes'):
            field.options.packed = True
