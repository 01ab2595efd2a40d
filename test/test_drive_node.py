"""The drive node over real DDS, with an engine double."""
import pytest

rclpy = pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from support.drive_rig import T0, rig  # noqa: E402
from support.engine_double import EngineDouble  # noqa: E402

from flashdrive_ros.nodes import messages  # noqa: E402


@pytest.fixture
def engine():
    return EngineDouble()


def test_a_plan_for_each_frame_set_stamped_with_its_time(engine):
    with rig(lambda model, config: engine) as r:
        assert r.connected()
        r.car.drive_on(-1600, 0)
        for ms in range(0, 500, 100):
            r.car.drive_on(ms - 50, ms)
            r.car.see(ms)
            assert r.until(lambda ms=ms: ms in r.car.plan_times()), r.car.why()
        assert r.car.plan_times() == [0, 100, 200, 300, 400]
        assert r.until(lambda: all(len(messages) == 5 for messages in r.car.heard.values()))
        plan = r.car.heard['plan'][-1]
        assert plan.header.frame_id == 'base_link' and not plan.trained
        assert plan.trajectories[0].points[0].time_from_start.nanosec == 100_000_000
        path = r.car.heard['path'][-1]
        assert messages.stamp_ns(path.header.stamp) == T0 + 400_000_000
        assert messages.stamp_ns(path.poses[0].header.stamp) == T0 + 500_000_000
