"""The set-up of `make`: what it repeats, what it keeps, what it says."""
import importlib.util
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Give install.py, working on a copy of the files that it reads."""
    spec = importlib.util.spec_from_file_location('install', ROOT / 'install.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    copy = tmp_path / 'checkout'
    for pattern in (*module.BUILD, *module.LISTED):
        for path in ROOT.glob(pattern):
            (copy / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy / path.relative_to(ROOT))
    monkeypatch.setattr(module, 'HERE', copy)
    return module


@pytest.fixture
def environment(install, tmp_path, monkeypatch):
    """Give an environment that notes commands instead of running them."""
    value = install.Environment(tmp_path)
    value.python = Path(sys.executable)
    value.commands = []
    monkeypatch.setattr(value, '_run', lambda *command: value.commands.append(command))
    return value


@pytest.mark.parametrize(('name', 'again'), [
    ('msg/DrivePlan.msg', True), ('srv/AskQuestion.srv', True), ('setup.cfg', True),
    ('CMakeLists.txt', True), ('launch/drive.launch.py', False), ('config/drive.yaml', False),
])
def test_only_what_the_build_reads_makes_it_run_again(install, name, again):
    before = install.digest(install.BUILD, install.LISTED)
    with (install.HERE / name).open('a') as file:
        file.write('# more\n')
    assert (install.digest(install.BUILD, install.LISTED) != before) == again


def test_a_new_launch_file_is_installed(install):
    before = install.digest(install.BUILD, install.LISTED)
    (install.HERE / 'launch' / 'other.launch.py').touch()
    assert install.digest(install.BUILD, install.LISTED) != before


def test_nothing_is_installed_twice(environment, tmp_path):
    for state in ('one', 'one', 'two'):
        environment.pip_install('ros', state, 'title', 'numpy')
    assert len(environment.commands) == 2
    environment.pip_install('ros', 'two', 'title', 'numpy', product=tmp_path / 'gone')
    assert len(environment.commands) == 3


def test_an_installed_torch_stays_and_a_missing_one_is_the_tested_one(environment, install):
    lines = environment._constraints().read_text().splitlines()
    try:
        expected = f'torch=={metadata.version("torch")}'
    except metadata.PackageNotFoundError:
        expected, = [line for line in (install.HERE / 'constraints.txt').read_text().splitlines()
                     if line.startswith('torch==')]
    assert [line for line in lines if line.startswith('torch')] == [expected]


def test_extras_are_those_of_setup_cfg(install):
    assert 'pytest' in install.extra_requirements('test')
    assert 'rerun-sdk' in install.extra_requirements('view')


def test_missing_tools_are_named_by_their_debian_packages(install, monkeypatch, capsys):
    monkeypatch.setattr(install.shutil, 'which', lambda name: None)
    monkeypatch.setattr(install, 'find_spec', lambda name: None)
    assert install.missing_packages() == ['cmake', 'g++', 'make', 'python3-venv']
    with pytest.raises(SystemExit, match=r'apt-get install cmake g\+\+ make'):
        install.check_machine()
