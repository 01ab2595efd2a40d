"""`python -m flashdrive_ros.training` is `flashdrive train`; torchrun starts it this way."""
import sys

from ..cli import main

if __name__ == '__main__':  # the clip workers import this module too
    raise SystemExit(main(['train', *sys.argv[1:]]))
