"""
The QoS profiles of the nodes, by name.

A subscription matches a publisher when it asks for no more than is offered:
best effort matches both kinds, volatile matches both kinds.
"""
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy


def _profile(reliability, depth, durability=DurabilityPolicy.VOLATILE) -> QoSProfile:
    return QoSProfile(reliability=reliability, durability=durability,
                      history=HistoryPolicy.KEEP_LAST, depth=depth)


def camera(reliability: str = 'best_effort', depth: int = 5) -> QoSProfile:
    """
    Camera subscription; best effort hears every publisher.

    Storing an image takes well below a millisecond and the newest set wins, so
    a short queue costs no latency; a lost frame would cost a full prefill.
    """
    return _profile(ReliabilityPolicy[reliability.upper()], depth)


ODOMETRY = _profile(ReliabilityPolicy.BEST_EFFORT, 50)
"""Odometry subscription: many small samples, of which all are wanted but none waited for."""

TEXT = _profile(ReliabilityPolicy.RELIABLE, 5)
"""Navigation text: small, rare, must arrive; only what is said from now on counts."""

LATCHED = _profile(ReliabilityPolicy.RELIABLE, 1, DurabilityPolicy.TRANSIENT_LOCAL)
"""Route text and other things that a node that starts later must still hear."""

TRANSFORMS = _profile(ReliabilityPolicy.RELIABLE, 100)
"""/tf as tf2 hears it."""

PLAN = _profile(ReliabilityPolicy.RELIABLE, 1)
"""Plans and everything that belongs to one: reliable, and only the newest is of use."""

DIAGNOSTICS = _profile(ReliabilityPolicy.RELIABLE, 10)
"""/diagnostics as the aggregators expect it."""
