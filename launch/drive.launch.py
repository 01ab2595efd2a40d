"""
Drive: a source of cameras and odometry, the drive node, and what watches them.

    ros2 launch flashdrive_ros drive.launch.py source:=bag:run_7 viewer:=rviz
    ros2 launch flashdrive_ros drive.launch.py source:=none namespace:=car model:=small

Arguments reach the nodes as they are written: `model:=007` stays the text 007.
"""
from pathlib import Path

import yaml
from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
)
from launch.event_handlers import OnProcessExit
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

PACKAGE = 'flashdrive_ros'
ARGUMENTS = [
    DeclareLaunchArgument(
        'source', default_value='world',
        description='where images and odometry come from: world (the embedded one), '
        'video:<file>, bag:<folder or file>, or none (your own publishers)'),
    DeclareLaunchArgument(
        'model', default_value='',
        description="checkpoint directory or shipped name; empty: the parameter files' choice"),
    DeclareLaunchArgument(
        'params_file', default_value='',
        description="YAML file that every node reads after this package's config/*.yaml"),
    DeclareLaunchArgument('namespace', default_value='', description='namespace of all nodes'),
    DeclareLaunchArgument(
        'viewer', default_value='none', choices=['none', 'rviz', 'rerun'],
        description='what shows images, plans and reasoning'),
    DeclareLaunchArgument(
        'record', default_value='', description='folder of a new bag of all topics; empty: none'),
    DeclareLaunchArgument(
        'use_sim_time', default_value='',
        description="true: time is /clock, e.g. of a bag; empty: the parameter files' choice"),
]


def start(context):
    """Make the actions, now that the values of the arguments are known."""
    value = {a.name: LaunchConfiguration(a.name).perform(context) for a in ARGUMENTS}
    share = Path(get_package_share_directory(PACKAGE))
    if value['params_file'] and not Path(value['params_file']).is_file():
        raise RuntimeError(f"params_file: there is no file {value['params_file']!r}")

    kind, path = parse_source(value['source'])

    def node(executable, name, **arguments):
        """Return a node: the shipped parameters, then the user's file, then arguments."""
        shipped = [name, 'video'] if (name, kind) == ('drive', 'video') else [name]
        files = [*(str(share / 'config' / f'{f}.yaml') for f in shipped), value['params_file']]
        if value['use_sim_time']:
            arguments['use_sim_time'] = ParameterValue(
                LaunchConfiguration('use_sim_time'), value_type=bool)
        return Node(
            package=PACKAGE, executable=executable, name=name, namespace=value['namespace'],
            output='screen', parameters=[p for p in (*files, arguments) if p])

    drive = node('drive_node', 'drive', **text('model', value['model']))
    source = []
    if kind == 'world':
        source = [node('world_node', 'world')]
    elif path:
        # begin when the drive node listens, which is after loading; the recorder does so at once
        source = [node('replay', 'replay', **text('source', path),
                       wait_for_subscribers=2 if value['record'] else 1)]
    actions = [drive, *source, *viewer(value['viewer'], value['namespace'], share)]
    if value['record']:
        actions.append(node('recorder', 'recorder', **text('bag', value['record'])))
    # without one of these nothing is left to watch; a replay ends by itself
    for name, action in [('drive', drive), *(('the source', s) for s in source)]:
        actions.append(RegisterEventHandler(OnProcessExit(
            target_action=action, on_exit=[Shutdown(reason=f'{name} has ended')])))
    return actions


def text(name, value):
    """Return a parameter that stays a text, or none when it is empty."""
    return {name: ParameterValue(value, value_type=str)} if value else {}


def parse_source(source):
    """Return kind and path of a source; refuse what is none or not there."""
    kind, _, path = source.partition(':')
    if kind not in ('world', 'none', 'video', 'bag') or (kind in ('video', 'bag')) != bool(path):
        raise RuntimeError(
            f'source must be world, video:<file>, bag:<folder or file> or none, got {source!r}')
    if path and not Path(path).exists():
        raise RuntimeError(f'source: there is no {kind} {path!r}')
    return kind, path


def viewer(name, namespace, share):
    """Return the process that shows what is going on, if any."""
    if name == 'rerun':
        return [ExecuteProcess(cmd=['flashdrive', 'view', '--live', '--namespace', namespace],
                               output='screen')]
    if name == 'rviz':
        config = share / 'rviz' / 'drive.rviz'
        topics = rviz_topics(yaml.safe_load(config.read_text()))
        prefix = '/' + namespace.strip('/')
        return [Node(
            package='rviz2', executable='rviz2', name='rviz', namespace=namespace,
            arguments=['-d', str(config)],
            remappings=[(t, prefix + t) for t in topics] if namespace else [])]
    return []


def rviz_topics(settings):
    """Return the topics that an RViz configuration shows."""
    displays = settings['Visualization Manager']['Displays']
    return sorted({d['Topic']['Value'] for d in displays if 'Topic' in d})


def generate_launch_description():
    """Entry point of `ros2 launch`."""
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=start)])
