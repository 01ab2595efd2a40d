"""The folder that a drive leaves behind."""
from __future__ import annotations

import shutil
from pathlib import Path

from ..errors import UserError


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

    def prepare(self):
        """Make the folder; what an earlier drive left there is removed, nothing else."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f'--out {self.path}: is a file')
        if self.bag.exists() and not (self.bag / 'bag.mcap').is_file():
            raise UserError(f'--out {self.path}: {self.bag} is there and not from a drive')
        for folder in (self.bag, self.logs, self.parameters):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.video, self.sheet, self.summary):
            file.unlink(missing_ok=True)
        try:
            for folder in (self.logs, self.parameters):
                folder.mkdir(parents=True)
        except OSError as error:
            raise UserError(f'--out {self.path}: {error}') from error


def find_bag(path) -> Path:
    """Return the bag in a drive's folder, or the path itself when it is one."""
    folder = DriveFolder(path)
    return folder.bag if (folder.bag / 'bag.mcap').is_file() else Path(path)
