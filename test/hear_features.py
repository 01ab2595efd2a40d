"""An action model's process for test_feature_topic: prints what it makes of each message."""
import json
from contextlib import suppress

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.qos import QoSProfile

from flashdrive_ros.features import for_recogdrive, for_starvla_piv3, from_message
from flashdrive_ros.msg import PlanFeatures


def hear(message):
    """Print the inputs of two action models as sums."""
    features = from_message(message)
    states, mask = for_starvla_piv3(features)
    last = for_recogdrive(features)
    print(json.dumps({
        'plan_id': features.plan_id, 'stamp_ns': features.stamp_ns, 'model': features.model,
        'path': features.decode_path, 'states': states.shape, 'sum': float(states.sum()),
        'mask': mask.tolist(), 'last': last.shape, 'segments': features.segment_ids.tolist(),
        'tokens': features.token_ids.tolist(), 'positions': features.positions.tolist()}),
        flush=True)


rclpy.init()
node = rclpy.create_node('action_model')
node.create_subscription(PlanFeatures, 'drive/features', hear, QoSProfile(depth=10))
with suppress(KeyboardInterrupt, ExternalShutdownException):
    rclpy.spin(node)
