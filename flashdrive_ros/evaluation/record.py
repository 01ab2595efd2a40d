"""
What every results file says about its making: commit, hardware, versions, command, date.

    write_results('bench/results/x.json', {'rows': …}, seeds=[0, 1])

A reader of a figure must be able to make it again.
"""
from __future__ import annotations

import json
import math
import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from .. import __version__

COMMIT_VARIABLE = 'FLASHDRIVE_COMMIT'
"""Environment variable that names the commit where the sources are not a git checkout."""
PACKAGES = ('torch', 'numpy', 'opencv-python-headless', 'opencv-python', 'transformers')
SOURCES = Path(__file__).resolve().parents[2]


def write_results(path: Path | str, body: dict, *, command: str | None = None, **about) -> dict:
    """
    Write `body` as JSON with the header (and what else `about` says); returns what was written.

    The file appears whole or not at all, and names no folder of this machine (`portable`).
    """
    path = Path(path)
    data = portable(rounded({**header(command), **about, **body}))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f'.{path.name}.{os.getpid()}')
    draft.write_text(json.dumps(data, indent=1, allow_nan=False) + '\n', encoding='utf-8')
    draft.replace(path)
    return data


def header(command: str | None = None) -> dict:
    """Fields that every results file has."""
    return {'commit': commit(), 'hardware': hardware(), 'versions': versions(),
            'command': command or command_line(),
            'date': datetime.now(timezone.utc).isoformat(timespec='seconds')}


def command_line() -> str:
    """The command as it was typed, its program without what depends on this machine."""
    program = Path(sys.argv[0]).resolve()
    inside = program.suffix == '.py' and program.is_relative_to(SOURCES)
    name = ['python', str(program.relative_to(SOURCES))] if inside else [program.name]
    return shlex.join([*name, *map(_portable_argument, sys.argv[1:])])


def _portable_argument(text: str) -> str:
    option, sign, value = text.partition('=')
    return f'{option}={portable(value)}' if sign and text.startswith('-') else portable(text)


def portable(value):
    """`value` with absolute paths in it cut to their last part, or to that below the sources."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    if isinstance(value, str) and value.startswith(('/', '~/')):
        path = Path(value).expanduser()
        below = path.is_relative_to(SOURCES) and path != SOURCES
        return path.relative_to(SOURCES).as_posix() if below else path.name
    return value


def commit() -> str:
    """Commit of the sources, '+' behind it when they were changed since; 'unknown' without one."""
    given = os.environ.get(COMMIT_VARIABLE)
    if given:
        return given
    # results that were written before do not make the sources another version
    changed = _git('status', '--porcelain', '--untracked-files=no', '--', '.', ':!bench/results')
    head = _git('rev-parse', 'HEAD')
    return 'unknown' if head is None else head + ('+' if changed else '')


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(['git', '-C', str(SOURCES), *arguments], capture_output=True,
                              text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hardware() -> dict:
    """Processor, cores that this process may use, memory, load, and CUDA devices."""
    found = {'cpu': _processor(), 'cores': _cores(), 'memory_gib': _memory_gib(),
             'load_average': round(os.getloadavg()[0], 2)}
    torch = sys.modules.get('torch')
    if torch is not None:
        found['threads'] = torch.get_num_threads()
    if torch is not None and torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found |= {'gpu': names[0], 'gpus': len(names)}
    return found


def _processor() -> str:
    try:
        for line in Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> int:
    affinity = getattr(os, 'sched_getaffinity', None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _memory_gib() -> float | None:
    try:
        size = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    except (OSError, ValueError):
        return None
    return round(size / 2 ** 30, 1)


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of what does the arithmetic."""
    found = {'flashdrive_ros': __version__, 'python': platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get('torch')
    if torch is not None and torch.version.cuda:
        found['cuda'] = torch.version.cuda
    return found


def rounded(value, digits: int = 5):
    """`value` with every float rounded to significant `digits`; NaN and infinities become None."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    if hasattr(value, 'item') and not isinstance(value, str | bytes):
        value = value.item()  # a NumPy scalar
    if isinstance(value, float):
        return float(f'{value:.{digits}g}') if math.isfinite(value) else None
    return value
