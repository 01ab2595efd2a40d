"""
Serve a model to a simulator: AlpaSim's driver interface.

    flashdrive serve alpasim --port 6789 --model nvidia/Alpamayo-1.5-10B --device cuda

Each rollout gets a stream of its own over the same weights; `docs/evaluation_outside.md` has
the simulator's side.
"""
from __future__ import annotations

import argparse

from ._settings import engine_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `flashdrive serve`."""
    kinds = parser.add_subparsers(title='what', dest='what', metavar='<what>', required=True)
    add = kinds.add_parser('alpasim', help='gRPC driver service of AlpaSim').add_argument
    add('--model', default='small', help='checkpoint directory, shipped name or hub id '
        '(default: %(default)s)')
    add('--device', default='auto', help='torch device (default: %(default)s)')
    add('--dtype', default='auto', help='number type of the model (default: %(default)s)')
    add('--host', default='127.0.0.1', help='address to listen at; the calls are neither '
        'encrypted nor checked (default: %(default)s)')
    add('--port', type=int, default=6789, help='0: any that is free (default: %(default)s)')
    add('--sessions', type=int, default=4, help='rollouts at once (default: %(default)s)')
    add('--cameras', type=int, nargs='+', default=[0, 1, 2, 6], metavar='ID',
        help='cameras to use where the model leaves it open (default: 0 1 2 6)')
    add('--no-route', action='store_true', help='do not put the route into words for the model')
    add('--no-warm-up', action='store_true', help='serve at once; the first plans are slow')
    add('--set', action='append', default=[], metavar='SETTING=VALUE',
        help='one setting of the engine, such as greedy=true; may be repeated')


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    import logging

    from ..core.config import CheckpointError, EngineConfig
    from ..core.engine import Engine
    from ..core.types import CAMERA_NAMES, InputError
    from ..errors import UserError
    from ..outside.alpasim.server import serve
    unknown = sorted(set(args.cameras) - set(CAMERA_NAMES))
    if unknown:
        raise UserError(f'--cameras {unknown[0]}: known are {sorted(CAMERA_NAMES)}')
    if args.sessions < 1:
        raise UserError(f'--sessions {args.sessions}: expected 1 at least')
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(name)s: %(message)s')
    try:
        engine = Engine.from_checkpoint(args.model, EngineConfig(
            device=args.device, dtype=args.dtype, **engine_settings(args.set)))
    except (CheckpointError, InputError) as error:
        raise UserError(str(error)) from error
    serve(engine, args.host, args.port, args.sessions, sorted(args.cameras), not args.no_route,
          not args.no_warm_up)
    return 0
