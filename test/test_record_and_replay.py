"""Recorder and replay as processes on real DDS."""
from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from support.recordings import (
    CAMERAS,
    START_NS,
    TICK_NS,
    VIDEO,
    node_process,
    own_domain,
    write_recording,
)

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from flashdrive_ros.recording.bag import header_stamp_ns, open_bag, stamp_ns

INPUTS = 'camera/.*|odometry|tf_static|route_text'


def contents(path):
    """Messages per topic, in order."""
    with open_bag(path) as reader:
        found = {}
        for connection, _, cdr in reader.messages():
            found.setdefault(connection.topic, []).append(bytes(cdr))
        return found


def unpadded(cdr, original):
    """DDS fills the payload up to a multiple of four bytes with zeros; without them."""
    extra = cdr[len(original):]
    assert len(extra) < 4 and not any(extra)
    return cdr[:len(original)]


def wait_for(condition, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, 'timeout'
        time.sleep(0.05)


def stop(process):
    """SIGINT; the output and how long it took."""
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    return output, time.monotonic() - begin


def test_what_is_replayed_is_recorded_byte_for_byte(tmp_path):
    source = write_recording(tmp_path / 'source', ticks=10)
    env = own_domain()
    with node_process('recorder_node', env, bag=tmp_path / 'copy') as recorder:
        wait_for((tmp_path / 'copy').exists)
        with node_process('replay_node', env, source=source) as replay:
            output, _ = replay.communicate(timeout=60)
            assert replay.returncode == 0, output
        recorded, took_s = stop(recorder)
    assert recorder.returncode == 0, recorded
    assert took_s < 2
    before, after = contents(source), contents(tmp_path / 'copy')
    assert '/drive/plan' not in after   # an output: not replayed unless asked for
    if find_spec('tf2_msgs') is None:
        assert '/tf_static is not replayed: message type tf2_msgs/msg/TFMessage' in output
        del before['/tf_static']
    for topic in before.keys() - {'/drive/plan'}:
        assert [unpadded(m, n) for m, n in zip(after[topic], before[topic], strict=True)
                ] == before[topic], topic


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_recorder_finishes_the_bag_on_a_signal(tmp_path, number):
    env = own_domain()
    with node_process('recorder_node', env, bag=tmp_path / 'bag') as recorder:
        wait_for((tmp_path / 'bag').exists)
        time.sleep(1.5)
        recorder.send_signal(number)
        output, _ = recorder.communicate(timeout=5)
    assert recorder.returncode == 0 and 'Traceback' not in output, output
    assert '/rosout' in contents(tmp_path / 'bag')


def test_recorder_refuses_an_existing_folder_by_name(tmp_path):
    with node_process('recorder_node', own_domain(), bag=tmp_path) as recorder:
        output, _ = recorder.communicate(timeout=20)
    assert recorder.returncode == 1
    assert f'{tmp_path} can\'t be written' in output and 'Traceback' not in output


def test_video_frames_arrive_at_ten_hertz_with_their_own_times(tmp_path):
    env = own_domain()
    with node_process('recorder_node', env, bag=tmp_path / 'bag') as recorder:
        wait_for((tmp_path / 'bag').exists)
        with node_process('replay_node', env, source=VIDEO, duration_s=2.0) as replay:
            output, _ = replay.communicate(timeout=60)
            assert replay.returncode == 0, output
            assert 'ego motion ASSUMED: straight ahead at 25 m/s' in output
        stop(recorder)
    found = contents(tmp_path / 'bag')
    stamps = [header_stamp_ns(m)
              for m in found['/camera/front_wide_120/image_raw/compressed']]
    assert len(stamps) == 20
    offsets_ms = [(s - stamps[0]) / 1e6 for s in stamps]
    assert all(0 <= ms - 100 * i <= 20 + 1e-3 for i, ms in enumerate(offsets_ms)), offsets_ms
    odometry = [header_stamp_ns(m) for m in found['/odometry']]
    assert odometry == sorted(odometry) and odometry[0] <= stamps[0] - 1_500_000_000
    assert set(stamps) <= set(odometry)
    assert abs(stamps[0] / 1e9 - time.time()) < 60


class PlanMaker:
    """Publishes an empty plan for every front image; remembers what it saw, in order."""

    def __init__(self, env, *, skip=()):
        import rclpy
        from nav_msgs.msg import Odometry
        from sensor_msgs.msg import CompressedImage

        from flashdrive_ros.msg import DrivePlan
        self._plan_type, self._skip = DrivePlan, skip
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=int(env['ROS_DOMAIN_ID']))
        self._node = rclpy.create_node('drive', context=self._context)
        self._executor = rclpy.executors.SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._plans = self._node.create_publisher(DrivePlan, '~/plan', 1)
        best_effort = rclpy.qos.qos_profile_sensor_data
        self._node.create_subscription(CompressedImage,
                                       'camera/front_wide_120/image_raw/compressed',
                                       self._on_image, best_effort)
        self._node.create_subscription(Odometry, 'odometry', self._on_odometry, best_effort)
        self.seen, self._images, self._odometry = [], [], []

    def _on_odometry(self, message):
        self._odometry.append(stamp_ns(message.header.stamp))
        self._step()

    def _on_image(self, message):
        self._images.append(message)
        self._step()

    def _step(self):
        """Like the drive node: an image counts once odometry has reached its time."""
        while self._images and self._odometry and (
                stamp_ns(self._images[0].header.stamp) <= self._odometry[-1]):
            header = self._images.pop(0).header
            stamp = stamp_ns(header.stamp)
            self.seen.append((stamp, sum(s <= stamp for s in self._odometry)))
            time.sleep(0.03 * (len(self.seen) % 3))   # an engine of uneven speed
            if len(self.seen) not in self._skip:
                self._plans.publish(self._plan_type(header=header))

    def spin_while(self, process):
        while process.poll() is None:
            self._executor.spin_once(timeout_sec=0.1)

    def close(self):
        self._node.destroy_node()
        self._context.try_shutdown()


def lock_step(env, source, *, skip=(), **parameters):
    maker = PlanMaker(env, skip=skip)
    try:
        with node_process('replay_node', env, source=source, rate=0, **parameters) as replay:
            maker.spin_while(replay)
            output = replay.stdout.read()
            assert replay.returncode == 0, output
    finally:
        maker.close()
    return maker.seen, output


def test_lock_step_waits_for_each_plan_and_repeats_itself(tmp_path):
    source = write_recording(tmp_path / 'source', ticks=25, plans=False)
    first, output = lock_step(own_domain(), source)
    second, _ = lock_step(own_domain(), source)
    assert [stamp for stamp, _ in first] == [START_NS + i * TICK_NS for i in range(25)]
    assert first == second   # same images, each after the same odometry
    assert '10 windows with a plan, 0 without' in output   # 15 lack history


def test_lock_step_goes_on_when_a_plan_stays_out(tmp_path):
    source = write_recording(tmp_path / 'source', ticks=20, plans=False)
    seen, output = lock_step(own_domain(), source, skip=(18,), plan_timeout_s=0.5)
    assert len(seen) == 20
    assert '4 windows with a plan, 1 without' in output
    assert 'no plan on drive/plan for the window at' in output


def test_stamps_can_be_moved_to_the_present(tmp_path):
    source = write_recording(tmp_path / 'source', ticks=16, plans=False)
    seen, _ = lock_step(own_domain(), source, stamps='now')
    stamps = [stamp for stamp, _ in seen]
    assert [b - a for a, b in zip(stamps, stamps[1:], strict=False)] == [TICK_NS] * 15
    assert abs(stamps[0] / 1e9 - time.time()) < 60


def test_topics_are_remapped_moved_into_the_namespace_and_looped_with_a_clock(tmp_path):
    source = write_recording(tmp_path / 'source', ticks=4, plans=False)
    env = own_domain()
    image = '/camera/front_wide_120/image_raw/compressed'
    with node_process('recorder_node', env, bag=tmp_path / 'copy') as recorder:
        wait_for((tmp_path / 'copy').exists)
        with node_process('replay_node', env, source=source, loop=True, publish_clock=True,
                          topics=f"['{image}', '/odometry']", remap=f"['{image}:=/front/jpeg']",
                          ros=['-r', '__ns:=/car']) as replay:
            again = 0
            while again < 2 and (line := replay.stdout.readline()):
                again += 'beginning again' in line
            output, took_s = stop(replay)
        stop(recorder)
    assert replay.returncode == 0 and again == 2 and took_s < 2, output
    found = contents(tmp_path / 'copy')
    assert {'/car/front/jpeg', '/car/odometry', '/clock'} <= found.keys()
    assert '/car/camera/front_wide_120/image_raw/compressed' not in found
    stamps = [header_stamp_ns(m) for m in found['/car/front/jpeg']]
    assert stamps[:5] == [START_NS + i * TICK_NS for i in (0, 1, 2, 3, 0)]
    clock = [clock_ns(m) for m in found['/clock']]
    assert min(clock) >= START_NS - TICK_NS and max(clock) <= START_NS + 5 * TICK_NS
    assert sum(b < a for a, b in zip(clock, clock[1:])) >= 1   # it jumps back with the loop


def clock_ns(cdr):
    return header_stamp_ns(cdr)   # a Clock begins like a header, with a time


def test_the_recorder_takes_the_topics_that_it_is_told(tmp_path):
    source = write_recording(tmp_path / 'source', ticks=4, plans=False)
    env = own_domain()
    with node_process('recorder_node', env, bag=tmp_path / 'copy', storage='sqlite3',
                      topics="['/camera/.*compressed', '/odometry']",
                      exclude="['.*tele.*']") as recorder:
        wait_for((tmp_path / 'copy').exists)
        with node_process('replay_node', env, source=source) as replay:
            assert replay.wait(60) == 0
        output, _ = stop(recorder)
    assert recorder.returncode == 0, output
    found = contents(tmp_path / 'copy')
    assert found.keys() == {'/odometry', *(
        f'/camera/{c}/image_raw/compressed' for c in CAMERAS if 'tele' not in c)}


@pytest.mark.parametrize(('parameters', 'said'), [
    ({'remap': "['/odometry']"}, "parameter remap: '/odometry' must be from:=to"),
    ({'remap': "['/lidar:=/points']"}, 'must be from:=to with a topic of the recording'),
    ({'topics': "['/lidar']"}, "no topic matches '/lidar'"),
    ({'rate': '-1.0'}, 'rate'),
    ({'stamps': 'later'}, 'stamps'),
])
def test_replay_names_the_parameter_that_makes_no_sense(tmp_path, parameters, said):
    source = write_recording(tmp_path / 'source', ticks=2, plans=False)
    with node_process('replay_node', own_domain(), source=source, **parameters) as replay:
        output, _ = replay.communicate(timeout=60)
    assert replay.returncode == 1 and said in output and 'Traceback' not in output


@pytest.mark.parametrize(('make', 'said'), [
    (lambda p: p / 'nothing', 'no such file or folder'),
    (lambda p: _damaged(p), 'damaged or not a rosbag2'),
    (lambda p: write_recording(p / 'bag', ticks=3, odometry=False), 'no topic with odometry'),
    (lambda p: write_recording(p / 'bag', ticks=3, cameras=()), 'no topic with camera images'),
    (lambda p: _text_file(p / 'clip.mp4'), 'not a video'),
])
def test_replay_names_what_it_can_not_use(tmp_path, make, said):
    source = make(tmp_path)
    run = subprocess.run(
        [sys.executable, '-m', 'flashdrive_ros.nodes.replay_node', '--ros-args', '-p',
         f'source:={source}'], env=own_domain(), capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert said in run.stderr and str(source) in run.stderr and 'Traceback' not in run.stderr


def _damaged(folder):
    path = write_recording(folder / 'bag', ticks=3)
    mcap = path / 'bag.mcap'
    mcap.write_bytes(mcap.read_bytes()[:-200])
    return path


def _text_file(path):
    path.write_text('not a video')
    return path
