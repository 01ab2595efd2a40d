"""
Is this engine the released model?  Run a directory of golden data and compare every array.

    flashdrive verify DIR

A golden directory holds small checkpoints, inputs, and what the released code
computed from them.  `verify` runs all of it through the engine's own code.
"""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .cases import verify_case
from .golden import GoldenDirectory, GoldenError
from .preprocessing import verify_preprocessing
from .pure import verify_pure
from .report import Report
from .vocabulary import verify_vocabulary

__all__ = ['GoldenError', 'Report', 'verify']


def verify(directory: Path | str, only: str = '', say: Callable[[str], None] = print) -> Report:
    """
    Run everything in `directory` whose name contains `only`, telling each comparison to `say`.

    Raises `GoldenError` naming a file that is missing or can't be read.
    """
    golden, report = GoldenDirectory(directory), Report(say)
    for case in golden.cases():
        if only in case.title:
            report.section(case.title)
            _guarded(report, 'rest of the case', verify_case, golden, case, report)
    for room, run in (('pure', verify_pure), ('preprocess', verify_preprocessing),
                      ('tokenizer', verify_vocabulary)):
        for file in golden.files(room):
            if only in file.title:
                report.section(file.title)
                _guarded(report, 'rest of the file', run, golden, file, report)
    report.finish()
    return report


def _guarded(report: Report, what: str, run: Callable, *arguments) -> None:
    """Run one file's comparisons; whatever stops them is a failure of that file alone."""
    try:
        run(*arguments)
    except GoldenError:
        raise
    except Exception as error:
        report.failed(what, f'{type(error).__name__}: {error}')
