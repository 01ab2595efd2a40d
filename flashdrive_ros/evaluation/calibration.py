"""Windows to calibrate low-bit weights on: of recordings, or of the embedded world."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ..core.quantization.convert import CalibrationWindow
from ..replay.engine_inputs import engine_inputs, open_recording
from . import held_out

WORLD_SEED = 40_000
"""First of the episodes; no evaluation begins here."""
WORLD_SECONDS = 30.0
EPISODES = 6


def recorded_windows(recordings: Sequence[str], count: int) -> Iterator[CalibrationWindow]:
    """`count` windows, as many of each bag or video."""
    share = -(-count // len(recordings))
    for path in recordings:
        steps = islice(engine_inputs(open_recording(path)), share)
        for number, step in enumerate(steps):
            yield CalibrationWindow(step.frames, step.ego, step.nav_text, step.history,
                                    fresh=number == 0)


def world_windows(count: int) -> Iterator[CalibrationWindow]:
    """`count` windows spread over a few episodes."""
    episodes = min(EPISODES, count)
    for number in range(episodes):
        share = count // episodes + (number < count % episodes)
        for window in held_out.windows(WORLD_SEED + number, share, WORLD_SECONDS):
            yield CalibrationWindow(window.frames, window.history, window.nav_text, window.before)
