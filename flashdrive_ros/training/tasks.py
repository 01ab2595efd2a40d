"""The tasks of `flashdrive train`, each a function of its parsed options."""
from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from ..core import checkpoint
from ..core.config import CheckpointError
from . import curves as pictures
from .drafter_settings import DrafterSettings
from .drafter_trainer import DrafterTrainer
from .forward import Geometry
from .producers import Producers
from .producers import measure as measure_clips
from .samples import ClipConfig, clip_fields
from .settings import TrainSettings, from_arguments
from .store import ClipStore
from .trainer import CAMERAS, Trainer, make_maker
from .validation import ValidationConfig, validate

log = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> None:
    """Train."""
    trainer = Trainer(from_arguments(args, TrainSettings))
    parameters = sum(p.numel() for p in trainer.model.parameters())
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    log.info('%s: %.2f M parameters, %.2f M of them trained, on %s; room for %d clips of %d '
             'frames', trainer.model.config.name, parameters / 1e6, trained / 1e6,
             trainer.device, trainer.store.capacity, trainer.settings.clip_frames)
    figures = trainer.run()
    print(json.dumps(figures, indent=1))


def drafter(args: argparse.Namespace) -> None:
    """Train a drafter."""
    trainer = DrafterTrainer(from_arguments(args, DrafterSettings))
    log.info('%s: a drafter of %.2f M parameters, attention %s, on %s; room for %d clips',
             trainer.model.config.name, sum(p.numel() for p in trainer.network.parameters()) / 1e6,
             trainer.loss.kind, trainer.device, trainer.store.capacity)
    print(json.dumps(trainer.run(), indent=1))


primitives = drafter


def heads(args: argparse.Namespace) -> None:
    """Gather windows for an action head, or train one."""
    from ..heads.settings import HeadSettings
    from ..heads.trainer import run as run_stage
    run_stage(from_arguments(args, HeadSettings))


def measure(args: argparse.Namespace) -> None:
    """Say how many clips a second the workers make."""
    clips = ClipConfig(frames=args.clip_frames)
    config, _ = checkpoint.read_config(checkpoint.find(args.model))
    fields = clip_fields(clips, config, len(CAMERAS))
    with Producers(partial(make_maker, args.model, clips), fields, args.workers,
                   clips.clips_per_episode) as producers:
        count, seconds = measure_clips(producers, args.seconds)
    frames = count * args.clip_frames / seconds
    print(f'{count / seconds:.2f} clips/s, {frames:.1f} four-camera frames/s with {args.workers} '
          f'workers, {frames / args.workers:.1f} each; a clip is '
          f'{producers.layout.nbytes / 2 ** 20:.1f} MiB raw, '
          f'{ClipStore.clip_bytes(fields, config) / 2 ** 20:.1f} MiB on the device')


def benchmark(args: argparse.Namespace) -> None:
    """Print windows per second and memory for each size of the batch, on copies of one clip."""
    for compiled in (False, True) if args.compile else (False,):
        for batch in args.batch:
            with tempfile.TemporaryDirectory() as folder:
                trainer = Trainer(TrainSettings(
                    model=args.model, out=folder, steps=1000, batch=batch, device=args.device,
                    store_gib=0.05, clips_per_episode=1, validation_clips=0, clip_frames=5,
                    compile=compiled))
            clip = make_maker(args.model, trainer.settings.clips()).clips(0)
            trainer.add(next(clip))
            for _ in range(2):
                trainer.train_step()
            cuda = trainer.device.type == 'cuda'
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(args.steps):
                trainer.train_step()
            if cuda:
                torch.cuda.synchronize()
            lasted = (time.perf_counter() - began) / args.steps
            memory = torch.cuda.max_memory_allocated() / 2 ** 30 if cuda else float('nan')
            print(f'batch {batch}{" compiled" if compiled else ""}: {1e3 * lasted:.0f} ms a step, '
                  f'{batch / lasted:.0f} windows/s, {memory:.1f} GiB', flush=True)
            if cuda:
                del trainer
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


def evaluate(args: argparse.Namespace) -> None:
    """Print the figures of held-out windows, computed whole and streamed."""
    device, dtype = checkpoint.resolve_device(args.device, 'auto')
    clips = TrainSettings(steps=1).validation()
    config, _ = checkpoint.read_config(checkpoint.find(args.models[0]))
    fields = clip_fields(clips, config, len(CAMERAS))
    room = ClipStore(fields, config, args.clips, device)
    with Producers(partial(make_maker, args.models[0], clips), fields, args.workers,
                   clips.clips_per_episode, limit=args.clips) as producers:
        while (clip := producers.take()) is not None:
            room.add(clip)
    everything = torch.arange(room.filled, device=device)
    *rolled, batch = [room.batch(everything, torch.full_like(everything, w))
                      for w in range(room.windows)]
    figures = {}
    for name in args.models:
        model, tokenizer = checkpoint.load(name, device, torch.float32)
        geometry = Geometry(model, tokenizer, CAMERAS, room.size)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            figures[name] = {way: validate(model, geometry, tokenizer, batch, ValidationConfig(),
                                           rolled=past)
                             for way, past in (('full', ()), ('streaming', tuple(rolled)))}
        for way, found in figures[name].items():
            print(f"{name} {way}: minADE1 {found['minADE1']:.2f} m, minADE6 "
                  f"{found['minADE6']:.2f} m (constant velocity "
                  f"{found['constant_velocity']:.2f} m), cause right "
                  f"{100 * found['cause_right']:.0f} %, {found['windows']:.0f} windows")
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + '\n', encoding='utf-8')


def curves(args: argparse.Namespace) -> None:
    """Draw the learning curves."""
    folder = Path(args.out)
    if not pictures.draw(folder / 'log.jsonl', folder / 'curves.png'):
        raise CheckpointError(f"{folder / 'log.jsonl'}: no log, or no matplotlib to draw it with")
    print(folder / 'curves.png')


def arm(args) -> None:
    """Train the robot arm's models."""
    from ..arm.training import train_all
    train_all(Path(args.out), episodes=args.episodes, minutes=args.minutes, batch=args.batch,
              seed=args.seed, device=args.device, only_episodes=args.only_episodes, say=log.info)
