"""
Camera images with the plan drawn on them, for whoever subscribes; nobody else pays for them.

Drawing and JPEG have a thread of their own: a plan and the engine never wait for a picture.
A picture that is late is dropped for the next plan's.
"""
from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CameraInfo, CompressedImage

try:
    from tf2_msgs.msg import TFMessage
except ImportError:  # not on PyPI
    TFMessage = None

from ..core.types import CAMERA_NAMES, DrivePlan, FrameSet
from ..recording.calibration import camera_info_of, chain, transforms_of
from ..view.annotate import annotate
from ..view.camera import CameraView, camera_view
from . import qos
from .messages import compressed_image, header_of, optical_frame

JPEG_QUALITY = 85


class Calibration:
    """
    Where the cameras sit and how they see, as far as that was published.

    `mounts` (`camera_mounts`) stand in for transforms that were not.
    """

    def __init__(self, base_frame: str,
                 mounts: Mapping[int, tuple[np.ndarray, np.ndarray]] | None = None):
        self._base_frame = base_frame
        self._mounts = mounts or {}
        self._frames: dict[int, str] = {}
        self._infos, self._transforms = {}, {}
        self._views: dict[tuple, CameraView | None] = {}
        self._lock = threading.Lock()  # several topics write

    def subscribe(self, subscribe: Callable, image_topics: Mapping[int, str]):
        """Hear the `camera_info` beside each image topic and the static transforms."""
        for camera, topic in image_topics.items():
            info = posixpath.join(posixpath.dirname(topic.removesuffix('/compressed')),
                                  'camera_info')
            # raw: one is read, the rest say the same
            subscribe(CameraInfo, info, lambda cdr, c=camera: self._on_info(c, cdr),
                      qos.camera(depth=1), raw=True)
        if TFMessage is not None:
            subscribe(TFMessage, '/tf_static', self._on_transforms, qos.LATCHED)

    def _on_info(self, camera: int, cdr: bytes):
        if camera in self._frames:
            return
        info = camera_info_of(deserialize_message(cdr, CameraInfo))
        if info is not None:
            with self._lock:
                self._infos = {**self._infos, info.frame_id: info}
                self._frames[camera] = info.frame_id
                self._views = {}

    def _on_transforms(self, message):
        with self._lock:
            self._transforms = {**self._transforms, **transforms_of(message)}
            self._views = {}

    def frame_id(self, camera: int) -> str:
        """Frame of a camera's images: as its `camera_info` says, else by convention."""
        return self._frames.get(camera) or optical_frame(camera)

    def view(self, camera: int, width: int, height: int) -> CameraView | None:
        """View of a camera for images of this size; what is not known is assumed, and said."""
        views, key = self._views, (camera, width, height)
        if key not in views:
            frame, transforms = self.frame_id(camera), self._transforms
            if camera in self._mounts and chain(transforms, frame, self._base_frame) is None:
                transforms = {frame: (self._base_frame, *self._mounts[camera])}
            views[key] = camera_view(CAMERA_NAMES[camera], frame, (width, height), self._infos,
                                     transforms, self._base_frame)
        return views[key]


@dataclass(frozen=True)
class _Wanted:
    plan: DrivePlan
    frames: FrameSet
    cameras: tuple[int, ...]


class AnnotatedImages:
    """
    The topics `~/annotated/<camera>/compressed` of one configuration.

    `report(kind, error)` gets what goes wrong while drawing.
    """

    def __init__(self, node, calibration: Calibration, cameras,
                 report: Callable[[str, Exception], None]):
        self._node, self._calibration, self._report = node, calibration, report
        self._publishers = {
            camera: node.create_lifecycle_publisher(
                CompressedImage, f'~/annotated/{CAMERA_NAMES[camera]}/compressed', qos.PLAN)
            for camera in cameras}
        self._next: _Wanted | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name='annotate', daemon=True)
        self._thread.start()

    def offer(self, plan: DrivePlan, frames: FrameSet):
        """Have the images of a plan drawn if somebody wants them; returns at once."""
        cameras = tuple(c for c, publisher in self._publishers.items()
                        if c in frames.frames and publisher.get_subscription_count())
        if cameras:
            with self._changed:
                self._next = _Wanted(plan, frames, cameras)
                self._changed.notify()

    def stop(self):
        """End the drawing, after the image that is being drawn."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def destroy(self):
        """End the drawing and close the topics."""
        self.stop()
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers = {}

    def _run(self):
        while (wanted := self._take()) is not None:
            for camera in wanted.cameras:
                try:
                    self._publish(wanted, camera)
                except Exception as error:
                    self._report('annotate', error)

    def _take(self) -> _Wanted | None:
        """Wait for the newest plan; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._next is not None)
            wanted, self._next = self._next, None
            return None if self._closing else wanted

    def _publish(self, wanted: _Wanted, camera: int):
        image = wanted.frames.frames[camera].image
        view = self._calibration.view(camera, image.shape[1], image.shape[0])
        header = header_of(wanted.plan, self._calibration.frame_id(camera))
        self._publishers[camera].publish(compressed_image(
            header, annotate(image, wanted.plan, camera, view), JPEG_QUALITY))
