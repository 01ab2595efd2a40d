"""
`flashdrive <verb>`: every module of this package is a verb.

To add one, add a file: its name is the verb, the first line of its docstring
the help text; it has `add_arguments(parser)` and `run(args) -> int` (the exit
code).  Modules whose names begin with an underscore are no verbs.  Keep what a
verb needs out of its import time: `flashdrive --help` imports them all.
"""
from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pkgutil import iter_modules

from .. import __version__
from ..errors import UserError


def verbs() -> list[str]:
    """Names of all verbs."""
    return sorted(m.name for m in iter_modules(__path__) if not m.name.startswith('_'))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with a subparser for each verb."""
    parser = argparse.ArgumentParser(
        prog='flashdrive', description='Streaming reasoning VLA models that drive inside ROS 2.',
        epilog='flashdrive <verb> --help tells more about a verb.')
    parser.add_argument('--version', action='version', version=f'flashdrive_ros {__version__}')
    choices = parser.add_subparsers(title='verbs', dest='verb', metavar='<verb>', required=True)
    for name in verbs():
        module = import_module(f'{__name__}.{name}')
        text = (module.__doc__ or '').strip()
        verb = choices.add_parser(
            name.replace('_', '-'), help=text.partition('\n')[0].rstrip('.'), description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def main(arguments=None) -> int:
    """Entry point of the `flashdrive` command; returns the exit code."""
    try:
        args = make_parser().parse_args(arguments)   # imports much: Ctrl-C may come here too
        return args.run(args)
    except UserError as error:
        print(f'flashdrive {args.verb}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:   # `flashdrive … | head`
        sys.stderr.close()
        return 0
