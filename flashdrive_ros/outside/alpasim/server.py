"""The driver service: gRPC calls in, sessions with an engine each, one thread for the device."""
from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ... import __version__
from ...core.engine import DEFAULT_CAMERAS, Engine
from ...errors import UserError
from .protocol import API_VERSION, METHODS, SERVICE, messages
from .session import Answer, Refused, Session, choose_cameras

log = logging.getLogger(__name__)
HEIGHT, WIDTH = 1080, 1916
"""Images as AlpaSim renders them for these models."""


class Engines:
    """
    Engines over one model, at most `most` of them; those of closed sessions are taken again.

    All run in one thread, which owns the device.
    """

    def __init__(self, first: Engine, most: int):
        self._first, self._made, self._most = first, 1, most
        self._free, self._lock = [first], threading.Lock()
        self._thread = ThreadPoolExecutor(1, 'device')

    def take(self, seed: int) -> Engine:
        """Return an engine without memory of rollouts; raises `Refused` when none is free."""
        with self._lock:
            engine = self._free.pop() if self._free else None
            if engine is None and self._made == self._most:
                raise Refused('RESOURCE_EXHAUSTED', f'all {self._most} sessions are in use')
            self._made += engine is None
        return self._thread.submit(self._begin, engine, seed).result()

    def _begin(self, engine: Engine | None, seed: int) -> Engine:
        first = self._first
        engine = engine or Engine(first.model, first.tokenizer, first.config, first.drafter)
        engine.configure(seed=seed % 2 ** 31)
        engine.reset('another rollout')
        return engine

    def give_back(self, engine: Engine) -> None:
        """Let another session have it."""
        with self._lock:
            self._free.append(engine)

    def step(self, engine: Engine, *arguments):
        """`engine.step` in the thread of the device."""
        return self._thread.submit(engine.step, *arguments).result()

    def warm_up(self, cameras: Sequence[int]) -> None:
        """Warm the first engine up."""
        self._thread.submit(self._first.warm_up, cameras, HEIGHT, WIDTH).result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class Driver:
    """The calls of the service, without gRPC; `Refused` is raised where one is refused."""

    def __init__(self, engines: Engines, model: Engine, cameras: Sequence[int] = DEFAULT_CAMERAS,
                 navigation: bool = True):
        self.engines, self.model, self.cameras = engines, model, tuple(cameras)
        self.navigation = navigation and not model.model.config.is_r1
        self.sessions: dict[str, tuple[Session, Engine]] = {}
        self._lock, self._types = threading.Lock(), messages()

    def start_session(self, request):
        """Begin a rollout."""
        uuid = request.session_uuid
        if not uuid:
            raise Refused('INVALID_ARGUMENT', 'session_uuid is empty')
        cameras = choose_cameras(
            [c.logical_id for c in request.rollout_spec.vehicle.available_cameras],
            self.model.camera_ids, self.cameras)
        with self._lock:
            if uuid in self.sessions:
                raise Refused('ALREADY_EXISTS', f'session {uuid} exists already')
            engine = self.engines.take(request.random_seed)
            session = Session(uuid, cameras, lambda *a: self.engines.step(engine, *a),
                              engine.frames_per_camera, self.navigation)
            self.sessions[uuid] = session, engine
        log.info('session %s: cameras %s', uuid, cameras)
        return self._types['common.SessionRequestStatus']()

    def close_session(self, request):
        """End a rollout; its engine is free for another."""
        session = self._session(request)
        with session.lock, self._lock:
            _, engine = self.sessions.pop(session.uuid, (None, None))
        if engine is not None:
            self.engines.give_back(engine)
        log.info('session %s closed: %s', session.uuid, dict(session.counts))
        return self._types['common.Empty']()

    def submit_image_observation(self, request):
        """Keep an image."""
        image = request.camera_image
        self._session(request).add_image(image.logical_id, image.frame_end_us, image.image_bytes)
        return self._types['common.Empty']()

    def submit_egomotion_observation(self, request):
        """Keep poses of the ego."""
        self._session(request).add_motion(request.trajectory.poses, request.dynamic_states)
        return self._types['common.Empty']()

    def submit_route(self, request):
        """Take a route."""
        self._session(request).set_route([(p.x, p.y) for p in request.route.waypoints])
        return self._types['common.Empty']()

    def submit_recording_ground_truth(self, request):
        """Take what was really driven, and look away: plans are not to know it."""
        self._session(request)
        return self._types['common.Empty']()

    def drive(self, request):
        """Plan."""
        session = self._session(request)
        answer = session.drive(request.time_now_us, request.time_query_us)
        return self._types['egodriver.DriveResponse'](
            trajectory=self._trajectory(answer.stamps_us, answer.poses),
            debug_info={'unstructured_debug_info': json.dumps(about(session, answer)).encode(),
                        'sampled_trajectories': [self._trajectory(answer.stamps_us, poses)
                                                 for poses in answer.samples]})

    def get_version(self, request):
        """Say who drives."""
        major, minor, patch = API_VERSION
        return self._types['common.VersionId'](
            version_id=f'flashdrive_ros {__version__} {self.model.model_name}',
            git_hash='unknown',
            grpc_api_version={'major': major, 'minor': minor, 'patch': patch})

    def _session(self, request) -> Session:
        try:
            return self.sessions[request.session_uuid][0]
        except KeyError:
            raise Refused('NOT_FOUND', f'there is no session {request.session_uuid!r}') from None

    def _trajectory(self, stamps_us, poses: np.ndarray):
        """Write poses [n, 7] as a `Trajectory`."""
        made = self._types['common.Trajectory']()
        for stamp, (x, y, z, qx, qy, qz, qw) in zip(stamps_us.tolist(), poses.tolist()):
            made.poses.add(timestamp_us=stamp, pose={
                'vec': {'x': x, 'y': y, 'z': z}, 'quat': {'w': qw, 'x': qx, 'y': qy, 'z': qz}})
        return made


def about(session: Session, answer: Answer) -> dict:
    """What `unstructured_debug_info` says, as JSON."""
    if answer.plan is None:
        return {'waiting': answer.waiting}
    plan = answer.plan
    return {'t0_us': plan.t0_ns // 1000, 'plan_id': plan.plan_id, 'trained': plan.trained,
            'reasoning_text': plan.reasoning.text, 'nav_text': session.inputs.nav_text,
            'window': plan.window.mode, 'reason': plan.window.reason,
            'step_ms': round(plan.stage_times_ms['total'], 3)}


def make_server(driver: Driver, address: str):
    """Return a gRPC server (not started) and its port; raises `UserError` for a bad address."""
    try:
        import grpc
    except ModuleNotFoundError:
        raise UserError('serving needs grpcio: pip install "flashdrive_ros[outside]"') from None
    types = messages()

    def handler(name: str):
        call = getattr(driver, name)

        def answer(request, context):
            try:
                return call(request)
            except Refused as refused:
                code, text = getattr(grpc.StatusCode, refused.code), str(refused)
            except Exception as error:
                log.exception('%s failed', name)
                code, text = grpc.StatusCode.INTERNAL, f'{name}: {type(error).__name__}: {error}'
            context.abort(code, text)
        request, response = (types[kind] for kind in METHODS[name])
        return grpc.unary_unary_rpc_method_handler(
            answer, request.FromString, response.SerializeToString)

    server = grpc.server(ThreadPoolExecutor(16, 'call'), options=[
        ('grpc.max_receive_message_length', -1), ('grpc.max_send_message_length', -1),
        ('grpc.so_reuseport', 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
        SERVICE, {name: handler(name) for name in METHODS}),))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise UserError(f'can not serve at {address}: {error}') from None
    return server, port


def serve(engine: Engine, host: str, port: int, sessions: int, cameras: Sequence[int],
          navigation: bool = True, warm_up: bool = True) -> None:
    """Serve until interrupted; prints the port when ready."""
    engines = Engines(engine, sessions)
    server, port = make_server(Driver(engines, engine, cameras, navigation), f'{host}:{port}')
    try:
        if warm_up:
            engines.warm_up(engine.camera_ids or cameras)
        server.start()
        print(f'driver {engine.model_name} serves AlpaSim at {host}:{port}', flush=True)
        server.wait_for_termination()
    finally:
        server.stop(1.0).wait()
        engines.close()
