"""
The node that drives: cameras and odometry in, plans out.

One frame's way: a camera callback stores the message unread (`_on_image`) and
wakes the engine's thread, which fetches the newest complete set
(`StepInputs.take`), steps the engine, and publishes the plan (`_deliver`).
Callbacks only store; nothing here computes.

Lifecycle: configure loads the model and warms it up, and takes as long as that
takes; meanwhile get_state, parameters and diagnostics are answered, which
needs a multi-threaded executor.  Activate starts planning.  With `autostart`
the node does both by itself.  When a model does not load, the node stays
unconfigured and diagnostics say why.

A failed step costs its plan.  When steps go on failing the model is loaded
again; when that fails too (a lost device stays lost to its process), or a step
does not end, the process ends with `GIVEN_UP`, for a supervisor to start anew.
"""
from __future__ import annotations

import functools
import sys
import time

from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from std_msgs.msg import String
from std_srvs.srv import Trigger

from flashdrive_ros.srv import AskQuestion

from ..core.config import EngineConfig
from ..core.types import NANOSECONDS, CameraFrame, DrivePlan, InputError
from . import drive_parameters, messages, qos
from .cameras import Transport, camera_mounts, camera_topics, header_stamp_ns, transport
from .frames import FrameSelector
from .gate import GateLimits, judge
from .health import DriveHealth
from .inputs import StepInput, StepInputs
from .odometry import OdometryBuffer
from .outputs import PlanOutputs
from .parameters import NodeParameters
from .process import spin_to_end
from .ros_time import RosTime
from .subscriptions import Subscriptions, guarded
from .worker import EngineWorker

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
GIVEN_UP = 3
"""Exit code of a node that only a new process can help."""
RELOAD_S = 60.0
"""A model that fails again this soon after loading is not helped by loading it again."""


def load_engine(model: str, config: EngineConfig):
    """Load a checkpoint; imports torch, so only when a model is wanted."""
    from ..core.engine import Engine
    return Engine.from_checkpoint(model, config)


class DriveNode(LifecycleNodeMixin, Node):
    """Lifecycle node around one engine; `engine_factory(model, config)` makes it."""

    def __init__(self, engine_factory=load_engine, **node_arguments):
        Node.__init__(self, 'drive', **node_arguments)
        # reentrant: get_state is answered while change_state waits for a model
        lifecycle = ReentrantCallbackGroup()
        LifecycleNodeMixin.__init__(self, callback_group=lifecycle)
        self._engine_factory = engine_factory
        self._active = False
        self._reloaded_s = float('-inf')
        self.exit_code = 0
        self._inputs: StepInputs | None = None
        self._outputs: PlanOutputs | None = None
        self._listening: Subscriptions | None = None
        self.health = DriveHealth(self.get_fully_qualified_name().lstrip('/'))
        self.parameters = NodeParameters(
            self, (*drive_parameters.NODE, *drive_parameters.ENGINE),
            fixed=lambda: self.health.engine_state in ('loading', 'ready'),
            accept=self._accept_parameters)
        self._worker = EngineWorker(self._fetch, self._deliver, self._report, self._revive,
                                    self._fetch_early)
        self._time = RosTime(self, guarded(self._on_clock_back, self._report))
        # services that wait for the engine do not block diagnostics
        health, services = MutuallyExclusiveCallbackGroup(), MutuallyExclusiveCallbackGroup()
        self._diagnostics = self.create_publisher(
            DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        # simulated time may stand still; diagnostics must not
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0, guarded(self._publish_diagnostics, self._report), health,
                          steady)
        self.create_service(Trigger, '~/reset', self._on_reset, callback_group=services)
        self.create_service(AskQuestion, '~/ask', self._on_ask, callback_group=services)
        self._autostart_timer = self.create_timer(
            0.0, guarded(self._autostart, self._report), lifecycle, steady)

    # ---- lifecycle
    def _autostart(self):
        self._autostart_timer.cancel()
        if self.parameters['autostart'] and self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load and warm up the model, then open the topics; fails with the reason logged."""
        p = self.parameters
        self.health.configuring(p['timeout_s'])
        try:
            images = transport(p['image_transport'], p['image_decoder'])
            topics = camera_topics(p['camera_ids'], p['camera_topics'], images.suffix)
            if p['anchor_camera'] not in (-1, *topics):
                raise InputError(f'anchor_camera is {p["anchor_camera"]}, expected one of '
                                 f'camera_ids {list(topics)}, or -1')
            camera_mounts(p['camera_mounts'])  # what is wrong with it is said before loading
            engine = self._load(tuple(sorted(topics)))
            self._open(engine, images, topics)
        except Exception as error:
            self.health.failed(f'{type(error).__name__}: {error}')
            self.get_logger().error(f'not configured: {self.health.engine_error}')
            self._close_topics()
            self._worker.unload()
            return FAILURE
        self.health.engine_state = 'ready'
        return super().on_configure(state)

    def _load(self, cameras: tuple[int, ...]):
        model = self.parameters['model']

        def make():
            self.get_logger().info(f'loading model {model!r}')
            config = drive_parameters.engine_config(self.parameters)
            engine = self._engine_factory(model, config)
            if engine.camera_ids is not None and cameras != tuple(engine.camera_ids):
                raise InputError(f'camera_ids are {list(cameras)}, but {engine.model_name} needs '
                                 f'{list(engine.camera_ids)}')
            engine.warm_up(cameras)
            return engine
        engine = self._worker.load(make)
        self.health.trained = engine.trained
        if not engine.trained:
            self.get_logger().warning(
                f'model {engine.model_name} is UNTRAINED: its plans mean nothing')
        return engine

    def _open(self, engine, images: Transport, topics: dict[int, str]):
        p = self.parameters
        names = {key: self.resolve_topic_name(topic)
                 for key, topic in {**topics, 'odometry': 'odometry'}.items()}
        self.health.topics = names
        anchor = None if p['anchor_camera'] < 0 else p['anchor_camera']
        inputs = self._inputs = StepInputs(
            FrameSelector(topics, round(p['camera_tolerance_s'] * NANOSECONDS), anchor),
            lambda camera, cdr: images.read(names[camera], cdr),
            window=engine.frames_per_camera, go_on=self._may_go_on(engine),
            timeout_s=p['timeout_s'], extrapolation_s=p['odometry_extrapolation_s'],
            odometry=OdometryBuffer(max_jump_m=p['odometry_jump_m']))
        self._outputs = PlanOutputs(self, p['base_frame'], tuple(topics), self._report,
                                    p['output_frame'], camera_mounts(p['camera_mounts']),
                                    p['feature_budget_mb'])
        self._listening = Subscriptions(self, self._report, self._deaf)
        subscribe = self._listening.add
        camera_qos = qos.camera(p['camera_reliability'], p['camera_depth'])
        for camera, topic in topics.items():
            # raw: only frames that are chosen are ever read
            subscribe(images.message_type, topic,
                      functools.partial(self._on_image, inputs, camera), camera_qos, raw=True)
        self._outputs.calibration.subscribe(subscribe, topics)
        self._outputs.fixed_frame.subscribe(subscribe)
        subscribe(Odometry, 'odometry', functools.partial(self._on_odometry, inputs),
                  qos.ODOMETRY)
        subscribe(String, 'nav_text', lambda m: inputs.set_nav_text(m.data), qos.TEXT)
        subscribe(String, 'route_text', lambda m: inputs.set_route_text(m.data), qos.LATCHED)

    def _may_go_on(self, engine) -> bool:
        if self.parameters['missing_cameras'] == 'go_on' and engine.camera_ids is not None:
            self.get_logger().warning(f'missing_cameras is go_on, but {engine.model_name} needs '
                                      f'all of its cameras: without one, planning stops')
            return False
        return self.parameters['missing_cameras'] == 'go_on'

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start planning."""
        result = super().on_activate(state)
        self._active = self._worker.stepping = True
        self._worker.wake()
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop planning and remove the markers."""
        self._active = self._worker.stepping = False
        self._clear_markers()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the topics and drop the model."""
        self._active = self._worker.stepping = False
        self._close_topics()
        self._worker.unload()
        self.health.engine_state, self.health.engine_error = 'not loaded', ''
        return SUCCESS

    on_shutdown = on_error = on_cleanup

    def _close_topics(self):
        for topics in (self._listening, self._outputs):
            if topics is not None:
                topics.destroy()
        self._listening = self._inputs = self._outputs = None

    # ---- callbacks
    def _on_image(self, inputs: StepInputs, camera: int, cdr: bytes):
        jumped = inputs.add_camera(camera, header_stamp_ns(cdr), cdr)
        if jumped:
            self.get_logger().warning(jumped)
        self._worker.wake()

    def _on_clock_back(self, now_ns: int, reason: str):
        if (inputs := self._inputs) is not None:
            inputs.clock_went_back(now_ns, reason)
            self._worker.wake()

    def _on_odometry(self, inputs: StepInputs, message: Odometry):
        inputs.add_odometry(messages.odometry_sample(message))
        self._worker.wake()

    def _on_reset(self, _, response: Trigger.Response):
        def reset(engine):
            engine.reset('asked to')
            self._clear_markers()
        return self._answer(response, reset, timeout_s=5.0)

    def _on_ask(self, request: AskQuestion.Request, response: AskQuestion.Response):
        def ask(engine):
            response.answer = engine.ask(request.question)
            if not response.answer:
                raise InputError('the model gave no answer, or none that ends within '
                                 'max_new_tokens')
            response.stamp = messages.stamp(self.health.last_t0_ns)
        return self._answer(response, ask, timeout_s=60.0)

    def _answer(self, response, function, timeout_s: float):
        try:
            self._worker.ask(function, timeout_s)
            response.success = True
        except Exception as error:
            response.message = str(error)
        return response

    def _accept_parameters(self, changes: dict):
        if self.health.engine_state == 'loading':
            raise ValueError('the model is loading; try again when it is there')
        engine_changes = {k: v for k, v in changes.items() if k in drive_parameters.ENGINE_NAMES}
        if engine_changes and self.health.engine_state == 'ready':
            self._worker.ask(lambda engine: engine.configure(**engine_changes), timeout_s=5.0)
        self.health.timeout_s = changes.get('timeout_s', self.health.timeout_s)
        if (inputs := self._inputs) is not None:
            inputs.timeout_s = self.health.timeout_s

    def _deaf(self, topic: str, policy: str):
        self.health.incompatible_qos(topic, policy)
        self.get_logger().error(f'{topic}: a publisher offers incompatible QoS ({policy})')

    def _publish_diagnostics(self):
        limit_s = self.parameters['step_timeout_s']
        self.health.busy_s = self._worker.busy_s
        if 0 < limit_s < self.health.busy_s and self.health.engine_state == 'ready':
            self._end(f'a step has not ended in {limit_s:g} s')
            return
        publishers = self.count_publishers(self.resolve_topic_name('~/plan'))
        self.health.rivals = max(0, publishers - (self._outputs is not None))
        self.health.base_frame = self.parameters['base_frame']
        self.health.clock_trouble = self._time.trouble()
        array = DiagnosticArray(status=self.health.statuses(
            self._active, self._inputs, self._time.now_ns()))
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)

    # ---- on the engine's thread
    def _fetch(self) -> StepInput | None:
        if (inputs := self._inputs) is None:
            return None
        self._restart(inputs.pop_restart())
        step_input = inputs.take()
        if step_input is not None:  # time may have jumped just now
            self._restart(step_input.restart)
        return step_input

    def _fetch_early(self) -> tuple[int, CameraFrame] | None:
        return None if (inputs := self._inputs) is None else inputs.take_early()

    def _revive(self, why: str):
        """Load the model again, or end when that does not help."""
        if time.monotonic() - self._reloaded_s < RELOAD_S:
            return  # every failure is reported; the next plan may be made of better input
        self._reloaded_s = time.monotonic()
        self.get_logger().error(f'the model is loaded again: {why}')
        self.health.reloading()
        try:
            self._worker.reload()
        except Exception as error:
            self._end(f'{why}; the model can not be loaded again: {type(error).__name__}: {error}')
        else:
            self.health.reloaded()

    def _end(self, why: str):
        """End the process: nothing in it can help."""
        self.exit_code = GIVEN_UP
        self.health.failed(why)
        self.get_logger().fatal(f'{why}: a new process has to be started')
        array = DiagnosticArray(status=self.health.statuses(
            False, None, self._time.now_ns()))
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)
        self._diagnostics.wait_for_all_acked(Duration(seconds=0.5))
        self.context.try_shutdown()

    def _restart(self, reason: str):
        if reason:
            self._worker.engine.reset(reason)
            self._clear_markers()

    def _deliver(self, plan: DrivePlan, step_input: StepInput):
        """Publish a plan, unless it is implausible or nobody wants it any more."""
        outputs = self._outputs
        verdict = judge(plan, step_input.ego, GateLimits.of(self.parameters))
        self.health.judged(verdict)
        if verdict.refused:
            self._report('plan', InputError(verdict.refused))
        elif self._active and outputs is not None:
            outputs.publish(plan, step_input)
            self.health.drafting = self._worker.engine.drafting_state
            self.health.published(plan, step_input)
            if plan.window.reason:
                self.get_logger().info(f'whole window computed: {plan.window.reason}',
                                       throttle_duration_sec=5.0)

    def _report(self, kind: str, error: Exception):
        text = str(error) if isinstance(error, InputError) else f'{type(error).__name__}: {error}'
        self.health.problem(kind, text)
        if self.context.ok():
            self.get_logger().error(f'{kind}: {text}', throttle_duration_sec=5.0)

    def _clear_markers(self):
        if (outputs := self._outputs) is not None:
            outputs.clear()

    def close(self) -> bool:
        """Stop the drawing and the worker; False when the worker is still busy."""
        self._active = False
        self._time.close()
        if (outputs := self._outputs) is not None:
            outputs.stop()
        return self._worker.close()


def main(args=None, make_node=DriveNode) -> int:
    """Run the node until it is told to end; returns the exit code."""
    return spin_to_end('drive', make_node, args, threads=5)


if __name__ == '__main__':
    sys.exit(main())
