"""A node that runs by itself to an end of its own, as the process of an executable."""
from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import rclpy
from rclpy.signals import SignalHandlerOptions


def run_to_end(name: str, make_node: Callable, args, user_errors: tuple[type[Exception], ...]):
    """
    Run a node with `run()` and `stop()` to its end, or until SIGINT or SIGTERM.

    Returns the exit code: 1 after one of `user_errors`, which are printed
    without a traceback.
    """
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    node = None
    try:
        node = make_node()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: node.stop())
        node.run()
    except user_errors as error:
        print(f'{name}: {error}', file=sys.stderr)
        return 1
    finally:
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()
    return 0
