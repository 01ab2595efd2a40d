"""What every replay source offers."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..recording.bag import IMAGE_TYPES


@dataclass(frozen=True)
class TopicSpec:
    """A topic to publish: its type and QoS."""

    type: str
    reliable: bool = True
    latched: bool = False

    @property
    def is_image(self) -> bool:
        """True for raw and compressed images."""
        return self.type in IMAGE_TYPES


@dataclass(frozen=True)
class ReplayMessage:
    """
    One serialised message.

    `time_ns` is when it is due (log time of a bag, media time of a video) and
    `stamp_ns` its header stamp, None without a header.
    """

    time_ns: int
    stamp_ns: int | None
    topic: str
    cdr: bytes = field(repr=False)


class Source(Protocol):
    """A recording that can be replayed any number of times."""

    topics: dict[str, TopicSpec]
    description: str
    clock_difference_ns: int
    """Header time minus log time; 0 when both are of one clock."""

    def messages(self) -> Iterator[ReplayMessage]:
        """All messages, ascending in `time_ns`."""
        ...

    def restamp(self, message: ReplayMessage, offset_ns: int) -> bytes:
        """The serialised message with `offset_ns` added to every header stamp in it."""
        ...
