"""Rows are kept the moment they are measured, whatever happens then."""
import json
import os
import time

import pytest

from flashdrive_ros.errors import UserError
from flashdrive_ros.evaluation.workers import Crew, RowFile, run_tasks

SETTINGS = {'samples': 6, 'models': ('a', 'b')}
TASKS = [{'seed': seed, 'config': {}} for seed in range(6)]


def double(task, planners):
    yield {'seed': task['seed'], 'twice': 2 * task['seed']}


def fail_at_three(task, planners):
    yield {'seed': task['seed']}
    if task['seed'] == 3:
        raise ValueError('three is not allowed')


def die_at_three(task, planners):
    if task['seed'] == 3:
        os._exit(7)
    yield {'seed': task['seed']}


def sleep(task, planners):
    time.sleep(60 if task['seed'] == 1 else 0)
    yield {'seed': task['seed']}


def run(work, tmp_path, tasks=TASKS, **crew):
    file, said = RowFile(tmp_path / 'rows.jsonl', SETTINGS), []
    failures = run_tasks(work, tasks, file, Crew(**crew), said.append)
    return file, failures, said


@pytest.mark.parametrize('processes', [0, 2])
def test_all_tasks_are_done_and_their_rows_are_in_the_file(tmp_path, processes):
    file, failures, said = run(double, tmp_path, processes=processes)
    assert not failures and said[-1].startswith('6 of 6')
    written = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert written[0] == {'settings': {'samples': 6, 'models': ['a', 'b']}}
    assert sorted(r['twice'] for r in written[1:]) == [0, 2, 4, 6, 8, 10]
    assert RowFile(file.path, SETTINGS).rows == written[1:]


def test_a_failing_task_is_told_and_the_others_go_on(tmp_path):
    file, failures, _ = run(fail_at_three, tmp_path, processes=2)
    assert len(failures) == 1 and 'seed 3' in failures[0] and 'three is not' in failures[0]
    assert sorted(r['seed'] for r in file.rows) == [0, 1, 2, 3, 4, 5]  # its first row counts


def test_a_process_that_dies_is_told_with_its_exit_code(tmp_path):
    file, failures, _ = run(die_at_three, tmp_path, processes=2)
    assert len(failures) == 1 and 'seed 3' in failures[0] and 'exit code 7' in failures[0]
    assert {r['seed'] for r in file.rows} >= {0, 1, 2}


def test_the_limit_gives_up_what_is_not_ready(tmp_path):
    began = time.monotonic()
    file, failures, said = run(sleep, tmp_path, TASKS[:2], processes=1, limit_s=8.0)
    assert time.monotonic() - began < 40 and not failures
    assert [r['seed'] for r in file.rows] == [0] and 'run it again' in said[-1]


def test_a_row_that_was_cut_is_forgotten(tmp_path):
    file, *_ = run(double, tmp_path, processes=0)
    whole = file.path.read_text()
    file.path.write_text(whole + '{"seed": 9, "tw')
    assert RowFile(file.path, SETTINGS).rows == file.rows
    assert file.path.read_text() == whole


def test_rows_of_other_settings_are_never_mixed(tmp_path):
    file, *_ = run(double, tmp_path, processes=0)
    with pytest.raises(UserError, match='samples'):
        RowFile(file.path, {**SETTINGS, 'samples': 1})
    file.path.write_text('something else\n')
    with pytest.raises(UserError, match='no rows of an evaluation'):
        RowFile(file.path, SETTINGS)
