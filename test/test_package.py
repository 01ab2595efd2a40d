"""The metadata of the package agree with each other and with what is there."""
import ast
import configparser
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

import flashdrive_ros

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / 'flashdrive_ros'
INTERFACES = sorted([*ROOT.glob('msg/*.msg'), *ROOT.glob('srv/*.srv')])
DISTRIBUTIONS = {'cv2': 'opencv-python-headless', 'yaml': 'pyyaml', 'rerun': 'rerun-sdk',
                 'fa3_fwd_interface': 'fa3_fwd', 'triton': 'torch', 'grpc': 'grpcio',
                 'google': 'protobuf'}
"""PyPI names of modules that are called otherwise, or come with another package."""


def manifest():
    return ElementTree.parse(ROOT / 'package.xml').getroot()


def settings():
    parser = configparser.ConfigParser()
    parser.read(ROOT / 'setup.cfg')
    return parser


def tracked_files():
    listing = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip('not a git checkout')
    return [ROOT / name for name in listing.stdout.split('\0') if name and (ROOT / name).is_file()]


def imported_modules():
    """Return the names of all packages that our modules import, except our own."""
    names = set()
    for path in PACKAGE.rglob('*.py'):
        if path.parent.name in ('msg', 'srv'):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name.split('.')[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.split('.')[0])
    return names - set(sys.stdlib_module_names) - {'flashdrive_ros'}


def is_ros(module):
    return module.startswith(('rcl', 'ros_', 'launch', 'ament_', 'tf2_')) or module.endswith(
        ('_msgs', '_srvs', '_interfaces', '_msgs_py')) or module == 'cv_bridge'


def test_versions_and_licence_agree():
    assert manifest().findtext('version') == flashdrive_ros.__version__
    assert settings()['metadata']['version'] == 'attr: flashdrive_ros.__version__'
    assert manifest().findtext('license') == settings()['metadata']['license'] == 'Apache-2.0'
    assert 'Apache License' in (ROOT / 'LICENSE').read_text()


def test_package_xml_is_valid():
    package = pytest.importorskip('catkin_pkg.package')
    warnings = []
    parsed = package.parse_package(str(ROOT / 'package.xml'), warnings=warnings)
    assert parsed.get_build_type() == 'ament_cmake'
    assert not warnings


def test_every_ros_import_is_declared_in_package_xml():
    declared = {e.text for tag in ('depend', 'exec_depend') for e in manifest().iter(tag)}
    assert {name for name in imported_modules() if is_ros(name)} <= declared


def test_every_other_import_is_declared_in_setup_cfg():
    declared = '\n'.join([settings()['options']['install_requires'],
                          *settings()['options.extras_require'].values()])
    names = set(re.findall(r'^[\w-]+', declared, re.MULTILINE))
    imported = {DISTRIBUTIONS.get(m, m) for m in imported_modules() if not is_ros(m)}
    assert imported <= names


def test_models_and_other_data_are_installed_with_the_package():
    patterns = settings()['options.package_data']['flashdrive_ros'].split()
    installed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    wanted = {path for path in tracked_files()
              if PACKAGE in path.parents and path.suffix not in ('.py', '.md')}
    assert wanted <= installed


@pytest.mark.parametrize('path', INTERFACES, ids=lambda path: path.name)
def test_every_field_is_documented(path):
    lines = path.read_text().splitlines()
    assert lines[0].startswith('# '), 'the first line says what the interface is'
    fields = [line for line in lines if re.match(r'\w', line) and '=' not in line.split('#')[0]]
    assert fields
    assert [line for line in fields if '#' not in line] == []


@pytest.mark.parametrize('script', sorted(ROOT.glob('scripts/*')), ids=lambda path: path.name)
def test_executables_are_installed_and_their_modules_exist(script):
    assert os.access(script, os.X_OK)
    assert f'scripts/{script.name}' in (ROOT / 'CMakeLists.txt').read_text()
    module, = re.findall(r'^from (\S+) import main$', script.read_text(), re.MULTILINE)
    assert find_spec(module), f'{script.name} needs {module}'


def test_the_repository_stays_small():
    sizes = {path: path.stat().st_size for path in tracked_files()}
    assert {path: size for path, size in sizes.items() if size > 16 * 2**20} == {}
    assert sum(sizes.values()) < 60e6


def test_no_file_names_a_place_of_one_machine():
    places = re.compile(rb'(?<![\w.])/(?:work|root|home)/\w')
    found = {str(path.relative_to(ROOT)): line.decode(errors='replace')
             for path in tracked_files() for line in path.read_bytes().splitlines()
             if path.suffix not in ('.mp4', '.safetensors', '.png') and places.search(line)}
    assert found == {}
