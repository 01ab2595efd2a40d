"""NAVSIM's agent and Waymo's submission: the right points at the right times, on the wire."""
import struct
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from support.plans import make_plan
from support.tiny import image, tiny_engine
from support.tiny_checkpoint import tiny_checkpoint
from support.wire import read

from flashdrive_ros.core.types import InputError
from flashdrive_ros.errors import UserError
from flashdrive_ros.outside import navsim, waymo
from flashdrive_ros.outside.resample import poses_at, times_s


def straight(speed=8.0, yaw=0.0):
    way = speed * 0.1 * np.arange(1, 65)
    xyz = np.stack([way, 0 * way, 0 * way], 1)[None]
    return make_plan(1, xyz=xyz, yaw=np.full((1, 64), yaw))


def test_a_plan_is_read_at_other_times():
    np.testing.assert_allclose(poses_at(straight(), [0, 0.05, 0.25, 6.4])[:, 0],
                               [0, 0.4, 2.0, 51.2])
    turned = make_plan(1, yaw=np.linspace(3.0, 3.4, 64)[None] % (2 * np.pi) - 2 * np.pi)
    assert np.ptp(poses_at(turned, [0.1, 6.4])[:, 2]) == pytest.approx(0.4)
    assert len(times_s(4, 5)) == 20 and times_s(2, 4).tolist() == [.5, 1, 1.5, 2, 2.5, 3, 3.5, 4]
    with pytest.raises(InputError, match='covers 0 to 6.4 s'):
        poses_at(straight(), [6.5])
    with pytest.raises(InputError, match='not finite'):
        poses_at(make_plan(1, yaw=np.full((1, 64), np.nan)), [1])


def agent_input(command=(0, 1, 0, 0), speed=6.0):
    statuses = [SimpleNamespace(ego_pose=np.array([speed * t, 0, 0]), driving_command=command)
                for t in (-1.5, -1.0, -0.5, 0.0)]
    names = ('cam_f0', 'cam_l0', 'cam_l1', 'cam_r0', 'cam_b0')
    cameras = SimpleNamespace(**{n: SimpleNamespace(image=image(i)) for i, n in enumerate(names)})
    return SimpleNamespace(ego_statuses=statuses, cameras=[None] * 3 + [cameras])


@pytest.fixture(scope='module')
def agent(tmp_path_factory):
    model = tiny_checkpoint(tmp_path_factory.mktemp('navsim') / 'tiny')
    made = navsim.FlashDriveAgent(str(model), 'cpu', {'max_new_tokens': 4})
    made.initialize()
    return made


def test_the_agent_gives_eight_poses_at_two_hertz(agent):
    trajectory, plan = agent.compute_trajectory(agent_input()), agent.plan(agent_input())
    assert trajectory.poses.shape == (8, 3) and trajectory.poses.dtype == np.float32
    assert trajectory.trajectory_sampling.num_poses == 8
    np.testing.assert_allclose(trajectory.poses[:, :2], plan.xyz[plan.chosen, 4:40:5, :2],
                               rtol=1e-6)
    assert agent.requires_scene is False and agent.name().startswith('flashdrive_')
    assert plan.window.mode == 'prefill'


def test_the_agent_reads_motion_and_command(agent):
    history = navsim.ego_history(agent_input(speed=6).ego_statuses, 10 ** 10)
    np.testing.assert_allclose(history.xyz[:, 0], 0.6 * np.arange(-15, 1), atol=1e-9)
    words = [agent._text(SimpleNamespace(driving_command=row)) for row in np.eye(4)]
    assert words == ['Turn left.', 'Go straight.', 'Turn right.', '']
    slow, fast = (agent.plan(agent_input(speed=v)).speed[0, 0] for v in (2, 12))
    assert fast - slow == pytest.approx(10, abs=1.5)


def test_the_agent_asks_for_its_cameras_alone_and_misses_them(agent):
    sensors = agent.get_sensor_config()
    wanted = {'cam_f0', 'cam_l0', 'cam_r0'}
    assert {name for name in sensors if sensors[name]} == wanted
    assert all(sensors[name] == [3] for name in wanted) and len(sensors) == 9
    given = agent_input()
    given.cameras[-1].cam_l0.image = None
    with pytest.raises(InputError, match=r'cameras \[0\]'):
        agent.plan(given)
    given.ego_statuses.pop()
    with pytest.raises(InputError, match='4 ego poses'):
        navsim.ego_history(given.ego_statuses, 10 ** 10)


def frame(name='f-1', cameras=(1, 2, 3), speed=6.0):
    pytest.importorskip('google.protobuf')
    made = waymo.messages().E2EDFrame(intent=2)
    made.frame.context.name = name
    for camera in cameras:
        made.frame.images.add(name=camera, image=cv2.imencode('.jpg', image(camera))[1].tobytes())
    made.past_states.pos_x.extend(speed * 0.25 * np.arange(-15, 1))
    made.past_states.pos_y.extend(np.zeros(16))
    made.past_states.vel_x.extend(np.full(16, speed))
    made.past_states.vel_y.extend(np.zeros(16))
    return made


def test_waymo_gets_twenty_points_at_four_hertz_in_its_fields():
    pytest.importorskip('google.protobuf')
    submission = waymo.new_submission('a@b.c', 'flash', '10B')
    waymo.add_prediction(submission, 'f-1', waymo.points(straight(8.0)))
    with pytest.raises(InputError, match='f-1 has a prediction'):
        waymo.add_prediction(submission, 'f-1', waymo.points(straight()))
    with pytest.raises(InputError, match=r'f-2: .*\[20, 2\]'):
        waymo.add_prediction(submission, 'f-2', np.zeros((8, 2)))
    with pytest.raises(InputError, match='a number and K, M'):
        waymo.new_submission('a@b.c', 'flash', 'many')
    fields = read(submission.SerializeToString())
    assert (fields[2], fields[3], fields[4]) == ([1], [b'a@b.c'], [b'flash'])
    assert (fields[11], fields[12]) == ([1], [b'10B'])
    prediction = read(fields[1][0])
    path = read(prediction[2][0])
    x, y = (np.array(struct.unpack('<20f', path[n][0])) for n in (1, 2))  # packed
    assert prediction[1] == [b'f-1']
    np.testing.assert_allclose(x, 2.0 * np.arange(1, 21), rtol=1e-6)
    assert not y.any()


def test_waymo_frames_are_read_and_planned_for(tmp_path):
    data = frame().SerializeToString()
    path = tmp_path / 'x.tfrecord'
    path.write_bytes((struct.pack('<Q', len(data)) + b'0000' + data + b'0000') * 2)
    found = list(waymo.read_frames(path))
    assert [f.frame.context.name for f in found] == ['f-1', 'f-1']
    engine = tiny_engine()
    first, second = (waymo.points(waymo.predict(engine, f)) for f in found)
    np.testing.assert_array_equal(first, second)
    assert first[0, 0] == pytest.approx(1.5, abs=0.3)  # 6 m/s for 0.25 s
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match='ends within a record'):
        list(waymo.read_frames(path))


def test_waymo_frames_that_lack_something_are_refused():
    with pytest.raises(InputError, match=r"'f-9' has no image for cameras \[0\]"):
        waymo.predict(tiny_engine(), frame('f-9', cameras=(1, 3)))
    short = frame()
    del short.past_states.pos_x[5:], short.past_states.pos_y[5:]
    with pytest.raises(InputError, match='5 positions and 16'):
        waymo.predict(tiny_engine(), short)


def test_a_heading_follows_the_velocity_and_is_held_at_rest():
    states = frame().past_states
    states.vel_y[:12] = [6.0] * 12      # 45 degrees until 0.75 s before
    states.vel_x[12:] = [0.0] * 4
    history = waymo.ego_history(states, 10 ** 10)
    yaw = np.arctan2(history.rot[:, 1, 0], history.rot[:, 0, 0])
    assert yaw[0] == pytest.approx(np.pi / 4) and yaw[-1] == 0
