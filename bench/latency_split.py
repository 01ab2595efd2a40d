"""
Where the time of a visual plan goes: images, prefill, decode, action head (as VFlash's figure).

    python bench/latency_split.py                                # the small model, CPU
    python bench/latency_split.py --model 4b --device cuda       # 4 B-class sizes, random weights

A plan is a window of camera images and a primitive of 36, 84 or 260 tokens behind them, written
token by token (autoregressive) or by one draft and one committing pass (flash), and the
action head's flow to a trajectory.  No reasoning is counted.  Every stage is a
median of its own; a total is their sum.  Results of several machines go into one file.
"""
from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch

from flashdrive_ros.benchmark.measure import Driver, Load, Sample, repeat, warm_up
from flashdrive_ros.benchmark.primitives import QUESTION_TOKENS, SIZES, time_primitives
from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.config import EngineConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.evaluation.record import header, write_results
from flashdrive_ros.evaluation.tables import markdown

RESULT = Path(__file__).resolve().parent / 'results' / 'latency_split.json'
STAGES = {'images': 'encode', 'prefill': 'prefill', 'decode': None, 'action': 'action'}
"""Stages of the figure, and what `benchmark.measure` calls those that are steps' own."""
QWEN3_4B = {'num_hidden_layers': 36, 'hidden_size': 2560, 'intermediate_size': 9728,
            'num_attention_heads': 32, 'num_key_value_heads': 8, 'head_dim': 128}
DRAFTER = {'num_hidden_layers': 5, 'block_size': 16, 'target_layer_ids': [1, 9, 17, 25, 33]}
"""Sizes of the target and the drafter of VFlash (spec `vflash.md` sections 1.1 and 3)."""


def write_4b(folder: Path, frames: int = 1) -> Path:
    """Write the configuration of a model of VFlash's size with random weights, and its drafter."""
    base, target = checkpoint.find('alpamayo-1.5-shape'), folder / '4b'
    shutil.copytree(base, target)

    def change(path: Path, edit) -> None:
        data = json.loads(path.read_text())
        edit(data)
        path.write_text(json.dumps(data))

    def sizes(vlm):
        vlm['text_config'] |= QWEN3_4B
        vlm['vision_config'] |= {'out_hidden_size': QWEN3_4B['hidden_size']}
    change(target / 'vlm' / 'config.json', sizes)
    change(target / 'config.json', lambda c: c['flashdrive'].update(
        name='4b-shape', frames_per_camera=frames))
    drafter = Path(f'{target}{checkpoint.DRAFTER_SUFFIX}')
    shutil.copytree(f'{base}{checkpoint.DRAFTER_SUFFIX}', drafter)
    change(drafter / 'config.json', lambda c: c.update({**QWEN3_4B, **DRAFTER}))
    return target


def split(engine: Engine, load: Load, sizes=SIZES) -> dict:
    """Median milliseconds of each stage, by tokens of the primitive and way of decoding."""
    warm_up(engine, load)
    driver, sample = Driver(engine, load, load.settings.get('streaming', True)), Sample()
    for _ in range(engine.frames_per_camera + 1):
        driver.step()

    def step():
        plan, took = driver.step()
        times = plan.stage_times_ms
        sample.add({'encode': times['encode'], 'prefill': times['prefill'],
                    'decode': times['reason'], 'action': times['act']}, took,
                   len(plan.reasoning.token_ids), plan.reasoning.rounds)
    repeat(step, load.repeats, load.limit_s)
    medians, rows = sample.summary(), {}
    for size, ways in time_primitives(engine, load, sizes).items():
        rows[size] = {}
        for way, decode in ways.items():
            row = {name: decode if ours is None else medians[ours]
                   for name, ours in STAGES.items()}
            rows[size][way] = row | {'total': sum(row.values())}
    return rows


def main(arguments: list[str] | None = None) -> dict:
    """Measure, write the file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='small', help="a checkpoint, or '4b' (random weights)")
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--cameras', type=int, nargs='+', default=[1], help='of a 4b model')
    parser.add_argument('--frames', type=int, default=1, help='per camera, of a 4b model')
    parser.add_argument('--every-window-anew', action='store_true', help='no streaming')
    parser.add_argument('--sizes', type=int, nargs='+', default=list(SIZES))
    parser.add_argument('--repeats', type=int, default=20)
    parser.add_argument('--limit-s', type=float, default=20.0, help='of the steps that are timed')
    parser.add_argument('--out', type=Path, default=RESULT)
    args = parser.parse_args(arguments)
    with ExitStack() as stack:
        name = args.model
        if name == '4b':
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            name = str(write_4b(folder, args.frames))
        settings = {'streaming': not args.every_window_anew}
        engine = Engine.from_checkpoint(name, EngineConfig(
            device=args.device, max_new_tokens=4, drafting='on', **settings))
        cameras = tuple(args.cameras) if args.model == '4b' else (0, 1, 2, 6)
        load = Load(name, torch.device(args.device), engine.trained, cameras=cameras,
                    repeats=args.repeats, limit_s=args.limit_s, settings=settings)
        if not engine.trained:
            engine.measure_acceptance = 2
        rows = split(engine, load, args.sizes)
    layout = engine.streams['guided'].layout
    about = header()
    run = {'model': engine.model_name, 'trained': engine.trained, 'streaming':
           not args.every_window_anew, 'prompt_tokens': layout.size,
           'question_tokens': QUESTION_TOKENS, 'hardware': about['hardware'],
           'commit': about['commit'], 'command': about['command'], 'rows': rows}
    key = f'{engine.model_name} {args.device}' + ('' if run['streaming'] else ' anew')
    known = json.loads(args.out.read_text())['runs'] if args.out.is_file() else {}
    data = write_results(args.out, {'runs': {**known, key: run}}, seeds=[load.seed])
    print(table(rows))
    return data


def table(rows: dict) -> str:
    """Markdown of one run, ms."""
    return markdown(['tokens', 'way', *STAGES, 'total'], [
        [size, way, *(f'{row[name]:.1f}' for name in (*STAGES, 'total'))]
        for size, ways in rows.items() for way, row in ways.items()])


if __name__ == '__main__':
    main()
