"""`python -m flashdrive_ros.evaluation.verify DIR`."""
from __future__ import annotations

import argparse
import sys

from ...cli.verify import add_arguments, run

if __name__ == '__main__':
    parser = argparse.ArgumentParser(prog='flashdrive verify')
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))
