"""
A drive in rerun: cameras, plan, boxes and stage times, on the time line of the frames' stamps.

Everything is logged below `vehicle`, whose transform follows odometry, so that
the 3D view shows it in the odometry frame.
"""
from __future__ import annotations

from pathlib import Path

import numpy as np

from ..core.types import CAMERA_NAMES
from ..errors import UserError
from ..recording.plans import DrawnPrimitive, RecordedPlan
from ..recording.recording import Recording
from . import draw
from .camera import CameraView, camera_views
from .overlay import IN_EGO_FRAME, finite_runs, ribbon

TIMELINE = 'stamp'
NOT_INSTALLED = ('rerun is not installed: pip install "flashdrive_ros[view]" (or rerun-sdk); '
                 'the video and the contact sheet need no viewer')


def load_rerun():
    """Return the rerun module; raises `UserError` with what to install."""
    try:
        import rerun
    except ImportError as error:
        raise UserError(NOT_INSTALLED) from error
    return rerun


class RerunLog:
    """Logs what a drive consists of; needs a rerun recording stream to log to."""

    def __init__(self, application: str = 'flashdrive'):
        self.rr = load_rerun()
        self._drawn_on: set[int] = set()
        self.rr.init(application)
        self.rr.log('vehicle', self.rr.ViewCoordinates.FLU, static=True)
        self.rr.log('vehicle/body', self.rr.Boxes3D(
            centers=[[1.3, 0, 0.75]], half_sizes=[[2.3, 0.95, 0.75]], colors=[draw.INK]),
            static=True)

    def blueprint(self):
        """3D view and front camera above, text and times below."""
        import rerun.blueprint as rrb
        return rrb.Blueprint(
            rrb.Vertical(
                rrb.Horizontal(
                    rrb.Spatial3DView(origin='vehicle', name='vehicle'),
                    rrb.Spatial2DView(origin='vehicle/front_wide_120',
                                      contents=['$origin/**', 'vehicle/plan/**',
                                                'vehicle/boxes/**'], name='front')),
                rrb.Horizontal(
                    rrb.TextDocumentView(origin='reasoning', name='reasoning'),
                    rrb.TimeSeriesView(origin='stages_ms', name='stage times, ms'),
                    rrb.TimeSeriesView(origin='speed', name='speed, m/s')),
                row_shares=[3, 1]),
            collapse_panels=True)

    def save(self, path):
        """Log to a file."""
        self.rr.save(path, default_blueprint=self.blueprint())

    def spawn(self):
        """Log to a viewer window."""
        self.rr.spawn(default_blueprint=self.blueprint())

    def at(self, stamp_ns: int):
        """Set the time of what is logged next."""
        self.rr.set_time(TIMELINE, timestamp=stamp_ns / 1e9)

    def pose(self, position, rotation):
        """Where the vehicle is in the odometry frame."""
        self.rr.log('vehicle', self.rr.Transform3D(translation=position, mat3x3=rotation))

    def camera(self, name: str, view: CameraView):
        """Place a camera."""
        self.rr.log(f'vehicle/{name}', self.rr.Transform3D(
            translation=view.position, mat3x3=view.rotation), self.rr.Pinhole(
            image_from_camera=view.k, resolution=[view.width, view.height],
            camera_xyz=self.rr.ViewCoordinates.RDF, image_plane_distance=1.5), static=True)

    def image(self, name: str, message):
        """Log a CompressedImage or Image message as it is, if its format is a usual one."""
        from ..nodes.images import decode_image
        if hasattr(message, 'encoding'):
            image = self.rr.Image(decode_image(message, name))
        else:
            kind = 'image/png' if 'png' in message.format else 'image/jpeg'
            image = self.rr.EncodedImage(contents=bytes(message.data), media_type=kind)
        self.rr.log(f'vehicle/{name}', image)

    def plan(self, plan: RecordedPlan):
        """Trajectories, drawn boxes, reasoning and times of one plan."""
        rr = self.rr
        if plan.is_finite:
            others = [t for k, t in enumerate(plan.xyz) if k != plan.chosen]
            rr.log('vehicle/plan/samples', rr.LineStrips3D(others, colors=[draw.OTHER]))
            quads = ribbon(plan, plan.chosen)
            edges = [np.concatenate([quads[:1, side], quads[:, side + step]])
                     for side, step in ((0, 1), (3, -1))]
            rr.log('vehicle/plan/chosen', rr.LineStrips3D(
                [plan.xyz[plan.chosen], *edges], colors=[draw.CHOSEN], radii=[0.08, 0.03, 0.03]))
            rr.log('speed/planned', rr.Scalars(float(plan.speed[plan.chosen][0])))
        self.boxes('drawn', plan.primitives, draw.DRAWN)
        self._paths(plan.primitives)
        self._image_primitives(plan.primitives)
        warning = '' if plan.trained else '\n\n**UNTRAINED MODEL: this plan means nothing**'
        rr.log('reasoning', rr.TextDocument(
            f'{plan.text}{warning}\n\nplan {plan.plan_id}, {plan.mode} {plan.reason}',
            media_type='text/markdown'))
        for stage, ms in {**plan.stages_ms, 'total': plan.total_ms}.items():
            rr.log(f'stages_ms/{stage}', rr.Scalars(float(ms)))

    def _paths(self, primitives: tuple[DrawnPrimitive, ...]):
        """Paths in metres that the model drew."""
        runs = [(run, p.label) for p in primitives
                if p.type == 'trajectory_3d' and p.camera_id in IN_EGO_FRAME
                for run in finite_runs(p.values)]
        self.rr.log('vehicle/plan/drawn', self.rr.LineStrips3D(
            [run for run, _ in runs], colors=[draw.label_colour(label) for _, label in runs]))

    def _image_primitives(self, primitives: tuple[DrawnPrimitive, ...]):
        """Boxes and paths in the images, in those of every camera that has had some."""
        rr, drawn = self.rr, [p for p in primitives if p.camera_id in CAMERA_NAMES]
        self._drawn_on |= {p.camera_id for p in drawn}
        for camera in self._drawn_on:
            own = [p for p in drawn if p.camera_id == camera]
            boxes = [(row, p.label) for p in own if p.type == 'box_2d'
                     for row in p.values[np.isfinite(p.values).all(1)]]
            runs = [(run, p.label) for p in own if p.type == 'trajectory_2d'
                    for run in finite_runs(p.values)]
            place = f'vehicle/{CAMERA_NAMES[camera]}/drawn'
            rr.log(f'{place}/boxes', rr.Boxes2D(
                array=np.array([row for row, _ in boxes]).reshape(-1, 4),
                array_format=rr.Box2DFormat.XYXY, labels=[label for _, label in boxes],
                colors=[draw.label_colour(label) for _, label in boxes]))
            rr.log(f'{place}/paths', rr.LineStrips2D(
                [run for run, _ in runs], colors=[draw.label_colour(label) for _, label in runs]))

    def boxes(self, name: str, primitives: tuple[DrawnPrimitive, ...], colour):
        """3D boxes, drawn by the model or known to be there."""
        rows = [(p.label, values) for p in primitives if p.type == 'box_3d'
                for values in p.values if np.isfinite(values).all()]
        values = np.array([v for _, v in rows]).reshape(-1, 7)
        half_yaw = values[:, 6] / 2
        self.rr.log(f'vehicle/boxes/{name}', self.rr.Boxes3D(
            centers=values[:, :3], sizes=values[:, 3:6], colors=[colour],
            labels=[label for label, _ in rows], show_labels=False,
            quaternions=np.column_stack([np.zeros_like(half_yaw), np.zeros_like(half_yaw),
                                         np.sin(half_yaw), np.cos(half_yaw)])))


def log_recording(recording: Recording, path) -> Path:
    """Write a recording as a rerun file."""
    path = Path(path)
    log = RerunLog()
    log.save(path)
    for plan in recording.plans:
        log.at(plan.stamp_ns)
        log.plan(plan)
    placed = False
    for stamp_ns, messages in recording.ticks():
        log.at(stamp_ns)
        if not placed and messages:
            placed = True
            for name, view in _views(recording, messages).items():
                log.camera(name, view)
        if (pose := recording.pose_at(stamp_ns)) is not None:
            log.pose(*pose)
        if stamp_ns in recording.boxes:
            log.boxes('true', recording.boxes[stamp_ns], draw.TRUTH)
        for name, message in messages.items():
            log.image(name, message)
    log.rr.disconnect()
    return path


def _views(recording, messages) -> dict[str, CameraView]:
    from .pictures import decode
    images = {n: decode(m, recording.cameras[n].topic) for n, m in messages.items()}
    return camera_views(recording, {n: (i.shape[1], i.shape[0]) for n, i in images.items()
                                    if i is not None})
