"""A node as the process of an executable: how it ends, by itself or by a signal."""
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import rclpy
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.signals import SignalHandlerOptions

RCLError = rclpy_implementation.RCLError


def run_to_end(name: str, make_node: Callable, args, user_errors: tuple[type[Exception], ...]):
    """
    Run a node with `run()` and `stop()` to its end, or until SIGINT or SIGTERM.

    Returns the exit code: 1 after one of `user_errors`, which are printed
    without a traceback.
    """
    node = None
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
        node = make_node()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: node.stop())
        node.run()
    except (*user_errors, RCLError) as error:
        print(f'{name}: {error}', file=sys.stderr)
        return 1
    finally:
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()
    return 0


def spin_to_end(name: str, make_node: Callable, args, threads: int) -> int:
    """
    Serve the callbacks of a node until SIGINT, SIGTERM or the end of its context.

    `node.close()` ends what goes on beside callbacks and is false when something
    does not end.  Returns `node.exit_code`, or 1 for a wrong parameter.
    """
    node = None
    try:
        try:
            rclpy.init(args=args)
            node = make_node()
        except (ValueError, RCLError) as error:  # a parameter, or the settings of DDS
            print(f'{name}: {error}', file=sys.stderr)
            return 1
        executor = MultiThreadedExecutor(num_threads=threads)
        executor.add_node(node)
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except Exception:
        if rclpy.ok():  # else spin met the end of the context
            raise
    finally:
        # under ros2 launch Ctrl-C comes twice: from the terminal and from launch
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if node is not None and not node.close():
            # a load or a step goes on in native code and can't be interrupted
            print(end='', flush=True)
            os._exit(node.exit_code)
        rclpy.try_shutdown()
    return 0 if node is None else node.exit_code
