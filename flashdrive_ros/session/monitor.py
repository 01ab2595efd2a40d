"""Watches a running drive: plan rate, stage times, reasoning, alarms; and prints them."""
from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node

from ..nodes import qos
from ..nodes.interfaces import message_class
from ..recording.bag import PLAN_TYPE, header_stamp_ns

RATE_WINDOW_S = 5.0
QUIET_PERIOD_S = 5.0
DRIVES_PERIOD_S = 1.0
EPISODE_GAP_NS = 1_000_000_000
"""Plans that are further apart than this are of two episodes."""
LEVELS = {DiagnosticStatus.WARN: 'WARN', DiagnosticStatus.ERROR: 'ERROR',
          DiagnosticStatus.STALE: 'STALE'}


class Monitor(Node):
    """Subscribes to the small topics of a drive node and counts its plans."""

    def __init__(self, namespace: str = '', remaps: Iterable[str] = ()):
        rules = [word for rule in remaps for word in ('-r', rule)]
        super().__init__('drive_monitor', namespace=namespace, start_parameter_services=False,
                         cli_args=['--ros-args', *rules] if rules else None)
        self.plans = 0
        self.driven_s = 0.0
        """Time of the frames that went by from plan to plan."""
        self.first_plan_s: float | None = None
        self.last_plan_s: float | None = None
        self.alarms: dict[str, tuple[str, str]] = {}
        self.new_alarms: list[str] = []
        self.failure = ''
        self._stamp_ns = 0
        self._arrivals: deque = deque()
        self._latency = self._reasoning = None
        self._accepted = self._drafted = self._tokens = self._rounds = 0
        listen = self.create_subscription
        listen(message_class(PLAN_TYPE), 'drive/plan', self._on_plan, qos.PLAN, raw=True)
        listen(message_class('flashdrive_ros/msg/StageLatency'), 'drive/stage_latency',
               self._on_latency, qos.PLAN)
        listen(message_class('flashdrive_ros/msg/Reasoning'), 'drive/reasoning_stamped',
               self._on_reasoning, qos.PLAN)
        listen(DiagnosticArray, '/diagnostics', self._on_diagnostics, qos.DIAGNOSTICS)
        self._engine = f'{self.get_namespace()}/drive: engine'.lstrip('/')
        self._drives = 1
        self.create_timer(DRIVES_PERIOD_S, self._count_drives)

    def _on_plan(self, cdr):
        self.plans += 1
        self.last_plan_s = time.monotonic()
        self.first_plan_s = self.first_plan_s or self.last_plan_s
        self._arrivals.append(self.last_plan_s)
        before_ns, self._stamp_ns = self._stamp_ns, header_stamp_ns(cdr)
        if 0 < (step_ns := self._stamp_ns - before_ns) < EPISODE_GAP_NS:
            self.driven_s += step_ns / 1e9

    def _on_latency(self, message):
        self._latency = message

    def _on_reasoning(self, message):
        self._reasoning = message
        self._drafted += message.drafted
        self._accepted += message.accepted
        self._tokens += message.tokens
        self._rounds += message.rounds

    def _count_drives(self):
        """Warn when another drive begins: its plans would count as ours."""
        before, self._drives = self._drives, self.count_publishers('drive/plan')
        if self._drives > max(before, 1):
            topic = self.resolve_topic_name('drive/plan')
            self.new_alarms.append(
                f'WARN {self._drives} nodes publish {topic}: their plans mix; give one '
                'drive another --namespace or ROS_DOMAIN_ID')

    def _on_diagnostics(self, message):
        for status in message.status:
            values = {v.key: v.value for v in status.values}
            if status.name == self._engine and values.get('state') == 'failed':
                self.failure = f'{status.name}: {status.message}'
            known = self.alarms.pop(status.name, None)
            if status.level == DiagnosticStatus.OK:
                continue
            level = LEVELS.get(status.level, '?')
            self.alarms[status.name] = level, status.message
            # starting up is no alarm, and a message may hold a number that changes
            if self.first_plan_s and (known is None or known[0] != level):
                self.new_alarms.append(f'{level} {status.name}: {status.message}')

    @property
    def rate_hz(self) -> float:
        """Plans per second over the last seconds."""
        now = time.monotonic()
        while self._arrivals and self._arrivals[0] < now - RATE_WINDOW_S:
            self._arrivals.popleft()
        span = min(RATE_WINDOW_S, now - self.first_plan_s) if self.first_plan_s else 0.0
        return len(self._arrivals) / span if span > 0.2 else 0.0

    @property
    def plan_s(self) -> float:
        """Seconds that the last plan took; 0 before it."""
        return self._latency.total_ms / 1e3 if self._latency is not None else 0.0

    def waiting_for(self) -> str:
        """Say what stands between now and the first plan, as far as the nodes tell."""
        words = [message for _, message in self.alarms.values()]
        return next((w for w in words if w.startswith('no plan')), '; '.join(words[:2]))

    def line(self, elapsed_s: float) -> str:
        """Return the state in one line."""
        if self.first_plan_s is None:
            return f'{elapsed_s:5.1f} s | starting: {self.waiting_for() or "nodes come up"}'
        parts = [f'{elapsed_s:5.1f} s', f'{self.driven_s:.1f} s driven, {self.plans} plans, '
                 f'{self.rate_hz:4.1f}/s']
        if self._latency is not None:
            t = self._latency
            parts.append(f'{t.total_ms:.0f} ms = encode {t.encode_ms:.0f} + prefill '
                         f'{t.prefill_ms:.0f} + reason {t.reason_ms:.0f} + act {t.act_ms:.0f}'
                         + (f' + draw {t.draw_ms:.0f}' if t.draw_ms >= 0.5 else ''))
        if self._drafted:
            parts.append(f'{100 * self._accepted / self._drafted:.0f} % of drafts accepted, '
                         f'{self._tokens / max(self._rounds, 1):.1f} tokens a round')
        if self._reasoning is not None:
            parts.append(f'"{self._reasoning.text}"')
        return ' | '.join(parts)


class StatusLine:
    """One line that is rewritten on a terminal, and printed now and then elsewhere."""

    def __init__(self, output=None):
        self._output = output or sys.stdout
        self._live = self._output.isatty()
        self._printed_s = float('-inf')

    def show(self, text: str):
        """Show the state."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print('\r\x1b[2K' + text[:width], end='', file=self._output, flush=True)
        elif time.monotonic() - self._printed_s >= QUIET_PERIOD_S:
            self._printed_s = time.monotonic()
            print(text, file=self._output, flush=True)

    def note(self, text: str):
        """Print a line that stays."""
        print(('\r\x1b[2K' if self._live else '') + text, file=self._output, flush=True)

    def end(self):
        """Leave the last state standing."""
        if self._live:
            print(file=self._output, flush=True)


def spin(monitor: Monitor, executor, seconds: float):
    """Serve the monitor's callbacks for some time."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and rclpy.ok(context=monitor.context):
        executor.spin_once(timeout_sec=left)
