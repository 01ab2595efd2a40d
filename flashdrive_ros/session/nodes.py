"""Which nodes a drive consists of and how each is started: as the launch file does."""
from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ..core.types import CAMERA_NAMES
from ..errors import UserError
from ..recording.bag import OUTPUT, open_bag, topics_of
from ..recording.definitions import share_folders
from ..values import value_of
from .topics import TopicMap

EXAMPLE_VIDEO = Path('test', 'data', 'dashcam_highway.mp4')
SOURCE_KINDS = ('world, video, video:<file>, bag:<folder or file>, a path, or none (publishers of '
                'your own)')
SHIPPED_MODEL = 'small'
LOCKSTEP = {'timeout_s': 20.0, 'camera_reliability': 'reliable'}
"""Of the drive node: silence lasts while plans are made; a lost image would be waited for."""
VIDEO_SUFFIXES = ('.mp4', '.avi', '.mkv', '.mov', '.webm', '.m4v')


@dataclass
class NodePlan:
    """
    One node to start.

    It reads config/<name>.yaml, then `configs` of the same folder, the user's
    files, and last `values`; `remaps` are ROS remapping rules, FROM:=TO.
    """

    name: str
    module: str
    values: dict = field(default_factory=dict)
    configs: tuple[str, ...] = ()
    remaps: tuple[str, ...] = ()

    def command(self, namespace: str, files: list[Path], folder: Path) -> list[str]:
        """Command line; writes the values to a file, where they keep their types."""
        command = [sys.executable, '-m', f'flashdrive_ros.nodes.{self.module}', '--ros-args',
                   '-r', f'__node:={self.name}']
        command += namespace_remap(namespace)
        for rule in self.remaps:
            command += ['-r', rule]
        if self.values:
            own = folder / f'{self.name}.yaml'
            own.write_text(yaml.safe_dump({'/**': {'ros__parameters': self.values}}))
            files = [*files, own]
        shipped = [shipped_config(name) for name in (self.name, *self.configs)]
        for file in (*shipped, *files):
            command += ['--params-file', str(file)]
        return command


def namespace_remap(namespace: str) -> list[str]:
    """ROS arguments that put a node into a namespace; raises `UserError` if it can't be one."""
    name = namespace.strip('/')
    if name and not re.fullmatch(r'[A-Za-z_]\w*(/[A-Za-z_]\w*)*', name, re.ASCII):
        raise UserError(f'--namespace {namespace!r}: must be names of letters, digits and '
                        'underscores that begin with no digit, with / between them')
    return ['-r', f'__ns:=/{name}'] if name else []


def check_remap(rule: str) -> str:
    """Return the remapping rule; raises `UserError` for what is none."""
    if not re.fullmatch(r'[~/\w]+:=[~/\w]+', rule, re.ASCII):
        raise UserError(f'--remap {rule}: must be FROM:=TO, such as '
                        'odometry:=/localization/kinematic_state')
    return rule


def shipped_config(name: str) -> Path:
    """Return config/<name>.yaml of this package; raises `UserError` if it isn't installed."""
    folders = share_folders('flashdrive_ros')
    for folder in folders:
        if (path := folder / 'config' / f'{name}.yaml').is_file():
            return path
    raise UserError(f'config/{name}.yaml is in none of {", ".join(map(str, folders))}: '
                    'is the package installed?')


def source_nodes(source: str, *, subscribers: int, rate: float | None, loop: bool,
                 topics: TopicMap | None = None) -> tuple[NodePlan | None, NodePlan]:
    """
    Return the node that publishes cameras and odometry, and the drive node set for it.

    For 'none', publishers of your own, there is no such node.  `rate` 0 is lock-step: the source
    waits for plans.  None is what suits the source: 1.0 for a recording, 0 for the world.
    `topics` are others' names: of a bag, of publishers of your own, and for the outputs.

    Raises `UserError` for a source that is none of `SOURCE_KINDS`.
    """
    topics = topics or TopicMap()
    drive = NodePlan('drive', 'drive_node', remaps=topics.output_rules())
    if source == 'none':
        drive.values, drive.remaps = topics.parameters(), topics.live_rules()
        return None, drive
    waiting = {'wait_for_subscribers': subscribers}
    if source == 'world':
        world = NodePlan('world', 'world_node', waiting)
        if rate:
            world.values['rate'] = float(rate)
        else:
            world.values |= {'lockstep': True, 'publish_clock': True}
            drive.values = {**LOCKSTEP, 'use_sim_time': True}
        return world, drive
    kind, path = _source_path(source)
    replay = NodePlan('replay', 'replay_node', {
        **waiting, 'source': str(path), 'rate': 1.0 if rate is None else float(rate),
        'loop': loop}, remaps=drive.remaps)
    if rate == 0:
        drive.values |= LOCKSTEP
    if kind == 'video':
        drive.configs = ('video',)
        return replay, drive
    parameters, renamed = topics.in_bag(path)
    drive.values |= parameters or _cameras_of(path)
    if renamed:
        replay.values['remap'] = renamed
    return replay, drive


def _source_path(source: str) -> tuple[str, Path]:
    kind, colon, path = source.partition(':')
    if source == 'video':
        return 'video', example_video()
    if not colon or kind not in ('video', 'bag'):
        path = source
        if not Path(path).exists():
            raise UserError(f'--source {source}: no such file or folder; it must be '
                            f'{SOURCE_KINDS}')
        kind = 'video' if Path(path).suffix.lower() in VIDEO_SUFFIXES else 'bag'
    if not Path(path).exists():
        raise UserError(f'--source {source}: there is no {kind} {path!r}')
    return kind, Path(path).resolve()


def drawn_by(model: str, parameter_files) -> tuple[str, ...]:
    """Return the shipped file that says what the shipped model is asked to draw, if it counts."""
    shipped = model in ('', SHIPPED_MODEL) and not parameter_files
    return (SHIPPED_MODEL,) if shipped else ()


def topic_map(name: str) -> TopicMap:
    """Return the topics file of that path, or the shipped one of that name; '' is none."""
    if not name:
        return TopicMap()
    path = Path(name)
    return TopicMap.read(path if path.is_file() or path.suffix else shipped_config(name))


def example_video() -> Path:
    """Return the highway clip of the source tree (it is not installed with the package)."""
    roots = [Path.cwd(), Path(__file__).resolve().parents[2]]
    for root in roots:
        if (root / EXAMPLE_VIDEO).is_file():
            return root / EXAMPLE_VIDEO
    raise UserError(f'--source video: there is no {EXAMPLE_VIDEO} in '
                    f'{" or ".join(map(str, roots))}; name a file: video:<file>')


def _cameras_of(bag: Path) -> dict:
    """Camera ids and transport of the image topics that bear a camera's name."""
    with open_bag(bag) as reader:
        compressed = topics_of(reader, 'sensor_msgs/msg/CompressedImage')
        raw = topics_of(reader, 'sensor_msgs/msg/Image')
    for transport, topics in (('compressed', compressed), ('raw', raw)):
        topics = [t.split('/') for t in topics if not OUTPUT.fullmatch(t)]
        ids = [i for i, name in CAMERA_NAMES.items() if any(name in t for t in topics)]
        if ids:
            return {'camera_ids': ids, 'image_transport': transport}
    return {}   # other names: the user's parameter file says which they are


def parameter_names(node: str) -> set[str]:
    """Return the parameters of a node of a drive."""
    from ..nodes import drive_parameters, recording_parameters, world_node
    specs = {'drive': drive_parameters.NODE + drive_parameters.ENGINE,
             'recorder': recording_parameters.RECORDER, 'replay': recording_parameters.REPLAY,
             'world': world_node.PARAMETERS}
    return {spec.name for spec in specs[node]} | {'use_sim_time'}


def parse_settings(texts: list[str]) -> dict[str, dict]:
    """`node.parameter=value` texts as {node: {parameter: value}}; values are YAML."""
    settings: dict[str, dict] = {}
    for text in texts:
        name, equals, value = text.partition('=')
        node, dot, parameter = name.partition('.')
        if not equals or not dot or not parameter:
            raise UserError(f'--set {text}: must be <node>.<parameter>=<value>, such as '
                            'drive.num_trajectories=6')
        try:
            settings.setdefault(node, {})[parameter] = value_of(value)
        except yaml.YAMLError as error:
            raise UserError(f'--set {text}: {error}') from error
    return settings
