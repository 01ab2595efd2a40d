"""Plans for tests."""
import numpy as np

from flashdrive_ros.core.types import DrivePlan, Reasoning, WindowState


def make_plan(trajectories=2, points=64, **changes):
    """A plan of gentle left curves; `changes` replace fields."""
    k = np.arange(trajectories)[:, None]
    time = 0.1 * np.arange(1, points + 1)
    speed = np.broadcast_to(8.0 + k, (trajectories, points))
    curvature = np.broadcast_to(0.01 * (k + 1), (trajectories, points))
    yaw = speed * curvature * time
    xyz = np.stack((speed * time, speed * time * yaw / 2, np.zeros_like(yaw)), -1)
    return DrivePlan(**{
        't0_ns': 1_700_000_000_100_000_000, 'plan_id': 7, 'xyz': xyz, 'yaw': yaw, 'speed': speed,
        'acceleration': np.zeros_like(yaw), 'curvature': curvature,
        'scores': np.linspace(0.5, 0.9, trajectories), 'chosen': trajectories - 1, 'dt_s': 0.1,
        'reasoning': Reasoning('Keep the lane.', (5, 6, 7)),
        'window': WindowState('streaming', '', 4, 4, 4, 900, 300),
        'stage_times_ms': {'encode': 1.0, 'total': 4.0}, 'model': 'double', 'trained': True,
        'drawn': True,
        **changes})
