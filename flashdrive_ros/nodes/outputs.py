"""
The topics on which a plan goes out; all under the node's name.

What was drawn goes out with the plans that were asked for it: none of these messages means
that nothing was asked, an empty one that nothing was found.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nav_msgs.msg import Path
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from flashdrive_ros import msg

from ..core.types import CAMERA_NAMES, DrivePlan, InputError
from . import autoware, clouds, detections, features, qos
from .annotations import AnnotatedImages, Calibration
from .fixed_frame import FixedFrame, FixedPose
from .inputs import StepInput
from .markers import PlanMarkers
from .messages import header_of, path_message, plan_message

TOPICS = {
    'plan': msg.DrivePlan,
    'trajectory': msg.PlannedTrajectory,
    'path': Path,
    'markers': MarkerArray,
    'primitives': msg.VisualPrimitiveArray,
    'motion': PointCloud2,
    'reasoning': String,
    'reasoning_stamped': msg.Reasoning,
    'stage_latency': msg.StageLatency,
    'features': msg.PlanFeatures,
}


def _detection_topics(cameras: Sequence[int]) -> dict[str, type]:
    if not detections.INSTALLED:
        return {}
    images = {f'detections/{CAMERA_NAMES[c]}': detections.vision.Detection2DArray
              for c in cameras}
    return {**images, 'detections_3d': detections.vision.Detection3DArray}


class PlanOutputs:
    """Publishers of one configuration; silent while the node is not active."""

    def __init__(self, node, frame_id: str, cameras: Sequence[int],
                 report: Callable[[str, Exception], None], output_frame: str = '',
                 mounts: Mapping[int, tuple] | None = None,
                 feature_budget_mb: float = features.BUDGET_MB):
        self._node = node
        self._frame_id, self._feature_budget_mb = frame_id, feature_budget_mb
        self._report = report
        self.fixed_frame = FixedFrame(output_frame if output_frame != frame_id else '')
        """Of candidate trajectories, and of trajectory and path when it has a name."""
        self._cameras = cameras
        self._markers = PlanMarkers()
        self.calibration = Calibration(frame_id, mounts)
        """Of the cameras; whoever subscribes for the node fills it."""
        self._annotated = AnnotatedImages(node, self.calibration, cameras, report)
        topics = {**TOPICS, **_detection_topics(cameras), **autoware.topics()}
        self._publishers = {
            name: node.create_lifecycle_publisher(kind, f'~/{name}', qos.PLAN)
            for name, kind in topics.items()}

    def publish(self, plan: DrivePlan, step_input: StepInput):
        """Publish everything of one plan, the plan itself first."""
        message = plan_message(
            plan, self._frame_id, image_ms=step_input.image_ms,
            now_ns=self._node.get_clock().now().nanoseconds or None,  # 0: waiting for /clock
            skew_ns=step_input.frames.skew_ns,
            image_frame=self.calibration.frame_id)
        chosen = message.trajectories[message.chosen_index]
        self._send('plan', message)
        pose = self._pose(step_input)
        if self.fixed_frame.name:
            chosen = pose and pose.place(chosen)
        if chosen is not None:
            self._send('trajectory', chosen)
            self._send('path', path_message(chosen))
        self._send('reasoning', String(data=message.reasoning.text))
        self._send('reasoning_stamped', message.reasoning)
        self._send('stage_latency', message.latency)
        self._send('markers', self._markers.of(plan, message))
        self._send_features(plan)
        self._send_autoware(message, pose)
        if plan.drawn:
            self._send('primitives', message.primitives)
            self._send('motion', clouds.cloud(
                clouds.motion_points(plan.primitives), header_of(plan, self._frame_id)))
            self._send_detections(plan)
        self._annotated.offer(plan, step_input.frames)

    def _pose(self, step_input: StepInput) -> FixedPose | None:
        """Of the vehicle in the fixed frame; None, and said, when it is not known."""
        try:
            return self.fixed_frame.pose(step_input.ego, step_input.odometry_frame)
        except InputError as error:
            self._report('output', error)
            return None

    def _send_features(self, plan: DrivePlan):
        if plan.features is None:
            return
        try:
            message = features.features_message(plan, self._frame_id, self._feature_budget_mb)
        except InputError as error:
            self._report('features', error)
        else:
            self._send('features', message)

    def _send_autoware(self, message: msg.DrivePlan, pose: FixedPose | None):
        wanted = autoware.topics()
        if 'autoware/trajectory' in wanted:
            self._send('autoware/trajectory', autoware.trajectory(
                message.trajectories[message.chosen_index]))
        if 'autoware/reasoning' in wanted:
            self._send('autoware/reasoning', autoware.reasoning(message))
        if pose is not None and 'autoware/candidate_trajectories' in wanted:
            self._send('autoware/candidate_trajectories',
                       autoware.candidate_trajectories(message, pose))

    def _send_detections(self, plan: DrivePlan):
        if detections.INSTALLED:
            for camera in self._cameras:
                header = header_of(plan, self.calibration.frame_id(camera))
                self._send(f'detections/{CAMERA_NAMES[camera]}', detections.image_detections(
                    plan.primitives, camera, header))
            self._send('detections_3d', detections.space_detections(
                plan.primitives, header_of(plan, self._frame_id)))

    def clear(self):
        """Remove what viewers show of earlier plans."""
        self._send('markers', self._markers.reset())

    def stop(self):
        """End the drawing; its thread would keep the node alive."""
        self._annotated.stop()

    def destroy(self):
        """Close the topics."""
        self._annotated.destroy()
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers = {}

    def _send(self, name: str, message):
        # the topics may have been closed since the step began
        publisher = self._publishers.get(name)
        if publisher is not None:
            publisher.publish(message)
