"""
The two commands of the README in a clean clone and a new environment.

Minutes and hundreds of megabytes: `make test-clean`.
"""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KEPT = ('PATH', 'HOME', 'LANG', 'TMPDIR')
"""Nothing else of this environment reaches the clone, but pip's settings."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp('clean') / 'flashdrive_ros'
    subprocess.run(['git', 'clone', '--quiet', '--no-local', ROOT, folder], check=True)
    return folder


def make(clone, *arguments):
    """Run make as in a new shell; returns what it printed."""
    variables = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith('PIP_')}
    ours = str(Path(sys.prefix, 'bin'))  # the environment that runs this test
    variables['PATH'] = os.pathsep.join(
        folder for folder in variables['PATH'].split(os.pathsep) if folder != ours)
    ended = subprocess.run(['make', *arguments], cwd=clone, env=variables, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(ended.stdout)
    assert ended.returncode == 0
    return ended.stdout


def test_make_test_passes(clone):
    printed = make(clone, 'test')
    assert '[3/3]' in printed
    assert ' passed' in printed.splitlines()[-1]


def test_make_drive_leaves_a_recording_and_pictures(clone):
    printed = make(clone, 'drive', 'DURATION=5')
    assert '[3/3]' not in printed, 'nothing is installed twice'
    kinds = {path.suffix for path in (clone / 'out' / 'drive').rglob('*')}
    assert {'.mcap', '.mp4', '.png'} <= kinds


def test_nothing_that_git_sees_was_left(clone):
    status = subprocess.run(['git', 'status', '--porcelain'], cwd=clone, text=True,
                            capture_output=True, check=True)
    assert status.stdout == ''
