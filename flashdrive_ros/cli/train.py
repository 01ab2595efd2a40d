"""
Train a model in the embedded world: data, losses, streaming fine-tuning.

    flashdrive train run --minutes 30 --workers 8 --out out/train
    flashdrive train run --resume --minutes 60 --workers 8 --out out/train
    flashdrive train run --stage streaming-expert --model out/train/checkpoint …
    torchrun --nproc-per-node 4 -m flashdrive_ros.training run --minutes 30 --workers 8
    flashdrive train drafter --minutes 4 --workers 8 --out out/drafter
    flashdrive train heads --stage gather --workers 2 --minutes 20
    flashdrive train heads --inputs plan --out out/heads/plan
    flashdrive train heads --stage reinforce --begin out/heads/plan --out out/heads/plan-rl
    flashdrive train arm --minutes 10 --out out/arm --device cuda
    flashdrive train measure --workers 8
    flashdrive train benchmark --batch 64 128 256
    flashdrive train evaluate --models out/train/checkpoint
    flashdrive train curves --out out/train
"""
from __future__ import annotations

import argparse

from ..errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tasks and their options."""
    from ..heads.settings import HeadSettings
    from ..training import settings
    from ..training.drafter_settings import DrafterSettings
    tasks = parser.add_subparsers(dest='task', metavar='<task>', required=True)
    run_ = tasks.add_parser('run', help='train')
    settings.add_arguments(run_, settings.TrainSettings)
    drafter = tasks.add_parser('drafter', help='train a drafter of text and primitives for a '
                                               'frozen model')
    settings.add_arguments(drafter, DrafterSettings)
    primitives = tasks.add_parser('primitives', help='the same with primitives only')
    settings.add_arguments(primitives, DrafterSettings, text_tokens=0)
    heads = tasks.add_parser('heads', help='an action head for driving on the features of a '
                                           'frozen model: gather, supervised, reinforce')
    settings.add_arguments(heads, HeadSettings)
    arm = tasks.add_parser('arm', help='the robot arm: episodes, VLM, drafter, action heads; '
                           'stages whose results are there are left out')
    arm.add_argument('--out', default='out/arm', help='folder of all results')
    arm.add_argument('--episodes', type=int, default=300, help='of each of the four tasks')
    arm.add_argument('--only-episodes', action='store_true', help='only record those')
    arm.add_argument('--minutes', type=float, default=10.0, help='for the VLM; the drafter takes '
                     'a quarter of it, each of five heads a sixth')
    arm.add_argument('--batch', type=int, default=32, help='samples per step')
    arm.add_argument('--device', default='cpu', help='device to train on')
    arm.add_argument('--seed', type=int, default=0, help='seed of weights and batches')
    measure = tasks.add_parser('measure', help='how fast clips are made, and how big they are')
    measure.add_argument('--workers', type=int, default=2, help='processes')
    measure.add_argument('--seconds', type=float, default=20.0, help='how long to measure')
    measure.add_argument('--clip-frames', type=int, default=4, help='frames of a clip')
    measure.add_argument('--model', default='small', help='checkpoint with the vocabulary')
    benchmark = tasks.add_parser('benchmark', help='how fast steps are, by size of the batch')
    benchmark.add_argument('--batch', nargs='+', type=int, default=[4], help='windows per step')
    benchmark.add_argument('--steps', type=int, default=5, help='steps to time, after two others')
    benchmark.add_argument('--compile', action='store_true', help='with torch.compile too')
    benchmark.add_argument('--model', default='small', help='checkpoint')
    benchmark.add_argument('--device', default='auto', help='device')
    evaluate = tasks.add_parser('evaluate', help='held-out windows: plans and causes, full and '
                                                 'streaming')
    evaluate.add_argument('--models', nargs='+', default=['small'],
                          help='checkpoints to evaluate; with the same cameras and vocabulary')
    evaluate.add_argument('--clips', type=int, default=64, help='held-out clips')
    evaluate.add_argument('--workers', type=int, default=2, help='processes that draw them')
    evaluate.add_argument('--device', default='auto', help='device to evaluate on')
    evaluate.add_argument('--json', default='', help='file for the figures')
    drawn = tasks.add_parser('curves', help='learning curves of a run as a picture')
    drawn.add_argument('--out', default='out/train', help='folder of the run')


def run(args: argparse.Namespace) -> int:
    """Do the task."""
    import logging

    from ..core.config import CheckpointError
    from ..training import tasks
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', datefmt='%H:%M:%S')
    try:
        getattr(tasks, args.task)(args)
    except (CheckpointError, ValueError) as error:
        raise UserError(str(error)) from error
    return 0
