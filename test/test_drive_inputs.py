"""What the drive node makes of time, cameras and odometry that fail it, over real DDS."""
import gc
import time

import pytest

rclpy = pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from diagnostic_msgs.msg import DiagnosticStatus  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from rclpy.duration import Duration  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from support.drive_rig import MS, T0, jpeg, rig  # noqa: E402
from support.engine_double import EngineDouble  # noqa: E402

from flashdrive_ros.nodes import messages, qos  # noqa: E402
from flashdrive_ros.nodes.ros_time import RosTime  # noqa: E402


@pytest.fixture
def engine():
    return EngineDouble()


class Journey:
    """A car that drives on from one time, 100 ms at a time and about as fast as real time."""

    def __init__(self, r, ms=-100):
        self.r, self.ms = r, ms

    def until(self, condition, cameras=None, timeout_s=25.0):
        """Drive until a condition holds; returns whether it came to hold."""
        end = time.monotonic() + timeout_s
        while not (held := condition()) and time.monotonic() < end:
            self.ms += 100
            self.r.car.drive_on(self.ms - 50, self.ms)
            self.r.car.see(self.ms, cameras=cameras)
            time.sleep(0.1)
        return held

    def on(self, count, cameras=None):
        """Drive for `count` times 100 ms."""
        end = self.ms + 100 * count
        self.until(lambda: self.ms >= end, cameras)


def tells(r, name, text):
    """Whether a diagnostic status has this in its message."""
    return text in getattr(r.car.diagnostics.get(name), 'message', '')


# ---- time

def test_plans_come_and_the_lack_is_told_while_simulated_time_has_not_begun(engine):
    """Field report 16: before /clock now() is 0 and timers on it never fire."""
    with rig(lambda model, config: engine, parameters={'use_sim_time': True}) as r:
        r.started()
        r.plan_at(0)
        r.plan_at(100)
        assert Journey(r, 100).until(lambda: tells(r, 'plan', 'waiting for /clock'))
        assert r.car.level('plan') == DiagnosticStatus.WARN
        assert r.car.heard['plan'][-1].latency.camera_to_plan_ms == 0.0


def clock_of(r):
    clock = r.car.node.create_publisher(Clock, '/clock', qos.DIAGNOSTICS)
    assert r.until(clock.get_subscription_count)

    def tell(ms):
        """Have simulated time go to T0 + ms, and wait until the node knows."""
        clock.publish(Clock(clock=messages.stamp(T0 + ms * MS)))
        assert r.until(lambda: r.drive._time.now_ns() == T0 + ms * MS)
    return tell


def test_the_first_clock_message_is_no_jump_and_one_back_resets_once(engine):
    """Field reports 14 and 15: one reset a jump, none for the first /clock message."""
    with rig(lambda model, config: engine, parameters={'use_sim_time': True}) as r:
        r.started()
        tell = clock_of(r)
        for ms in range(0, 2100, 100):
            tell(ms)
            r.plan_at(ms)
        assert engine.resets == []
        tell(-3000)  # the bag begins again: first its clock, then its data
        r.car.drive_on(-4600, -3000)
        for ms in range(-3000, -2500, 100):
            tell(ms)
            r.plan_at(ms)
        assert engine.resets == ['/clock went back by 5.000 s']


def test_stamps_that_go_back_before_the_clock_does_reset_once(engine):
    """Field report 14."""
    with rig(lambda model, config: engine, parameters={'use_sim_time': True}) as r:
        r.started()
        tell = clock_of(r)
        for ms in range(0, 2100, 100):
            tell(ms)
            r.plan_at(ms)
        r.car.drive_on(-4600, -3000)
        r.car.see(-3000)
        r.plan_at(-2900)
        tell(-2850)
        r.plan_at(-2800)
        assert engine.resets == ['camera front_wide_120: time went back by 4.900 s']


def test_the_jump_handle_is_kept_and_given_back(ros):
    """Field report 15: a dropped handle is freed memory at the next /clock message."""
    node = ros.create_node('clocked', parameter_overrides=[Parameter('use_sim_time', value=True)])
    jumps = []
    watch = RosTime(node, lambda now_ns, reason: jumps.append((now_ns, reason)))
    gc.collect()
    source = ros.create_node('source')
    clock = source.create_publisher(Clock, '/clock', qos.DIAGNOSTICS)
    executor = rclpy.executors.SingleThreadedExecutor()
    executor.add_node(node)

    def tell(seconds):
        clock.publish(Clock(clock=messages.stamp(seconds * 10**9)))
        end = time.monotonic() + 10
        while watch.now_ns() != seconds * 10**9 and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
        assert watch.now_ns() == seconds * 10**9
    assert 'use_sim_time' in watch.trouble()
    end = time.monotonic() + 10
    while not clock.get_subscription_count() and time.monotonic() < end:
        executor.spin_once(timeout_sec=0.05)
    for seconds in (100, 101, 50, 51):
        tell(seconds)
        gc.collect()
    assert jumps == [(50 * 10**9, '/clock went back by 51.000 s')] and watch.trouble() == ''
    watch.close()
    tell(1)
    assert len(jumps) == 1
    clock.wait_for_all_acked(Duration(seconds=1))
    for n in (node, source):
        n.destroy_node()


@pytest.mark.parametrize('step_ms', [-500, 400])
def test_a_clock_that_steps_starts_a_new_window(engine, step_ms):
    """Issue 7, clock steps either way: images half a second apart never pass for 0.1 s."""
    with rig(lambda model, config: engine) as r:
        r.started()
        for ms in range(0, 1000, 100):
            r.plan_at(ms)
        assert Journey(r, 900 + step_ms).until(lambda: len(engine.steps) >= 16)
        stamps = [(f.t0_ns - T0) // MS for f, *_ in engine.steps]
        windows = [[(h.t0_ns - T0) // MS for h in history] for *_, history in engine.steps]
        after = [w for t, w in zip(stamps[10:], windows[10:])]
        assert all(w == [] or min(w) >= 1000 + step_ms or max(w) < 1000 for w in after)
        assert bool(engine.resets) == (step_ms < 0)


def test_stamps_in_the_future_are_told(engine):
    """Issue 7: future stamps."""
    with rig(lambda model, config: engine, parameters={'use_sim_time': True}) as r:
        r.started()
        clock_of(r)(-60_000)
        name = 'camera 1 front_wide_120'
        assert Journey(r).until(lambda: tells(r, name, "s in the future of this node's time"))
        assert r.car.level(name) == DiagnosticStatus.WARN


# ---- cameras

def test_a_frozen_camera_stops_planning_by_default_and_is_named(engine):
    """Field report 4."""
    with rig(lambda model, config: engine, parameters={'timeout_s': 0.5}) as r:
        r.started()
        r.plan_at(0)
        assert Journey(r, 0).until(
            lambda: 'no images from camera 0 cross_left_120' in r.car.why(), [1])
        assert r.car.plan_times() == [0]


def test_a_frozen_camera_is_left_out_when_told_so_and_taken_back(engine):
    """Field report 4: degraded mode by parameter."""
    with rig(lambda model, config: engine,
             parameters={'timeout_s': 0.5, 'missing_cameras': 'go_on'}) as r:
        r.started()
        r.plan_at(0)
        journey = Journey(r, 0)
        assert journey.until(lambda: engine.steps[-1][0].camera_ids == (1,), [1])
        assert journey.until(lambda: tells(r, 'plan', 'without camera cross_left_120'), [1])
        assert journey.until(lambda: engine.steps[-1][0].camera_ids == (0, 1))
        assert not engine.resets


def test_a_model_that_needs_all_cameras_goes_on_without_none(engine):
    """Issue 7: go on without it if the model allows."""
    engine.camera_ids = (0, 1)
    with rig(lambda model, config: engine,
             parameters={'timeout_s': 0.5, 'missing_cameras': 'go_on'}) as r:
        r.started()
        assert Journey(r).until(lambda: 'no images from camera 0' in r.car.why(), [1])
        assert not engine.steps


def test_an_anchor_that_is_no_camera_of_the_node_is_refused_before_loading(engine):
    with rig(lambda model, config: engine, parameters={'anchor_camera': 5}) as r:
        assert r.says('anchor_camera is 5, expected one of camera_ids [0, 1]')
        assert not engine.warm


def test_a_gap_of_a_second_starts_a_new_window_by_itself(engine):
    """Weak point 3 of the peer: after a gap the old window is stale."""
    with rig(lambda model, config: engine) as r:
        r.started()
        for ms in range(0, 500, 100):
            r.plan_at(ms)
        r.car.drive_on(450, 2500)
        r.car.see(1600)
        r.car.drive_on(1650, 1700)
        r.car.see(1700)
        assert r.until(lambda: 1700 in r.car.plan_times())
        assert engine.resets == ['camera front_wide_120: a gap of 1.300 s']
        assert [(h.t0_ns - T0) // MS for h in engine.steps[-1][3]] == [1600]


def test_cameras_of_different_sizes_go_together(engine):
    """Weak point 7 of the peer: 1920 x 1080 beside 1280 x 960."""
    with rig(lambda model, config: engine) as r:
        r.started()
        r.car.drive_on(-50, 0)
        r.car.see(0, cameras=[0], data=jpeg(size=(1920, 1080)))
        r.car.see(0, cameras=[1], data=jpeg(size=(1280, 960)))
        assert r.until(lambda: r.car.plan_times() == [0])
        frames = engine.steps[0][0].frames
        assert [frames[c].image.shape for c in (0, 1)] == [(1080, 1920, 3), (960, 1280, 3)]


# ---- odometry

def odometry(ms, x, speed, child='base_link'):
    message = Odometry(child_frame_id=child)
    message.header.stamp, message.header.frame_id = messages.stamp(T0 + ms * MS), 'odom'
    message.pose.pose.position.x = float(x)
    message.pose.pose.orientation.w = 1.0
    message.twist.twist.linear.x = float(speed)
    return message


def test_a_jump_of_a_few_metres_withholds_plans_and_says_so(engine):
    """Issue 7: jumps, twist check."""
    with rig(lambda model, config: engine) as r:
        assert r.connected()

        def publish(from_ms, to_ms, ahead_m):
            for ms in range(from_ms, to_ms, 20):
                r.car.odometry.publish(odometry(ms, 10 * ms / 1000 + ahead_m, 10))
                time.sleep(0.002)
        publish(-1600, 20, 0)
        r.car.see(0)
        assert r.until(lambda: r.car.plan_times() == [0])
        publish(20, 120, 4)
        r.car.see(100)
        assert r.says('odometry jumps by 4.2 m in 0.02 s, 0.1 s before the frames')
        for ms in range(200, 2100, 100):  # until it is history
            publish(ms - 80, ms + 20, 4)
            r.car.see(ms)
            time.sleep(0.05)
        assert r.until(lambda: 2000 in r.car.plan_times())
        assert min(t for t in r.car.plan_times() if t) >= 1500


def test_odometry_of_another_body_is_a_warning(engine):
    """Issue 7: twist in child frame check."""
    with rig(lambda model, config: engine) as r:
        r.started()
        ms = iter(range(20, 100_000, 20))
        assert r.until(lambda: tells(
            r, 'odometry', "child_frame_id is 'gps', expected 'base_link'")
            or r.car.odometry.publish(odometry(next(ms), 0, 0, 'gps')))
        assert r.car.level('odometry') == DiagnosticStatus.WARN


# ---- output

def test_trajectory_and_path_come_in_the_frame_of_the_odometry_when_told_so(engine):
    """Issue 7: output in odom; the plan itself stays in the vehicle's frame."""
    with rig(lambda model, config: engine, parameters={'output_frame': 'odom'}) as r:
        r.started()
        r.plan_at(0)
        r.plan_at(100)
        heard = r.car.heard
        assert r.until(lambda: len(heard['trajectory']) == len(heard['path']) == 2)
        plan, trajectory, path = (heard[n][-1] for n in ('plan', 'trajectory', 'path'))
        assert plan.header.frame_id == 'base_link'
        assert trajectory.header.frame_id == path.header.frame_id == 'odom'
        own = plan.trajectories[plan.chosen_index].points[9].pose.position
        assert trajectory.points[9].pose.position.x == pytest.approx(own.x + 1.0)
        assert path.poses[9].pose.position.x == pytest.approx(own.x + 1.0)


def test_an_output_frame_to_which_nothing_leads_is_said_and_plans_go_on(engine):
    """Field report 18: a lookup that fails blocks nothing."""
    with rig(lambda model, config: engine, parameters={'output_frame': 'map'}) as r:
        r.started()
        r.plan_at(0)
        r.plan_at(100)
        assert r.until(lambda: r.drive.health.counts['output'] == 2)
        assert not r.car.heard['trajectory'] and not r.car.heard['path']
