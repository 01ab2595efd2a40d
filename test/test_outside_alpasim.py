"""AlpaSim's driver service in a process of its own, and a client that knows the protocol alone."""
import json
import math
import subprocess
import sys

import cv2
import numpy as np
import pytest
from support.tiny_checkpoint import tiny_checkpoint
from support.wire import as_float, as_integer, block, fixed64, floats, read

from flashdrive_ros.outside.alpasim.route import route_text

grpc = pytest.importorskip('grpc')
pytest.importorskip('google.protobuf')

IDS = ('camera_cross_left_120fov', 'camera_front_wide_120fov', 'camera_cross_right_120fov',
       'camera_front_tele_30fov')
START_US = 1_000_000_000
YAW = math.pi / 2
"""The car of these tests drives at 10 m/s along the local frame's y axis."""


@pytest.fixture(scope='module')
def port(tmp_path_factory):
    model = tiny_checkpoint(tmp_path_factory.mktemp('alpasim') / 'tiny')
    process = subprocess.Popen(
        [sys.executable, '-c', 'import sys; from flashdrive_ros.cli import main; sys.exit(main())',
         'serve', 'alpasim', '--model', str(model), '--device', 'cpu', '--port', '0',
         '--sessions', '2', '--no-warm-up', '--set', 'max_new_tokens=4',
         '--set', 'num_trajectories=2'], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert 'serves AlpaSim at 127.0.0.1:' in line
        yield int(line.rsplit(':', 1)[1])
    finally:
        process.terminate()
        process.wait(20)


class Client:
    """Calls with bytes in and bytes out."""

    def __init__(self, port, uuid='a'):
        self.channel = grpc.insecure_channel(f'127.0.0.1:{port}')
        self.uuid = uuid

    def call(self, name, message=b''):
        return self.channel.unary_unary(f'/egodriver.EgodriverService/{name}')(message, timeout=60)

    def start(self, cameras=IDS, seed=5):
        vehicle = b''.join(block(3, block(3, name)) for name in cameras)
        self.call('start_session', block(1, self.uuid) + fixed64(2, seed)
                  + block(5, block(1, vehicle)))
        return self

    def image(self, tick, camera, data=None):
        picture = np.full((64, 96, 3), tick * 7 % 255, np.uint8)
        data = cv2.imencode('.png', picture)[1].tobytes() if data is None else data
        stamp = START_US + tick * 100_000
        self.call('submit_image_observation', block(1, self.uuid) + block(
            3, fixed64(2, stamp - 30_000) + fixed64(3, stamp) + block(4, data)
            + block(5, camera)))

    def images(self, tick, cameras=IDS):
        for camera in cameras:
            self.image(tick, camera)

    def motion(self, first, last):
        poses = b''.join(block(1, block(1, block(1, floats(1, 100.0, t * 1.0, 5.0)) + block(
            2, floats(1, math.cos(YAW / 2), 0, 0, math.sin(YAW / 2)))) + fixed64(
            2, START_US + t * 100_000)) for t in range(first, last + 1))
        states = b''.join(block(5, block(2, floats(1, 10.0))) for _ in range(first, last + 1))
        self.call('submit_egomotion_observation', block(1, self.uuid) + block(3, poses) + states)

    def drive(self, tick, query=None, late_us=0):
        now = START_US + tick * 100_000 + late_us
        query = now if query is None else START_US + query * 100_000
        answer = read(self.call('drive', block(1, self.uuid) + fixed64(3, now)
                                + fixed64(4, query)))
        about = read(answer[3][0])
        return (rows(answer[2][0]), json.loads(about[1][0]),
                [rows(sample) for sample in about.get(2, [])])

    def close(self):
        self.call('close_session', block(1, self.uuid))


def rows(trajectory):
    """Rows stamp us, x, y, z, qw, qx, qy, qz of a trajectory."""
    found = []
    for data in read(trajectory).get(1, []):
        item = read(data)
        pose = read(item[1][0])
        found.append([as_integer(item[2][0])] + [as_float(read(pose[part][0])[n][0])
                     if n in read(pose[part][0]) else 0.0
                     for part, ns in ((1, (1, 2, 3)), (2, (1, 2, 3, 4))) for n in ns])
    return np.array(found)


def refused(call, code, *said):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() is code
    assert all(text in caught.value.details() for text in said), caught.value.details()


def test_a_rollout_gets_a_trajectory_in_the_local_frame(port):
    client = Client(port).start()
    try:
        client.motion(-20, 0)
        empty, about, _ = client.drive(0)
        assert not len(empty) and 'frames' in about['waiting']
        modes = []
        for tick in range(6):
            client.motion(tick, tick)
            client.images(tick)
            found, about, samples = client.drive(tick, query=tick + 5)
            modes.append(about['window'])
        assert about['t0_us'] == START_US + 500_000
        assert modes == ['prefill', *['streaming'] * 5]
        # from the pose at the frames' time on, every 0.1 s for 6.4 s
        assert found[:, 0].tolist() == [START_US + 500_000 + 100_000 * k for k in range(65)]
        np.testing.assert_allclose(found[0, 1:4], [100, 5, 5], atol=1e-4)
        np.testing.assert_allclose(found[0, 4:], [math.cos(YAW / 2), 0, 0, math.sin(YAW / 2)],
                                   atol=1e-5)
        # the unicycle starts at the speed of the history: about 1 m in 0.1 s, along y
        np.testing.assert_allclose(found[1, 1:3], [100, 6], atol=0.1)
        np.testing.assert_allclose(np.linalg.norm(found[:, 4:], axis=1), 1, atol=1e-5)
        assert len(samples) == 2 and any(np.array_equal(found, sample) for sample in samples)
        assert not np.array_equal(*samples)
    finally:
        client.close()


def test_between_frames_the_last_plan_goes_on(port):
    client = Client(port).start()
    try:
        client.motion(-20, 1)
        client.images(0)
        first, about, _ = client.drive(0)
        later, again, _ = client.drive(0, late_us=50_000)
        assert again['plan_id'] == about['plan_id']
        assert later[0, 0] == START_US and later[1, 0] == START_US + 50_000
        np.testing.assert_allclose(later[1, 1:4], first[:2, 1:4].mean(0), atol=1e-4)
        refused(lambda: client.drive(11), grpc.StatusCode.FAILED_PRECONDITION, 'older than now')
        refused(lambda: client.drive(0, query=70), grpc.StatusCode.OUT_OF_RANGE, '6.400')
    finally:
        client.close()


def test_sessions_are_streams_of_their_own(port):
    alone = Client(port, 'alone').start()
    alone.motion(-20, 3)
    for tick in range(4):
        alone.images(tick)
        expected = alone.drive(tick)[0]
    alone.close()
    one, other = Client(port, 'one').start(), Client(port, 'other').start(seed=6)
    try:
        refused(Client(port, 'third').start, grpc.StatusCode.RESOURCE_EXHAUSTED, '2 sessions')
        one.motion(-20, 3)
        other.motion(-20, 3)
        for tick in range(4):
            for client in (one, other):
                client.images(tick)
            found, different = one.drive(tick)[0], other.drive(tick)[0]
        np.testing.assert_array_equal(found, expected)
        assert not np.array_equal(different, expected)  # another seed
    finally:
        one.close()
        other.close()


def test_a_route_is_put_into_words(port):
    client = Client(port).start()
    try:
        way = b''.join(block(1, floats(1, x, y)) for x, y in ((10, 0.5), (30, 0.5), (31, 30)))
        client.call('submit_route', block(1, 'a') + block(3, way + fixed64(2, START_US)))
        client.call('submit_recording_ground_truth', block(1, 'a'))
        client.motion(-20, 0)
        client.images(0)
        assert client.drive(0)[1]['nav_text'] == 'Turn left in 30 m.'
    finally:
        client.close()


def test_wrong_calls_are_refused_by_name(port):
    code = grpc.StatusCode
    stranger = Client(port, 'nobody')
    refused(lambda: stranger.drive(0), code.NOT_FOUND, 'nobody')
    refused(lambda: Client(port, '').start(), code.INVALID_ARGUMENT, 'session_uuid')
    refused(lambda: Client(port).start(['camera_roof']), code.INVALID_ARGUMENT, 'camera_roof')
    client = Client(port).start()
    try:
        refused(client.start, code.ALREADY_EXISTS, 'session a')
        refused(lambda: client.image(0, 'camera_roof'), code.INVALID_ARGUMENT, 'camera_roof')
        refused(lambda: client.image(0, IDS[0], b''), code.INVALID_ARGUMENT, '0 bytes')
        client.image(0, 'camera_rear_tele_30fov')  # known, not used
        client.motion(-3, 0)
        client.images(0)
        refused(lambda: client.drive(0), code.FAILED_PRECONDITION, 'odometry begins')
        client.motion(1, 1)
        for camera in IDS:
            client.image(1, camera, b'not a picture')
        refused(lambda: client.drive(1), code.FAILED_PRECONDITION)
    finally:
        client.close()


def test_the_version_says_which_model_drives(port):
    found = read(Client(port).call('get_version'))
    assert found[1][0].decode().startswith('flashdrive_ros ') and b'tiny' in found[1][0]
    assert read(found[3][0])[2] == [54]


@pytest.mark.parametrize('points, text', [
    ([(10, 0), (50, 1), (95, 2)], 'Go straight for 90 m.'), ([], ''),
    ([(-5, 0), (20, 0), (21, -15)], 'Turn right in 20 m.'),
    ([(3, 4), (4, 12)], 'Turn left in 00 m.')])
def test_words_of_a_route(points, text):
    assert route_text(points) == text
