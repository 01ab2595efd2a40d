"""
What /diagnostics says about a drive: cameras, odometry, engine, and why there is no plan.

`DriveHealth` collects counts and times as they happen; `statuses` turns them
into diagnostic statuses.  Rates and ages are on the steady clock, so that
simulated or jumping time cannot hide a silent camera.
"""
from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from ..core.types import CAMERA_NAMES, NANOSECONDS, DrivePlan, Reasoning
from .gate import Verdict
from .inputs import StepInput, StepInputs

FUTURE_S = 0.1
"""Clocks of machines that are kept in step differ by less."""
OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


def status(name: str, level: bytes, message: str, values: Mapping) -> DiagnosticStatus:
    """One status; values are shown as text."""
    return DiagnosticStatus(
        name=name, level=level, message=message, hardware_id='',
        values=[KeyValue(key=str(k), value=_text(v)) for k, v in values.items()])


def _text(value) -> str:
    return f'{value:.3g}' if isinstance(value, float) else str(value)


def _decoding(reasoning: Reasoning) -> dict:
    """How the words of a plan were decoded."""
    tokens = len(reasoning.token_ids)
    return {'tokens': tokens, 'rounds': reasoning.rounds, 'drafted': reasoning.drafted,
            'accepted': reasoning.accepted,
            'tokens per round': tokens / reasoning.rounds if reasoning.rounds else 0.0}


class DriveHealth:
    """State of one drive node, filled from its callbacks and its worker."""

    def __init__(self, name: str, timeout_s: float = 1.0,
                 clock: Callable[[], float] = time.monotonic):
        self.name = name
        self.timeout_s = timeout_s
        self.engine_state = 'not loaded'
        self.engine_error = ''
        self.trained = True
        self.drafting = ''
        """Whether the engine drafts its reasoning, and why not."""
        self.topics: dict[int | str, str] = {}
        self.counts: Counter = Counter()
        self._clock = clock
        self._lock = threading.Lock()
        self.busy_s = 0.0
        """How long the step that is going on has taken until now."""
        self._problem = ''
        self._problem_s = float('-inf')
        self._refill = ''
        self._plan: DrivePlan | None = None
        self._plan_s = float('-inf')
        self._verdict = Verdict('', '', {})
        self._drawing: DrivePlan | None = None
        self._paths: Counter = Counter()
        self._skew_ms = self._image_ms = 0.0
        self._incompatible: dict[str, str] = {}
        self.rivals = 0
        """Other publishers of this node's plans."""
        self.base_frame = ''
        self.clock_trouble = ''
        """What is wrong with ROS time."""
        self._before: Counter = Counter()
        self._stamps_ns: dict[int, int] = {}
        self._before_s = clock()

    def configuring(self, timeout_s: float):
        """A model is being loaded: forget plans and problems, keep counts."""
        with self._lock:
            self.timeout_s = timeout_s
            self.engine_state, self.engine_error = 'loading', ''
            self._plan, self._plan_s = None, float('-inf')
            self._drawing = None
            self._paths.clear()
            self._problem, self._problem_s = '', float('-inf')
            self._refill = ''
            self._incompatible.clear()

    def failed(self, error: str):
        """The model could not be loaded."""
        self.engine_state, self.engine_error = 'failed', error

    def judged(self, verdict: Verdict):
        """The gate has looked at a plan."""
        with self._lock:
            self._verdict = verdict
            self.counts['gate refused'] += bool(verdict.refused)
            self.counts['gate warned'] += bool(verdict.warning)

    def reloading(self):
        """The model failed and is being loaded again, while the topics stay open."""
        self.counts['reloads'] += 1
        self.engine_state = 'loading'

    def reloaded(self):
        """It is there again, unless somebody has dropped it meanwhile."""
        if self.engine_state == 'loading':
            self.engine_state = 'ready'

    def published(self, plan: DrivePlan, step_input: StepInput):
        """A plan went out."""
        with self._lock:
            self._plan, self._plan_s = plan, self._clock()
            self._skew_ms = step_input.frames.skew_ns / 1e6
            self._image_ms = step_input.image_ms
            self.counts['plans'] += 1
            if plan.window.reason:
                self.counts['refills'] += 1
                self._refill = plan.window.reason
            if plan.drawn:
                self._drawing = plan
                self._paths.update(p.decode_path for p in plan.primitives)

    @property
    def last_t0_ns(self) -> int:
        """Time of the frames of the last published plan; 0 without one."""
        plan = self._plan
        return 0 if plan is None else plan.t0_ns

    def problem(self, kind: str, text: str):
        """Something kept a plan from being published."""
        with self._lock:
            self._problem, self._problem_s = text, self._clock()
            self.counts[kind] += 1

    def incompatible_qos(self, topic: str, policy: str):
        """A publisher on this topic offers less than the subscription asks for."""
        with self._lock:
            self._incompatible[topic] = policy

    def statuses(self, active: bool, inputs: StepInputs | None,
                 ros_time_ns: int = 0) -> list[DiagnosticStatus]:
        """All statuses of this node, the plan first; `ros_time_ns` 0: not known."""
        now = self._clock()
        with self._lock, inputs.lock if inputs is not None else nullcontext():
            elapsed, self._before_s = max(now - self._before_s, 1e-3), now
            rates = self._rates(inputs, elapsed)
            result = [self._plan_status(active, inputs, now, rates), self._engine_status()]
            if inputs is not None:
                result += [self._camera_status(c, inputs, now, rates, ros_time_ns)
                           for c in inputs.selector.camera_ids]
                result.append(self._odometry_status(inputs, now, rates))
            return result

    def _rates(self, inputs: StepInputs | None, elapsed: float) -> dict:
        counts = Counter({'plans': self.counts['plans']})
        if inputs is not None:
            counts['odometry'] = inputs.odometry.counts['received']
            counts.update({camera: track.counts['received']
                           for camera, track in inputs.selector.tracks.items()})
        # a new configuration counts from zero again
        new = {key: max(counts[key] - self._before[key], 0) for key in counts}
        self._before = counts
        return {key: n / (self._stamped_s(inputs, key) or elapsed) for key, n in new.items()}

    def _stamped_s(self, inputs: StepInputs | None, key) -> float:
        """Time that went by in a camera's stamps: a source in lock-step is not slow."""
        if inputs is None or key not in inputs.selector.tracks:
            return 0.0
        newest = inputs.selector.tracks[key].last_ns or 0
        before, self._stamps_ns[key] = self._stamps_ns.get(key, newest), newest
        return max(newest - before, 0) / NANOSECONDS

    def _why(self, active: bool, inputs: StepInputs | None, now: float) -> str:
        if self.engine_state != 'ready':
            return f'engine {self.engine_state}' + (
                f': {self.engine_error}' if self.engine_error else '')
        if not active or inputs is None:
            return 'node is not active'
        if now - self._problem_s < self.timeout_s and self._problem_s >= self._plan_s:
            return self._problem
        if now - self._plan_s < self.timeout_s:
            return ''
        if self.busy_s > self.timeout_s:
            return f'the engine is busy with one step for {self.busy_s:.1f} s'
        return inputs.waiting_for(self.timeout_s, self.topics) or 'the engine is busy'

    def _plan_status(self, active, inputs, now, rates) -> DiagnosticStatus:
        why = self._why(active, inputs, now)
        values = {'why no plan': why, 'rate_hz': rates['plans'], **self.counts}
        if self._problem:  # it may have been over before anybody looked
            values |= {'last problem': self._problem, 'last problem age_s': now - self._problem_s}
        if self._refill:
            values['last refill'] = self._refill
        if self._plan is not None:
            window = self._plan.window
            values |= {
                'age_s': now - self._plan_s, 'plan_id': self._plan.plan_id,
                'window': window.mode, 'window reason': window.reason,
                'frames known': f'{window.frames_known}/{window.frames_per_camera}',
                **_decoding(self._plan.reasoning), 'drafting': self.drafting, **self._drawn(),
                'skew_ms': self._skew_ms, 'image_ms': self._image_ms,
                **{f'{k}_ms': float(v) for k, v in self._plan.stage_times_ms.items()}}
        values |= {f'gate {k}': v for k, v in self._verdict.values.items()}
        if inputs is not None:
            values |= {f'sets {k}': v for k, v in inputs.selector.counts.items()}
        if why:
            level = ERROR if active or self.engine_error else WARN
            return status(f'{self.name}: plan', level, f'no plan: {why}', values)
        if self.rivals:
            return status(f'{self.name}: plan', ERROR,
                          f'{self.rivals} more publish plans on the same topic', values)
        if inputs is not None and inputs.missing:
            return status(f'{self.name}: plan', WARN, 'publishing, but without camera '
                          + ', '.join(CAMERA_NAMES[c] for c in sorted(inputs.missing)), values)
        if self.clock_trouble:
            return status(f'{self.name}: plan', WARN, f'publishing, but {self.clock_trouble}',
                          values)
        if inputs is not None and inputs.ignored_texts:
            return status(f'{self.name}: plan', WARN, 'publishing, but without the text: '
                          + '; '.join(inputs.ignored_texts.values()), values)
        if self._verdict.warning:
            return status(f'{self.name}: plan', WARN, f'publishing, but {self._verdict.warning}',
                          values)
        if not self.trained:
            return status(f'{self.name}: plan', WARN, 'plans of an untrained model', values)
        return status(f'{self.name}: plan', OK, 'publishing', values)

    def _drawn(self) -> dict:
        """What plans drew, by the way in which it was decoded, since the model was loaded."""
        if self._drawing is None:
            return {}
        return {'primitives': len(self._drawing.primitives),
                **{f'primitives {path}': n for path, n in sorted(self._paths.items())}}

    def _engine_status(self) -> DiagnosticStatus:
        if self.engine_error:
            return status(f'{self.name}: engine', ERROR, self.engine_error,
                          {'state': self.engine_state})
        level = OK if self.engine_state == 'ready' and self.trained else WARN
        message = self.engine_state if self.trained else f'{self.engine_state}, untrained'
        return status(f'{self.name}: engine', level, message, {'state': self.engine_state})

    def _camera_status(self, camera: int, inputs: StepInputs, now, rates,
                       ros_time_ns: int) -> DiagnosticStatus:
        track = inputs.selector.tracks[camera]
        topic = self.topics.get(camera, '')
        age = now - inputs.heard_s.get(camera, float('-inf'))
        ahead_s = (track.newest_ns - ros_time_ns) / 1e9 if track.newest_ns and ros_time_ns else 0.0
        values = {'topic': topic, 'rate_hz': rates[camera], 'age_s': age,
                  'offset_ms': (track.offset_ns or 0) / 1e6, 'stamp_age_s': -ahead_s,
                  **track.counts}
        name = f'{self.name}: camera {camera} {CAMERA_NAMES[camera]}'
        if trouble := self._unheard(topic, age) or inputs.selector.trouble(camera):
            return status(name, ERROR, f'{topic}: {trouble}', values)
        if 0 < rates[camera] < 8:
            return status(name, WARN, f'{topic}: slower than 10 Hz', values)
        if ahead_s > FUTURE_S:
            return status(name, WARN, f'{topic}: stamps are {ahead_s:.3g} s in the future of '
                          'this node\'s time', values)
        return status(name, OK, 'receiving', values)

    def _unheard(self, topic: str, age: float) -> str:
        """Why nothing comes on a topic that was heard `age` seconds ago; '' when it comes."""
        if topic in self._incompatible:
            return f'a publisher offers incompatible QoS ({self._incompatible[topic]})'
        if age > self.timeout_s:
            return 'never heard' if age == float('inf') else f'silent for {age:.1f} s'
        return ''

    def _odometry_status(self, inputs: StepInputs, now, rates) -> DiagnosticStatus:
        heard = inputs.odometry_heard_s
        age = now - (float('-inf') if heard is None else heard)
        values = {'rate_hz': rates['odometry'], 'age_s': age, **inputs.odometry.counts}
        name = f'{self.name}: odometry'
        topic = self.topics.get('odometry', 'odometry')
        if trouble := self._unheard(topic, age):
            return status(name, ERROR, f'{topic}: {trouble}', values)
        if trouble := inputs.odometry.trouble(self.base_frame):
            return status(name, WARN, f'{topic}: {trouble}', values)
        return status(name, OK, 'receiving', values)
