"""Write a bag from a bounded queue in its own thread: callbacks never wait for the disk."""
from __future__ import annotations

import threading
from collections import Counter, deque
from pathlib import Path

from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import StoragePlugin, Writer, WriterError

from .bag import BagError
from .definitions import Definitions

FORMAT_VERSION = 9
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
    """

    def __init__(self, path, *, storage: str = 'mcap', queue_bytes: int = 256 << 20):
        self.path = Path(path)
        try:
            plugin = StoragePlugin[storage.upper()]
        except KeyError:
            raise BagError(f'bag storage must be mcap or sqlite3, got {storage!r}') from None
        self.written, self.dropped = Counter(), Counter()
        self.error: Exception | None = None
        self._queue_bytes, self._waiting_bytes = queue_bytes, 0
        self._queue: deque = deque()
        self._connections: dict = {}
        self._definitions = Definitions()
        self._condition = threading.Condition()
        self._closing = False
        try:
            self._writer = Writer(self.path, version=FORMAT_VERSION, storage_plugin=plugin)
            self._writer.open()
        except (OSError, WriterError) as error:
            raise BagError(f'bag {self.path} can\'t be written: {error}') from error
        self._thread = threading.Thread(target=self._write_all, name='bag writer')
        self._thread.start()

    def add_topic(self, topic: str, type_name: str, qos: Qos | None = None):
        """Begin a topic; raises `UnknownTypeError` when its definition isn't installed."""
        store = self._definitions.require(type_name)
        with self._condition:
            self._connections[topic] = self._writer.add_connection(
                topic, type_name, typestore=store, offered_qos_profiles=[qos] if qos else [])

    @property
    def topics(self) -> list[str]:
        """Topics begun so far."""
        return list(self._connections)

    def put(self, topic: str, time_ns: int, cdr: bytes) -> bool:
        """Queue one serialised message; False when it was dropped."""
        with self._condition:
            full = self._waiting_bytes + len(cdr) > self._queue_bytes
            if full or self._closing or self.error:
                self.dropped[topic] += 1
                return False
            self._queue.append((topic, time_ns, cdr))
            self._waiting_bytes += len(cdr)
            self._condition.notify()
        return True

    def close(self):
        """Write the rest and finish the bag; raises `BagError` if writing failed."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()
        if self.error:
            raise BagError(f'bag {self.path}: writing failed: {self.error}') from self.error

    def _write_all(self):
        try:
            while batch := self._next_batch():
                for topic, time_ns, cdr in batch:
                    with self._condition:   # add_topic writes into the same file
                        self._writer.write(self._connections[topic], time_ns, cdr)
                        self._waiting_bytes -= len(cdr)
                    self.written[topic] += 1
            self._writer.close()
        except Exception as error:
            self.error = error

    def _next_batch(self):
        """All that waits; empty at the end."""
        with self._condition:
            while not self._queue and not self._closing:
                self._condition.wait()
            batch = list(self._queue)
            self._queue.clear()
        return batch
