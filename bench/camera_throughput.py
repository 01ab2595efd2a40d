"""
What the drive node's inputs cost: four cameras at 10 Hz over DDS, decoded, no model.

    python bench/camera_throughput.py [--seconds 20] [--out FILE]

One process publishes images, one odometry at 100 Hz, another runs the real
drive node with an engine that does nothing, each with the DDS settings of its
row.  Rows say how many sets of frames (one image of every camera) arrived and
how many of these were decoded (a busy machine takes the newest), what share of
one core the receiving process took for it, in all and per decoded set, and how
old the images were when the engine had them.
"""
from __future__ import annotations

import argparse
import array
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np

HERE = Path(__file__).resolve().parent
VIDEO = HERE.parent / 'test' / 'data' / 'dashcam_highway.mp4'
PROFILE = HERE.parent / 'config' / 'large_images.xml'
CAMERAS = (0, 1, 2, 6)
SETTINGS = {
    'default': {},
    'LARGE_DATA': {'FASTDDS_BUILTIN_TRANSPORTS': 'LARGE_DATA'},
    'large_images.xml': {'FASTDDS_DEFAULT_PROFILES_FILE': str(PROFILE)},
}
FULL, HALF = '1920x1080', '960x540'
ROWS = tuple((transport, size, setting) for transport, size in (
    ('compressed', FULL), ('raw', FULL), ('raw', HALF)) for setting in SETTINGS)
WARM_UP = 20
"""Sets before the measurement begins."""


def pictures(width: int, height: int, count: int = 8) -> list[np.ndarray]:
    """BGR frames of the test footage at this size."""
    capture = cv2.VideoCapture(str(VIDEO))
    found = []
    while len(found) < count and capture.read()[0]:
        ok, image = capture.read()
        if ok:
            found.append(cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC))
    return found


def publish(transport: str, seconds: float, width: int, height: int):
    """Publish the cameras in step with the clock until the time is over."""
    import rclpy
    from sensor_msgs.msg import CompressedImage, Image

    from flashdrive_ros.core.types import CAMERA_NAMES
    from flashdrive_ros.nodes import messages, qos

    rclpy.init()
    node = rclpy.create_node('cameras')
    compressed = transport == 'compressed'
    kind, suffix = (CompressedImage, '/compressed') if compressed else (Image, '')
    outputs = [node.create_publisher(kind, f'camera/{CAMERA_NAMES[c]}/image_raw{suffix}',
                                     qos.camera(depth=5)) for c in CAMERAS]
    data = []
    for image in pictures(width, height):
        data.append(array.array('B', cv2.imencode(
            '.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes() if compressed
            else image.tobytes()))
    while not all(p.get_subscription_count() for p in outputs):
        time.sleep(0.1)
    time.sleep(2.0)  # of odometry before the first image
    begin, end = time.time(), time.time() + seconds + WARM_UP / 10 + 5
    for number in range(round((end - begin) * 10)):
        time.sleep(max(0.0, begin + number / 10 - time.time()))
        stamp_ns = time.time_ns()
        for output in outputs:
            if compressed:
                message = CompressedImage(format='jpeg')
            else:
                message = Image(width=width, height=height, step=3 * width, encoding='bgr8')
            message.header.stamp = messages.stamp(stamp_ns)
            message.data = data[number % len(data)]
            output.publish(message)
    rclpy.try_shutdown()
    print(json.dumps({'bytes_per_image': len(data[0])}))


def publish_odometry():
    """Publish odometry at 100 Hz until told to end."""
    import rclpy
    from nav_msgs.msg import Odometry
    from rclpy._rclpy_pybind11 import RCLError

    from flashdrive_ros.nodes import messages, qos

    rclpy.init()
    node = rclpy.create_node('odometry')
    output = node.create_publisher(Odometry, 'odometry', qos.ODOMETRY)
    with contextlib.suppress(RCLError):  # SIGTERM ends the context, now and then in mid-publish
        while rclpy.ok():
            message = Odometry()
            message.header.stamp = messages.stamp(time.time_ns())
            message.pose.pose.orientation.w = 1.0
            output.publish(message)
            time.sleep(0.01)
    node.destroy_node()


class NoEngine:
    """Takes decoded frames and notes when."""

    camera_ids, frames_per_camera, model_name, trained = None, 4, 'none', True
    drafting_state = ''

    def __init__(self):
        self.times: list[tuple[float, float]] = []

    def warm_up(self, cameras):
        """Nothing to warm up."""

    def reset(self, reason):
        """Nothing to forget."""

    def step(self, frames, ego, nav_text='', history=()):
        """No plan."""
        self.times.append((frames.t0_ns / 1e9, time.time()))


def receive(transport: str, seconds: float):
    """Run the drive node, and print what it took as JSON."""
    import resource
    import threading

    import rclpy
    from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
    from rclpy.parameter import Parameter

    from flashdrive_ros.nodes.drive_node import DriveNode

    rclpy.init()
    engine = NoEngine()
    node = DriveNode(lambda model, config: engine, parameter_overrides=[
        Parameter('image_transport', value=transport)])
    executor = MultiThreadedExecutor(num_threads=5)
    executor.add_node(node)

    def spin():
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()
    threading.Thread(target=spin, daemon=True).start()

    def cpu_s():
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime
    give_up = time.monotonic() + 60
    while len(engine.times) < WARM_UP and time.monotonic() < give_up and (
            not engine.times or time.time() - engine.times[0][1] < 10):
        time.sleep(0.05)
    selector = node._inputs.selector
    begin, begin_s, before = len(engine.times), time.monotonic(), cpu_s()
    arrived = -selector.counts['sets']
    time.sleep(seconds)
    arrived += selector.counts['sets']
    taken, wall, cpu = engine.times[begin:], time.monotonic() - begin_s, cpu_s() - before
    counts = {c: t.counts['received'] for c, t in selector.tracks.items()}
    ages = np.array([now - t0 for t0, now in taken]) * 1e3 if taken else np.array([np.nan])
    print(json.dumps({
        'expected_sets': round(wall * 10), 'sets_arrived': arrived,
        'sets_decoded': len(taken), 'cpu_of_one_core': cpu / wall,
        'cpu_ms_per_set': cpu * 1e3 / max(len(taken), 1), 'images_received': counts,
        'age_ms_p50': float(np.percentile(ages, 50)), 'age_ms_p95': float(np.percentile(ages, 95)),
        'peak_memory_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)
    node.close()
    executor.shutdown(2.0)
    node.destroy_node()
    rclpy.try_shutdown()
    os._exit(0)  # the spinning thread may still be inside


def measure(transport: str, size: str, setting: str, seconds: float) -> dict:
    """One row."""
    environment = {**os.environ, **SETTINGS[setting]}
    common = [sys.executable, __file__, '--transport', transport, '--seconds', str(seconds),
              '--size', size]
    odometry, receiver, publisher = (
        subprocess.Popen([*common, '--role', role], env=environment, stdout=subprocess.PIPE,
                         text=True) for role in ('odometry', 'receive', 'publish'))
    try:
        received = json.loads(receiver.communicate(timeout=seconds + 120)[0].splitlines()[-1])
        sent = json.loads(publisher.communicate(timeout=60)[0].splitlines()[-1])
    finally:
        for process in (odometry, receiver, publisher):
            process.terminate()  # a killed one would leave its shared memory behind
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return {'transport': transport, 'dds': setting, 'size': size, **sent, **received}


def main():
    """Run all rows, or the part of one process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--seconds', type=float, default=20.0)
    parser.add_argument('--size', default=FULL, help=argparse.SUPPRESS)
    parser.add_argument('--out', default=str(HERE / 'results' / 'camera_throughput.json'))
    parser.add_argument('--role', choices=('publish', 'odometry', 'receive'),
                        help=argparse.SUPPRESS)
    parser.add_argument('--transport', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split('x'))
    if arguments.role == 'publish':
        publish(arguments.transport, arguments.seconds, width, height)
    elif arguments.role == 'odometry':
        publish_odometry()
    elif arguments.role == 'receive':
        receive(arguments.transport, arguments.seconds)
    else:
        from flashdrive_ros.evaluation.record import write_results
        rows = []
        for row in ROWS:
            rows.append({'load_before': os.getloadavg()[0], **measure(*row, arguments.seconds)})
            print(json.dumps(rows[-1]), flush=True)
        write_results(arguments.out, {'cameras': len(CAMERAS), 'rate_hz': 10, 'rows': rows})


if __name__ == '__main__':
    main()
