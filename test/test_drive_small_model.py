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


def test_the_shipped_model_draws_what_it_is_asked_for_while_it_drives():
    settings = {'model': 'small', 'device': 'cpu', 'max_new_tokens': 4, 'flow_steps': 1,
                'timeout_s': 60.0, 'primitives': ['boxes:1:car'], 'primitives_every': 2,
                'max_primitive_tokens': 12}
    with rig(load_engine, cameras=(0, 1, 2, 6), parameters=settings) as r:
        assert r.until(lambda: r.drive.health.engine_state in ('ready', 'failed'), PATIENCE_S)
        assert r.drive.health.engine_state == 'ready', r.car.why()
        r.started()

        def plan_at(ms):
            r.car.drive_on(ms - 50, ms)
            r.car.see(ms, data=jpeg(size=(320, 180)))
            assert r.until(lambda: ms in r.car.plan_times(), PATIENCE_S), r.story()
        for ms in (0, 100, 200):
            plan_at(ms)
        assert r.until(lambda: len(r.car.heard['primitives']) == 2)
        assert [a.plan_id for a in r.car.heard['primitives']] == [
            r.car.heard['plan'][i].plan_id for i in (0, 2)]
        refused = r.car.set_parameter('primitives', ['trajectory_2d:1:9'])
        assert not refused.successful and 'points must be one of 8, 20, 64' in refused.reason
        assert r.car.set_parameter('primitives', []).successful
        plan_at(300)
        assert len(r.car.heard['plan']) == 4 and len(r.car.heard['primitives']) == 2
