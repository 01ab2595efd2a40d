"""Cut a replay into the windows of the 100 ms grid, for lock-step."""
from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..core.types import GRID_NS
from .source import ReplayMessage, TopicSpec

TOLERANCE_NS = 25_000_000
LOOK_AHEAD_NS = 1_000_000_000


@dataclass(frozen=True)
class Window:
    """
    What a drive node needs for the grid time `stamp_ns`, in the order to publish.

    Everything else first, then the images: what arrives with an image is
    complete.
    """

    stamp_ns: int
    messages: tuple[ReplayMessage, ...]


def windows(messages: Iterable[ReplayMessage], topics: Mapping[str, TopicSpec], *,
            anchor: str | None = None) -> Iterator[Window]:
    """
    Group messages by stamp around the frames of the anchor camera.

    A window begins with each anchor frame at least 100 ms (less 25 ms of
    jitter) after the last window's.  `anchor` is an image topic, by default the
    front camera or else the first in name order.  What precedes the first frame
    belongs to the first window.
    """
    anchor = anchor or anchor_topic(topics)
    stamp, rest, images = None, [], []
    for message in _by_stamp(messages, topics):
        if not topics[message.topic].is_image:
            rest.append(message)
            continue
        if message.topic == anchor:
            if stamp is None:
                stamp = message.stamp_ns
            elif message.stamp_ns >= stamp + GRID_NS - TOLERANCE_NS:
                middle = (stamp + message.stamp_ns) // 2
                yield Window(stamp, (*rest, *(m for m in images if m.stamp_ns <= middle)))
                rest, images = [], [m for m in images if m.stamp_ns > middle]
                stamp = message.stamp_ns
        images.append(message)
    if stamp is not None:
        yield Window(stamp, (*rest, *images))


def anchor_topic(topics: Mapping[str, TopicSpec]) -> str:
    """The image topic that the windows follow."""
    images = sorted(t for t, spec in topics.items() if spec.is_image)
    if not images:
        raise ValueError('lock-step replay needs an image topic, there is none among '
                         + (', '.join(sorted(topics)) or 'no topics'))
    return next((t for t in images if 'front_wide' in t), images[0])


def _by_stamp(messages, topics) -> Iterator[ReplayMessage]:
    """
    Sort by stamp within a second of log time.

    A message without a header keeps its place among the others.
    """
    heap, latest = [], 0
    for number, message in enumerate(messages):
        if message.stamp_ns is None:
            message = replace(message, stamp_ns=latest)
        elif topics[message.topic].is_image:
            latest = message.stamp_ns
        heapq.heappush(heap, (message.stamp_ns, topics[message.topic].is_image, number, message))
        while message.time_ns - heap[0][-1].time_ns > LOOK_AHEAD_NS:
            yield heapq.heappop(heap)[-1]
    while heap:
        yield heapq.heappop(heap)[-1]
