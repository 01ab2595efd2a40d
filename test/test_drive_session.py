"""`flashdrive drive` from start to results, with the real nodes and the small model."""
import json
import os
import subprocess
import sys

import cv2
import pytest
from support.recordings import VIDEO, own_domain

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')
pytest.importorskip('torch')

from flashdrive_ros.recording.compare import compare
from flashdrive_ros.recording.recording import Recording

# a few tokens and steps, for a machine that is busy with other tests
QUICK = ('--set', 'drive.max_new_tokens=4', '--set', 'drive.flow_steps=2')


def drive(out, *arguments):
    return subprocess.run(
        [sys.executable, '-c', 'import sys; from flashdrive_ros.cli import main; '
         'sys.exit(main())', 'drive', '--out', str(out), *QUICK, *arguments],
        capture_output=True, text=True, timeout=280, env=own_domain())


@pytest.fixture(scope='module')
def highway(tmp_path_factory):
    """A drive of the highway clip in lock-step."""
    out = tmp_path_factory.mktemp('highway') / 'out'
    return out, drive(out, '--source', f'video:{VIDEO}', '--rate', '0',
                      '--set', 'replay.duration_s=1.5')


def test_every_window_of_the_footage_gets_a_plan_in_lock_step(highway):
    out, result = highway
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['windows'] == {'seen': 15, 'planned': 15, 'planned_share': 1.0,
                                  'servable': 15, 'servable_share': 1.0}
    assert summary['plans_finite'] == 15
    assert summary['window_modes']['prefill'] == 1
    assert 'ASSUMED: straight ahead at 25 m/s' in summary['source']
    assert 'stage total' in result.stdout and '15 of 15 with a plan' in result.stdout


def test_a_drive_leaves_a_video_and_a_contact_sheet(highway):
    out, _ = highway
    capture = cv2.VideoCapture(str(out / 'drive.mp4'))
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == 15
    assert cv2.imread(str(out / 'contact_sheet.png')).shape[1] > 1000
    logs = {p.name for p in (out / 'log').iterdir()}
    assert logs == {'drive.log', 'recorder.log', 'replay.log'}
    for name in logs:
        assert 'Traceback' not in (out / 'log' / name).read_text()


def test_the_recorded_bag_gives_the_same_plans_again(highway, tmp_path):
    out, _ = highway
    again = drive(tmp_path / 'again', '--source', f'bag:{out / "bag"}', '--rate', '0',
                  '--no-pictures')
    assert again.returncode == 0, again.stdout + again.stderr
    result = compare(Recording(out / 'bag'), Recording(tmp_path / 'again' / 'bag'))
    assert len(result.matched) == 15
    assert result.within(1e-5), result


def test_a_model_that_does_not_load_ends_the_drive_with_its_reason(tmp_path):
    result = drive(tmp_path / 'out', '--model', str(tmp_path / 'nothing'), '--source',
                   f'video:{VIDEO}')
    assert result.returncode == 1
    assert 'nothing' in result.stdout and 'Traceback' not in result.stderr


def test_a_node_that_ends_early_is_named_with_its_last_words(tmp_path):
    result = drive(tmp_path / 'out', '--set', 'world.width=3')
    assert result.returncode == 1
    assert 'world ended with exit code 1' in result.stdout
    assert 'width' in result.stdout.split('world.log says')[1]


def test_the_embedded_world_is_driven(tmp_path):
    result = drive(tmp_path / 'out', '--duration', '3')
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / 'out' / 'summary.json').read_text())
    assert summary['plans'] == summary['plans_finite'] >= 1
    assert len(summary['cameras']) == 4
    assert os.path.getsize(tmp_path / 'out' / 'drive.mp4') > 10_000
