"""Every results file says how it came about."""
import json

import numpy as np
import pytest

from flashdrive_ros.evaluation import record


def test_a_results_file_has_commit_hardware_versions_command_and_date(tmp_path):
    path = tmp_path / 'deep' / 'x.json'
    written = record.write_results(path, {'rows': {'a': 1.0}}, command='flashdrive x', seeds=[1])
    data = json.loads(path.read_text())
    assert data == written and data['rows'] == {'a': 1.0} and data['seeds'] == [1]
    assert data['command'] == 'flashdrive x' and data['date'].endswith('+00:00')
    assert data['hardware']['cpu'] and data['hardware']['cores'] >= 1
    assert {'flashdrive_ros', 'python', 'torch', 'numpy'} <= set(data['versions'])
    assert list(path.parent.iterdir()) == [path]


def test_the_commit_is_given_where_there_is_no_checkout(monkeypatch, tmp_path):
    monkeypatch.setenv(record.COMMIT_VARIABLE, 'abc123')
    assert record.commit() == 'abc123'
    monkeypatch.delenv(record.COMMIT_VARIABLE)
    monkeypatch.setattr(record, 'SOURCES', tmp_path)
    assert record.commit() == 'unknown'


def test_the_command_is_as_it_was_typed_without_the_folder_of_the_program(monkeypatch):
    monkeypatch.setattr('sys.argv', ['/opt/x/bin/flashdrive', 'eval', 'open-loop', '--out', 'a b'])
    assert record.command_line() == "flashdrive eval open-loop --out 'a b'"
    monkeypatch.setattr('sys.argv', [str(record.SOURCES / 'bench' / 'x.py'), '--seeds', '3'])
    assert record.command_line() == 'python bench/x.py --seeds 3'


def test_results_name_no_folder_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr('sys.argv', ['flashdrive', 'eval', '--model', '/far/ck', '--out=/x/y',
                                     '--work', 'out/a', '--set', 'velocity_reuse=[3]'])
    data = record.write_results(tmp_path / 'x.json', {'models': {
        'full': '/far/ck', 'streaming': 'small', 'other': str(record.SOURCES / 'out/b'),
        'hub': 'owner/name'}})
    assert data['command'] == ("flashdrive eval --model ck --out=y --work out/a --set "
                               "'velocity_reuse=[3]'")
    assert data['models'] == {'full': 'ck', 'streaming': 'small', 'other': 'out/b',
                              'hub': 'owner/name'}


@pytest.mark.parametrize('value, expected', [
    (1 / 3, 0.33333), (123456.7, 123460.0), (float('nan'), None), (float('inf'), None),
    (np.float32(0.5), 0.5), (np.int64(3), 3), (True, True), ('x', 'x'), (None, None),
    ((1.0, [2e-9]), [1.0, [2e-9]])])
def test_numbers_are_rounded_and_what_json_lacks_is_null(value, expected):
    assert record.rounded(value) == expected
