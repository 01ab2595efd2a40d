"""The `flashdrive` command: verbs, errors, settings, folders."""
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from support.recordings import MESSAGES, VIDEO, write_recording

from flashdrive_ros import cli
from flashdrive_ros.cli import doctor
from flashdrive_ros.errors import UserError
from flashdrive_ros.recording.writer import BagWriter
from flashdrive_ros.session import drive as session
from flashdrive_ros.session import nodes, processes
from flashdrive_ros.session.folder import DriveFolder, find_bag


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, '-c', 'import sys; from flashdrive_ros.cli import main; '
         'sys.exit(main())', *map(str, arguments)], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment})


def test_help_names_every_verb_with_a_line():
    text = run('--help').stdout
    for verb in ('compare', 'doctor', 'drive', 'record', 'replay', 'view'):
        assert re.search(rf'^    {verb} +[A-Z]', text, re.M), text


def test_a_new_file_is_a_new_verb(tmp_path, monkeypatch, capsys):
    (tmp_path / 'greet.py').write_text(textwrap.dedent('''
        """Greet someone."""
        def add_arguments(parser):
            parser.add_argument('who')
        def run(args):
            print('hello', args.who)
            return 3
        '''))
    (tmp_path / '_helper.py').write_text('raise RuntimeError')
    monkeypatch.setattr(cli, '__path__', [*cli.__path__, str(tmp_path)])
    assert 'greet' in cli.verbs() and '_helper' not in cli.verbs()
    assert cli.main(['greet', 'you']) == 3
    assert capsys.readouterr().out == 'hello you\n'
    del sys.modules['flashdrive_ros.cli.greet']


@pytest.mark.parametrize(('arguments', 'said'), [
    (['compare', '/none/a', '/none/b'], 'flashdrive compare: bag /none/a: no such file'),
    (['replay', '/none/a'], 'bag /none/a: no such file'),
    (['drive', '--source', '/none/a'], '--source /none/a: no such file or folder; it must be '
     'world, video, video:<file>'),
    (['drive', '--source', 'bag:/none/a'], "there is no bag '/none/a'"),
    (['drive', '--params-file', '/none/p.yaml'], '--params-file /none/p.yaml: no such file'),
    (['drive', '--set', 'speed=3'], '--set speed=3: must be <node>.<parameter>=<value>'),
    (['drive', '--set', 'drive.nosuch=1'], '--set: drive has no parameter nosuch; it has'),
    (['drive', '--set', 'world.nosuch=1'], 'world has no parameter nosuch; it has '),
    (['drive', '--namespace', 'a b'], "--namespace 'a b': must be names of letters"),
    (['replay', str(VIDEO), '--namespace', '9a'], "--namespace '9a': must be names of letters"),
    (['drive', '--set', 'car.speed=3'], 'there is no node car; the nodes are recorder, drive, '
     'world'),
])
def test_what_can_not_be_is_said_without_a_traceback(tmp_path, arguments, said):
    if arguments[0] == 'drive':
        arguments = [*arguments, '--out', tmp_path / 'out']
    result = run(*arguments)
    assert result.returncode == 1
    assert said in result.stderr and 'Traceback' not in result.stderr


@pytest.mark.parametrize(('arguments', 'said'), [
    (['--topics', '['], "topic pattern '[': unterminated character set"),
    (['--remap', '/odometry:=/bad-name!'], "'/bad-name!'"),
    (['--rate', '0', '--plan-topic', 'a b'], 'Invalid topic name'),
])
def test_a_replay_names_what_it_can_not_use(tmp_path, arguments, said):
    result = run('replay', write_recording(tmp_path / 'bag', ticks=2), *arguments)
    assert result.returncode == 1
    assert said in result.stderr and 'Traceback' not in result.stderr


def test_ctrl_c_while_the_verbs_are_imported_leaves_no_traceback(tmp_path):
    (tmp_path / 'slow.py').write_text('import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n')
    result = subprocess.run(
        [sys.executable, '-c', 'import sys; from flashdrive_ros import cli; '
         f'cli.__path__.append({str(tmp_path)!r}); sys.exit(cli.main(["doctor"]))'],
        capture_output=True, text=True, timeout=120)
    assert result.returncode == 130 and result.stderr == ''


def test_compare_tells_by_its_exit_code(tmp_path):
    a = write_recording(tmp_path / 'a', ticks=3)
    b = write_recording(tmp_path / 'b', ticks=3, offset_m=0.01)
    assert cli.main(['compare', str(a), str(a)]) == 0
    assert cli.main(['compare', str(a), str(b)]) == 1
    assert cli.main(['compare', str(a), str(b), '--tolerance', '0.02']) == 0


def test_doctor_says_what_is_missing_and_what_helps():
    result = run('doctor')
    for name in ('python', 'ROS 2', 'messages', 'torch', 'bags', 'disk', 'ros2 launch', 'rerun'):
        assert re.search(rf'^(ok |NO | - ) {name} ', result.stdout, re.M), result.stdout
    assert (result.returncode == 0) == ('ready to drive' in result.stdout)


@pytest.mark.parametrize('variable', ['', 'FASTDDS_DEFAULT_PROFILES_FILE',
                                      'FASTDDS_BUILTIN_TRANSPORTS'])
def test_doctor_names_the_settings_for_large_images_unless_some_are_set(monkeypatch, variable):
    pytest.importorskip('rclpy')
    for name in ('FASTDDS_DEFAULT_PROFILES_FILE', 'FASTDDS_BUILTIN_TRANSPORTS'):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, 'LARGE_DATA')
    detail = doctor.transport().detail
    file = re.search(r'FASTDDS_DEFAULT_PROFILES_FILE=(\S*/config/large_images\.xml)', detail)
    if variable or 'fastrtps' not in detail:
        assert file is None
    else:
        assert Path(file[1]).is_file()


def test_a_page_is_written_beside_the_comparison(tmp_path, capsys):
    a = write_recording(tmp_path / 'a', ticks=3)
    assert cli.main(['compare', str(a), str(a), '--html', str(tmp_path / 'page.html')]) == 0
    assert 'SAME' in (tmp_path / 'page.html').read_text()
    assert f'page: {tmp_path}/page.html' in capsys.readouterr().out
    assert cli.main(['compare', str(a), str(a), '--html', str(tmp_path)]) == 1
    assert f'--html {tmp_path}: Is a directory' in capsys.readouterr().err


def test_view_says_how_to_install_the_viewer(tmp_path):
    (tmp_path / 'rerun.py').write_text('raise ImportError("not here")')
    result = run('view', PYTHONPATH=str(tmp_path))
    assert result.returncode == 1 and 'pip install "flashdrive_ros[view]"' in result.stderr


def test_a_recording_becomes_a_rerun_file(tmp_path):
    pytest.importorskip('rerun')
    bag = write_recording(tmp_path / 'bag', ticks=3, primitives=(
        ('box_2d', 'car', 1, [[1, 2, 30, 40]]), ('trajectory_3d', 'ego', -1, [[1, 2, 0]] * 8),
        ('trajectory_2d', 'ego', 1, [[1, 2], [np.nan, np.nan], [3, 4]])))
    assert cli.main(['view', str(bag), '--save', str(tmp_path / 'drive.rrd')]) == 0
    assert (tmp_path / 'drive.rrd').stat().st_size > 10_000


def test_settings_keep_the_types_of_yaml():
    assert nodes.parse_settings(['drive.camera_ids=[0, 1]', 'drive.model="007"', 'world.rate=0.5',
                                 'drive.greedy=false']) == {
        'drive': {'camera_ids': [0, 1], 'model': '007', 'greedy': False}, 'world': {'rate': 0.5}}


def test_nodes_read_the_shipped_files_then_the_users_then_the_options(tmp_path):
    source, drive = nodes.source_nodes(f'video:{VIDEO}', subscribers=2, rate=0, loop=False)
    drive.values['model'] = 'small'
    command = drive.command('/car/', [Path('mine.yaml')], tmp_path)
    files = [Path(command[i + 1]).name for i, word in enumerate(command)
             if word == '--params-file']
    assert files == ['drive.yaml', 'video.yaml', 'mine.yaml', 'drive.yaml']
    assert '__ns:=/car' in command and source.values['rate'] == 0.0
    assert 'model: small' in (tmp_path / 'drive.yaml').read_text()


def test_the_world_waits_for_plans_unless_a_rate_is_given():
    world, drive = nodes.source_nodes('world', subscribers=2, rate=None, loop=False)
    assert world.values['lockstep'] and world.values['publish_clock']
    assert drive.values['use_sim_time'] and drive.values['camera_reliability'] == 'reliable'
    assert nodes.source_nodes('world', subscribers=2, rate=0, loop=False)[0] == world
    world, drive = nodes.source_nodes('world', subscribers=2, rate=2, loop=False)
    assert world.values == {'wait_for_subscribers': 2, 'rate': 2.0} and not drive.values


def test_a_bags_cameras_are_those_of_the_drive(tmp_path):
    bag = write_recording(tmp_path / 'bag', ticks=2, cameras=('front_wide_120', 'front_tele_30'))
    _, drive = nodes.source_nodes(f'bag:{bag}', subscribers=1, rate=1, loop=False)
    assert drive.values == {'camera_ids': [1, 6], 'image_transport': 'compressed'}


def test_annotated_images_of_a_recording_are_no_cameras(tmp_path):
    bag = BagWriter(tmp_path / 'bag')
    for topic, kind in (('/camera/front_wide_120/image_raw', 'Image'),
                        ('/drive/annotated/front_tele_30/compressed', 'CompressedImage')):
        bag.add_topic(topic, f'sensor_msgs/msg/{kind}')
        bag.put(topic, 1, MESSAGES.cdr(MESSAGES.make(f'sensor_msgs/msg/{kind}')))
    bag.close()
    _, drive = nodes.source_nodes(f'bag:{bag.path}', subscribers=1, rate=1, loop=False)
    assert drive.values == {'camera_ids': [1], 'image_transport': 'raw'}


@pytest.mark.parametrize('options, asked', [
    ({}, True), ({'model': 'small'}, True), ({'settings': ('drive.model=small',)}, True),
    ({'model': 'nvidia/Alpamayo-1.5-10B'}, False), ({'settings': ('drive.model=other',)}, False),
    ({'parameter_files': (Path('mine.yaml'),)}, False), ({'source': 'none'}, False)])
def test_the_shipped_model_is_asked_to_draw_unless_told_otherwise(tmp_path, options, asked):
    plans = session.Drive(session.DriveOptions(**options),
                          DriveFolder(tmp_path / 'out')).node_plans()
    drive = next(p for p in plans if p.name == 'drive')
    assert ('small' in drive.configs) == asked


def test_a_drive_of_ones_own_publishers_has_no_source_and_other_names(tmp_path):
    rule = 'odometry:=/localization/kinematic_state'
    plans = session.Drive(session.DriveOptions(source='none', remaps=(rule,)),
                          DriveFolder(tmp_path / 'out')).node_plans()
    assert [p.name for p in plans] == ['recorder', 'drive']
    for plan in plans:
        command = plan.command('', [], tmp_path)
        assert command[command.index(rule) - 1] == '-r'


def test_a_remapping_rule_that_is_none_is_named(tmp_path):
    with pytest.raises(UserError, match='--remap odometry=/a: must be FROM:=TO'):
        session.Drive(session.DriveOptions(remaps=('odometry=/a',)),
                      DriveFolder(tmp_path / 'out')).node_plans()


def prepare(path):
    folder = DriveFolder(path)
    folder.prepare()
    folder.release()
    return folder


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_a_drive_replaces_its_own_results_and_nothing_else(tmp_path, storage):
    folder = prepare(tmp_path / 'out')
    write_recording(folder.bag, ticks=1, storage=storage)
    folder.summary.write_text('{}')
    for kept in (folder.path / 'notes.txt', folder.logs / 'mine.log'):
        kept.write_text('mine')
    assert find_bag(folder.path) == folder.bag
    prepare(folder.path)
    assert not folder.bag.exists() and not folder.summary.exists()
    assert (folder.path / 'notes.txt').read_text() == 'mine'
    assert (folder.logs / 'mine.log').read_text() == 'mine'
    folder.bag.mkdir()
    (folder.bag / 'data').write_text('not a bag')
    with pytest.raises(UserError, match='data is there and not from a drive'):
        prepare(folder.path)
    assert (folder.bag / 'data').exists()


@pytest.mark.parametrize('name', ['log', 'parameters', 'bag'])
def test_a_folder_that_no_drive_made_is_left_alone(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'drive.log').write_text('mine')
    with pytest.raises(UserError, match='not from a drive; choose another --out'):
        prepare(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / 'drive.log').read_text() == 'mine'


def test_a_folder_that_a_drive_is_writing_to_is_refused(tmp_path):
    first = DriveFolder(tmp_path)
    first.prepare()
    with pytest.raises(UserError, match='another drive is writing there'):
        prepare(tmp_path)
    first.release()
    prepare(tmp_path)


@pytest.mark.parametrize('kind', ['bag', 'video'])
def test_a_source_that_the_drive_would_replace_is_refused_and_kept(tmp_path, kind):
    folder = prepare(tmp_path)
    if kind == 'bag':
        path = write_recording(folder.bag, ticks=1)
    else:
        path = folder.video
        path.write_bytes(VIDEO.read_bytes())
    result = run('drive', '--source', f'{kind}:{path}', '--out', tmp_path)
    assert result.returncode == 1
    assert 'choose another --out' in result.stderr and 'Traceback' not in result.stderr
    assert path.exists() and (kind != 'bag' or (path / 'bag.mcap').stat().st_size)


def test_wrong_arguments_leave_everything_as_it_was(tmp_path):
    folder = prepare(tmp_path / 'out')
    folder.summary.write_text('{}')
    for wrong in (['--source', '/none'], ['--params-file', '/none'], ['--set', 'car.x=1']):
        assert run('drive', *wrong, '--out', folder.path).returncode == 1
        assert run('drive', *wrong, '--out', tmp_path / 'new').returncode == 1
    assert folder.summary.exists() and not (tmp_path / 'new').exists()


def test_a_recording_that_was_cut_off_does_not_hide_why(tmp_path, monkeypatch):
    def start(drive):
        drive.folder.prepare()
        drive.folder.bag.mkdir()
        (drive.folder.bag / 'bag.mcap').write_bytes(b'')
    monkeypatch.setattr(session.Drive, 'start', start)
    monkeypatch.setattr(session, '_watch', lambda drive: 'recorder ended: the disk is full')
    monkeypatch.setattr(session.signal, 'signal', lambda *_: None)
    said = []
    assert session.run(session.DriveOptions(out=tmp_path), say=said.append) == 1
    assert 'the disk is full\nbag ' in said[-1] and 'mcap recover' in said[-1]


def child(tmp_path, code):
    return processes.Child.start('node', [sys.executable, '-u', '-c', textwrap.dedent(code)],
                                 tmp_path / 'log')


def wait_for_text(process, text):
    end = time.monotonic() + 20
    while text not in process.tail():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_process_is_asked_before_it_is_forced(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, 'SIGNALS', tuple((s, 2.0) for s, _ in processes.SIGNALS))
    polite = child(tmp_path, '''
        import signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
        print('I am', 'ready')
        time.sleep(60)''')
    wait_for_text(polite, 'I am ready')
    polite.stop()
    assert (polite.returncode, polite.forced) == (0, '')


def test_a_process_that_does_not_listen_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, 'SIGNALS', tuple((s, 0.3) for s, _ in processes.SIGNALS))
    stubborn = child(tmp_path, '''
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print('I am', 'ready')
        time.sleep(60)''')
    wait_for_text(stubborn, 'I am ready')
    stubborn.stop()
    assert stubborn.process.wait(5) == -signal.SIGKILL and stubborn.forced == 'SIGKILL'


@pytest.mark.skipif(sys.platform != 'linux', reason='needs prctl')
def test_children_end_with_their_parent_however_it_ends(tmp_path):
    parent = subprocess.Popen([sys.executable, '-c', textwrap.dedent(f'''
        import sys, time
        from pathlib import Path
        from flashdrive_ros.session.processes import Child
        child = Child.start('n', [sys.executable, '-c', 'import time; time.sleep(60)'],
                            Path({str(tmp_path / "log")!r}))
        print(child.process.pid, flush=True)
        time.sleep(60)''')], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 20
    while Path(f'/proc/{pid}').exists() and 'zombie' not in Path(
            f'/proc/{pid}/status').read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
