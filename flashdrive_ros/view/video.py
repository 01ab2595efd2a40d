"""Video and contact sheet of a recorded drive, from one pass over its pictures."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from ..core.types import GRID_NS, NANOSECONDS
from ..errors import UserError
from ..recording.recording import TICK_TOLERANCE_NS, Recording
from . import draw
from .pictures import HEIGHT, WIDTH, DrivePictures

RATE_HZ = NANOSECONDS / GRID_NS
SHEET_PICTURES = 8
SHEET_COLUMNS = 2
SHEET_SCALE = 0.75


class VideoWriteError(UserError):
    """A video or picture could not be written; the message names the file."""


def render(recording: Recording, video_path, sheet_path,
           progress: Callable[[int, int], None] = lambda done, total: None) -> int:
    """
    Write an mp4 of the drive at its own pace and a contact sheet; returns the picture count.

    The sheet shows pictures evenly spread over those that have a plan.
    """
    stamps = recording.anchor.stamps_ns
    chosen = _sheet_ticks(recording, stamps)
    writer = _open(video_path)
    sheet, count, last = [], 0, None
    try:
        for i, (stamp, picture) in enumerate(DrivePictures(recording)):
            # a gap in the recording lasts as long in the video
            repeats = 1 if last is None else max(1, min(100, round((stamp - last) / GRID_NS)))
            last = stamp
            for _ in range(repeats):
                writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
                count += 1
            if i in chosen:
                sheet.append(picture)
            progress(i + 1, len(stamps))
    finally:
        writer.release()
    _check(video_path, count)
    write_picture(sheet_path, contact_sheet(sheet))
    return count


def _sheet_ticks(recording, stamps) -> set[int]:
    """
    Indices of the pictures for the sheet.

    Those of plans, if any; those of plans that drew something, if they are enough.
    """
    drawing = [p for p in recording.plans if p.primitives]
    plans = drawing if len(drawing) >= SHEET_PICTURES else recording.plans
    planned = np.array(sorted(p.stamp_ns for p in plans))
    ticks = [i for i, stamp in enumerate(stamps)
             if len(planned) and np.abs(planned - stamp).min() <= TICK_TOLERANCE_NS]
    ticks = ticks or list(range(len(stamps)))
    return {ticks[round(k)] for k in np.linspace(0, len(ticks) - 1,
                                                 min(SHEET_PICTURES, len(ticks)))}


def contact_sheet(pictures: list[np.ndarray], columns: int = SHEET_COLUMNS,
                  scale: float = SHEET_SCALE) -> np.ndarray:
    """Pictures in rows, from left to right, smaller by `scale`."""
    if not pictures:
        raise VideoWriteError('no pictures for a contact sheet')
    small = [cv2.resize(p, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
             for p in pictures]
    height, width = small[0].shape[:2]
    rows = -(-len(small) // columns)
    gap = 6
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3),
                    draw.BACKGROUND, np.uint8)
    for i, picture in enumerate(small):
        y, x = (n * size + gap * (n + 1) for n, size in zip(divmod(i, columns), (height, width)))
        sheet[y:y + height, x:x + width] = picture
    return sheet


def write_picture(path, image: np.ndarray):
    """Write an RGB image."""
    if not cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_RGB2BGR)):
        raise VideoWriteError(f'picture {path} can\'t be written')


def _open(path):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # the one video encoder that every OpenCV wheel has
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'mp4v'), RATE_HZ, (WIDTH, HEIGHT))
    if not writer.isOpened():
        raise VideoWriteError(f'video {path} can\'t be written')
    return writer


def _check(path, count):
    """Open the video again: an encoder that fails says nothing."""
    capture = cv2.VideoCapture(str(path))
    frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) if capture.isOpened() else 0
    capture.release()
    if frames != count:
        raise VideoWriteError(f'video {path} holds {frames} of {count} pictures')
