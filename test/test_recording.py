"""What is read from a bag: definitions, plans, summary, comparison.  No ROS needed."""
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.recordings import MESSAGES, START_NS, TICK_NS, Messages, write_recording

from flashdrive_ros.recording import writer
from flashdrive_ros.recording.bag import BagError, header_stamp_ns, open_bag, with_header_stamp
from flashdrive_ros.recording.compare import compare, report
from flashdrive_ros.recording.compare_page import page, write_page
from flashdrive_ros.recording.definitions import Definitions, UnknownTypeError
from flashdrive_ros.recording.recording import Recording
from flashdrive_ros.recording.summary import summarise, table, write_summary
from flashdrive_ros.recording.writer import BagWriter


def summary_of(path, **arguments):
    return summarise(Recording(write_recording(path / 'bag', **arguments)))


@pytest.mark.parametrize('name', ['nav_msgs/msg/Odometry', 'sensor_msgs/msg/CameraInfo',
                                  'flashdrive_ros/msg/DrivePlan'])
def test_type_hashes_are_those_of_the_installed_packages(name):
    package, kind, short = name.split('/')
    description = Path(sys.prefix, 'share', package, kind, f'{short}.json')
    if not description.is_file():
        pytest.skip(f'{package} is not installed in {sys.prefix}')
    hashes = {h['type_name']: h['hash_string']
              for h in json.loads(description.read_text())['type_hashes']}
    assert Definitions().require(name).hash_rihs01(name) == hashes[name]


def test_an_unknown_type_is_named():
    with pytest.raises(UnknownTypeError, match='type acme_msgs/msg/Gizmo; looked in'):
        Definitions().require('acme_msgs/msg/Gizmo')


def test_the_header_stamp_is_read_and_changed_in_the_bytes():
    messages = Messages()
    cdr = messages.cdr(messages.odometry(START_NS + 7, 1.0))
    assert header_stamp_ns(cdr) == START_NS + 7
    changed = with_header_stamp(cdr, START_NS + 9)
    assert changed == messages.cdr(messages.odometry(START_NS + 9, 1.0))


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_a_recording_is_read_back(tmp_path, storage):
    recording = Recording(write_recording(tmp_path / 'bag', ticks=5, storage=storage))
    assert [p.stamp_ns for p in recording.plans] == [START_NS + i * TICK_NS for i in range(5)]
    plan = recording.plans[0]
    assert plan.xyz.shape == (3, 64, 3) and plan.is_finite and plan.trained
    np.testing.assert_allclose(plan.xyz[0, :, 0], np.arange(1, 65), atol=1e-6)
    np.testing.assert_allclose(plan.time_s[0], np.arange(1, 65) / 10, atol=1e-9)
    assert plan.text == 'keep the lane' and plan.mode == 'prefill'
    assert recording.anchor.name == 'front_wide_120' and recording.anchor.camera_id == 1
    ticks = list(recording.ticks())
    assert [stamp for stamp, _ in ticks] == [p.stamp_ns for p in recording.plans]
    assert all(len(images) == 4 for _, images in ticks)
    position, rotation = recording.pose_at(START_NS + 2 * TICK_NS)
    np.testing.assert_allclose(position, [2, 0, 0], atol=1e-6)
    np.testing.assert_allclose(rotation, np.eye(3), atol=1e-9)


def test_every_window_with_a_plan_counts(tmp_path):
    summary = summary_of(tmp_path, ticks=30, first_plan=5)
    assert summary['windows'] == {'seen': 25, 'planned': 25, 'planned_share': 1.0,
                                  'servable': 25, 'servable_share': 1.0}
    assert summary['plans'] == summary['plans_finite'] == 25
    assert summary['plans_per_s'] == 10
    assert summary['window_modes'] == {'prefill': 1, 'streaming': 24}
    assert summary['prefill_reasons'] == {'first window': 1}
    assert summary['stages_ms']['encode'] == {'median': 8.0, 'p90': 8.0}
    assert summary['camera_to_plan_ms']['median'] == 45.0
    assert summary['accepted_share'] == 0.75
    assert summary['cameras']['front_wide_120'] == {'images': 30, 'rate_hz': 10.0}


def test_windows_that_a_slow_engine_was_busy_for_are_not_servable(tmp_path):
    # just below 300 ms a plan, so every third window can be had
    summary = summary_of(tmp_path, ticks=31, every=3, total_ms=295.0, latency_ns=299_000_000)
    assert summary['windows']['planned'] == 11
    assert summary['windows']['planned_share'] < 0.4
    assert summary['windows']['servable_share'] == 1.0


def test_windows_that_an_idle_engine_left_out_are_missed(tmp_path):
    summary = summary_of(tmp_path, ticks=31, every=3)   # 40 ms a plan
    assert summary['windows']['planned'] == 11
    assert summary['windows']['servable'] == summary['windows']['seen'] == 31


def test_an_untrained_model_is_told(tmp_path):
    summary = summary_of(tmp_path, ticks=5, trained=False)
    assert summary['trained'] is False
    assert 'UNTRAINED' in table(summary)


def test_a_drive_whose_plans_stop_is_told_with_its_reason(tmp_path):
    summary = summary_of(tmp_path, ticks=60, last_plan=20, alarm_at=50)
    assert summary['plans_stopped_s'] == pytest.approx(3.9, abs=0.1)
    assert [w['message'] for w in summary['warnings']] == ['no plan for 3 s']
    assert re.search(r'PLANS STOPPED +3\.\d+ s before the end', table(summary))


def test_what_is_said_after_a_drive_that_ended_well_does_not_count(tmp_path):
    summary = summary_of(tmp_path, ticks=60, last_plan=57, alarm_at=59)
    assert summary['plans_stopped_s'] is None and summary['warnings'] == []
    assert 'STOPPED' not in table(summary)


def test_what_was_drawn_and_drafted_is_counted(tmp_path):
    summary = summary_of(tmp_path, ticks=5, primitives=(
        ('box_2d', 'car', 1, [[1, 2, 3, 4]]), ('trajectory_3d', 'ego', -1, [[1, 2, 3]] * 8)))
    assert summary['primitives'] == {'box_2d': 5, 'trajectory_3d': 5}
    assert summary['primitive_decoding'] == {'direct': 10}
    assert summary['tokens_per_round'] == 3.0 and summary['accepted_share'] == 0.75
    assert re.search(r'primitives +box_2d 5, trajectory_3d 5 \(direct 10\)', table(summary))
    bare = summary_of(tmp_path / 'bare', ticks=5)
    assert bare['primitives'] == {} and 'primitives' not in table(bare)


def test_a_recording_without_plans_has_a_summary(tmp_path):
    summary = summary_of(tmp_path, ticks=5, plans=False)
    assert summary['plans'] == 0 and summary['windows']['servable_share'] is None
    assert 'no plan was recorded' in table(summary)
    write_summary(summary, tmp_path / 'summary.json')
    assert json.loads((tmp_path / 'summary.json').read_text()) == summary


def test_equal_recordings_are_the_same(tmp_path):
    a, b = (Recording(write_recording(tmp_path / name, ticks=5)) for name in 'ab')
    result = compare(a, b)
    assert result.within(0.0) and result.max_xyz_m == 0 and report(result, 0).endswith('SAME')


@pytest.mark.parametrize(('other', 'said'), [
    ({'offset_m': 0.01}, 'largest waypoint difference 0.01 m'),
    ({'text': 'stop'}, 'text equal in 0 of 5'),
    ({'first_plan': 1}, '1 only in the first'),
])
def test_what_differs_is_told(tmp_path, other, said):
    a = Recording(write_recording(tmp_path / 'a', ticks=5))
    b = Recording(write_recording(tmp_path / 'b', ticks=5, **other))
    result = compare(a, b)
    assert not result.within(1e-3)
    assert said in report(result, 1e-3)


def test_times_of_both_are_in_the_report(tmp_path):
    a = Recording(write_recording(tmp_path / 'a', ticks=5, total_ms=40.0))
    b = Recording(write_recording(tmp_path / 'b', ticks=5, total_ms=90.0))
    text = report(compare(a, b), 0)
    assert re.search(r'^total +40\.0 \( 40\.0\) +90\.0 \( 90\.0\)$', text, re.M), text
    assert re.search(r'^encode +8\.0 .* 8\.0 ', text, re.M) and text.endswith('SAME')


def test_the_page_shows_what_differs_and_is_well_formed(tmp_path):
    a = Recording(write_recording(tmp_path / 'a', ticks=6, text='keep <left> & go'))
    b = Recording(write_recording(tmp_path / 'b', ticks=5, offset_m=0.25, text='stop'))
    path = write_page(compare(a, b), 1e-3, ['run & 1', 'run 2'], tmp_path / 'new' / 'page.html')
    text = path.read_text()
    assert 'DIFFERENT' in text and 'run &amp; 1' in text and '0.25 m' in text
    assert 'keep &lt;left&gt; &amp; go' in text and '<left>' not in text
    assert 'Only in the first: 1' in text and 'Plans that differ: 5' in text
    lines = re.findall(r'<polyline [^>]*points="([^"]+)"', text)
    assert len(lines) == 3 + 2 * 4   # differences, two times, and paths of four plans
    first, second = ([tuple(map(float, p.split(','))) for p in line.split()]
                     for line in lines[3:5])
    assert len(first) == len(second) == 64
    assert first[0][1] > first[-1][1]          # forward is up
    assert second[0][0] < first[0][0]          # 0.25 m to the left is left
    opened = re.findall(r'<(\w+)', text.split('</style>')[1])
    closed = re.findall(r'</(\w+)', text.split('</style>')[1])
    void = {'br', 'polyline'}
    assert sorted(t for t in opened if t not in void) == sorted(
        t for t in closed if t not in ('html',))


def test_the_page_of_equal_recordings_says_so(tmp_path):
    a, b = (Recording(write_recording(tmp_path / name, ticks=3)) for name in 'ab')
    text = page(compare(a, b), 0.0, ['a', 'b'])
    assert 'SAME' in text and 'none, to the bit' in text and 'Only in' not in text


def test_the_page_of_recordings_without_a_common_plan_is_written(tmp_path):
    a = Recording(write_recording(tmp_path / 'a', ticks=3, plans=False))
    assert 'DIFFERENT' in page(compare(a, a), 0.0, ['a', 'a'])


def test_a_bag_without_cameras_is_named(tmp_path):
    path = write_recording(tmp_path / 'bag', ticks=2, cameras=())
    with pytest.raises(BagError, match=r'bag .*/bag: no topic with camera images; it has /drive'):
        list(Recording(path).ticks())


def test_a_bag_that_was_never_finished_is_named(tmp_path):
    folder = tmp_path / 'bag'
    folder.mkdir()
    (folder / 'bag.mcap').write_bytes(b'\x89MCAP0\r\n')
    with pytest.raises(BagError, match=r'no metadata\.yaml, it holds bag\.mcap; .*'
                       r'mcap recover .*/bag\.mcap -o .*/recovered\.mcap'):
        Recording(folder)


def test_what_was_recorded_is_on_disk_before_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, 'FLUSH_S', 0.0)
    bag = BagWriter(tmp_path / 'bag')
    bag.add_topic('/text', 'std_msgs/msg/String')
    bag.put('/text', 1, MESSAGES.cdr(MESSAGES.make('std_msgs/msg/String', data='keep me')))
    end = time.monotonic() + 20
    while b'keep me' not in (tmp_path / 'bag' / 'bag.mcap').read_bytes():
        assert time.monotonic() < end
        time.sleep(0.01)
    bag.put('/text', 2, MESSAGES.cdr(MESSAGES.make('std_msgs/msg/String', data='me too')))
    bag.close()
    with open_bag(tmp_path / 'bag') as reader:
        assert [reader.deserialize(cdr, c.msgtype).data for c, _, cdr in reader.messages()] == [
            'keep me', 'me too']


def test_a_full_queue_drops_and_counts_but_does_not_block(tmp_path):
    bag = BagWriter(tmp_path / 'bag', queue_bytes=1000)
    bag.add_topic('/text', 'std_msgs/msg/String')
    taken = [bag.put('/text', 1, bytes(600)) for _ in range(50)]
    bag.close()
    assert bag.dropped['/text'] == taken.count(False) > 0
    assert bag.written['/text'] == taken.count(True) > 0
