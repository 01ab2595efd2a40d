"""
How fast the embedded world draws: four-camera frames per CPU-second, and its scaling.

    python bench/world_render.py [--seeds 12] [--frames 20] [--processes 1,2] [--out FILE]

CPU time depends on what else the machine does (shared caches, sibling hyperthreads),
so each figure also comes as a multiple of a reference: filling 1,000 antialiased
polygons of 40 x 40 pixels with OpenCV, measured between the episodes.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np

from flashdrive_ros.evaluation.record import write_results
from flashdrive_ros.world import World, default_rig

WARM_STEPS = 30
HERE = Path(__file__).resolve().parent


def reference_s() -> float:
    """CPU time of the reference workload."""
    image = np.zeros((180, 320, 3), np.uint8)
    square = np.array([[100, 60], [140, 64], [137, 104], [98, 99]], np.int32) * 16
    start = time.process_time()
    for _ in range(1000):
        cv2.fillConvexPoly(image, square, (1, 2, 3), cv2.LINE_AA, 4)
    return time.process_time() - start


def cpu_s(work, repeat: int) -> list[float]:
    """CPU times of calls."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return times


def episode(seed: int, frames: int, size: tuple[int, int]) -> dict:
    """CPU seconds of one episode: per frame drawn, with boxes, per step, and to build it."""
    start = time.process_time()
    world = World(seed, rig=default_rig(*size))
    world.observe()
    built = time.process_time() - start
    for _ in range(WARM_STEPS):
        world.step(0.1)
    world.observe()
    before = reference_s()
    row = {'images': [], 'boxes': [], 'step': []}
    for _ in range(frames):
        row['step'] += cpu_s(lambda: world.step(0.1), 1)
        row['images'] += cpu_s(lambda: world.observe(boxes=False), 1)
        row['boxes'] += cpu_s(world.observe, 1)
    reference = (before + reference_s()) / 2
    row = {k: {'median': float(np.median(v)), 'mean': float(np.mean(v)), 'best': min(v)}
           for k, v in row.items()}
    return {'seed': seed, 'scenario': world.scenario.event, 'build_s': built,
            'reference_s': reference, **row}


def drive(task) -> int:
    """Drive and draw an episode; the number of frames."""
    seed, frames = task
    world = World(seed, route_length=700.0)
    for _ in range(frames):
        world.step(0.1)
        world.observe()
    return frames


def scaling(processes: int, frames: int) -> dict:
    """Frames per wall second of several processes that drive and draw, episodes built included."""
    tasks = [(1000 + k, frames) for k in range(2 * processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context('spawn')) as pool:
        list(pool.map(drive, [(1, 1)] * processes))
        start = time.monotonic()
        drawn = sum(pool.map(drive, tasks))
        wall = time.monotonic() - start
    return {'processes': processes, 'frames': drawn, 'frames_per_s': drawn / wall}


def main(argv=None) -> int:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[1])
    parser.add_argument('--seeds', type=int, default=12)
    parser.add_argument('--frames', type=int, default=20)
    parser.add_argument('--width', type=int, default=320)
    parser.add_argument('--height', type=int, default=180)
    parser.add_argument('--processes', default='1,2', help='comma separated')
    parser.add_argument('--out', type=Path, default=HERE / 'results' / 'world_render.json')
    args = parser.parse_args(argv)
    rows = [episode(seed, args.frames, (args.width, args.height)) for seed in range(args.seeds)]

    def over(part, kind='median'):
        return float(np.mean([row[part][kind] for row in rows]))
    reference = float(np.mean([row['reference_s'] for row in rows]))
    summary = {
        'frames_per_cpu_second': 1 / over('images'),
        'frames_per_cpu_second_best': 1 / over('images', 'best'),
        'frames_per_cpu_second_with_boxes': 1 / over('boxes'),
        'frame_over_reference': over('images') / reference,
        'boxes_over_images': over('boxes') / over('images'),
        'step_over_frame': over('step') / over('images'),
        'build_s': float(np.mean([row['build_s'] for row in rows])),
        'reference_ms': reference * 1e3,
    }
    result = {
        'what': f'four cameras at {args.width}x{args.height}',
        'summary': summary,
        'scaling': [scaling(int(n), 2 * args.frames) for n in args.processes.split(',') if n],
        'episodes': rows,
    }
    write_results(args.out, result)
    print(json.dumps({**summary, 'scaling': result['scaling']}, indent=1))
    return 0


if __name__ == '__main__':
    sys.exit(main())
