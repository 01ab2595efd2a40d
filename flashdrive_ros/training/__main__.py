"""`python -m flashdrive_ros.training` is `flashdrive train`; torchrun starts it this way."""
import sys

from ..cli import main

raise SystemExit(main(['train', *sys.argv[1:]]))
