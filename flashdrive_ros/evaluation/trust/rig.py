"""The drive node as a process, a car beside it, and all that the node says."""
from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message
from std_msgs.msg import String

from ... import msg
from ...core.types import GRID_NS, NANOSECONDS
from ...errors import UserError
from ...nodes import qos
from ...nodes.messages import stamp_ns
from ...session.processes import Child
from . import car

DOUBLE = 'double'
"""Name of the engine that is none."""
DOMAINS = range(1, 20)
"""Of ROS: one is drawn, as floods must not meet other graphs; tests use those above."""
START_S = 120.0
TROUBLE = ('Traceback', 'terminate called', 'Fatal Python error', 'Segmentation fault')


@dataclass(frozen=True)
class Heard:
    """A plan: the time of its frames, when it came, what the engine needed, and its numbers."""

    t0_ns: int
    at_ns: int
    engine_ms: float
    image_ms: float
    finite: bool


class Rig:
    """
    One drive node and one car.

    `engine` is 'double' or a model that the drive node loads; `folder` gets the logs.
    """

    def __init__(self, folder: Path, engine: str = DOUBLE, cameras=(0, 1),
                 transport: str = 'compressed', **parameters):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.engine, self.cameras = folder, engine, tuple(cameras)
        self.parameters = {'camera_ids': list(cameras), 'image_transport': transport, **parameters}
        if engine != DOUBLE:
            self.parameters['model'] = engine
        self.environment = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST', **os.environ,
                            'ROS_DOMAIN_ID': str(random.choice(DOMAINS))}
        self.context = rclpy.Context()
        self.context.init(args=[], domain_id=int(self.environment['ROS_DOMAIN_ID']))
        self.node = rclpy.create_node('car', context=self.context)
        self.car = car.Car(self.node, cameras, transport)
        self.orders = self.node.create_publisher(String, 'drive/orders', qos.TEXT)
        self.plans: list[Heard] = []
        self.reasons: list[str] = []
        self.status: dict[str, object] = {}
        self.diagnosed = 0
        self.note = ''
        self.parts: dict[int | str, Child] = {}
        """Processes that play a part of the car, by its source."""
        self.children: list[Child] = []
        self.drive: Child | None = None
        listen = self.node.create_subscription
        # serialized: what reading it costs is not the drive node's
        listen(msg.DrivePlan, 'drive/plan', self._on_plan, 50, raw=True)
        listen(DiagnosticArray, '/diagnostics', self._on_diagnostics, 50)
        self._clients: dict[str, object] = {}
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self):
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()

    def _on_plan(self, cdr: bytes):
        now = time.time_ns()
        message = deserialize_message(cdr, msg.DrivePlan)
        numbers = [(p.pose.position.x, p.pose.position.y, p.speed)
                   for p in message.trajectories[message.chosen_index].points]
        self.plans.append(Heard(
            stamp_ns(message.header.stamp), now, message.latency.total_ms,
            message.latency.image_ms,
            all(abs(v) < 1e6 for row in numbers for v in row)))

    def _on_diagnostics(self, array: DiagnosticArray):
        statuses = {s.name.partition(': ')[2]: s for s in array.status
                    if s.name.startswith('drive: ')}
        if 'plan' in statuses:
            self.status = statuses
            self.reasons += [f'{s.name}: {s.message}' for s in array.status]
            last = self.value('last problem')
            if last:
                self.reasons.append(last)
            self.diagnosed += 1

    def value(self, key: str, status: str = 'plan') -> str:
        """One value of the last diagnostics; '' without it."""
        found = self.status.get(status)
        return '' if found is None else next(
            (v.value for v in found.values if v.key == key), '')

    def problems(self) -> dict[str, str]:
        """Counters, by status, of what kept input from becoming a plan."""
        counted = ('input', 'engine', 'plan', 'output', 'callback', 'sets skipped', 'late',
                   'repeated', 'foreign', 'unmatched', 'jumps', 'unusable')
        return {f'{name}: {v.key}': v.value for name, status in self.status.items()
                for v in status.values if v.key in counted}

    # ---- processes
    def start(self):
        """Start the drive node and wait until a car would be heard."""
        module = 'flashdrive_ros.nodes.drive_node'
        if self.engine == DOUBLE:
            module = f'{__package__}.double_node'
        arguments = [a for name, value in self.parameters.items()
                     for a in ('-p', f'{name}:={json.dumps(value)}')]
        self.status = {}
        self.drive = self._child(f'drive{len(self.children)}', module, '--ros-args', *arguments)
        self.wait(self.ready, START_S, 'the drive node does not get ready')

    def ready(self) -> bool:
        """Whether the node says that it waits for nothing but input."""
        return 'engine' in self.status and self.status['engine'].message.startswith('ready') and \
            'not active' not in self.value('why no plan') and all(
                p.get_subscription_count() for p in self.car.publishers.values())

    def peer(self, *arguments: str) -> Child:
        """Start one of `peers`."""
        return self._child('_'.join(('peer', *arguments)), f'{__package__}.peers', *arguments)

    def part(self, source: int | str) -> int:
        """Have a process play a camera or odometry; returns when it was first heard."""
        kind = 'odometry' if source == 'odometry' else 'camera'
        publisher = self.car.publishers[source]
        heard: list[int] = []
        ear = self.node.create_subscription(
            publisher.msg_type, publisher.topic_name, lambda _: heard.append(time.time_ns()),
            qos.camera(), raw=True)
        self.parts[source] = self.peer(kind, str(source))
        time.sleep(0.3)  # what the car had on its way; a process takes longer to begin
        heard.clear()
        self.wait(lambda: heard, 20.0, f'the process of {source} sends nothing')
        self.node.destroy_subscription(ear)
        return heard[0]

    def _child(self, name: str, module: str, *arguments: str) -> Child:
        child = Child.start(name, [sys.executable, '-m', module, *arguments],
                            self.folder / f'{name}.log', self.environment)
        self.children.append(child)
        return child

    def wait(self, condition, timeout_s: float, complaint: str):
        """Wait until `condition()`; raises `UserError` when it takes too long."""
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end or (
                    self.drive is not None and self.drive.returncode is not None):
                raise UserError(f'{complaint}; {self.drive.log} says\n{self.drive.tail()}')
            time.sleep(0.02)

    def memory_mb(self) -> float:
        """Resident memory of the drive node."""
        text = Path(f'/proc/{self.drive.process.pid}/status').read_text()
        return int(text.partition('VmRSS:')[2].split()[0]) / 1024

    def trouble(self) -> str:
        """What no log of the drive node may hold; '' when it holds none."""
        text = ''.join(log.read_text(encoding='utf-8', errors='replace')
                       for log in self.folder.glob('drive*.log'))
        return next((word for word in TROUBLE if word in text), '')

    # ---- what is asked of the node
    def order(self, **orders):
        """Tell the engine double how to behave; nothing: healthy."""
        self.orders.publish(String(data=json.dumps(orders)))

    def call(self, kind, name: str, timeout_s: float = 10.0, **request):
        """Response of a service of the drive node; None when it does not come in time."""
        if name not in self._clients:
            self._clients[name] = self.node.create_client(kind, f'drive/{name}')
        client = self._clients[name]
        if not client.wait_for_service(timeout_s):
            return None
        done = threading.Event()
        future = client.call_async(kind.Request(**request))
        future.add_done_callback(lambda _: done.set())
        return future.result() if done.wait(timeout_s) else None

    def set_parameter(self, name: str, value):
        """Result of setting a parameter; None without an answer."""
        answer = self.call(SetParameters, 'set_parameters', parameters=[
            Parameter(name, value=value).to_parameter_msg()])
        return None if answer is None else answer.results[0]

    def change_state(self, label: str) -> bool:
        """Whether a transition was made."""
        answer = self.call(ChangeState, 'change_state', 60.0, transition=Transition(label=label))
        return answer is not None and answer.success

    def planned(self, begin_ns: int, end_ns: int) -> list[Heard]:
        """Plans whose frames were taken in [begin, end)."""
        return [p for p in list(self.plans) if begin_ns <= p.t0_ns < end_ns]

    def drive_on(self, seconds: float, begin_ns: int | None = None) -> tuple[int, int]:
        """Let a healthy car drive; returns the interval of its stamps."""
        begin = car.next_grid_ns(max(begin_ns or 0, time.time_ns()))
        end = begin + round(seconds * NANOSECONDS / GRID_NS) * GRID_NS
        self.car.play(self.events(begin, end))
        return begin, end

    def drive_while(self, function, begin_ns: int = 0):
        """Let a healthy car drive in a thread while a function runs; returns what it returns."""
        # the function in this thread: processes end with the thread that started them
        over = threading.Event()

        def drive():
            end = begin_ns
            while not over.is_set():
                _, end = self.drive_on(0.1, end)
        driving = threading.Thread(target=drive)
        driving.start()
        try:
            return function()
        finally:
            over.set()
            driving.join()

    def events(self, begin_ns: int, end_ns: int) -> list[car.Event]:
        """What a healthy car sends, less what other processes send."""
        return [e for e in car.drive_events(begin_ns, end_ns, self.cameras)
                if e.source not in self.parts]

    def close(self):
        """End every process and leave the graph."""
        for child in self.children:
            child.stop()
        self.context.try_shutdown()
        self._thread.join(5.0)
        self._executor.shutdown(2.0)
        self.node.destroy_node()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.close()
