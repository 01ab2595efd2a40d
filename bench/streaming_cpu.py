"""
What streaming saves on a CPU, and what the frame labels cost: one run of the small model.

    python bench/streaming_cpu.py                      # writes bench/results/streaming_cpu.json

The embedded world is driven by its expert.  For every window three kinds of step
are timed by the engine's own clock, one after the other:

    released   all images encoded and the whole prompt computed, as without any memory
    full       the whole prompt computed, older frames' features remembered
    streaming  only what is new, once for each way to treat the frame labels

Deviations are those of a streaming step from the full step of the same window
and the same noise; a stream is never refreshed, so they include all drift.
"""
from __future__ import annotations

import argparse
import logging
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from flashdrive_ros.core.config import EngineConfig
from flashdrive_ros.core.ego import HISTORY_POSES, EgoHistory
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.types import GRID_NS, NANOSECONDS, CameraFrame, FrameSet
from flashdrive_ros.evaluation.record import write_results
from flashdrive_ros.world import World

RESULT = Path(__file__).resolve().parent / 'results' / 'streaming_cpu.json'
LABELS = ('keep', 'newest', 'all')
SETTLED = 4
"""Windows until every place holds a frame of its own; not counted."""


@dataclass
class Tally:
    """Times and deviations of one kind of step."""

    encode: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)
    computed: int = 0
    images: int = 0
    keys: list[float] = field(default_factory=list)
    path: list[float] = field(default_factory=list)
    same_text: list[bool] = field(default_factory=list)

    def add(self, plan) -> None:
        """Count the times of a plan."""
        self.encode.append(plan.stage_times_ms['encode'])
        self.prefill.append(plan.stage_times_ms['prefill'])
        self.computed, self.images = plan.window.computed_tokens, plan.window.images_encoded

    def compare(self, engine, plan, reference, expected) -> None:
        """Deviation of the prompt's suffix, which all that follows attends to, and of the plan."""
        ours, theirs = (e.streams['guided'] for e in (engine, reference))
        suffix = slice(ours.layout.suffix, ours.layout.size)
        a, b = (torch.cat((s.cache.k[:, :, suffix], s.cache.v[:, :, suffix]), 1)
                for s in (ours, theirs))
        self.keys.append(float((a - b).norm() / b.norm()))
        self.path.append(float(np.linalg.norm(
            plan.xyz - expected.xyz, axis=-1).mean()))
        self.same_text.append(plan.reasoning.token_ids == expected.reasoning.token_ids)

    def summary(self) -> dict:
        """Medians, and the deviations where there are some."""
        total = [e + p for e, p in zip(self.encode, self.prefill)]
        out = {'images_encoded': self.images, 'slots_computed': self.computed,
               'encode_ms': _median(self.encode), 'prefill_ms': _median(self.prefill),
               'encode_prefill_ms': _median(total), 'encode_prefill_ms_min': round(min(total), 2)}
        if self.keys:
            out |= {'suffix_kv_relative_deviation': _median(self.keys, 5),
                    'path_deviation_m_mean': round(statistics.fmean(self.path), 4),
                    'path_deviation_m_max': round(max(self.path), 4),
                    'same_reasoning': round(statistics.fmean(self.same_text), 3)}
        return out


def _median(values, digits: int = 2) -> float:
    return round(statistics.median(values), digits)


def world_inputs(seed: int, windows: int):
    """Yield (frames, ego history) of the expert's drive, one a tick of 0.1 s."""
    world = World(seed)
    for _ in range(20):
        world.step(0.1)
    for number in range(windows):
        world.step(0.1)
        t0 = (number + 1) * GRID_NS
        seen = world.observe(boxes=False)
        times = seen.time + 0.1 * np.arange(1 - HISTORY_POSES, 1)
        x, y, yaw = np.array([world.pose_at(t) for t in times]).T
        zero = np.zeros_like(yaw)
        ego = EgoHistory.from_odometry(
            t0 + np.round((times - seen.time) * NANOSECONDS).astype(np.int64),
            np.stack((x, y, zero), 1),
            np.stack((zero, zero, np.sin(yaw / 2), np.cos(yaw / 2)), 1), t0)
        yield FrameSet(t0, {c: CameraFrame(i, t0) for c, i in seen.images.items()}), ego


def measure(model: str, seed: int, windows: int) -> dict:
    """Run every kind of step over the same windows."""
    settings = {'device': 'cpu', 'greedy': True, 'max_new_tokens': 24}
    full = Engine.from_checkpoint(model, EngineConfig(streaming=False, **settings))
    released = Engine(full.model, full.tokenizer, full.config)
    streams = {labels: Engine(full.model, full.tokenizer, EngineConfig(
        recompute_labels=labels, **settings)) for labels in LABELS}
    tallies = {name: Tally() for name in ('released', 'full', *LABELS)}
    recent: list[FrameSet] = []
    for number, (frames, ego) in enumerate(world_inputs(seed, windows + SETTLED)):
        released.reset('no memory')
        plans = {'released': released.step(frames, ego, history=recent),
                 'full': full.step(frames, ego)}
        plans |= {labels: engine.step(frames, ego) for labels, engine in streams.items()}
        recent = [*recent, frames][-full.frames_per_camera + 1:]
        if number < SETTLED:
            continue
        for name, plan in plans.items():
            tallies[name].add(plan)
        for labels, engine in streams.items():
            tallies[labels].compare(engine, plans[labels], full, plans['full'])
    return {'model': full.model_name, 'trained': full.trained, 'windows': windows,
            'prompt_slots': plans['full'].window.prompt_tokens,
            'steps': {n if n in ('released', 'full') else f'streaming, labels {n}': t.summary()
                      for n, t in tallies.items()}}


def main() -> None:
    """Measure, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.strip().partition('\n')[0])
    parser.add_argument('--model', default='small')
    parser.add_argument('--seed', type=int, default=0, help='of the world')
    parser.add_argument('--windows', type=int, default=20)
    parser.add_argument('--threads', type=int, default=torch.get_num_threads())
    parser.add_argument('--out', type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable(logging.WARNING)
    result = measure(args.model, args.seed, args.windows)
    steps = result['steps']
    streaming = steps['streaming, labels keep']['encode_prefill_ms']
    result['speedup_over_released'] = round(steps['released']['encode_prefill_ms'] / streaming, 2)
    result['speedup_over_full'] = round(steps['full']['encode_prefill_ms'] / streaming, 2)
    for name, step in steps.items():
        deviation = f"  kv {step['suffix_kv_relative_deviation']:.3f}  path " \
            f"{step['path_deviation_m_mean']:.3f} m" if 'path_deviation_m_mean' in step else ''
        print(f"{name:26} {step['images_encoded']:3} images {step['slots_computed']:5} slots  "
              f"encode {step['encode_ms']:7.1f} ms  prefill {step['prefill_ms']:7.1f} ms"
              + deviation)
    print(f"streaming is {result['speedup_over_released']} times faster than the released order "
          f"of work, {result['speedup_over_full']} times than with remembered features")
    write_results(args.out, result)


if __name__ == '__main__':
    main()
