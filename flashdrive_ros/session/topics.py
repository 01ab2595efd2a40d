"""
Topics of other names: one file says what is called what, for a bag and for a car alike.

    cameras:
      front_wide_120: /sensing/camera/camera1/image_raw/compressed
    odometry: /localization/kinematic_state
    drive/reasoning: /alpamayo/reasoning

Below `cameras` are the camera names of the models, else topics by their names in this
package.  A recording is published under our names, so that all else finds them; live, the
drive node listens to the others' names.  Outputs (drive/...) are renamed either way.
"""
from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ..core.types import CAMERA_NAMES
from ..errors import UserError
from ..recording.bag import IMAGE_TYPES, ODOMETRY_TYPE, OUTPUT, open_bag, topics_of

RAW_TYPE, COMPRESSED_TYPE = IMAGE_TYPES
INPUTS = ('odometry', 'nav_text', 'route_text')
IDS = {name: number for number, name in CAMERA_NAMES.items()}
_NAME = re.compile(r'[~/]?[A-Za-z_]\w*(/[A-Za-z_]\w*)*', re.ASCII)
_SIDES = (  # words of a topic that tell where a camera looks, the first that fits
    ('front_tele_30', r'tele|narrow|long_?range|30'), ('rear_left_70', r'(rear|back)\w*_?left'),
    ('rear_right_70', r'(rear|back)\w*_?right'), ('rear_tele_30', r'rear|back'),
    ('cross_left_120', r'left|\bfl\b'), ('cross_right_120', r'right|\bfr\b'),
    ('front_wide_120', r'front|wide|center|centre|forward'))


@dataclass(frozen=True)
class TopicMap:
    """Others' names of cameras (by camera name) and of further topics (by our name)."""

    cameras: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    origin: str = ''

    @classmethod
    def read(cls, path: Path) -> TopicMap:
        """Read a file; raises `UserError` naming the entry that is wrong."""
        try:
            entries = yaml.safe_load(path.read_text(encoding='utf-8'))
        except (OSError, yaml.YAMLError) as error:
            raise UserError(f'--topics {path}: {error}') from error
        if not isinstance(entries, dict):
            raise UserError(f'--topics {path}: must be a mapping of names, such as '
                            'odometry: /localization/kinematic_state')
        cameras = entries.pop('cameras', {}) or {}
        if unknown := sorted(set(map(str, cameras)) - set(IDS)):
            raise UserError(f'--topics {path}: there is no camera {", ".join(unknown)}; the '
                            f'cameras are {", ".join(IDS)}')
        for name, topic in (*cameras.items(), *entries.items()):
            for text in (name, topic):
                if not isinstance(text, str) or not _NAME.fullmatch(text):
                    raise UserError(f'--topics {path}: {name}: {topic}: {text!r} is no topic name')
        result = cls(dict(cameras), entries, str(path))
        if len({_is_compressed(t) for t in cameras.values()}) > 1:
            raise UserError(f'--topics {path}: some cameras are compressed and some are not; '
                            'name one kind')
        return result

    def parameters(self) -> dict:
        """Parameters of a drive node that listens to these cameras."""
        if not self.cameras:
            return {}
        compressed = any(_is_compressed(t) for t in self.cameras.values())
        return {'camera_ids': sorted(IDS[c] for c in self.cameras),
                'image_transport': 'compressed' if compressed else 'raw'}

    def live_rules(self) -> tuple[str, ...]:
        """Remapping rules for a drive node in a graph of the others' names."""
        rules = []
        for name, topic in self.cameras.items():
            rules.append(f'{_image(name, _is_compressed(topic))}:={topic}')
            rules.append(f'camera/{name}/camera_info:={_info(topic)}')
        return (*rules, *(f'{ours}:={theirs}' for ours, theirs in self.others.items()))

    def output_rules(self) -> tuple[str, ...]:
        """Remapping rules for what the drive node publishes."""
        return tuple(f'{ours}:={theirs}' for ours, theirs in self.others.items()
                     if ours not in INPUTS)

    def in_bag(self, bag: Path) -> tuple[dict, list[str]]:
        """
        Return parameters of the drive node, and rules that give a bag's topics our names.

        Raises `UserError` for topics that the bag does not have, naming those that it has.
        """
        with open_bag(bag) as reader:
            types = {c.topic: c.msgtype for c in reader.connections}
            images = [t for t in topics_of(reader, *IMAGE_TYPES) if not OUTPUT.fullmatch(t)]
            odometry = topics_of(reader, ODOMETRY_TYPE)
        rules, kinds = [], set()
        for name, topic in self.cameras.items():
            if topic not in images:
                raise UserError(f'--topics {self.origin}: {name}: the bag has no images on '
                                f'{topic}; it has {", ".join(images) or "none"}')
            kinds.add(types[topic])
            rules.append(f'{topic}:=/{_image(name, types[topic] == COMPRESSED_TYPE)}')
            if types.get(_info(topic)) == 'sensor_msgs/msg/CameraInfo':
                rules.append(f'{_info(topic)}:=/camera/{name}/camera_info')
        if len(kinds) > 1:
            raise UserError(f'--topics {self.origin}: some cameras are compressed in the bag and '
                            'some are not; name one kind')
        for ours in INPUTS:
            theirs = self.others.get(ours)
            if theirs in types:
                rules.append(f'{theirs}:=/{ours}')
            elif theirs and ours == 'odometry':
                raise UserError(f'--topics {self.origin}: odometry: the bag has no {theirs}; its '
                                f'odometry is {", ".join(odometry) or "none"}')
        parameters = self.parameters()
        if kinds:
            parameters['image_transport'] = 'compressed' if COMPRESSED_TYPE in kinds else 'raw'
        return parameters, rules


def _is_compressed(topic: str) -> bool:
    return topic.endswith('/compressed')


def _image(camera: str, compressed: bool) -> str:
    return f'camera/{camera}/image_raw' + ('/compressed' if compressed else '')


def _info(topic: str) -> str:
    """The camera_info beside an image topic."""
    return posixpath.join(posixpath.dirname(topic.removesuffix('/compressed')), 'camera_info')


def draft(bag: Path) -> str:
    """A topics file for a bag, as far as names tell; the rest is there as comments."""
    with open_bag(bag) as reader:
        images = [t for t in topics_of(reader, *IMAGE_TYPES) if not OUTPUT.fullmatch(t)]
        odometry = sorted(topics_of(reader, ODOMETRY_TYPE), key=_likeliness)
    images = [t for t in images if f'{t}/compressed' not in images]
    guessed: dict[str, str] = {}
    for topic in images:
        guessed.setdefault(_camera_of(topic), topic)
    lines = [f'# Topics of {bag}: check which camera is which; the names are',
             f'# {", ".join(IDS)}', 'cameras:']
    lines += [f'  {name}: {guessed[name]}' for name in IDS if name in guessed]
    lines += [f'  # which camera?: {t}' for t in images if t not in
              {guessed.get(name) for name in IDS}]
    lines += [f'odometry: {t}' for t in odometry[:1]] or [
        '# odometry: the bag has no nav_msgs/Odometry, and plans need it']
    lines += [f'# or odometry: {t}' for t in odometry[1:]]
    return '\n'.join(lines) + '\n'


def _camera_of(topic: str) -> str:
    """Name of the camera that a topic speaks of; '' when it does not say."""
    for name in IDS:
        if name in topic.split('/'):
            return name
    words = topic.lower()
    return next((name for name, pattern in _SIDES if re.search(pattern, words)), '')


def _likeliness(topic: str) -> tuple:
    """Order of odometry topics: those of localisation first, then short names."""
    return ('kinematic_state' not in topic, 'localization' not in topic, len(topic), topic)
