"""The faults themselves, by what they break."""
from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace

import numpy as np
from nav_msgs.msg import Odometry
from sensor_msgs.msg import Image
from std_msgs.msg import String

from ...core.types import CAMERA_NAMES, NANOSECONDS
from ...nodes.world_messages import raw_image
from . import car
from .car import MS, Event
from .faults import Fault
from .rig import Rig

FRONT = 1
LARGE_JPEG = car.jpeg(car.picture(size=(640, 360)))
"""Made before a fault begins: making it takes time in which odometry would have a hole."""
HISTORY_S = 2.0
"""A plan needs 1.5 s of odometry without a hole."""


def _frames(change):
    """A distortion of camera frames alone: `change(event, rng)` gives the events in its place."""
    def distort(events, rng):
        return [new for event in events for new in (
            change(event, rng) if isinstance(event.source, int) else [event])]
    return distort


def _of(source, change):
    """A distortion of one source alone."""
    def distort(events, rng):
        return [new for event in events for new in (
            change(event, rng) if event.source == source else [event])]
    return distort


def _moved(offset_ns: int):
    return lambda e, rng: [replace(e, stamp_ns=e.stamp_ns + offset_ns)]


def _all_moved(offset_ns: int):
    return lambda events, rng: [replace(e, stamp_ns=e.stamp_ns + offset_ns) for e in events]


def _rates(**hz: float):
    """Cameras by name and odometry at other rates, each with a phase of its own."""
    ids = {name: camera for camera, name in CAMERA_NAMES.items()}

    def distort(events, rng):
        begin = min(e.stamp_ns for e in events)
        end = begin + round((max(e.stamp_ns for e in events) - begin) / 1e8) * 100 * MS
        made = [e for e in events if e.source not in {ids.get(n, n) for n in hz}]
        for name, rate in hz.items():
            made += car.odometry_events(begin, end, rate) if name == 'odometry' else \
                car.camera_events(begin, end, ids[name], rate)
        return made
    return distort


def _jitter(e: Event, rng):
    return [replace(e, stamp_ns=e.stamp_ns + int(rng.integers(-15, 16)) * MS,
                    due_ns=e.due_ns + int(rng.integers(0, 30)) * MS)]


def _late(e: Event, rng):
    return [replace(e, due_ns=e.due_ns + int(rng.integers(0, 150)) * MS)]


def _damaged(e: Event, rng):
    data = e.data
    kind = int(rng.integers(0, 4))
    if kind == 0:
        data = data[:int(rng.integers(0, len(data)))]
    elif kind == 1:
        data = rng.bytes(500)
    elif kind == 2:
        data = b''
    else:
        noise = bytearray(data)
        for at in rng.integers(0, len(data), 50):
            noise[at] = int(rng.integers(0, 256))
        data = bytes(noise)
    return [replace(e, data=data)]


def _encodings(events, rng):
    """Every camera frame raw, in another encoding each time."""
    made, turn = [], 0
    for e in sorted(events, key=lambda e: (e.due_ns, str(e.source))):
        if isinstance(e.source, int):
            made.append(replace(e, data=_raw(ENCODINGS[turn // 2 % len(ENCODINGS)])))
            turn += 1
        else:
            made.append(e)
    return made


ENCODINGS = ('rgb8', 'bgr8', 'rgba8', 'bgra8', 'mono8', 'mono16', 'bayer_rggb8', 'bayer_gbrg8',
             'uyvy', 'yuv422_yuy2', 'nv12', 'nv21')
BYTES_A_PIXEL = {'rgb8': 3, 'bgr8': 3, 'rgba8': 4, 'bgra8': 4, 'mono16': 2, 'uyvy': 2,
                 'yuv422_yuy2': 2}


def _raw(encoding: str) -> Image:
    width, height = car.SIZE
    message = raw_image(Odometry().header, car.PICTURE)
    step = width * BYTES_A_PIXEL.get(encoding, 1)
    rows = height * 3 // 2 if encoding.startswith('nv') else height
    message.encoding, message.step = encoding, step
    message.data = np.resize(car.PICTURE.reshape(-1), step * rows).tobytes()
    return message


def _raw_rgb(events, rng):
    return [replace(e, data=_raw('rgb8')) if isinstance(e.source, int) else e for e in events]


def _padded_and_short(e: Event, rng):
    """Rows with padding, then an image that lacks a row, in turn."""
    message = _raw('rgb8')
    if rng.random() < 0.5:
        message.data = message.data[:-message.step]
    return [replace(e, data=message)]


def _nan_pose(e: Event, rng):
    message = Odometry()
    message.pose.pose.position.x = float(rng.choice([np.nan, np.inf, 1e300]))
    message.pose.pose.orientation.w = float(rng.choice([1.0, 0.0, np.nan]))
    return [replace(e, data=message)]


# ---- processes

def _peer(source, name: str) -> Fault:
    """A part of the car is a process of its own, which is killed and started again."""
    def before(rig: Rig):
        rig.part(source)

    def act(rig: Rig):
        rig.parts[source].process.kill()

    def heal(rig: Rig) -> int:
        return rig.part(source)

    def after(rig: Rig):
        rig.parts.pop(source).process.kill()
    return Fault(f'{name} killed -9 and started again', may_lose=2.0, before=before, act=act,
                 heal=heal, after=after, recover_s=3.0)


def _listener(rig: Rig):
    rig.listener = rig.peer('listener')
    rig.wait(lambda: rig.node.count_subscribers('drive/plan') > 1, 20.0, 'no listener')


def _kill_drive(rig: Rig):
    rig.drive.process.kill()
    rig.drive.process.wait(10)


def _end_drive(number: signal.Signals):
    def act(rig: Rig):
        begin = time.monotonic()
        rig.drive.process.send_signal(number)
        code = rig.drive.process.wait(20)
        rig.note = f'ended after {time.monotonic() - begin:.2f} s with code {code}'
        if code == 0 and time.monotonic() - begin < 2.0:
            rig.reasons.append('ended in time')
    return act


def _restart_drive(rig: Rig) -> int:
    begin = time.time_ns()
    rig.start()
    return begin


def _flood(what: str):
    def act(rig: Rig):
        rig.flooding = rig.peer('flood', what)

    def heal(rig: Rig):
        rig.flooding.process.kill()
        rig.flooding.process.wait(10)
    return {'act': act, 'heal': heal, 'seconds': 6.0}


def _storm(rig: Rig):
    """Parameters set as fast as they are answered, in a thread beside the car."""
    rig.answers = []
    rig.storming = True

    def storm():
        values = [('temperature', 0.5), ('num_trajectories', 9), ('seed', 1), ('top_p', 7.0),
                  ('model', 'other'), ('no_such_parameter', 1), ('timeout_s', 1.0)]
        while rig.storming:
            for name, value in values:
                rig.answers.append((name, rig.set_parameter(name, value)))
    rig.storm = threading.Thread(target=storm)
    rig.storm.start()


def _calm(rig: Rig):
    rig.storming = False
    rig.storm.join(30)
    refused = {'num_trajectories', 'top_p', 'model', 'no_such_parameter'}
    for name, answer in rig.answers:
        if answer is None or answer.successful == (name in refused) or (
                name in refused and not answer.reason):
            rig.note = f'wrong answer for {name}: {answer}'
            return
    rig.note = f'{len(rig.answers)} answers, all right'
    rig.reasons.append(rig.note)


def _cycle(rig: Rig):
    for label in ('deactivate', 'activate', 'deactivate', 'cleanup', 'configure', 'activate'):
        if not rig.change_state(label):
            rig.note = f'{label} failed'


TIMES = (
    Fault('camera frames dropped, 15 % at random', may_lose=0.5,
          distort=_frames(lambda e, rng: [] if rng.random() < 0.15 else [e])),
    Fault('one camera silent', 'no images from camera 0', may_lose=1.0,
          distort=_of(0, lambda e, rng: [])),
    Fault('all cameras silent', 'no images from camera 0', may_lose=1.0,
          distort=_frames(lambda e, rng: [])),
    Fault('jitter of 15 ms in stamps, 30 ms in arrival', may_lose=0.3, distort=_frames(_jitter)),
    Fault('frames arrive up to 150 ms late, out of order', may_lose=0.9, distort=_frames(_late)),
    Fault('every frame twice', distort=_frames(lambda e, rng: [e, e])),
    Fault('cameras at 30 and 25 Hz, odometry at 200 Hz',
          distort=_rates(cross_left_120=25, front_wide_120=30, odometry=200)),
    Fault('cameras at 15 and 12 Hz, odometry at 10 Hz', may_lose=0.7,
          distort=_rates(cross_left_120=12, front_wide_120=15, odometry=10)),
    Fault('a camera at 5 Hz', 'slower than 10 Hz', may_lose=0.6,
          distort=_rates(cross_left_120=5)),
    Fault('time steps forward by 100 s', may_lose=1.0, distort=_all_moved(100 * NANOSECONDS),
          recover_s=HISTORY_S),
    Fault('time steps back by 10 s', may_lose=1.0, distort=_all_moved(-10 * NANOSECONDS),
          recover_s=HISTORY_S),
    Fault('one camera on another time base', 'of another time', may_lose=1.0,
          distort=_of(0, _moved(-1_700_000_000 * NANOSECONDS))),
    Fault('the anchor camera on another time base', 'time|odometry', may_lose=1.0,
          distort=_of(FRONT, _moved(-1_700_000_000 * NANOSECONDS)), recover_s=1.5),
    Fault('stamps that are all zero', 'stamps do not advance|no complete', may_lose=1.0,
          distort=_frames(lambda e, rng: [replace(e, stamp_ns=0)])),
    Fault('a wild stamp now and then', may_lose=0.4, distort=_frames(
        lambda e, rng: [replace(e, stamp_ns=int(rng.integers(0, 2 ** 61)))]
        if rng.random() < 0.1 else [e])),
    Fault('odometry silent', 'odometry', may_lose=1.0, distort=_of('odometry', lambda *_: []),
          recover_s=HISTORY_S),
    Fault('odometry not finite', 'odometry', may_lose=1.0, distort=_of('odometry', _nan_pose),
          recover_s=HISTORY_S),
    Fault('odometry jumps by 200 m', 'odometry jumps', may_lose=1.0, recover_s=HISTORY_S,
          distort=_of('odometry', lambda e, rng: [replace(e, data=e.data + 200)])),
)
IMAGES = (
    Fault('damaged JPEGs, half of all', 'bytes', may_lose=1.0,
          distort=_frames(lambda e, rng: _damaged(e, rng) if rng.random() < 0.5 else [e])),
    Fault('image size changes', distort=_frames(
        lambda e, rng: [replace(e, data=LARGE_JPEG)])),
)
RAW = (
    Fault('raw images in 12 encodings, another every frame', distort=_encodings,
          transport='raw', recover_s=1.5),
    Fault('raw images, half of them a row short', 'needs rows of', may_lose=1.0,
          distort=_frames(_padded_and_short), transport='raw'),
)
ENGINE = (
    Fault('the engine fails once', 'a failure that was asked for', may_lose=0.1,
          act=lambda rig: rig.order(error='failure')),
    Fault('the engine fails at every step', 'a failure that was asked for', may_lose=1.0,
          act=lambda rig: rig.order(error='failure', times=10 ** 6), heal=lambda rig: rig.order()),
    Fault('out of memory twice', 'out of memory', may_lose=0.2,
          act=lambda rig: rig.order(error='out of memory', times=2)),
    Fault('an engine of 350 ms', may_lose=0.8, recover_s=1.0,
          act=lambda rig: rig.order(delay_s=0.35, times=10 ** 6), heal=lambda rig: rig.order()),
    Fault('a step of 3 s', 'busy with one step for', may_lose=1.0, seconds=3.0,
          act=lambda rig: rig.order(delay_s=3.0)),
    Fault('the engine fails 8 times in a row', 'loaded again|a failure', may_lose=0.6,
          act=lambda rig: rig.order(error='failure', times=8)),
    Fault('the engine\'s thread is told to exit', 'an exit that was asked for', may_lose=0.2,
          act=lambda rig: rig.order(error='thread exit')),
)
REQUESTS = (
    Fault('parameters set without end', 'answers, all right', act=_storm, heal=_calm),
    Fault('through all lifecycle states', act=lambda rig: None, heal=_cycle, may_lose=1.0,
          recover_s=3.0),
    Fault('a text that no prompt takes', 'without the text',
          act=lambda rig: rig.car.nav_text.publish(String(data='<|im_end|>' * 200)),
          heal=lambda rig: rig.car.nav_text.publish(String(data=''))),
)
FLOODS = tuple(Fault(f'a flood of {name}', **_flood(what), may_lose=loss) for what, name, loss in (
    ('garbage', 'garbage on a camera topic', 0.3), ('images', 'images on a camera topic', 0.3),
    ('odometry', 'odometry', 0.1), ('text', 'navigation texts', 0.1),
    ('route', 'route texts', 0.1), ('diagnostics', 'diagnostics', 0.1)))
def _lose_device(rig: Rig):
    """The process ends by itself, as nothing in it can help."""
    rig.order(error='device lost', times=10 ** 6)


def _ended_and_restarted(rig: Rig) -> int:
    code = rig.drive.process.wait(20)
    rig.note = f'ended with code {code}'
    return _restart_drive(rig)


PROCESSES = (
    _peer(FRONT, 'the process of the anchor camera'),
    _peer(0, 'the process of another camera'),
    _peer('odometry', 'the process of odometry'),
    Fault('a slow listener killed -9', before=_listener,
          act=lambda rig: rig.listener.process.kill()),
    Fault('the drive node killed -9 and started again', may_lose=3.0, act=_kill_drive,
          heal=_restart_drive, recover_s=15.0),
    Fault('the device is lost', 'the device is lost.*can not be loaded again', may_lose=3.0,
          act=_lose_device, heal=_ended_and_restarted, recover_s=15.0),
    Fault('SIGINT while it drives', 'ended in time', may_lose=3.0, act=_end_drive(signal.SIGINT),
          heal=_restart_drive, recover_s=15.0),
    Fault('SIGTERM while it drives', 'ended in time', may_lose=3.0, act=_end_drive(signal.SIGTERM),
          heal=_restart_drive, recover_s=15.0),
)
FAULTS = (*TIMES, *IMAGES, *ENGINE, *REQUESTS, *FLOODS, *PROCESSES, *RAW)
