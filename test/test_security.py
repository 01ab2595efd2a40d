"""No code comes out of files that users give, and DDS security is neither ignored nor needed."""
import ast
import os
import pickle
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [*(p for p in (ROOT / 'flashdrive_ros').rglob('*.py')
             if p.parent.name not in ('msg', 'srv')),
           *ROOT.glob('*.py'), *ROOT.glob('launch/*.py'), *ROOT.glob('bench/*.py')]
FORBIDDEN = {'pickle.load', 'pickle.loads', 'pickle.Unpickler', 'joblib.load', 'yaml.load',
             'yaml.unsafe_load', 'yaml.full_load', 'marshal.loads', 'shelve.open', 'os.system',
             'eval', 'exec', 'torch.hub.load', 'numpy.core.load'}


def calls(path):
    """Every call of a module: its dotted name, and its keywords as text."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}


def complaint(name, keywords):
    """What is wrong with a call; '' when nothing is."""
    if name in FORBIDDEN:
        return name
    if keywords.get('shell') == 'True' or keywords.get('trust_remote_code') == 'True':
        return f'{name} runs what a file or a name says'
    if name == 'torch.load' and keywords.get('weights_only') != 'True':
        return f'{name} without weights_only=True'
    if name in ('np.load', 'numpy.load') and keywords.get('allow_pickle', 'False') != 'False':
        return f'{name} with allow_pickle'
    return ''


def test_no_file_can_bring_code_with_it():
    assert len(SOURCES) > 100
    found = [f'{path}: {why}' for path in SOURCES for call in calls(path)
             if (why := complaint(*call))]
    assert found == []


@pytest.mark.parametrize('code', [
    'torch.load(p)', 'np.load(p, allow_pickle=True)', 'yaml.load(f)', 'pickle.load(f)',
    'subprocess.run(x, shell=True)', 'eval(text)'])
def test_the_search_for_such_files_finds_them(tmp_path, code):
    path = tmp_path / 'bad.py'
    path.write_text(code)
    assert any(complaint(*call) for call in calls(path))


class Evil:
    """What runs when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize('zipped', [False, True])
def test_a_mask_embedding_that_holds_code_is_refused_and_never_run(tmp_path, zipped):
    torch = pytest.importorskip('torch')
    from flashdrive_ros.core.config import CheckpointError
    from flashdrive_ros.core.drafter import MASK_FILE, DrafterConfig, _mask_embedding
    mark, path = tmp_path / 'was here', tmp_path / MASK_FILE
    if zipped:
        torch.save({'mask': Evil(mark)}, path)
    else:
        path.write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(CheckpointError, match=MASK_FILE):
        _mask_embedding(tmp_path, DrafterConfig(), None)
    assert not mark.exists()


@pytest.mark.parametrize('module', ['drive_node', 'world_node'])
def test_security_that_can_not_be_had_ends_a_node_with_the_reason(tmp_path, module):
    pytest.importorskip('rclpy')
    pytest.importorskip('flashdrive_ros.msg')
    done = subprocess.run(
        [sys.executable, '-m', f'flashdrive_ros.nodes.{module}'], cwd=ROOT, capture_output=True,
        text=True, timeout=60, env={
            **os.environ, 'ROS_SECURITY_ENABLE': 'true', 'ROS_SECURITY_STRATEGY': 'Enforce',
            'ROS_SECURITY_KEYSTORE': str(tmp_path / 'none')})
    assert done.returncode == 1
    assert 'SECURITY ERROR' in done.stderr and 'Traceback' not in done.stderr


def test_the_policy_allows_all_that_the_drive_node_does_and_nobody_elses_topics():
    pytest.importorskip('rclpy')
    pytest.importorskip('flashdrive_ros.msg')
    from support.drive_rig import rig
    from support.engine_double import EngineDouble
    profile = ElementTree.parse(ROOT / 'config' / 'drive_policy.xml').find('.//profile')
    allowed = {kind: [e.text for e in profile.find(f"*[@{kind}='ALLOW']")]
               for kind in ('publish', 'subscribe', 'reply')}
    with rig(lambda model, config: EngineDouble(), cameras=(0, 1, 2, 6)) as r:
        r.started()
        node = r.drive
        done = {'publish': node.get_publisher_names_and_types_by_node,
                'subscribe': node.get_subscriber_names_and_types_by_node,
                'reply': node.get_service_names_and_types_by_node}
        for kind, names in done.items():
            found = [name for name, _ in names('drive', '/')]
            assert found and [n for n in found if not any(
                fnmatch(n, a) for a in allowed[kind])] == [], kind
    assert not any(fnmatch('/control/command', a) for kind in allowed for a in allowed[kind])
