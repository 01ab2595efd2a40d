"""The folder that a drive leaves behind."""
from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ..errors import UserError

NODES = ('recorder', 'drive', 'world', 'replay')
BAG_FILES = ('metadata.yaml', 'bag.mcap', 'bag.db3', 'bag.db3-journal')


class DriveFolder:
    """Names in an output folder: bag, video, contact sheet, summary, logs, parameters."""

    def __init__(self, path):
        self.path = Path(path)
        self.bag = self.path / 'bag'
        self.video = self.path / 'drive.mp4'
        self.sheet = self.path / 'contact_sheet.png'
        self.summary = self.path / 'summary.json'
        self.logs = self.path / 'log'
        self.parameters = self.path / 'parameters'
        self.mark = self.path / '.flashdrive'
        """Says that a drive made the folder; locked while it runs."""
        self._lock: int | None = None

    @property
    def results(self) -> tuple[Path, ...]:
        """All that a drive makes here, so all that the next one replaces."""
        return (self.bag, self.logs, self.parameters, self.video, self.sheet, self.summary)

    def holds(self, path) -> bool:
        """True when the next drive would replace this file or folder."""
        path = Path(path).resolve()
        return any(path.is_relative_to(result.resolve()) for result in self.results)

    def prepare(self):
        """
        Make the folder and lock it; what an earlier drive left there is removed, nothing else.

        Raises `UserError`, and has removed nothing, when it holds something of
        these names that is not from a drive, or when a drive is writing there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f'--out {self.path}: is a file')
        self._refuse_foreign()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            for file in self._own_files():
                file.unlink(missing_ok=True)
            if self.bag.is_dir():
                self.bag.rmdir()
            for folder in (self.logs, self.parameters):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f'--out {self.path}: {error}') from error

    def release(self):
        """Let the next drive have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _own_files(self) -> list[Path]:
        return [*(self.bag / name for name in BAG_FILES),
                *(self.logs / f'{node}.log' for node in NODES),
                *(self.parameters / f'{node}.yaml' for node in NODES),
                self.video, self.sheet, self.summary]

    def _refuse_foreign(self):
        marked = self.mark.is_file()
        foreign = [p for p in self.results if p.is_symlink() or (p.exists() and not marked)]
        if not foreign and self.bag.is_dir():
            foreign = [p for p in sorted(self.bag.iterdir()) if p.name not in BAG_FILES]
        if foreign:
            raise UserError(f'--out {self.path}: {foreign[0]} is there and not from a drive; '
                            'choose another --out (OUT of make), or move it away')

    def _take_lock(self):
        self._lock = os.open(self.mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise UserError(f'--out {self.path}: another drive is writing there; '
                            'choose another --out (OUT of make)') from None


def find_bag(path) -> Path:
    """Return the bag in a drive's folder, or the path itself when it is one."""
    folder = DriveFolder(path)
    inside = folder.bag.is_dir() and not (folder.path / 'metadata.yaml').is_file()
    return folder.bag if inside else folder.path
