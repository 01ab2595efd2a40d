"""`flashdrive verify` on the golden excerpt, and that it notices what is wrong."""
import argparse
import json
import shutil

import numpy as np
import pytest
from support.golden import unpack_golden

from flashdrive_ros.cli import verify as verb
from flashdrive_ros.evaluation.verify import GoldenError, verify


@pytest.fixture(scope='module')
def golden(tmp_path_factory):
    return unpack_golden(tmp_path_factory.mktemp('golden') / 'set')


@pytest.fixture
def small_golden(golden, tmp_path):
    """One case and its checkpoint, to be damaged."""
    folder = tmp_path / 'set'
    case = 'alpamayo1_5/cases/c2f1_nocamids_noeos'
    shutil.copytree(golden / 'alpamayo1_5/checkpoint', folder / 'alpamayo1_5/checkpoint')
    (folder / 'alpamayo1_5/cases').mkdir()
    for ending in ('.npz', '.json'):
        shutil.copyfile(golden / (case + ending), folder / (case + ending))
    index = json.loads((golden / 'index.json').read_text())
    index |= {'cases': [], 'sha256': {}}
    (folder / 'index.json').write_text(json.dumps(index))
    return folder


def change(folder, **arrays):
    path = folder / 'alpamayo1_5/cases/c2f1_nocamids_noeos.npz'
    np.savez(path, **{**np.load(path), **arrays})


def run(folder, *arguments):
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.run(parser.parse_args([str(folder), *arguments]))


def test_everything_in_the_excerpt_holds(golden):
    lines = []
    report = verify(golden, say=lines.append)
    assert report.passed, report.failures
    assert report.counts['ok'] > 300
    assert not report.counts['not checked'], [line for line in lines if 'not checked' in line]


def test_command_says_errors_and_succeeds(small_golden, capsys):
    assert run(small_golden) == 0
    said = capsys.readouterr().out
    assert 'pred_xyz' in said and 'max abs' in said and '0 failed, 0 not checked' in said


def test_case_that_the_index_does_not_list_is_run_too(small_golden):
    assert verify(small_golden, say=lambda line: None).counts['ok'] > 40


def test_wrong_number_fails(small_golden, capsys):
    values = np.load(small_golden / 'alpamayo1_5/cases/c2f1_nocamids_noeos.npz')['flow_v']
    values = values.copy()
    values[3, 0, 5, 1] += 0.01
    change(small_golden, flow_v=values)
    assert run(small_golden, '--quiet') == 1
    assert 'FAIL alpamayo1_5/c2f1_nocamids_noeos: flow_v' in capsys.readouterr().out


def test_wrong_shape_fails(small_golden):
    change(small_golden, rope_deltas=np.zeros((2, 1), int))
    report = verify(small_golden, say=lambda line: None)
    assert report.failures == [
        'alpamayo1_5/c2f1_nocamids_noeos: rope_deltas shape [1, 1], expected [2, 1]']


def test_unknown_array_is_counted_as_not_checked(small_golden):
    change(small_golden, mystery=np.zeros(3))
    lines = []
    report = verify(small_golden, say=lines.append)
    assert report.passed and report.counts['not checked'] == 1
    assert any('mystery' in line and 'not checked' in line for line in lines)


def test_unknown_kind_of_case_is_not_checked(small_golden):
    path = small_golden / 'alpamayo1_5/cases/c2f1_nocamids_noeos.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'entry_point': 'dream'}))
    report = verify(small_golden, say=lambda line: None)
    assert report.counts['not checked'] == 1 and not report.passed


def test_missing_file_is_named(small_golden, capsys):
    (small_golden / 'alpamayo1_5/cases/c2f1_nocamids_noeos.json').unlink()
    assert run(small_golden) == 2
    assert 'c2f1_nocamids_noeos.json does not exist' in capsys.readouterr().err


def test_listed_file_must_be_there(small_golden):
    index = json.loads((small_golden / 'index.json').read_text())
    index['sha256'] = {'pure/metrics.npz': '0'}
    (small_golden / 'index.json').write_text(json.dumps(index))
    with pytest.raises(GoldenError, match=r'pure/metrics\.npz is listed'):
        verify(small_golden, say=lambda line: None)


def test_directory_without_index_is_refused(tmp_path):
    with pytest.raises(GoldenError, match=r'index\.json does not exist'):
        verify(tmp_path)


def test_nothing_compared_is_no_success(small_golden):
    assert run(small_golden, '--only', 'no such case') == 1
