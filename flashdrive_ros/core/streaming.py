"""
Which frames fill the window, and what of it has to be computed.

Pure Python on stamps: no tensors, so it can be tested against brute force.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .prompt import PromptLayout
from .types import GRID_NS, NANOSECONDS


@dataclass(frozen=True)
class Window:
    """
    Content of a window: `sources[f]` is the t0 (ns) of the frame set in place f, oldest first.

    Places without a frame of their own repeat the next newer one; `known`
    places are real.
    """

    sources: tuple[int, ...]
    known: int


def fill_window(t0_ns: int, available: Sequence[int], frames: int, tolerance_ns: int) -> Window:
    """
    Choose for each place t0 - 0.1 s * k the nearest of the `available` t0s within tolerance.

    `t0_ns` itself must be available.
    """
    sources, known = [t0_ns], 1
    for k in range(1, frames):
        wanted = t0_ns - k * GRID_NS
        nearest = min(available, key=lambda t: (abs(t - wanted), t))
        if abs(nearest - wanted) <= tolerance_ns and nearest < sources[0]:
            sources.insert(0, nearest)
            known += 1
        else:
            sources.insert(0, sources[0])
    return Window(tuple(sources), known)


def shift_between(old: Window | None, new: Window) -> int:
    """
    Return the smallest n such that the new window is the old one moved by n places.

    n places are new then, and each has a frame of its own; the number of frames
    when nothing can be kept.
    """
    frames = len(new.sources)
    if old is None or len(old.sources) != frames:
        return frames
    return next(n for n in range(frames + 1) if n == frames or (
        new.sources[:frames - n] == old.sources[n:]
        and len(set(new.sources[frames - n - 1:])) == n + 1))


def time_reason(old_t0_ns: int, new_t0_ns: int, tolerance_ns: int) -> str:
    """Say why frames at these two times do not follow each other; '' when they do."""
    step = new_t0_ns - old_t0_ns
    if step < 0:
        return f'time went back by {-step / NANOSECONDS:.3f} s'
    if abs(step - GRID_NS) > tolerance_ns:
        return f'frames {step / NANOSECONDS:.3f} s after the last ones, expected 0.100 s'
    return ''


def new_blocks(layout: PromptLayout, shift: int) -> list[tuple[int, int]]:
    """(view, frame) of the image blocks that are new after a slide by `shift`, in slot order."""
    return [(v, f) for v in range(len(layout.images))
            for f in range(layout.frames - shift, layout.frames)]


def computed_slots(layout: PromptLayout, shift: int, labels: str = 'keep') -> np.ndarray:
    """
    Slots [n] that a window computes, ascending.

    `shift` places are new per view; all of them means the whole prompt.
    Otherwise the new image blocks (vision_start to vision_end) and the whole
    suffix; of the labels none ('keep'), those of the new blocks ('newest') or
    'all' (spec `alpamayo.md` section 13).
    """
    if shift >= layout.frames:
        return np.arange(layout.size)
    spans = [layout.images[v][f] for v, f in new_blocks(layout, shift)]
    if labels == 'newest':
        spans += [layout.labels[v][f] for v, f in new_blocks(layout, shift)]
    elif labels == 'all':
        spans += [span for view in layout.labels for span in view]
    spans.append((layout.suffix, layout.size))
    return np.sort(np.concatenate([np.arange(a, b) for a, b in spans]))


def slide_table(layout: PromptLayout, table: np.ndarray, shift: int) -> np.ndarray:
    """
    Slot table [S] after a slide: block f shows the rows of block f + shift.

    The rows of the evicted blocks are recycled for the new ones; prefix,
    labels and suffix stay.
    """
    moved = table.copy()
    for view in layout.images:
        for f, (first, end) in enumerate(view):
            source_first, source_end = view[(f + shift) % layout.frames]
            moved[first:end] = table[source_first:source_end]
    return moved
