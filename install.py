#!/usr/bin/env python3
"""
Make the virtual environment that `make` runs in: ROS 2 wheels, torch, this package.

Only the standard library is used.  The package is installed editable, so edits of the
sources take effect at once; what was installed is remembered by content, so a second
run does nothing until a message, a requirement or the build itself changes.
"""
import argparse
import configparser
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROS_WHEELS = ['requirements-ros.txt']
DEPENDENCIES = [*ROS_WHEELS, 'setup.cfg', 'constraints.txt']
BUILD = [*DEPENDENCIES, 'CMakeLists.txt', 'package.xml', 'setup.py', 'msg/*', 'srv/*']
LISTED = ['config/*', 'launch/*', 'rviz/*', 'scripts/*']  # linked: only the names matter


def missing_packages():
    """Return the Debian packages that must be installed first."""
    have = {
        'cmake': shutil.which('cmake'),
        'g++': shutil.which('c++'),
        'make': shutil.which('make'),
        'python3-dev': Path(sysconfig.get_path('include'), 'Python.h').is_file(),
        'python3-venv': find_spec('ensurepip') or shutil.which('virtualenv'),
    }
    return [name for name, found in have.items() if not found]


def check_machine():
    """Stop with one line that says what to do when the set-up cannot succeed here."""
    if sys.version_info < (3, 10):  # noqa: UP036  (older ones do run this file)
        sys.exit(f'Python {platform.python_version()} is too old: set PYTHON to 3.10 or newer')
    if (sys.platform, platform.machine()) != ('linux', 'x86_64'):
        sys.exit(f'ROS 2 wheels are for Linux on x86_64, this is {sys.platform} on '
                 f'{platform.machine()}: build with colcon in your own ROS 2 (README.md)')
    missing = missing_packages()
    if missing:
        sys.exit(f'missing on this machine: apt-get install {" ".join(missing)}')


def cuda_of_torch():
    """Return the CUDA release of this interpreter's torch; '' for none."""
    try:
        import torch
    except ImportError:
        return ''
    return torch.version.cuda or ''


def digest(patterns, listed=()):
    """Return a hash of the contents of some files and of the names of others."""
    value = hashlib.sha256(str(HERE).encode())
    for path in sorted(p for pattern in patterns for p in HERE.glob(pattern)):
        value.update(path.name.encode() + path.read_bytes())
    value.update(repr(sorted(p.name for pattern in listed for p in HERE.glob(pattern))).encode())
    return value.hexdigest()


def extra_requirements(extra):
    """Return what setup.cfg says that an extra needs."""
    parser = configparser.ConfigParser()
    parser.read(HERE / 'setup.cfg')
    return parser['options.extras_require'][extra].split()


class Environment:
    """A virtual environment and what was installed into it."""

    def __init__(self, folder):
        """Use the environment in `folder`, which need not exist yet."""
        self.folder = Path(folder)
        self.python = self.folder / 'bin' / 'python'
        self._stamps = self.folder / 'flashdrive_installed.json'
        # a ROS wheel environment that runs this script has marked its own set-up as done
        self._variables = {k: v for k, v in os.environ.items()
                           if k != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}

    def create(self):
        """Make it; a CUDA torch that the interpreter has already is seen from inside."""
        cuda = cuda_of_torch()
        print(f'[1/3] virtual environment {self.folder}, Python {platform.python_version()}'
              + (f', with the torch for CUDA {cuda} that is here' if cuda else ''), flush=True)
        maker = [sys.executable, '-m', 'venv'] if find_spec('ensurepip') else [
            'virtualenv', '--quiet', '--python', sys.executable]
        self._run(*maker, *(['--system-site-packages'] if cuda else []), self.folder)

    def pip_install(self, name, state, title, *arguments, product=HERE):
        """Install once for each `state`, remembered under `name`, or when `product` is gone."""
        stamps = json.loads(self._stamps.read_text()) if self._stamps.is_file() else {}
        if stamps.get(name) == state and product.exists():
            return
        print(title, flush=True)
        self._run(self.python, '-m', 'pip', 'install', '-qq', '--disable-pip-version-check',
                  '--constraint', self._constraints(), *arguments)
        self._stamps.write_text(json.dumps({**stamps, name: state}, indent=1))

    def _constraints(self):
        """Write the tested releases; an installed torch, whatever it is, stays."""
        version_of = 'from importlib import metadata; print(metadata.version("torch"))'
        found = subprocess.run([self.python, '-c', version_of], env=self._variables,
                               capture_output=True, text=True).stdout.strip()
        lines = (HERE / 'constraints.txt').read_text().splitlines()
        if found:
            lines = [line for line in lines if not line.startswith('torch==')]
            lines.append(f'torch=={found}')
        path = self.folder / 'flashdrive_constraints.txt'
        path.write_text('\n'.join(lines) + '\n')
        return path

    def megabytes(self):
        """Return the disk space that it takes."""
        files = (p for p in self.folder.rglob('*') if p.is_file() and not p.is_symlink())
        return sum(p.stat().st_size for p in files) / 1e6

    def _run(self, *command):
        if subprocess.run([str(c) for c in command], env=self._variables).returncode:
            sys.exit('the set-up failed, see above: ' + ' '.join(map(str, command)))


def main():
    """Set everything up and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--venv', default='.venv', help='an existing one is used as it is')
    parser.add_argument('--extra', action='append', default=[], help='test or view')
    parser.add_argument('--missing', action='store_true',
                        help='only print the Debian packages that are missing')
    arguments = parser.parse_args()
    if arguments.missing:
        print(*missing_packages())
        return
    check_machine()

    start = time.monotonic()
    environment = Environment(arguments.venv)
    if not environment.python.exists():
        environment.create()
    environment.pip_install(
        'ros', digest(ROS_WHEELS), '[2/3] ROS 2 wheels', '-r', HERE / 'requirements-ros.txt')
    environment.pip_install(
        'package', digest(BUILD, LISTED),
        '[3/3] torch, libraries, this package and its messages', '--editable', HERE,
        product=HERE / 'flashdrive_ros' / 'msg' / '__init__.py')
    for extra in arguments.extra:
        environment.pip_install(
            f'extra {extra}', digest(DEPENDENCIES), f'[+] what "{extra}" needs',
            *extra_requirements(extra))
    seconds = time.monotonic() - start
    if seconds > 5:
        print(f'set up in {seconds / 60:.1f} minutes: {environment.megabytes():,.0f} MB in '
              f'{environment.folder}', flush=True)


if __name__ == '__main__':
    main()
