"""What a replay publishes and when: bags, videos, windows.  No ROS needed."""
from dataclasses import dataclass

import cv2
import numpy as np
import pytest
from support.recordings import START_NS, VIDEO, write_recording

from flashdrive_ros.recording.bag import BagError, header_stamp_ns
from flashdrive_ros.replay.bag_source import BagSource
from flashdrive_ros.replay.ego_motion import ConstantSpeed, PoseArrays
from flashdrive_ros.replay.source import ReplayMessage, TopicSpec
from flashdrive_ros.replay.video_source import EPOCH_NS, VideoError, VideoSource, read_frames
from flashdrive_ros.replay.windows import windows

POSES = VIDEO.parent / 'comma2k19_pose'
FRONT, LEFT, ODOMETRY = '/front_wide_120/image', '/left/image', '/odometry'
TOPICS = {FRONT: TopicSpec('sensor_msgs/msg/Image'), LEFT: TopicSpec('sensor_msgs/msg/Image'),
          ODOMETRY: TopicSpec('nav_msgs/msg/Odometry'), '/text': TopicSpec('std_msgs/msg/String')}


@dataclass
class Sent:
    """A message by milliseconds: due, stamp."""

    topic: str
    ms: int
    stamp_ms: int | None = None

    def message(self):
        stamp = self.ms if self.stamp_ms is None else self.stamp_ms
        return ReplayMessage(START_NS + self.ms * 1_000_000,
                             None if self.topic == '/text' else START_NS + stamp * 1_000_000,
                             self.topic, b'')


def cut(sent):
    """Windows as (ms, [(topic, stamp in ms)])."""
    ordered = sorted((s.message() for s in sent), key=lambda m: m.time_ns)
    return [((w.stamp_ns - START_NS) // 1_000_000,
             [(m.topic, (m.stamp_ns - START_NS) // 1_000_000) for m in w.messages])
            for w in windows(ordered, TOPICS)]


def test_a_window_holds_the_images_of_its_time_after_everything_else():
    sent = [Sent(t, 100 * i + late, 100 * i - before) for i in range(3)
            for t, late, before in ((FRONT, 5, 0), (LEFT, 20, 0), (ODOMETRY, 30, 10))]
    assert [(ms, [topic for topic, _ in messages]) for ms, messages in cut(sent)] == [
        (0, [ODOMETRY, ODOMETRY, FRONT, LEFT]), (100, [ODOMETRY, FRONT, LEFT]),
        (200, [FRONT, LEFT])]


def test_a_camera_that_is_a_little_early_stays_with_its_window():
    sent = [Sent(FRONT, 100 * i) for i in range(3)] + [Sent(LEFT, 100 * i - 20) for i in (1, 2)]
    assert [w for _, w in cut(sent)] == [
        [(FRONT, 0)], [(LEFT, 80), (FRONT, 100)], [(LEFT, 180), (FRONT, 200)]]


def test_a_fast_camera_gives_a_window_each_100_ms():
    sent = [Sent(FRONT, round(1000 * i / 30)) for i in range(10)]
    assert [ms for ms, _ in cut(sent)] == [0, 100, 200, 300]
    assert sum(len(messages) for _, messages in cut(sent)) == 10


def test_late_odometry_is_there_before_the_images_that_need_it():
    sent = [Sent(FRONT, 100 * i) for i in range(3)] + [
        Sent(ODOMETRY, 50 * i + 300, 50 * i) for i in range(5)]
    so_far = []
    for ms, messages in cut(sent):
        so_far += messages
        assert (ODOMETRY, ms) in so_far[:so_far.index((FRONT, ms))]


def test_a_text_without_a_stamp_keeps_its_place():
    sent = [Sent(FRONT, 0), Sent('/text', 50), Sent(FRONT, 100), Sent(FRONT, 200)]
    assert '/text' in [topic for topic, _ in cut(sent)[0][1]]


def test_lock_step_needs_a_camera():
    with pytest.raises(ValueError, match='needs an image topic, there is none among /odometry'):
        list(windows([], {ODOMETRY: TOPICS[ODOMETRY]}))


def test_only_inputs_of_a_bag_are_replayed(tmp_path):
    source = BagSource(write_recording(tmp_path / 'bag', ticks=3))
    assert '/drive/plan' not in source.topics
    assert {'/odometry', '/route_text', '/tf_static'} <= source.topics.keys()
    assert source.topics['/route_text'].latched
    assert not source.topics['/camera/front_wide_120/image_raw/compressed'].reliable


def test_outputs_are_replayed_when_asked_for(tmp_path):
    source = BagSource(write_recording(tmp_path / 'bag', ticks=3), patterns=['/drive/.*'])
    assert list(source.topics) == ['/drive/plan'] and len(list(source.messages())) == 3


def test_a_pattern_without_a_topic_is_named(tmp_path):
    path = write_recording(tmp_path / 'bag', ticks=2)
    with pytest.raises(BagError, match=r"no topic matches '/lidar'; it has .*/odometry"):
        BagSource(path, patterns=['/lidar'])


def test_a_part_of_a_bag_still_begins_with_what_is_latched(tmp_path):
    source = BagSource(write_recording(tmp_path / 'bag', ticks=20), start_s=1.0, duration_s=0.5)
    messages = list(source.messages())
    assert {m.topic for m in messages[:2]} == {'/tf_static', '/route_text'}
    times = [m.time_ns for m in messages[2:]]
    assert min(times) >= START_NS + 0.89e9 and max(times) - min(times) <= 0.5e9


def test_a_start_beyond_the_end_is_refused(tmp_path):
    path = write_recording(tmp_path / 'bag', ticks=5)
    with pytest.raises(BagError, match=r'start at 60 s is beyond its 0\.5 s'):
        BagSource(path, start_s=60)


def test_every_header_in_a_message_is_moved_to_another_time(tmp_path):
    path = write_recording(tmp_path / 'bag', ticks=1)
    source = BagSource(path, patterns=['/drive/plan'])
    message = next(source.messages())
    moved = source._store.deserialize_cdr(source.restamp(message, 5_000_000_000),
                                          'flashdrive_ros/msg/DrivePlan')
    before = source._store.deserialize_cdr(message.cdr, 'flashdrive_ros/msg/DrivePlan')
    for a, b in ((before, moved), (before.trajectories[1], moved.trajectories[1]),
                 (before.reasoning, moved.reasoning)):
        assert b.header.stamp.sec == a.header.stamp.sec + 5
        assert b.header.stamp.nanosec == a.header.stamp.nanosec
    assert moved.trajectories[0].points[0].time_from_start.nanosec == 100_000_000


def video_of(path, fps, frames):
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'mp4v'), fps, (64, 48))
    for i in range(frames):
        writer.write(np.full((48, 64, 3), i, np.uint8))
    writer.release()
    return path


@pytest.mark.parametrize('fps', [10, 24, 25, 30, 29.97, 60])
def test_video_frames_are_taken_at_ten_hertz_by_their_time(tmp_path, fps):
    frames = list(read_frames(video_of(tmp_path / 'v.mp4', fps, round(3 * fps))))
    late = [f.time_s - i / 10 for i, f in enumerate(frames)]
    assert 29 <= len(frames) <= 30
    assert all(-0.003 <= seconds <= 1 / fps for seconds in late), late


def test_a_slow_video_gives_each_frame_once(tmp_path):
    frames = list(read_frames(video_of(tmp_path / 'v.mp4', 4, 12)))
    assert [round(f.time_s, 3) for f in frames] == [0.25 * i for i in range(12)]


def test_all_frames_of_a_video_can_be_had():
    assert len(list(read_frames(VIDEO, 0))) == 221


def test_a_video_gives_images_with_odometry_at_their_times_and_before():
    source = VideoSource(VIDEO, ConstantSpeed(20.0), duration_s=1.0)
    stamps = {topic: [m.stamp_ns for m in source.messages() if m.topic == topic]
              for topic in source.topics}
    images, odometry = stamps[source.image_topic], stamps['odometry']
    assert images[0] == EPOCH_NS and len(images) == 10
    assert set(images) <= set(odometry) and odometry == sorted(set(odometry))
    assert odometry[0] <= EPOCH_NS - 1_500_000_000
    assert max(np.diff(odometry)) <= 50_000_001
    assert 'ASSUMED: straight ahead at 20 m/s' in source.description
    assert 'no calibration' in source.description
    message = next(m for m in source.messages() if m.topic == source.image_topic)
    assert header_stamp_ns(source.restamp(message, 77)) == message.stamp_ns + 77


def test_the_images_of_a_video_are_its_frames():
    source = VideoSource(VIDEO, ConstantSpeed(20.0), duration_s=0.1, jpeg_quality=95)
    message = next(m for m in source.messages() if m.topic == source.image_topic)
    content = source._store.deserialize_cdr(message.cdr, 'sensor_msgs/msg/CompressedImage')
    image = cv2.imdecode(content.data, cv2.IMREAD_COLOR).astype(int)
    frame = next(read_frames(VIDEO)).image
    assert image.shape == (540, 960, 3) and np.abs(image - frame).mean() < 2


@pytest.mark.parametrize(('make', 'said'), [
    (lambda p: p / 'none.mp4', 'no such file'),
    (lambda p: (p / 'text.mp4', (p / 'text.mp4').write_text('x'))[0], 'not a video'),
])
def test_what_is_no_video_is_named(tmp_path, make, said):
    path = make(tmp_path)
    with pytest.raises(VideoError, match=f'video {path}: {said}'):
        VideoSource(path, ConstantSpeed(20.0))


def test_a_start_beyond_the_end_of_a_video_is_refused():
    with pytest.raises(VideoError, match='ends before the start at 100'):
        VideoSource(VIDEO, ConstantSpeed(20.0), start_s=100)


def test_recorded_ego_motion_is_level_forward_and_consistent():
    motion = PoseArrays(POSES)
    times = np.arange(0, 11, 0.1)
    poses = [motion.at(t) for t in times]
    xyz = np.array([p for p, _, _ in poses])
    speed = np.array([s for _, _, s in poses])
    assert xyz[0] == pytest.approx([0, 0, 0]) and xyz[-1, 0] > 100
    travelled = np.linalg.norm(np.diff(xyz[:, :2], axis=0), axis=1) / 0.1
    assert np.abs(travelled - (speed[1:] + speed[:-1]) / 2).max() < 0.5
    assert np.abs(xyz[:, 1]).max() < 0.1 * xyz[-1, 0]   # it drives where it looks
    before, after = motion.at(-1.0), motion.at(13.0)
    assert before[0][0] == pytest.approx(-poses[0][2], abs=0.5)
    assert after[0][0] > xyz[-1, 0] + 15


def test_pose_arrays_that_are_none_are_named(tmp_path):
    with pytest.raises(ValueError, match=f'ego motion {tmp_path}: needs the arrays frame_times'):
        PoseArrays(tmp_path)
