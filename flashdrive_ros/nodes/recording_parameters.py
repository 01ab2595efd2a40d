"""The parameters of the recorder and the replay node."""
from __future__ import annotations

from .parameters import ParameterSpec as P

RECORDER = (
    P('bag', 'string', 'bag', 'folder to write; it must not exist'),
    P('storage', 'string', 'mcap', 'format of the bag', choices=('mcap', 'sqlite3')),
    P('topics', 'string[]', [], 'regular expressions: a topic is recorded when one matches its '
      'whole name; empty: all but annotated images, which are drawn only for subscribers'),
    P('exclude', 'string[]', ['/parameter_events', '.*/_.*'],
      'regular expressions of topics to leave out'),
    P('prefer_compressed', 'bool', True,
      'leave out a raw image topic that is also published compressed'),
    P('queue_mb', 'int', 256, 'messages beyond this wait are dropped and counted, MB', 1, 1 << 16),
)

REPLAY = (
    P('source', 'string', '', 'video file, or rosbag2 (folder, .mcap or .db3)'),
    P('rate', 'float', 1.0, 'speed; 0: lock-step, as fast as plans come', 0.0, 100.0),
    P('loop', 'bool', False, 'begin again at the end'),
    P('start_s', 'float', 0.0, 'begin this far into the recording, s', 0.0, 1e9),
    P('duration_s', 'float', 0.0, 'end after this much of the recording, s; 0: all of it',
      0.0, 1e9),
    P('topics', 'string[]', [], "regular expressions of the bag's topics to publish; empty: all "
      'inputs (images, camera info, odometry, tf, texts, clock), no outputs'),
    P('remap', 'string[]', [], 'topic names to change, each as from:=to'),
    P('stamps', 'string', 'auto', 'header stamps as recorded, or moved to the present; auto: keep '
      'for a bag, now for a video', choices=('auto', 'keep', 'now')),
    P('publish_clock', 'bool', False, 'publish the recorded time on /clock'),
    P('wait_for_subscribers', 'int', 1, 'begin when an image topic has this many', 0, 100),
    P('wait_s', 'float', 30.0, 'begin without them after this time, s', 0.0, 1e9),
    P('plan_topic', 'string', 'drive/plan', 'lock-step: where plans come'),
    P('plan_timeout_s', 'float', 10.0, 'lock-step: go on without a plan after this time, s',
      0.01, 1e9),
    P('history_s', 'float', 1.5, 'lock-step: no plan is awaited for windows with less odometry '
      'than this before them, s', 0.0, 100.0),
    P('assumed_speed_mps', 'float', 25.0, 'video: constant speed that odometry reports, m/s',
      -100.0, 100.0),
    P('ego_motion', 'string', '', 'video: folder of pose arrays (comma2k19 layout) to take '
      'odometry from'),
    P('video_rate_hz', 'float', 10.0, 'video: frames per second to publish; 0: all', 0.0, 1e3),
    P('jpeg_quality', 'int', 90, 'video: quality of the published JPEG images', 1, 100),
)
