"""Subscriptions whose callbacks never raise, and which notice publishers they cannot hear."""
from __future__ import annotations

import functools
from collections.abc import Callable

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.qos import QoSProfile, qos_policy_name_from_kind


def guarded(callback: Callable, report: Callable[[str, Exception], None]) -> Callable:
    """
    Wrap a callback: an exception is reported as ('callback', error).

    Raised out of a callback it would end `spin`, and with it the node.
    """
    @functools.wraps(callback)
    def wrapped(*args):
        try:
            return callback(*args)
        except Exception as error:
            report('callback', error)
    return wrapped


class Subscriptions:
    """
    The subscriptions of one configuration of a node.

    Each has a callback group of its own: an executor then takes from all topics
    in one round, and a flood on one does not hold the others up.

    `report(kind, error)` gets what callbacks raise; `deaf(topic, policy)` is
    called when a publisher's QoS does not offer what a subscription asks for.
    """

    def __init__(self, node, report: Callable[[str, Exception], None],
                 deaf: Callable[[str, str], None]):
        self._node = node
        self._report, self._deaf = report, deaf
        self._open: list = []

    def add(self, message_type, topic: str, handler: Callable, profile: QoSProfile,
            raw: bool = False):
        """Subscribe; with `raw` the handler gets the serialized message."""
        name = self._node.resolve_topic_name(topic)

        def incompatible(event):
            self._deaf(name, qos_policy_name_from_kind(event.last_policy_kind))
        self._open.append(self._node.create_subscription(
            message_type, topic, guarded(handler, self._report), profile,
            callback_group=MutuallyExclusiveCallbackGroup(), raw=raw,
            event_callbacks=SubscriptionEventCallbacks(
                incompatible_qos=guarded(incompatible, self._report))))

    def destroy(self):
        """Close the topics."""
        for subscription in self._open:
            self._node.destroy_subscription(subscription)
        self._open = []
