"""The drive node with the shipped model, over real DDS."""
import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')
pytest.importorskip('torch')

from support.drive_rig import jpeg, rig

from flashdrive_ros.nodes.drive_node import load_engine

# a busy machine may take a minute for what takes seconds
PATIENCE_S = 240


def test_the_shipped_model_plans_and_says_whether_it_is_trained():
    settings = {'model': 'small', 'device': 'cpu', 'max_new_tokens': 4, 'flow_steps': 2,
                'timeout_s': 60.0}
    with rig(load_engine, cameras=(0, 1, 2, 6), parameters=settings) as r:
        assert r.until(lambda: r.drive.health.engine_state in ('ready', 'failed'), PATIENCE_S)
        r.started()
        for ms in (0, 100):
            r.car.drive_on(ms - 50, ms)
            r.car.see(ms, data=jpeg(size=(320, 180)))
            assert r.until(lambda ms=ms: ms in r.car.plan_times(), PATIENCE_S), r.story()
        first, second = r.car.heard['plan']
        assert (first.window.mode, second.window.mode) == ('prefill', 'streaming')
        assert first.model == 'small' and first.trained == r.drive.health.trained
        points = second.trajectories[second.chosen_index].points
        assert len(points) == 64
        assert np.isfinite([(p.pose.position.x, p.pose.position.y, p.speed) for p in points]).all()
        # the odometry says 10 m/s, and a plan begins where the car is
        assert points[0].pose.position.x == pytest.approx(1.0, abs=0.5)
