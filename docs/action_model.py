"""An action model of a few lines: hears plan features and cross-attends to them."""
import rclpy
import torch
from rclpy.node import Node

from flashdrive_ros.features import for_recogdrive, from_message
from flashdrive_ros.msg import PlanFeatures


class ActionModel(Node):
    """A head with random weights."""
    def __init__(self):
        super().__init__('action_model')
        self.head, self.query = None, torch.zeros(1, 8, 64)  # 8 waypoints
        self.create_subscription(PlanFeatures, 'drive/features', self.act, 1)

    @torch.inference_mode()
    def act(self, message):
        """Attend to the features of one plan."""
        plan = from_message(message).select(['question', 'subtask', 'trajectory'])
        states = for_recogdrive(plan, backend='torch')  # [1, tokens, hidden]
        if self.head is None:  # yours would be trained
            self.head = torch.nn.MultiheadAttention(
                64, 4, kdim=states.shape[2], vdim=states.shape[2], batch_first=True)
        action, _ = self.head(self.query, states, states)
        self.get_logger().info(f'plan {plan.plan_id}: {list(states.shape)} {list(action.shape)}')


rclpy.init()
rclpy.spin(ActionModel())
