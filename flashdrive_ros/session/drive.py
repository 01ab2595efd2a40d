"""
A drive from start to results: what `flashdrive drive` does.

Recorder, drive node and source start as processes of their own; when the time
is over they are stopped in the order source, drive, recorder, so that the
recording holds the last plan.  Then the summary and the pictures are made from
the recording alone.
"""
from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from .folder import DriveFolder
from .nodes import (
    NodePlan,
    check_remap,
    drawn_by,
    namespace_remap,
    parameter_names,
    parse_settings,
    source_nodes,
    topic_map,
)
from .processes import Child

STEP_S = 0.25
STALL_S = 60.0
"""In lock-step time goes on with plans; without any for so long the drive is over."""
GRACE_S = (1.0, 15.0)
"""After the source has ended a plan that is being made may still come: at least, at most."""


def environment() -> dict[str, str]:
    """Return the environment of the nodes; what the user has set stays."""
    return {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST', **os.environ}


@dataclass(frozen=True)
class DriveOptions:
    """What a drive is to be."""

    source: str = 'world'
    model: str = ''
    duration_s: float = 30.0
    out: Path = Path('out/drive')
    namespace: str = ''
    parameter_files: tuple[Path, ...] = ()
    settings: tuple[str, ...] = ()
    remaps: tuple[str, ...] = ()
    topics: str = ''
    rate: float | None = None
    loop: bool = False
    record: bool = True
    pictures: bool = True
    startup_s: float = 180.0


@dataclass
class Drive:
    """The processes of one drive."""

    options: DriveOptions
    folder: DriveFolder
    children: list[Child] = field(default_factory=list)
    remaps: tuple[str, ...] = ()
    """Of the drive node, whose plans are to be heard under other names too."""
    lockstep: bool = False
    """The embedded world waits for plans, so that the duration is its own."""

    def node_plans(self) -> list[NodePlan]:
        """Recorder, drive and source with their parameter values."""
        o = self.options
        source, drive = source_nodes(o.source, subscribers=1 + o.record, rate=o.rate,
                                     loop=o.loop, topics=topic_map(o.topics))
        drive.remaps += tuple(check_remap(rule) for rule in o.remaps)
        self.remaps = drive.remaps
        if o.model:
            drive.values['model'] = o.model
        plans = [drive]
        if source is not None:
            # its own patience must outlast the loading of a model
            source.values['wait_s'] = o.startup_s
            plans.append(source)
        if o.record:
            plans.insert(0, NodePlan('recorder', 'recorder_node', {'bag': str(self.folder.bag)},
                                     remaps=drive.remaps))
        settings = parse_settings(list(o.settings))
        for plan in plans:
            if wanted := settings.pop(plan.name, {}):
                known = parameter_names(plan.name)
                if unknown := sorted(set(wanted) - known):
                    raise UserError(f'--set: {plan.name} has no parameter {", ".join(unknown)}; '
                                    f'it has {", ".join(sorted(known))}')
                plan.values.update(wanted)
        if source is not None:
            drive.configs += drawn_by(drive.values.get('model', ''), o.parameter_files)
        if settings:
            raise UserError(f'--set: there is no node {", ".join(settings)}; the nodes are '
                            f'{", ".join(p.name for p in plans)}')
        self.lockstep = source is not None and source.values.get('lockstep') is True
        played = source.values.get('source') if source is not None else None
        if played and self.folder.holds(played):
            raise UserError(f'--source {o.source}: lies in --out {self.folder.path}, whose '
                            'results this drive replaces; choose another --out (OUT of make)')
        return plans

    def start(self):
        """Check all that was asked for, then make the folder and start all processes."""
        files = [Path(f).resolve() for f in self.options.parameter_files]
        for file in files:
            if not file.is_file():
                raise UserError(f'--params-file {file}: no such file')
        namespace_remap(self.options.namespace)
        plans = self.node_plans()
        self.folder.prepare()
        for plan in plans:
            command = plan.command(self.options.namespace, files, self.folder.parameters)
            self.children.append(Child.start(
                plan.name, command, self.folder.logs / f'{plan.name}.log', environment()))

    def ended(self) -> Child | None:
        """Return a process that is not running any more, if there is one."""
        return next((c for c in self.children if c.returncode is not None), None)

    def stop(self):
        """Stop the source first and the recorder last."""
        for child in reversed(self._in_order()):
            child.stop()

    def _in_order(self):
        rank = {'recorder': 0, 'drive': 1}
        return sorted(self.children, key=lambda c: rank.get(c.name, 2))


def run(options: DriveOptions, say=print) -> int:
    """Drive, then write and print the results; returns the exit code."""
    os.environ.update(environment())   # the monitor too
    folder = DriveFolder(options.out)
    try:
        return _run(options, folder, say)
    finally:
        folder.release()


def _run(options: DriveOptions, folder: DriveFolder, say) -> int:
    drive = Drive(options, folder)
    failure = ''
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # stop as on Ctrl-C
    try:
        drive.start()
        failure = _watch(drive)
    finally:
        drive.stop()
    for child in drive.children:
        if child.forced:
            say(f'{child.name} had to be ended by {child.forced}')
    code = 1 if failure else 0
    if options.record and folder.bag.is_dir():
        try:
            code = max(code, results(folder, pictures=options.pictures and not failure, say=say))
        except UserError as error:   # a recording that was cut off must not hide why
            code, failure = 1, f'{failure}\n{error}'.lstrip()
    if failure:   # last, where it is seen
        say(f'flashdrive drive: {failure}')
    return code


def _watch(drive: Drive) -> str:
    """Show the status until the drive is over; returns what went wrong, '' if nothing did."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from .monitor import Monitor, StatusLine, spin
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    monitor, status = Monitor(drive.options.namespace, drive.remaps), StatusLine()
    executor = rclpy.executors.SingleThreadedExecutor()
    executor.add_node(monitor)
    begin = time.monotonic()
    try:
        while True:
            spin(monitor, executor, STEP_S)
            status.show(monitor.line(time.monotonic() - begin))
            for alarm in monitor.new_alarms:
                status.note(alarm)
            monitor.new_alarms.clear()
            if (child := drive.ended()) is not None:
                if child.returncode == 0 and child.name in ('replay', 'world'):
                    # the recording has ended, all is well
                    spin(monitor, executor, min(max(GRACE_S[0], 2 * monitor.plan_s), GRACE_S[1]))
                    return '' if monitor.plans else _no_plan(monitor, 'the source has ended')
                return (f'{child.name} ended with exit code {child.returncode}; '
                        f'{child.log} says\n{child.tail()}')
            if monitor.failure:
                return monitor.failure
            if _is_over(drive, monitor, begin):
                return '' if monitor.plans else _no_plan(
                    monitor, f'{drive.options.startup_s:g} s have passed')
    except KeyboardInterrupt:
        status.note('stopping')
        return ''
    finally:
        status.end()
        monitor.destroy_node()
        rclpy.try_shutdown()


def _is_over(drive: Drive, monitor, begin: float) -> bool:
    """The duration counts from the first plan; without one, patience ends."""
    options, now = drive.options, time.monotonic()
    if monitor.first_plan_s is None:
        return now - begin > options.startup_s
    if drive.lockstep:
        return now - monitor.last_plan_s > STALL_S or (
            0 < options.duration_s <= monitor.driven_s)
    return bool(options.duration_s) and now - monitor.first_plan_s >= options.duration_s


def _no_plan(monitor, when: str) -> str:
    alarms = '\n'.join(f'  {level} {name}: {text}' for name, (level, text)
                       in monitor.alarms.items())
    return f'{when} and there was no plan' + (f':\n{alarms}' if alarms else '')


def results(folder: DriveFolder, *, pictures: bool = True, say=print) -> int:
    """Summary, video and contact sheet from a drive's recording; 0 when plans go to its end."""
    from ..recording.recording import Recording
    from ..recording.summary import summarise, table, write_summary
    recording = Recording(folder.bag)
    summary = summarise(recording)
    write_summary(summary, folder.summary)
    say(table(summary))
    say(f'summary        {folder.summary}')
    if pictures and recording.cameras:
        from ..view.video import render
        say(f'drawing {len(recording.anchor.stamps_ns)} pictures')
        count = render(recording, folder.video, folder.sheet)
        say(f'video          {folder.video} ({count} pictures)')
        say(f'contact sheet  {folder.sheet}')
    return 0 if summary['plans'] and not summary['plans_stopped_s'] else 1
