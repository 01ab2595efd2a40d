"""Child processes that are stopped in order, politely first, and never outlive us."""
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == 'linux' else None
SIGNALS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))
"""What a child is sent, and how long it has before the next."""
POLL_S = 0.05


@dataclass
class Child:
    """A started process; its output goes to `log`."""

    name: str
    process: subprocess.Popen
    log: Path
    forced: str = ''

    @classmethod
    def start(cls, name: str, command: list[str], log: Path, env=None) -> Child:
        """Start in a session of its own, so that Ctrl-C reaches only us."""
        with log.open('w', encoding='utf-8') as output:
            output.write(' '.join(command) + '\n')
            output.flush()
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=_die_with_parent if _LIBC else None)
        return cls(name, process, log)

    @property
    def returncode(self) -> int | None:
        """Exit code, None while it runs."""
        return self.process.poll()

    def stop(self):
        """SIGINT, then SIGTERM, then SIGKILL; `forced` says if more than SIGINT was needed."""
        for number, patience_s in SIGNALS:
            if self.returncode is not None:
                return
            self.process.send_signal(number)
            if number != signal.SIGINT:
                self.forced = signal.Signals(number).name
            end = time.monotonic() + patience_s
            while self.returncode is None and time.monotonic() < end:
                time.sleep(POLL_S)

    def tail(self, lines: int = 12) -> str:
        """Last lines of the output."""
        text = self.log.read_text(encoding='utf-8', errors='replace').rstrip()
        return '\n'.join(text.splitlines()[-lines:])


def _die_with_parent():
    """In the child: get SIGINT when the parent ends, however it ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() == 1:
        os.kill(os.getpid(), signal.SIGINT)
