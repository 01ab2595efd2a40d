"""
Message definitions for bags, from the `.msg` files of the installed packages.

`rosbags` can write and read any message it has the definition of.  A ROS
installation (and the PyPI wheels) keeps the definitions in
`<prefix>/share/<package>/msg`; our own are also found beside the sources.
"""
from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path

from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from ..errors import UserError

OUR_PACKAGE = 'flashdrive_ros'
_SOURCE_TREE = Path(__file__).resolve().parents[2]


class UnknownTypeError(UserError):
    """No definition of a message type was found."""


def share_folders(package: str) -> list[Path]:
    """Folders that may hold the interface files of `package`, best first."""
    prefixes = [p for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
    folders = [Path(p) / 'share' / package for p in [*prefixes, sys.prefix]]
    if package == OUR_PACKAGE:
        folders.append(_SOURCE_TREE)
    return folders


def definition_file(type_name: str) -> Path | None:
    """The `.msg` file of `package/msg/Name`, or None."""
    package, kind, name = type_name.split('/')
    for folder in share_folders(package):
        path = folder / kind / f'{name}.msg'
        if path.is_file():
            return path
    return None


class Definitions:
    """A `rosbags` type store that loads the definitions it is asked for."""

    def __init__(self):
        self.store: Typestore = get_typestore(Stores.EMPTY)
        self._fallback = get_typestore(Stores.ROS2_KILTED).fielddefs

    def require(self, type_name: str) -> Typestore:
        """Load `type_name` and all that it is made of; raise `UnknownTypeError` without it."""
        if type_name in self.store.fielddefs:
            return self.store
        missing, found = [type_name], {}
        while missing:
            name = missing.pop()
            if name in self.store.fielddefs or name in found:
                continue
            found[name] = self._read(name, needed_by=type_name)
            missing += _parts(found[name])
        self.store.register(found)
        return self.store

    def _read(self, name, needed_by):
        path = definition_file(name)
        if path is not None:
            return get_types_from_msg(path.read_text(encoding='utf-8'), name)[name]
        if name in self._fallback:
            return self._fallback[name]
        looked = ', '.join(str(f / 'msg') for f in share_folders(name.split('/')[0]))
        part = '' if name == needed_by else f' (part of {needed_by})'
        raise UnknownTypeError(f'no definition of message type {name}{part}; looked in {looked}')


def _parts(fields) -> list[str]:
    """Names of the message types in the fields of one."""
    names = []
    for _, (kind, detail) in fields[1]:
        while kind in (Nodetype.ARRAY, Nodetype.SEQUENCE):
            kind, detail = detail[0]
        if kind == Nodetype.NAME:
            names.append(detail)
    return names


@lru_cache(maxsize=1)
def reading_store() -> Typestore:
    """Definitions for bags that embed none: standard messages and our own."""
    definitions = Definitions()
    for name in get_typestore(Stores.ROS2_KILTED).fielddefs:
        definitions.require(name)
    for folder in share_folders(OUR_PACKAGE):
        for path in sorted((folder / 'msg').glob('*.msg')):
            definitions.require(f'{OUR_PACKAGE}/msg/{path.stem}')
    return definitions.store
