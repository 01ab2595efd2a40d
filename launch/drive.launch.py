"""
Drive: a source of cameras and odometry, the drive node, and what watches them.

    ros2 launch flashdrive_ros drive.launch.py source:=bag:run_7 viewer:=rviz
    ros2 launch flashdrive_ros drive.launch.py source:=none namespace:=car model:=small

Arguments reach the nodes as they are written: `model:=007` stays the text 007.
"""
import os
import tempfile
from pathlib import Path

import yaml
from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
    Shutdown,
)
from launch.event_handlers import OnProcessExit
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

PACKAGE = 'flashdrive_ros'
SHARE = Path(get_package_share_directory(PACKAGE))
PATIENCE_S = 600.0
"""How long a source waits for the drive node, which loads its model first."""
RESPAWN_S = 1.0
ARGUMENTS = [
    DeclareLaunchArgument(
        'source', default_value='world',
        description='where images and odometry come from: world (the embedded one), '
        'video:<file>, bag:<folder or file>, or none (publishers of your own)'),
    DeclareLaunchArgument(
        'rate', default_value='',
        description='speed of the source; 0: lock-step, it waits for plans; empty: 1 for a '
        'recording, 0 for the world'),
    DeclareLaunchArgument(
        'topics', default_value='',
        description='file of other names for topics (docs/your_topics.md), or alpamayo_autoware'),
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
        'respawn', default_value='false', choices=['true', 'false'],
        description='true: a drive node that ends is started again, as on a car'),
    DeclareLaunchArgument(
        'use_sim_time', default_value='',
        description="true: time is /clock, e.g. of a bag; empty: the parameter files' choice"),
]


def start(context):
    """Make the actions, now that the values of the arguments are known."""
    value = {a.name: LaunchConfiguration(a.name).perform(context) for a in ARGUMENTS}
    if value['params_file'] and not Path(value['params_file']).is_file():
        raise RuntimeError(f"params_file: there is no file {value['params_file']!r}")

    respawn = value['respawn'] == 'true'

    def node(executable, name, files=(), respawn=False, **arguments):
        """Return a node; it reads its shipped file, `files`, the user's file, then arguments."""
        rules = [tuple(rule.split(':=')) for rule in arguments.pop('remaps', ())]
        if value['use_sim_time']:
            arguments['use_sim_time'] = ParameterValue(
                LaunchConfiguration('use_sim_time'), value_type=bool)
        files = [SHARE / 'config' / f'{name}.yaml', *files, value['params_file']]
        return Node(
            package=PACKAGE, executable=executable, name=name, namespace=value['namespace'],
            output='screen', respawn=respawn, respawn_delay=RESPAWN_S, remappings=rules,
            parameters=[*(str(f) for f in files if f), typed(arguments)])

    source, files, remaps = source_of(value, node)
    drive = node('drive_node', 'drive', files, respawn, model=value['model'], remaps=remaps)
    actions = [*([half_of_the_cores()] if source else []), drive, *source,
               *viewer(value['viewer'], value['namespace'])]
    if value['record']:
        actions.append(node('recorder', 'recorder', bag=value['record']))
    # without one of these nothing is left to watch; a replay ends by itself
    watched = [('the source', s) for s in source] + [('drive', drive)] * (not respawn)
    for name, action in watched:
        actions.append(RegisterEventHandler(OnProcessExit(
            target_action=action, on_exit=[Shutdown(reason=f'{name} has ended')])))
    return actions


def half_of_the_cores():
    """Leave cores to a source on this machine: beside it torch on all of them only waits."""
    threads = os.environ.get('OMP_NUM_THREADS') or max(1, (os.cpu_count() or 2) // 2)
    return SetEnvironmentVariable('OMP_NUM_THREADS', str(threads))


def typed(arguments):
    """Return parameters whose texts stay texts; empty ones are left to the files."""
    return {name: ParameterValue(value, value_type=str) if isinstance(value, str) else value
            for name, value in arguments.items() if value != ''}


def source_of(value, node):
    """Return the nodes that publish cameras and odometry, and files and remappings for drive."""
    if value['source'] == 'none' and not value['topics']:
        return [], [], ()
    from flashdrive_ros.session import nodes as session  # needs rosbags, which a car does not
    # it begins when the drive node listens, after loading; the recorder listens at once
    plan, drive = session.source_nodes(
        value['source'], subscribers=2 if value['record'] else 1, loop=False,
        rate=float(value['rate']) if value['rate'] else None,
        topics=session.topic_map(value['topics']))
    files = [*(SHARE / 'config' / f'{name}.yaml' for name in drive.configs),
             parameter_file(drive.values)]
    if plan is None:
        return [], files, drive.remaps
    # as `flashdrive drive` does
    files += [SHARE / 'config' / f'{name}.yaml' for name in session.drawn_by(
        value['model'], value['params_file'])]
    own = {k: v for k, v in plan.values.items() if k != 'source'}
    executable = 'world_node' if plan.name == 'world' else plan.name
    nodes = [node(executable, plan.name, [parameter_file({**own, 'wait_s': PATIENCE_S})],
                  source=plan.values.get('source', ''), remaps=plan.remaps)]
    return nodes, files, drive.remaps


def parameter_file(values):
    """Write parameters to a file, so that the user's file can come after them."""
    if not values:
        return None
    with tempfile.NamedTemporaryFile('w', suffix='.yaml', delete=False) as file:
        yaml.safe_dump({'/**': {'ros__parameters': values}}, file)
    return file.name


def viewer(name, namespace):
    """Return the process that shows what is going on, if any."""
    if name == 'rerun':
        return [ExecuteProcess(cmd=['flashdrive', 'view', '--live', '--namespace', namespace],
                               output='screen')]
    if name == 'rviz':
        config = SHARE / 'rviz' / 'drive.rviz'
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
