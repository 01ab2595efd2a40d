"""
Fuzz what comes in as images and messages: the properties of test/test_fuzz.py, with more inputs.

    python bench/fuzz.py --inputs 120000

They run in a process of their own, so that a crash of native code is one more result.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flashdrive_ros.evaluation.record import write_results  # noqa: E402

RESULT = ROOT / 'bench' / 'results' / 'fuzz.json'


def run(inputs: int) -> dict:
    """Counts of inputs, and of properties that failed or ended the process."""
    with tempfile.TemporaryDirectory() as folder:
        counts_file = Path(folder, 'counts.json')
        environment = {**os.environ, 'FLASHDRIVE_FUZZ_INPUTS': str(inputs),
                       'FLASHDRIVE_FUZZ_COUNTS': str(counts_file)}
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '--reruns', '0',
             'test/test_fuzz.py'], cwd=ROOT, env=environment, capture_output=True, text=True)
        counts = json.loads(counts_file.read_text()) if counts_file.is_file() else {}
    failed = int(next(iter(re.findall(r'(\d+) failed', done.stdout)), 0))
    crashes = failed + (done.returncode not in (0, 1))
    if crashes:
        print(done.stdout[-6000:], done.stderr[-2000:])
    return {'inputs': sum(counts.values()), 'crashes': crashes, 'by_kind': counts,
            'seconds': time.monotonic() - begin}


def main() -> int:
    """Fuzz, print, write the result; 0 without a crash."""
    parser = argparse.ArgumentParser(description=__doc__.strip().partition('\n')[0])
    parser.add_argument('--inputs', type=int, default=120_000)
    parser.add_argument('--out', type=Path, default=RESULT)
    args = parser.parse_args()
    result = write_results(args.out, run(args.inputs))
    print(f'{result["inputs"]} inputs, {result["crashes"]} crashes, {result["by_kind"]}')
    return 1 if result['crashes'] else 0


if __name__ == '__main__':
    sys.exit(main())
