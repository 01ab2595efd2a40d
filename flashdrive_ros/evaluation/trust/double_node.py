"""
The drive node around an engine double that can be told to fail, as a process.

    python -m flashdrive_ros.evaluation.trust.double_node --ros-args -p camera_ids:=[0,1]

Orders come as JSON on `drive/orders`: {"error": "out of memory", "times": 1} or
{"delay_s": 0.4}, which lasts for that many steps; {} is a healthy engine again.
"""
from __future__ import annotations

import json
import sys
import time

from std_msgs.msg import String

from ...nodes import qos
from ...nodes.drive_node import DriveNode, main
from .engine_double import EngineDouble

ERRORS = {
    'failure': lambda: RuntimeError('a failure that was asked for'),
    'out of memory': lambda: MemoryError('out of memory, as was asked for'),
    'device lost': lambda: RuntimeError('CUDA error: unspecified launch failure, as asked for'),
    'thread exit': lambda: SystemExit('an exit that was asked for'),
}


class ObedientEngine(EngineDouble):
    """An engine double that follows orders, and remembers nothing that grows."""

    def __init__(self):
        super().__init__()
        self.orders: dict = {}
        self.fault = self._obey

    def step(self, frames, ego, nav_text='', history=()):
        """As every engine."""
        plan = super().step(frames, ego, nav_text, history)
        self.steps.clear()
        self.prepared.clear()
        del self.resets[:-10]
        return plan

    def prepare(self, camera_id, frame):
        """As every engine; only the last frame is remembered."""
        self.prepared.clear()
        return super().prepare(camera_id, frame)

    def _obey(self, frames):
        orders = self.orders
        if orders.get('times', 1) <= 0:
            return
        orders['times'] = orders.get('times', 1) - 1
        time.sleep(orders.get('delay_s', 0.0))
        if 'error' in orders:
            raise ERRORS[orders['error']]()


class ObedientNode(DriveNode):
    """The drive node, with a topic for orders to its engine."""

    def __init__(self):
        self.engines: list[ObedientEngine] = []
        super().__init__(self._make_engine)
        self.create_subscription(String, '~/orders', self._on_orders, qos.TEXT)

    def _make_engine(self, model, config) -> ObedientEngine:
        if any(engine.orders.get('error') == 'device lost' for engine in self.engines):
            raise ERRORS['device lost']()  # as a real one: lost to this process for good
        self.engines = [ObedientEngine()]
        return self.engines[0]

    def _on_orders(self, message: String):
        for engine in self.engines:
            engine.orders = json.loads(message.data)


if __name__ == '__main__':
    sys.exit(main(make_node=ObedientNode))
