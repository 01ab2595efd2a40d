"""The drive node over real DDS, with an engine double."""
import array
import dataclasses
import threading

import numpy as np
import pytest

rclpy = pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from diagnostic_msgs.msg import DiagnosticStatus  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from rcl_interfaces.srv import GetParameters  # noqa: E402
from rclpy.serialization import serialize_message  # noqa: E402
from std_msgs.msg import String  # noqa: E402
from std_srvs.srv import Trigger  # noqa: E402
from support.drive_rig import MS, T0, jpeg, rig  # noqa: E402
from support.engine_double import EngineDouble  # noqa: E402
from visualization_msgs.msg import Marker  # noqa: E402

from flashdrive_ros import msg  # noqa: E402
from flashdrive_ros.core.types import Reasoning  # noqa: E402
from flashdrive_ros.nodes import messages  # noqa: E402
from flashdrive_ros.srv import AskQuestion  # noqa: E402

RAW = bytes(32 * 24 * 3)


@pytest.fixture
def engine():
    return EngineDouble()


@pytest.fixture
def drive(engine):
    """A started rig with two cameras."""
    with rig(lambda model, config: engine) as r:
        r.started()
        yield r


# ---- what comes out

def test_a_plan_for_each_frame_set_stamped_with_its_time(drive):
    """Weak point 6 of the peer: stamps are t0, the first point is at 0.1 s."""
    for ms in range(0, 500, 100):
        drive.plan_at(ms)
    car = drive.car
    assert car.plan_times() == [0, 100, 200, 300, 400]
    assert drive.until(lambda: all(len(heard) == 5 for heard in car.heard.values()))
    plan = car.heard['plan'][-1]
    assert plan.header.frame_id == 'base_link' and not plan.trained
    assert plan.trajectories[0].points[0].time_from_start.nanosec == 100 * MS
    path = car.heard['path'][-1]
    assert messages.stamp_ns(path.header.stamp) == T0 + 400 * MS
    assert messages.stamp_ns(path.poses[0].header.stamp) == T0 + 500 * MS
    assert drive.until(lambda: car.level('plan') == DiagnosticStatus.WARN)
    assert 'untrained' in car.diagnostics['plan'].message


def test_plans_follow_the_images(drive):
    drive.plan_at(0, data=jpeg(red=50))
    drive.plan_at(100, data=jpeg(red=200))
    slow, fast = (p.trajectories[0].points[0].speed for p in drive.car.heard['plan'])
    assert slow == pytest.approx(5, abs=0.3) and fast == pytest.approx(20, abs=0.3)


def test_30_hz_cameras_give_frames_100_ms_apart(drive, engine):
    """Weak point 1 of the peer: frames by count."""
    drive.car.drive_on(0, 1000)
    for i in range(31):
        drive.car.see(i * 100 / 3)
        drive.until(lambda i=i: drive.drive._inputs.selector.tracks[1].counts['received'] > i)
    assert drive.until(lambda: 1000 in drive.car.plan_times())
    frames, _, _, history = engine.steps[-1]
    sets = [*history, frames]
    assert [(s.t0_ns - T0) // MS for s in sets] == [700, 800, 900, 1000]
    stamps = [s.frames[c].stamp_ns - T0 for s in sets for c in (0, 1)]
    assert stamps == pytest.approx([m * MS for m in (700, 700, 800, 800, 900, 900, 1000, 1000)],
                                   abs=MS)


def test_a_repeated_frame_is_no_step(drive, engine):
    """Weak point 2 of the peer: a frame fed twice shifts the window."""
    drive.plan_at(0)
    drive.car.see(0)
    drive.plan_at(100)
    assert [f.t0_ns - T0 for f, *_ in engine.steps] == [0, 100 * MS]


def test_a_route_told_before_the_node_starts_is_heard_and_nav_text_wins(engine):
    """Field report 32: a latched route is missed."""
    with rig(lambda model, config: engine, parameters={'autostart': False}) as r:
        r.car.route_text.publish(String(data='follow the route'))
        assert r.car.change_state('configure') and r.car.change_state('activate')
        r.started()
        assert r.until(lambda: r.drive._inputs.nav_text == 'follow the route')
        r.plan_at(0)
        assert r.until(lambda: r.car.nav_text.get_subscription_count() > 0)
        r.car.nav_text.publish(String(data='turn left'))
        assert r.until(lambda: r.drive._inputs.nav_text == 'turn left')
        r.plan_at(100)
        r.car.nav_text.publish(String(data=''))
        assert r.until(lambda: r.drive._inputs.nav_text == 'follow the route')
        r.plan_at(200)
        assert [text for _, _, text, _ in engine.steps] == [
            'follow the route', 'turn left', 'follow the route']


# ---- bad input

@pytest.mark.parametrize('bad, reason', [
    ({'data': RAW, 'encoding': 'h264'}, "unknown encoding 'h264', supported are"),
    ({'data': RAW[:-1]}, 'needs rows of 96 bytes and 2304 bytes in all'),
    ({'data': RAW, 'size': (0, 24)}, 'image of 0 x 24 pixels'),
])
def test_a_malformed_image_is_named_and_the_next_set_is_planned(engine, bad, reason):
    """Field reports 6 and 28: an exception in a callback ends spin."""
    with rig(lambda model, config: engine, transport='raw') as r:
        r.started()
        r.car.see_raw(0, **bad)
        assert r.says(reason)
        assert '/camera/front_wide_120/image_raw' in r.car.why() or (
            '/camera/cross_left_120/image_raw' in r.car.why())
        assert r.car.level('plan') == DiagnosticStatus.ERROR and not r.car.heard['plan']
        r.car.drive_on(50, 100)
        r.car.see_raw(100, RAW)
        assert r.until(lambda: r.car.plan_times() == [100])


def test_bytes_that_are_no_image_are_survived(drive):
    """Field report 28."""
    camera = drive.car.cameras[1]
    for data in (b'', b'\0\1\0\0', b'\0\1\0\0' + bytes(8), bytes(range(256)) * 4):
        camera.publish(data)
    message = serialize_message(Odometry())
    drive.car.odometry.publish(message[:20])
    # the bytes may have passed for a stamp; two frames in a row prove them wrong
    drive.car.see(0)
    drive.car.see(100)
    drive.plan_at(200)


def test_without_odometry_nothing_is_planned_and_it_is_said(engine):
    with rig(lambda model, config: engine) as r:
        assert r.connected()
        r.car.see(0)
        assert r.says('no images')  # one frame, a while ago
        stop = threading.Event()

        def look():
            ms = 0
            while not stop.wait(0.1):
                r.car.see(ms := ms + 100)
        looking = threading.Thread(target=look)
        looking.start()
        try:
            assert r.says('no odometry')
            assert r.until(lambda: r.car.level('odometry') == DiagnosticStatus.ERROR)
            assert '/odometry: never heard' in r.car.diagnostics['odometry'].message
        finally:
            stop.set()
            looking.join()
        assert not engine.steps and not r.car.heard['plan']


def test_odometry_that_does_not_reach_back_is_said(engine):
    with rig(lambda model, config: engine) as r:
        assert r.connected()
        r.car.drive_on(-500, 0)
        r.car.see(0)
        assert r.says('odometry begins 1.000 s after the start of the 1.5 s history')
        assert not r.car.heard['plan']


def test_a_silent_camera_is_named(drive):
    """Field report 4: one silent camera, and no message about it."""
    name = 'camera 0 cross_left_120'
    drive.car.see(0, cameras=[1])
    topic = '/camera/cross_left_120/image_raw/compressed'
    assert drive.until(lambda: drive.car.level(name) == DiagnosticStatus.ERROR)
    assert drive.car.diagnostics[name].message == f'{topic}: never heard'
    assert drive.says(topic)
    drive.plan_at(100)


def test_a_camera_that_offers_too_little_is_named(engine):
    """Field report 1: a reliable subscription, a best-effort camera, no images."""
    with rig(lambda model, config: engine,
             parameters={'camera_reliability': 'reliable'}) as r:
        name = 'camera 1 front_wide_120'
        assert r.until(lambda: 'incompatible QoS (RELIABILITY)' in getattr(
            r.car.diagnostics.get(name), 'message', ''))
        assert r.car.level(name) == DiagnosticStatus.ERROR


def test_a_failing_engine_is_reset_and_the_node_goes_on(drive, engine):
    def fail(frames):
        raise RuntimeError('device lost')
    drive.plan_at(0)
    engine.fault = fail
    drive.car.drive_on(50, 100)
    drive.car.see(100)
    assert drive.says('RuntimeError: device lost')
    engine.fault = lambda frames: None
    drive.plan_at(200)
    assert engine.resets == ['RuntimeError: device lost']
    assert drive.car.plan_times() == [0, 200]


def test_a_plan_that_is_not_finite_is_withheld(drive, engine):
    engine.spoil = True
    drive.car.see(0)
    assert drive.says('plan 1 has values that are not finite')
    assert not any(drive.car.heard.values())
    engine.spoil = False
    drive.plan_at(100)


def test_an_implausible_plan_is_withheld_with_the_limit(drive, engine):
    drive.plan_at(0)
    plan = engine._plan

    def race(*arguments):
        made = plan(*arguments)
        return dataclasses.replace(made, speed=made.speed + 1440)
    engine._plan = race
    drive.car.drive_on(50, 100)
    drive.car.see(100)
    assert drive.says('speed 1.45e+03 m/s, allowed is -15 to 70 m/s')
    assert drive.car.values('plan')['gate refused'] == '1'
    assert drive.car.values('plan')['gate speed'] == '1.45e+03 m/s'
    engine._plan = plan
    drive.plan_at(200)
    assert drive.car.plan_times() == [0, 200]


def test_a_plan_that_contradicts_its_words_goes_out_with_a_warning(drive, engine):
    plan = engine._plan

    def confused(*arguments):
        made = plan(*arguments)
        return dataclasses.replace(made, speed=made.speed + np.arange(64) / 10,
                                   reasoning=Reasoning('Brake because a car stands ahead.'))
    engine._plan = confused
    drive.plan_at(0)
    health = drive.drive.health
    assert drive.until(lambda: health.counts['plans'] == 1)
    status = health.statuses(True, drive.drive._inputs)[0]
    assert 'the text says slower ("Brake"), the plan +2.9 m/s in 3 s' in status.message
    assert status.level == DiagnosticStatus.WARN


def test_the_gates_limits_apply_from_the_next_plan_on(drive):
    drive.plan_at(0)
    assert drive.car.set_parameter('gate_max_speed_mps', 5.0).successful
    drive.car.drive_on(50, 100)
    drive.car.see(100)
    assert drive.says('speed 10 m/s, allowed is -15 to 5 m/s')
    assert drive.car.set_parameter('gate_max_speed_mps', 70.0).successful
    drive.plan_at(200)


def test_another_publisher_of_plans_is_an_error(drive):
    drive.plan_at(0)
    drive.car.node.create_publisher(msg.DrivePlan, 'drive/plan', 1)
    assert drive.until(lambda: drive.drive.health.rivals == 1)
    drive.plan_at(100)
    assert drive.until(lambda: drive.car.diagnostics['plan'].message
                       == '1 more publish plans on the same topic')
    assert drive.car.level('plan') == DiagnosticStatus.ERROR


def test_a_bag_loop_resets_the_engine_and_the_markers_once(drive, engine):
    """Field report 14: stale state in loops."""
    for ms in range(0, 2000, 100):
        drive.plan_at(ms)
    drive.car.drive_on(-5600, -4000)  # the bag begins again
    drive.car.see(-4000)
    drive.plan_at(-3900)
    drive.plan_at(-3800)
    assert engine.resets == ['camera front_wide_120: time went back by 5.800 s']
    assert drive.until(lambda: len(drive.car.marker_actions()) == 23)
    actions = drive.car.marker_actions()
    assert actions.index({Marker.DELETEALL}) == 20 and actions.count({Marker.DELETEALL}) == 1


# ---- lifecycle, services, parameters

def test_the_node_goes_through_its_states_and_plans_only_while_active(engine):
    with rig(lambda model, config: engine, parameters={'autostart': False}) as r:
        car = r.car
        assert car.state() == 'unconfigured'
        assert r.says('engine not loaded')
        assert not car.change_state('activate')
        assert car.change_state('configure') and car.state() == 'inactive' and engine.warm
        assert r.connected()
        car.drive_on(-1600, 0)
        car.see(0)
        assert r.says('node is not active')
        assert not engine.steps
        assert car.change_state('activate') and car.state() == 'active'
        r.plan_at(100)
        assert car.change_state('deactivate') and car.state() == 'inactive'
        assert r.until(lambda: car.marker_actions()[-1] == {Marker.DELETEALL})
        car.drive_on(150, 200)
        car.see(200)
        assert car.change_state('cleanup') and car.state() == 'unconfigured'
        assert r.until(lambda: r.drive._worker.engine is None)
        assert car.change_state('configure') and car.change_state('activate')
        r.started()
        r.plan_at(300)
        assert 200 not in car.plan_times()
        assert car.change_state('shutdown') and car.state() == 'finalized'


def test_the_node_answers_while_its_model_loads(engine):
    go_on = threading.Event()

    def slow(model, config):
        assert go_on.wait(30)
        return engine
    with rig(slow, parameters={'model': 'big'}) as r:
        assert r.until(lambda: r.drive.health.engine_state == 'loading')
        assert r.car.state() == 'configuring'
        value, = r.car.call(GetParameters, 'get_parameters', names=['model']).values
        assert value.string_value == 'big'
        assert 'loading' in r.car.set_parameter('seed', 3).reason
        assert r.says('engine loading')
        go_on.set()
        r.started()
        r.plan_at(0)


def test_a_checkpoint_that_is_not_there_is_named_and_can_be_corrected(engine):
    def load(model, config):
        if model != 'good':
            raise FileNotFoundError(f'{model}/config.json does not exist')
        return engine
    with rig(load, parameters={'model': 'no/such/model'}) as r:
        assert r.says('engine failed: FileNotFoundError: no/such/model/config.json')
        assert r.car.level('engine') == DiagnosticStatus.ERROR
        assert r.car.state() == 'unconfigured'
        assert r.car.set_parameter('model', 'good').successful
        assert r.car.change_state('configure') and r.car.change_state('activate')
        r.started()
        r.plan_at(0)


@pytest.mark.parametrize('parameters, reason', [
    ({'camera_ids': [0, 9]}, 'camera_ids must be different ones of'),
    ({'camera_topics': ['only/one']}, '1 camera_topics for 2 camera_ids'),
    ({'camera_topics': ['same', 'same']}, "camera_topics must differ, got ['same', 'same']"),
])
def test_cameras_that_make_no_sense_are_refused_before_loading(engine, parameters, reason):
    with rig(lambda model, config: engine, parameters=parameters) as r:
        assert r.says(reason)
        assert not engine.warm and r.car.state() == 'unconfigured'


def test_a_model_for_other_cameras_is_refused(engine):
    engine.camera_ids = (0, 1, 2, 6)
    with rig(lambda model, config: engine) as r:
        assert r.says('camera_ids are [0, 1], but double needs [0, 1, 2, 6]')
        assert r.car.state() == 'unconfigured'


def test_settings_reach_the_engine_or_are_refused_with_the_reason(engine):
    configs = []

    def load(model, config):
        configs.append(config)
        return engine
    with rig(load, parameters={'num_trajectories': 3, 'temperature': 1}) as r:
        r.started()
        assert configs[0].num_trajectories == 3 and configs[0].temperature == 1.0
        assert r.car.set_parameter('num_trajectories', 6).successful
        assert engine.settings == {'num_trajectories': 6}
        assert 'at most' in r.car.set_parameter('num_trajectories', 9).reason
        assert r.drive.parameters['num_trajectories'] == 6
        assert 'out of range' in r.car.set_parameter('top_p', 1.5).reason
        assert 'fixed while' in r.car.set_parameter('model', 'other').reason
        assert r.car.set_parameter('timeout_s', 2).successful
        assert r.drive.health.timeout_s == 2.0


def test_reset_and_questions_are_answered(drive, engine):
    assert 'no frames were seen yet' in drive.car.call(AskQuestion, 'ask', question='?').message
    drive.plan_at(0)
    answer = drive.car.call(AskQuestion, 'ask', question='Why slow?')
    assert answer.success and answer.answer == f'Why slow? at {T0}'
    assert messages.stamp_ns(answer.stamp) == T0
    assert drive.car.call(Trigger, 'reset').success
    assert engine.resets == ['asked to']
    assert drive.until(lambda: drive.car.marker_actions()[-1] == {Marker.DELETEALL})


def test_no_answer_to_a_question_is_no_success(drive, engine):
    engine.ask = lambda question: ''
    drive.plan_at(0)
    answer = drive.car.call(AskQuestion, 'ask', question='what is ahead?')
    assert not answer.success and 'within max_new_tokens' in answer.message


def test_services_say_when_no_model_is_loaded(engine):
    with rig(lambda model, config: engine, parameters={'autostart': False}) as r:
        assert r.car.call(Trigger, 'reset').message == 'no model is loaded'
        assert r.car.call(AskQuestion, 'ask', question='?').message == 'no model is loaded'


def test_topics_can_be_named_by_parameter(engine):
    with rig(lambda model, config: engine, transport='raw', cameras=(1,),
             parameters={'camera_topics': ['mycar/front']}) as r:
        from sensor_msgs.msg import Image
        r.car.cameras = {1: r.car.node.create_publisher(Image, 'mycar/front', 10)}
        r.started()
        message = Image(encoding='bgr8', width=16, height=16, step=48)
        message.header.stamp = messages.stamp(T0)
        message.data = array.array('B', np.zeros(16 * 48, np.uint8).tobytes())
        r.car.cameras[1].publish(message)
        assert r.until(lambda: r.car.plan_times() == [0])
