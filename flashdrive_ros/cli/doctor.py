"""
Say what is installed, what is missing, and what to do about it.

Exit code 0 when everything that driving needs is there.
"""
from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

GIGABYTE = 1e9
ENOUGH_DISK_GB = 2.0


@dataclass(frozen=True)
class Finding:
    """One line of the report; a missing thing that is `needed` fails the check."""

    name: str
    found: bool
    detail: str
    needed: bool = True

    def __str__(self):
        mark = 'ok ' if self.found else 'NO ' if self.needed else ' - '
        return f'{mark} {self.name:<12} {self.detail}'


def add_arguments(parser):
    """Add this verb's arguments."""
    parser.add_argument('--out', type=Path, default=Path('out'), metavar='FOLDER',
                        help='where recordings will go (default: %(default)s)')


def run(args) -> int:
    """Print the findings."""
    findings = [python(), ros(), messages(), transport(), torch(), images(), bags(),
                disk(args.out), launch(), tf(), rviz(), rerun()]
    for finding in findings:
        print(finding)
    missing = [f.name for f in findings if f.needed and not f.found]
    print('ready to drive' if not missing else f'missing: {", ".join(missing)}')
    return 1 if missing else 0


def version(distribution: str) -> str:
    """Installed version, '' without one."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ''


def python() -> Finding:
    """Check the interpreter."""
    text = f'{platform.python_version()} ({sys.prefix})'
    enough = sys.version_info >= (3, 10)
    return Finding('python', enough, text if enough else f'{text}; 3.10 or newer is needed')


def ros() -> Finding:
    """Check rclpy: PyPI's wheels or a sourced installation."""
    try:
        import rclpy
    except ImportError as error:
        hint = ('pip install -r requirements-ros.txt' if platform.machine() == 'x86_64' else
                'install ROS 2 and source its setup.bash: PyPI has no wheels for '
                + platform.machine())
        return Finding('ROS 2', False, f'no rclpy ({error}); {hint}')
    source = (f'wheel {version("ros-rclpy")}' if version('ros-rclpy')
              else os.environ.get('ROS_DISTRO', 'unknown distribution'))
    return Finding('ROS 2', True, f'{source} in {Path(rclpy.__file__).parents[1]}')


def messages() -> Finding:
    """Check that our messages are built."""
    try:
        from flashdrive_ros.msg import DrivePlan  # noqa: F401
    except ImportError as error:
        return Finding('messages', False, f'not built ({error}); install the package after ROS: '
                       'pip install --no-build-isolation . (needs cmake and g++)')
    return Finding('messages', True, 'flashdrive_ros.msg')


def transport() -> Finding:
    """Check the middleware's settings that decide whether images arrive."""
    if find_spec('rclpy') is None:
        return Finding('DDS', False, 'needs ROS 2')
    try:
        from rclpy.utilities import get_rmw_implementation_identifier
        name = get_rmw_implementation_identifier()
    except Exception as error:   # whatever a broken installation raises is the finding
        return Finding('DDS', False, f'the middleware does not load: {error}')
    domain = os.environ.get('ROS_DOMAIN_ID', '0')
    large = any(os.environ.get(v) for v in ('FASTDDS_BUILTIN_TRANSPORTS',
                                            'FASTDDS_DEFAULT_PROFILES_FILE'))
    hint = '' if large or 'fastrtps' not in name else f'; {large_images()}'
    return Finding('DDS', True, f'{name}, domain {domain}{hint}')


def large_images() -> str:
    """Say how raw images of 1 MB and more arrive: the settings file, where it is installed."""
    from ..recording.definitions import share_folders
    file = next((f for folder in share_folders('flashdrive_ros')
                 if (f := folder / 'config' / 'large_images.xml').is_file()),
                'config/large_images.xml')
    return (f'for raw images of 1 MB and more export FASTDDS_DEFAULT_PROFILES_FILE={file} '
            'for every process (docs/cameras.md)')


def torch() -> Finding:
    """Check torch and its devices."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding('torch', False, f'{error}; pip install torch')
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    cores = os.cpu_count()
    return Finding('torch', True, f'{torch.__version__}, '
                   + (f'CUDA: {", ".join(devices)}' if devices else
                      f'no CUDA device: the small model on {cores} CPU cores'))


def images() -> Finding:
    """Check image decoding."""
    if find_spec('cv2') is None:
        return Finding('images', False, 'no OpenCV; pip install opencv-python-headless')
    import cv2
    fast = version('simplejpeg')
    return Finding('images', True, f'OpenCV {cv2.__version__}, ' + (
        f'simplejpeg {fast}' if fast else 'no simplejpeg: JPEG decoding takes 1.4 times as long'))


def bags() -> Finding:
    """Check reading and writing of bags."""
    have = version('rosbags')
    return Finding('bags', bool(have), f'rosbags {have}' if have else 'pip install rosbags')


def disk(out: Path) -> Finding:
    """Check the space for recordings."""
    folder = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free_gb = shutil.disk_usage(folder).free / GIGABYTE
    text = f'{free_gb:.0f} GB free in {folder}'
    return Finding('disk', free_gb > ENOUGH_DISK_GB, text if free_gb > ENOUGH_DISK_GB else
                   f'{text}; a minute of driving takes about 30 MB, torch 2 GB')


def launch() -> Finding:
    """Look for `ros2 launch`."""
    found = find_spec('launch_ros') is not None
    return Finding('ros2 launch', found, 'installed' if found else 'not on PyPI; '
                   '"flashdrive drive" starts the same nodes', needed=False)


def tf() -> Finding:
    """Look for tf2_msgs."""
    found = find_spec('tf2_msgs') is not None
    return Finding('tf2_msgs', found, 'installed' if found else 'not on PyPI; without it there '
                   'is no /tf, and pictures use the nominal camera mounting', needed=False)


def rviz() -> Finding:
    """Look for RViz."""
    path = shutil.which('rviz2')
    return Finding('rviz2', path is not None, path or 'part of a ROS 2 desktop install; '
                   '"flashdrive view" shows recordings in rerun', needed=False)


def rerun() -> Finding:
    """Look for the viewer."""
    have = version('rerun-sdk')
    return Finding('rerun', bool(have), have or 'pip install "flashdrive_ros[view]" '
                   '(170 MB), then "flashdrive view"', needed=False)
