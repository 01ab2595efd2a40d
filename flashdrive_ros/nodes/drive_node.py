"""
The node that drives: cameras and odometry in, plans out.

One frame's way: a camera callback stores the message unread (`_on_image`), the
engine's thread is woken, fetches the newest complete set (`StepInputs.take`),
steps the engine, and publishes what comes out (`_deliver`).  Callbacks only
store; nothing here computes.

Lifecycle: configure loads the model and warms it up, which takes as long as it
takes; meanwhile the node answers get_state, parameters and diagnostics.
Activate starts planning.  With `autostart` the node does both by itself.  When
a model does not load, the node stays unconfigured and says why.
"""
from __future__ import annotations

import dataclasses
import functools
import struct
import sys
import threading
from concurrent.futures import Future, TimeoutError

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry, Path
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.qos import qos_policy_name_from_kind
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String
from std_srvs.srv import Trigger
from visualization_msgs.msg import MarkerArray

from flashdrive_ros import msg
from flashdrive_ros.srv import AskQuestion

from ..core.types import CAMERA_NAMES, NANOSECONDS, DrivePlan, InputError
from . import drive_parameters, messages, qos
from .frames import FrameSelector
from .health import DriveHealth
from .images import ImageError, decode_compressed, decode_image
from .inputs import StepInput, StepInputs
from .parameters import NodeParameters
from .worker import EngineWorker

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
OUTPUTS = {
    'plan': msg.DrivePlan, 'trajectory': msg.PlannedTrajectory, 'path': Path,
    'markers': MarkerArray, 'primitives': msg.VisualPrimitiveArray, 'reasoning': String,
    'reasoning_stamped': msg.Reasoning, 'stage_latency': msg.StageLatency,
}


def load_engine(model: str, config):
    """Load a checkpoint; imports torch, so only when a model is wanted."""
    from ..core.engine import Engine
    return Engine.from_checkpoint(model, config)


def header_stamp_ns(cdr: bytes) -> int:
    """Stamp of a serialized message that begins with a header, without reading the rest."""
    sec, nanosec = struct.unpack_from('<iI' if cdr[1] & 1 else '>iI', cdr, 4)
    return sec * NANOSECONDS + nanosec


class DriveNode(LifecycleNodeMixin, Node):
    """Lifecycle node around one engine; `engine_factory(model, config)` makes it."""

    def __init__(self, engine_factory=load_engine, **node_arguments):
        Node.__init__(self, 'drive', **node_arguments)
        # reentrant: get_state answers while change_state waits for a model to load
        self._lifecycle_group = ReentrantCallbackGroup()
        LifecycleNodeMixin.__init__(self, callback_group=self._lifecycle_group)
        self._service_group = MutuallyExclusiveCallbackGroup()
        self._engine_factory = engine_factory
        self._closing = threading.Event()
        self._active = False
        self._inputs: StepInputs | None = None
        self._inputs_of_ros: list = []
        self._outputs: dict = {}
        self._markers = messages.PlanMarkers()
        self.parameters = NodeParameters(
            self, (*drive_parameters.NODE, *drive_parameters.ENGINE),
            fixed=lambda: self._inputs is not None, accept=self._accept_parameters)
        self.health = DriveHealth(self.get_fully_qualified_name().lstrip('/'))
        self._worker = EngineWorker(self._fetch, self._deliver, self._report)
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._diagnostics = self.create_publisher(
            DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        self.create_timer(1.0, self._guarded(self._publish_diagnostics), clock=self._steady)
        self.create_service(Trigger, '~/reset', self._on_reset,
                            callback_group=self._service_group)
        self.create_service(AskQuestion, '~/ask', self._on_ask,
                            callback_group=self._service_group)
        self._autostart_timer = self.create_timer(
            0.0, self._guarded(self._autostart), clock=self._steady,
            callback_group=self._lifecycle_group)

    # ---- lifecycle

    def _autostart(self):
        self._autostart_timer.cancel()
        if self.parameters['autostart'] and self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load and warm up the model, then open the topics; fails with the reason logged."""
        try:
            engine = self._load()
            self._open(engine)
        except Exception as error:
            self.health.engine_state = 'failed'
            self.health.engine_error = f'{type(error).__name__}: {error}'
            self.get_logger().error(f'not configured: {self.health.engine_error}')
            self._close_topics()
            return FAILURE
        self.health.engine_state = 'ready'
        return super().on_configure(state)

    def _load(self):
        from ..core.config import EngineConfig
        model = self.parameters['model']
        fields = {f.name for f in dataclasses.fields(EngineConfig)}
        config = EngineConfig(**{k: v for k, v in self.parameters.items() if k in fields})
        self.health.clear()
        self.health.engine_state, self.health.engine_error = 'loading', ''
        self.get_logger().info(f'loading model {model!r}')
        engine = self._wait(self._worker.load(lambda: self._engine_factory(model, config)))
        self.health.trained = engine.trained
        if not engine.trained:
            self.get_logger().warning(
                f'model {engine.model_name} is UNTRAINED: its plans mean nothing')
        return engine

    def _wait(self, future: Future, timeout_s: float = float('inf')):
        """Wait for the worker; gives up when the node is closing."""
        waited = 0.0
        while not self._closing.is_set() and waited < timeout_s:
            try:
                return future.result(0.1)
            except TimeoutError:
                waited += 0.1
        future.cancel()
        raise TimeoutError('the node is closing' if self._closing.is_set() else
                           f'the engine did not answer within {timeout_s} s')

    def _open(self, engine):
        p = self.parameters
        ids = p['camera_ids']
        topics = p['camera_topics'] or [f'camera/{CAMERA_NAMES[i]}/image_raw' for i in ids]
        if engine.camera_ids is not None and set(ids) != set(engine.camera_ids):
            raise InputError(f'camera_ids are {ids}, but model {engine.model_name} was trained '
                             f'with {sorted(engine.camera_ids)}')
        if len(topics) != len(ids):
            raise InputError(f'{len(topics)} camera_topics for {len(ids)} camera_ids')
        compressed = p['image_transport'] == 'compressed'
        if compressed:
            topics = [f'{topic}/compressed' for topic in topics]
        self.health.topics = {
            i: self.resolve_topic_name(topic) for i, topic in zip(ids, topics, strict=True)}
        decode = functools.partial(
            self._decode, *((CompressedImage, decode_compressed) if compressed else
                            (Image, decode_image)))
        selector = FrameSelector(ids, round(p['camera_tolerance_s'] * NANOSECONDS))
        self._inputs = StepInputs(selector, decode)
        for name, message_type in OUTPUTS.items():
            self._outputs[name] = self.create_lifecycle_publisher(
                message_type, f'~/{name}', qos.PLAN)
        camera_qos = qos.camera(p['camera_reliability'], p['camera_depth'])
        for i, topic in zip(ids, topics, strict=True):
            self._subscribe(CompressedImage if compressed else Image, topic,
                            functools.partial(self._on_image, i), camera_qos, raw=True)
        self._subscribe(Odometry, 'odometry', self._on_odometry, qos.ODOMETRY)
        self._subscribe(String, 'nav_text', lambda m: self._inputs.set_nav_text(m.data), qos.TEXT)
        self._subscribe(String, 'route_text', lambda m: self._inputs.set_route_text(m.data),
                        qos.LATCHED)

    def _subscribe(self, message_type, topic, handler, profile, raw=False):
        name = self.resolve_topic_name(topic)

        def incompatible(event):
            policy = qos_policy_name_from_kind(event.last_policy_kind)
            self.health.incompatible_qos(name, policy)
            self.get_logger().error(f'{name}: a publisher offers incompatible QoS ({policy})')
        self._inputs_of_ros.append(self.create_subscription(
            message_type, topic, self._guarded(handler), profile, raw=raw,
            event_callbacks=SubscriptionEventCallbacks(
                incompatible_qos=self._guarded(incompatible))))

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start planning."""
        result = super().on_activate(state)
        self._active = self._worker.stepping = True
        self._worker.wake()
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop planning and remove the markers."""
        self._active = self._worker.stepping = False
        self._outputs['markers'].publish(self._markers.reset())
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the topics and drop the model."""
        self._active = self._worker.stepping = False
        self._close_topics()
        self._worker.unload()
        self.health.engine_state, self.health.engine_error = 'not loaded', ''
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """As cleanup."""
        return self.on_cleanup(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """A transition raised: start again from unconfigured."""
        return self.on_cleanup(state)

    def _close_topics(self):
        for subscription in self._inputs_of_ros:
            self.destroy_subscription(subscription)
        for publisher in self._outputs.values():
            self.destroy_lifecycle_publisher(publisher)
        self._inputs_of_ros, self._outputs, self._inputs = [], {}, None

    # ---- callbacks: they store

    def _guarded(self, callback):
        """Wrap a callback: an exception is reported and never ends `spin`."""
        @functools.wraps(callback)
        def guarded(*args):
            try:
                return callback(*args)
            except Exception as error:
                self._report('callback', error)
        return guarded

    def _on_image(self, camera: int, cdr: bytes):
        jumped = self._inputs.add_camera(camera, header_stamp_ns(cdr), cdr)
        if jumped:
            self.get_logger().warning(jumped)
            self._worker.call(functools.partial(self._reset, jumped))
        self._worker.wake()

    def _on_odometry(self, message: Odometry):
        position, q = message.pose.pose.position, message.pose.pose.orientation
        self._inputs.add_odometry(messages.stamp_ns(message.header.stamp),
                                  (position.x, position.y, position.z), (q.x, q.y, q.z, q.w))
        self._worker.wake()

    def _on_reset(self, request, response):
        try:
            self._wait(self._worker.call(lambda e: self._reset('asked to', e)), 5.0)
            response.success = True
        except Exception as error:
            response.message = f'{type(error).__name__}: {error}'
        return response

    def _on_ask(self, request, response):
        try:
            response.answer, t0_ns = self._wait(
                self._worker.call(lambda e: self._ask(request.question, e)), 60.0)
            response.stamp = messages.stamp(t0_ns)
            response.success = True
        except Exception as error:
            response.message = f'{type(error).__name__}: {error}'
        return response

    def _accept_parameters(self, changes: dict):
        """Apply live changes between two steps."""
        if 'timeout_s' in changes:
            self.health.timeout_s = changes['timeout_s']

    def _publish_diagnostics(self):
        array = DiagnosticArray(status=self.health.statuses(self._active, self._inputs))
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)

    # ---- on the engine's thread

    def _decode(self, message_type, decode, camera: int, cdr: bytes):
        topic = self.health.topics[camera]
        try:
            message = deserialize_message(cdr, message_type)
        except Exception as error:
            raise ImageError(f'{topic}: not a {message_type.__name__}: {error}') from error
        return decode(message, topic)

    def _fetch(self) -> StepInput | None:
        inputs = self._inputs
        return inputs.take() if inputs is not None else None

    def _deliver(self, plan: DrivePlan, step_input: StepInput):
        """Publish a plan, unless it is invalid or nobody wants it any more."""
        if not plan.is_finite:
            return self._report('plan', ValueError(
                f'plan {plan.plan_id} holds values that are not finite'))
        if not self._active:
            return None
        skew_ns = step_input.frames.skew_ns
        message = messages.plan_message(
            plan, self.parameters['base_frame'], image_ms=step_input.image_ms,
            now_ns=self.get_clock().now().nanoseconds, skew_ns=skew_ns)
        chosen = message.trajectories[message.chosen_index]
        for name, part in (
                ('plan', message), ('trajectory', chosen),
                ('path', messages.path_message(chosen)),
                ('markers', self._markers.of(plan, message)),
                ('primitives', message.primitives),
                ('reasoning', String(data=message.reasoning.text)),
                ('reasoning_stamped', message.reasoning), ('stage_latency', message.latency)):
            self._outputs[name].publish(part)
        self.health.plan_published(plan, skew_ns / 1e6, step_input.image_ms)
        return None

    def _report(self, kind: str, error: Exception):
        if self._closing.is_set():
            return
        text = str(error) if isinstance(error, InputError) else f'{type(error).__name__}: {error}'
        self.health.problem(kind, text)
        self.get_logger().error(f'{kind}: {text}', throttle_duration_sec=5.0)

    def _reset(self, reason: str, engine):
        if engine is None:
            raise InputError('no model is loaded')
        engine.reset(reason)
        if self._active:
            self._outputs['markers'].publish(self._markers.reset())

    def _ask(self, question: str, engine):
        if engine is None:
            raise InputError('no model is loaded')
        return engine.ask(question), self.health.last_t0_ns

    def close(self) -> bool:
        """Stop the worker; False when it is still busy."""
        self._closing.set()
        self._active = False
        return self._worker.close()


def main(args=None):
    """Run the node until it is told to end."""
    rclpy.init(args=args)
    node = None
    try:
        node = DriveNode()
        executor = MultiThreadedExecutor(num_threads=4)
        executor.add_node(node)
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        if node is not None:
            node.close()
        rclpy.try_shutdown()
    return 0


if __name__ == '__main__':
    sys.exit(main())
