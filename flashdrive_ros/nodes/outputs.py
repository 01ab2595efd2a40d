"""The topics on which a plan goes out; all under the node's name."""
from __future__ import annotations

from nav_msgs.msg import Path
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from flashdrive_ros import msg

from ..core.types import DrivePlan
from . import qos
from .inputs import StepInput
from .messages import PlanMarkers, path_message, plan_message

TOPICS = {
    'plan': msg.DrivePlan,
    'trajectory': msg.PlannedTrajectory,
    'path': Path,
    'markers': MarkerArray,
    'primitives': msg.VisualPrimitiveArray,
    'reasoning': String,
    'reasoning_stamped': msg.Reasoning,
    'stage_latency': msg.StageLatency,
}


class PlanOutputs:
    """Publishers of one configuration; silent while the node is not active."""

    def __init__(self, node, frame_id: str):
        self._node = node
        self._frame_id = frame_id
        self._markers = PlanMarkers()
        self._publishers = {
            name: node.create_lifecycle_publisher(kind, f'~/{name}', qos.PLAN)
            for name, kind in TOPICS.items()}

    def publish(self, plan: DrivePlan, step_input: StepInput):
        """Publish everything of one plan, the plan itself first."""
        message = plan_message(
            plan, self._frame_id, image_ms=step_input.image_ms,
            now_ns=self._node.get_clock().now().nanoseconds, skew_ns=step_input.frames.skew_ns)
        chosen = message.trajectories[message.chosen_index]
        self._send('plan', message)
        self._send('trajectory', chosen)
        self._send('path', path_message(chosen))
        self._send('primitives', message.primitives)
        self._send('reasoning', String(data=message.reasoning.text))
        self._send('reasoning_stamped', message.reasoning)
        self._send('stage_latency', message.latency)
        self._send('markers', self._markers.of(plan, message))

    def clear(self):
        """Remove what viewers show of earlier plans."""
        self._send('markers', self._markers.reset())

    def destroy(self):
        """Close the topics."""
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers = {}

    def _send(self, name: str, message):
        # the topics may have been closed since the step began
        publisher = self._publishers.get(name)
        if publisher is not None:
            publisher.publish(message)
