"""
Visual primitives at full size: token by token, against one draft and one commit.

A primitive of n tokens behind the window's images.  Autoregressive: n passes of the target.
Flash: one pass of the drafter over the block, and one of the target that stores it and gives
the next token (spec `vflash.md` section 1.3).  What is written means nothing here.
"""
from __future__ import annotations

import statistics
import time

import torch

from ..core.engine import Engine
from ..core.primitives.writer import Writer
from .measure import Driver, Load, repeat, synchronise

SIZES = (36, 84, 260)
"""Tokens of the layouts of the paper."""
QUESTION_TOKENS = 24


def time_primitives(engine: Engine, load: Load, sizes=SIZES) -> dict[str, dict[str, float]]:
    """Median milliseconds of a primitive of each size, by way of decoding."""
    room = max(sizes) + QUESTION_TOKENS
    if engine.drafter.config.window_context:  # its features are kept where something is drawn
        engine.configure(primitives=('boxes:1:car',), primitives_every=1000,
                         max_primitive_tokens=room)
    else:
        engine.configure(max_new_tokens=room)
    Driver(engine, load, True).step()
    stream = engine.streams['guided']
    question = stream.layout.token_ids[-QUESTION_TOKENS:]
    question = torch.from_numpy(question).to(load.device)
    allowed = engine.model.allowed_tokens(trajectory_tokens=True)
    found: dict[str, dict[str, float]] = {}
    for size in sizes:
        found[str(size)] = {}
        for way, write in (('autoregressive', _one_by_one), ('flash', _draft_and_commit)):
            times: list[float] = []

            def once(size=size, write=write, times=times):
                stream.truncate(stream.layout.suffix)
                drafter = engine.drafter if write is _draft_and_commit else None
                writer = Writer(stream, drafter, allowed, lambda logits, _: logits.argmax(-1))
                writer.begin(question)
                writer.text(1)
                synchronise(load.device)
                begin = time.perf_counter()
                write(writer, size)
                synchronise(load.device)
                times.append((time.perf_counter() - begin) * 1e3)
            with torch.inference_mode(), stream.branch(stream.layout.suffix):
                once()
                times.clear()
                repeat(once, min(load.repeats, 10), load.limit_s / 4)
            found[str(size)][way] = statistics.median(times)
    return found


def _one_by_one(writer: Writer, size: int) -> None:
    for _ in range(size):
        writer.text(1)


def _draft_and_commit(writer: Writer, size: int) -> None:
    """Fill a block behind its start token, the last one written, and ask for the next token."""
    writer.push(writer.draft(size).argmax(-1).tolist())
    writer.text(1)
