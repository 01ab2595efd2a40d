"""Write a bag from a bounded queue in its own thread: callbacks never wait for the disk."""
from __future__ import annotations

import threading
import time
from collections import Counter, deque
from functools import partial
from pathlib import Path

from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.rosbag2.storage_mcap import McapWriter

from .bag import BagError
from .definitions import Definitions

FORMAT_VERSION = 9
FLUSH_S = 2.0
"""No more than this is lost of an mcap when the process is killed."""
_FOREVER = QosTime(2147483647, 4294967295)


def offered_qos(*, reliable: bool, latched: bool, depth: int) -> Qos:
    """The QoS of a recorded topic in the form that rosbag2 keeps in its metadata."""
    return Qos(QosHistory.KEEP_LAST, depth,
               QosReliability.RELIABLE if reliable else QosReliability.BEST_EFFORT,
               QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
               _FOREVER, _FOREVER, QosLiveliness.AUTOMATIC, _FOREVER, False)


class BagWriter:
    """
    A bag being written.

    `add_topic` before `put`; `put` never blocks: when `queue_bytes` are waiting
    the message is dropped and counted.  `close` writes what is queued and
    finishes the bag; it may be called twice.  `written` and `dropped` count
    messages per topic; `error` holds what stopped the writer (a full disk).
    Raises `BagError` when the bag can't be begun or finished.
    """

    def __init__(self, path, *, storage: str = 'mcap', queue_bytes: int = 256 << 20):
        self.path = Path(path)
        try:
            plugin = StoragePlugin[storage.upper()]
        except KeyError:
            raise BagError(f'bag storage must be mcap or sqlite3, got {storage!r}') from None
        self.written, self.dropped = Counter(), Counter()
        self.topics: set[str] = set()
        self.error: Exception | None = None
        self._queue_bytes, self._waiting_bytes = queue_bytes, 0
        self._queue: deque = deque()
        self._definitions = Definitions()
        self._condition = threading.Condition()
        self._opened = threading.Event()
        self._closing = False
        # one thread does all with the file: SQLite insists on it
        self._thread = threading.Thread(target=self._run, args=(plugin,), name='bag writer')
        self._thread.start()
        self._opened.wait()
        if self.error:
            raise BagError(f'bag {self.path} can\'t be written: {self.error}') from self.error

    def add_topic(self, topic: str, type_name: str, qos: Qos | None = None):
        """Begin a topic; raises `UnknownTypeError` when its definition isn't installed."""
        store = self._definitions.require(type_name)
        self.topics.add(topic)
        definition, _ = store.generate_msgdef(type_name, ros_version=2)
        self._append(partial(self._begin_topic, topic, type_name, qos, definition,
                             store.hash_rihs01(type_name)))

    def put(self, topic: str, time_ns: int, cdr: bytes) -> bool:
        """Queue one serialised message; False when it was dropped."""
        full = self._waiting_bytes + len(cdr) > self._queue_bytes
        if full or self._closing or self.error:
            self.dropped[topic] += 1
            return False
        self._append(partial(self._write, topic, time_ns, cdr), len(cdr))
        return True

    def close(self):
        """Write the rest and finish the bag."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()
        if self.error:
            raise BagError(f'bag {self.path}: writing failed: {self.error}') from self.error

    def _append(self, action, size=0):
        with self._condition:
            self._queue.append(action)
            self._waiting_bytes += size
            self._condition.notify()

    def _run(self, plugin):
        """All that happens to the file, in its thread."""
        try:
            self._writer = Writer(self.path, version=FORMAT_VERSION, storage_plugin=plugin)
            self._writer.open()
            self._connections = {}
            self._opened.set()
            flushed_s = time.monotonic()
            while actions := self._next_actions():
                for action in actions:
                    action()
                if time.monotonic() - flushed_s >= FLUSH_S:
                    self._flush()
                    flushed_s = time.monotonic()
            self._writer.close()
        except Exception as error:   # told by put, close and the constructor
            self.error = error
        finally:
            self._opened.set()

    def _flush(self):
        storage = self._writer.storage
        if isinstance(storage, McapWriter) and storage.chunk.msgs:
            storage.close_chunk()
            storage.bio.flush()

    def _next_actions(self):
        """All that waits; empty at the end."""
        with self._condition:
            while not self._queue and not self._closing:
                self._condition.wait()
            actions = list(self._queue)
            self._queue.clear()
        return actions

    def _begin_topic(self, topic, type_name, qos, definition, digest):
        self._connections[topic] = self._writer.add_connection(
            topic, type_name, msgdef=definition, rihs01=digest,
            offered_qos_profiles=[qos] if qos else [])

    def _write(self, topic, time_ns, cdr):
        self._writer.write(self._connections[topic], time_ns, cdr)
        with self._condition:
            self._waiting_bytes -= len(cdr)
        self.written[topic] += 1
