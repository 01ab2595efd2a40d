"""
What can be asked of a window, as data, as text of a configuration and as a question.

    boxes:1:car,pedestrian      boxes of these classes in camera 1
    trajectory_2d:1:8           the way ahead in the image of camera 1, 8 points over 4 s
    trajectory_3d:20            in metres, 20 points over 5 s
    trajectory_2d_3d:1:64       both, 64 points over 6.4 s
    motion:6                    of the nearest others, 6 points over 3 s
    dual_arm:1:10               both arms of a robot, each in the image and in the camera's frame

A question states the ranges of its coordinates (spec `vflash.md` section 1.2).
"""
from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..prompt import DISPLAY_NAMES
from .coordinates import BINS, FORWARD_M, LEFT_M
from .layouts import ROBOT_M

PATHS = {8: 4.0, 20: 5.0, 64: 6.4}
"""Points of the way ahead and the seconds that they span: NAVSIM, Waymo, Alpamayo."""
MOTIONS = {6: 3.0}
"""Points of others' motion and the seconds that they span."""
ARMS = {10: 1.3}
"""Points of both arms' paths and the seconds that they span (spec section 4.2)."""
FIELDS = {'boxes': ('camera', 'classes'), 'trajectory_2d': ('camera', 'points'),
          'trajectory_3d': ('points',), 'trajectory_2d_3d': ('camera', 'points'),
          'motion': ('points',), 'dual_arm': ('camera', 'points')}
"""Kind of a request -> what follows it, each after a colon."""

_IMAGE = f'in the {{}}, 0 to {BINS}'
_METRES = (f'in metres, x {FORWARD_M.low:.0f} to {FORWARD_M.high:.0f}, '
           f'y {LEFT_M.low:.0f} to {LEFT_M.high:.0f}')
_CAMERA_METRES = 'in metres, ' + ', '.join(
    f'{name} {axis.low:.0f} to {axis.high:.0f}' for name, axis in ROBOT_M.items())
_CLASS = re.compile(r'[A-Za-z][A-Za-z0-9_ -]*')


@dataclass(frozen=True)
class PrimitiveRequest:
    """
    Primitives that a plan is to come with.

    `kind` is a key of `FIELDS`; `camera_id`, `classes` (words of the question and of the answer)
    and `points` are those that the kind has, others keep their defaults.  Raises `ValueError`
    naming what is wrong.
    """

    kind: str
    camera_id: int | None = None
    classes: tuple[str, ...] = ()
    points: int = 0

    def __post_init__(self):
        """Refuse what cannot be asked."""
        if self.kind not in FIELDS:
            raise ValueError(f'kind must be one of {", ".join(FIELDS)}, got {self.kind!r}')
        fields = FIELDS[self.kind]
        object.__setattr__(self, 'classes', tuple(self.classes))
        for name, given in (('camera', self.camera_id is not None),
                            ('classes', bool(self.classes)), ('points', self.points != 0)):
            if given != (name in fields):
                raise ValueError(f'{self.kind} {"needs" if name in fields else "takes no"} {name}')
        if 'camera' in fields and self.camera_id not in DISPLAY_NAMES:
            raise ValueError(f'camera must be one of {_listed(DISPLAY_NAMES)}, '
                             f'got {self.camera_id!r}')
        for name in self.classes:
            if not _CLASS.fullmatch(name) or name != name.strip():
                raise ValueError(f'classes must be words such as car or red light, got {name!r}')
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f'classes must differ, got {",".join(self.classes)}')
        if 'points' in fields and self.points not in self._spans:
            raise ValueError(f'points must be one of {_listed(self._spans)}, got {self.points!r}')

    @property
    def _spans(self) -> dict[int, float]:
        return {'motion': MOTIONS, 'dual_arm': ARMS}.get(self.kind, PATHS)

    @property
    def seconds(self) -> float:
        """Time from t0 to the last point; 0 for boxes."""
        return self._spans[self.points] if self.points else 0.0

    @classmethod
    def parse(cls, text: str) -> PrimitiveRequest:
        """Read the text form; raises `ValueError` with the text and the part that is wrong."""
        kind, *given = (part.strip() for part in text.split(':'))
        fields = FIELDS.get(kind)
        try:
            if fields is not None and len(given) != len(fields):
                raise ValueError(f'expected the form {":".join((kind, *map(str.upper, fields)))}')
            parts = dict(zip(fields or (), given))
            return cls(kind, _number('camera', parts.get('camera')),
                       tuple(name.strip() for name in parts['classes'].split(','))
                       if 'classes' in parts else (), _number('points', parts.get('points')) or 0)
        except ValueError as error:
            raise ValueError(f'primitive request {text!r}: {error}') from None

    def __str__(self) -> str:
        """Text form, which `parse` reads."""
        values = {'camera': self.camera_id, 'classes': ','.join(self.classes),
                  'points': self.points}
        return ':'.join((self.kind, *(str(values[name]) for name in FIELDS[self.kind])))

    def question(self) -> str:
        """Return the words in which the model is asked."""
        image = ('' if self.camera_id is None
                 else _IMAGE.format(DISPLAY_NAMES[self.camera_id].lower()))
        if self.kind == 'boxes':
            return f'Boxes {image}: {", ".join(self.classes)}.'
        what, where = {'trajectory_2d': ('Path of', image), 'trajectory_3d': ('Path of', _METRES),
                       'trajectory_2d_3d': ('Path of', f'{image}, then {_METRES}'),
                       'motion': ('Motion of others in', _METRES),
                       'dual_arm': ('Paths of both arms in',
                                    f'{image}, then {_CAMERA_METRES}')}[self.kind]
        return f'{what} the next {self.seconds} s, {self.points} points {where}.'


def _listed(values: Iterable) -> str:
    return ', '.join(map(str, values))


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch('[0-9]{1,6}', text):
        raise ValueError(f'{name} must be a number, got {text!r}')
    return int(text)
