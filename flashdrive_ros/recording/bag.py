"""Open a rosbag2 (mcap or sqlite3) with errors that name it; look at CDR without decoding it."""
from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rosbags.highlevel import AnyReader, AnyReaderError

from ..errors import UserError
from .definitions import reading_store

IMAGE_TYPES = ('sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage')
ODOMETRY_TYPE = 'nav_msgs/msg/Odometry'
PLAN_TYPE = 'flashdrive_ros/msg/DrivePlan'

OUTPUT = re.compile(r'.*/(drive|annotated|detections)/.*')
"""Topics of a drive node, whose types inputs have as well."""


class BagError(UserError):
    """A bag can't be used; the message names the bag and what is wrong with it."""


@contextmanager
def open_bag(path) -> Iterator[AnyReader]:
    """
    Open a bag folder, or its .mcap or .db3 file, as a `rosbags` reader.

    Raises `BagError` when there is none, when it can't be read (also later,
    while messages are read), or when it is empty.
    """
    path = Path(path)
    if not path.exists():
        raise BagError(f'bag {path}: no such file or folder')
    try:
        with AnyReader([path], default_typestore=reading_store()) as reader:
            if not reader.message_count:
                raise BagError(f'bag {path}: holds no messages')
            yield reader
    except (AnyReaderError, OSError, EOFError, ValueError, AssertionError,
            struct.error) as error:
        raise BagError(f'bag {path}: damaged or not a rosbag2: '
                       f'{str(error) or type(error).__name__}{_hint(path)}') from error


def _hint(path: Path) -> str:
    """What is missing, and how the messages of a recording that was cut off can be saved."""
    text, files = '', [path]
    if path.is_dir():
        files = sorted(path.iterdir())
        if not (path / 'metadata.yaml').is_file():
            names = ', '.join(p.name for p in files[:6])
            text = f'; the folder has no metadata.yaml, it holds {names or "nothing"}'
    cut = next((f for f in files if f.suffix == '.mcap'), None)
    if cut is not None:
        text += (f'; a recording that was cut off (full disk, kill) may be saved by: '
                 f'mcap recover {cut} -o {cut.with_name("recovered.mcap")}')
    return text


def topics_of(reader: AnyReader, *types: str) -> list[str]:
    """Topics of the given types that have messages, in name order."""
    return sorted({c.topic for c in reader.connections if c.msgtype in types and c.msgcount})


def describe_topics(reader: AnyReader) -> str:
    """One text with every topic and its type, for error messages."""
    return ', '.join(sorted({f'{c.topic} ({c.msgtype})' for c in reader.connections}))


def header_stamp_ns(cdr: bytes) -> int:
    """
    The stamp of a serialised message whose first field is a std_msgs/Header.

    CDR begins with four bytes that tell the byte order; the header with
    int32 seconds and uint32 nanoseconds.
    """
    sec, nanosec = struct.unpack_from('<iI' if cdr[1] & 1 else '>iI', cdr, 4)
    return sec * 1_000_000_000 + nanosec


def with_header_stamp(cdr: bytes, stamp_ns: int) -> bytes:
    """The same serialised message with another header stamp."""
    changed = bytearray(cdr)
    order = '<iI' if cdr[1] & 1 else '>iI'
    struct.pack_into(order, changed, 4, *divmod(stamp_ns, 1_000_000_000))
    return bytes(changed)


def starts_with_header(store, type_name: str) -> bool:
    """True when the first field of the type is a std_msgs/Header."""
    fields = store.fielddefs[type_name][1]
    return bool(fields) and fields[0][1][1] == 'std_msgs/msg/Header'


def stamp_ns(stamp) -> int:
    """Nanoseconds of a builtin_interfaces/Time."""
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def split_ns(nanoseconds: int) -> tuple[int, int]:
    """Seconds and nanoseconds for a builtin_interfaces/Time."""
    return divmod(int(nanoseconds), 1_000_000_000)
