"""
Install with pip: CMake and rosidl make the messages, pip gets their install tree.

The ROS 2 prefix is the sourced one (AMENT_PREFIX_PATH) or this environment with
the ROS 2 wheels of `requirements-ros.txt`.  Without either, everything but the
ROS messages is installed, and importing those says what to do.
"""
import os
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
NAME = 'flashdrive_ros'
GENERATOR = 'share/rosidl_default_generators'
WITHOUT_ROSIDL = (
    f'{NAME} was installed without its ROS messages: no rosidl_default_generators was found. '
    f'Source a ROS 2 or run "pip install -r requirements-ros.txt", then install {NAME} again.')


def ros_prefixes():
    """Return the folders that hold ROS 2: sourced ones, then this environment."""
    sourced = [p for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
    prefixes = list(dict.fromkeys([*sourced, sys.prefix]))
    return prefixes if any(Path(p, GENERATOR).is_dir() for p in prefixes) else []


def build_interfaces(prefixes):
    """Build the CMake project and return the folder that it was installed into."""
    header = Path(sysconfig.get_path('include'), 'Python.h')
    if not header.is_file():
        sys.exit(f'{header} is missing: install the Python headers (apt-get install python3-dev)')
    for tool in ('cmake', 'c++'):
        if shutil.which(tool) is None:
            sys.exit(f'{tool} is missing: apt-get install cmake g++ make')

    key = zlib.crc32(os.pathsep.join([sys.version, *prefixes]).encode())
    work = HERE / 'build' / 'pip' / f'{sys.implementation.cache_tag}-{key:08x}'
    build, stage = work / 'cmake', work / 'stage'
    shutil.rmtree(stage, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    (work.parent / 'COLCON_IGNORE').touch()

    environment = dict(os.environ)
    environment['AMENT_PREFIX_PATH'] = environment['CMAKE_PREFIX_PATH'] = os.pathsep.join(prefixes)
    if 'ROS_DISTRO' not in environment:
        # pip's isolated environment hides the packages that the generators import
        environment.pop('PYTHONPATH', None)
    for command in (
            ['-S', HERE, '-B', build, f'-DCMAKE_INSTALL_PREFIX={stage}', '-DBUILD_TESTING=OFF',
             '-DCMAKE_BUILD_TYPE=Release', f'-DPython3_EXECUTABLE={sys.prefix}/bin/python3'],
            ['--build', build, '--parallel', str(os.cpu_count())],
            ['--install', build]):
        if subprocess.run(['cmake', *map(str, command)], env=environment).returncode:
            sys.exit(f'building the ROS messages failed in "cmake {command[0]}": see above')
    return stage


def copy(source, target):
    """Copy a file, making folders on the way."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


class BuildPy(build_py):
    """Add the generated Python to the package and the rest of the prefix to data_files."""

    def run(self):
        """Build the messages, then the package."""
        # an editable install has them beside the sources, as `build_ext --inplace` does
        package = HERE / NAME if self.editable_mode else Path(self.build_lib, NAME)
        if not self.editable_mode:
            shutil.rmtree(package, ignore_errors=True)  # files that the sources no longer have
        prefixes = ros_prefixes()
        if prefixes:
            stage = build_interfaces(prefixes)
            super().run()
            self.add_stage(stage, package)
        else:
            print(WITHOUT_ROSIDL, file=sys.stderr)
            super().run()
            for name in ('msg', 'srv'):
                init = package / name / '__init__.py'
                init.parent.mkdir(parents=True, exist_ok=True)
                init.write_text(f'raise ModuleNotFoundError({WITHOUT_ROSIDL!r}, name=__name__)\n')

    def add_stage(self, stage, package):
        """Sort the files of the install tree into the package and `data_files`."""
        site, = stage.glob('l*/python*/site-packages')
        for path in (site / NAME).rglob('*'):
            relative = path.relative_to(site / NAME)
            if path.suffix == '.so' or (relative.parts[0] in ('msg', 'srv')
                                        and path.suffix == '.py'):
                copy(path, package / relative)
        data_files = {}
        for path in stage.rglob('*'):
            relative = path.relative_to(stage)
            if path.is_file() and site not in path.parents and relative.parts[0] in (
                    'lib', 'share'):
                data_files.setdefault(str(relative.parent), []).append(str(path))
        self.distribution.data_files[:] = sorted(data_files.items())
        if self.editable_mode:
            for paths in data_files.values():
                self.place(stage, map(Path, paths))

    def place(self, stage, paths):
        """
        Install data files, which setuptools leaves out of an editable install.

        Files of the sources are linked, so that edits of them take effect.  pip does not
        know of these files: an uninstall leaves them, the next installation replaces them.
        """
        for path in paths:
            relative = path.relative_to(stage)
            target = Path(sys.prefix, relative)
            target.unlink(missing_ok=True)
            source = HERE.joinpath(*relative.parts[2:])  # share/flashdrive_ros/launch/...
            if relative.parts[:2] == ('share', NAME) and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)
            else:
                copy(path, target)


class BinaryDistribution(Distribution):
    """A wheel of one platform: it holds compiled type support."""

    def has_ext_modules(self):
        """Say so even though no extension is declared."""
        return True


setup(distclass=BinaryDistribution, cmdclass={'build_py': BuildPy},
      data_files=[(f'share/{NAME}', ['package.xml'])])
