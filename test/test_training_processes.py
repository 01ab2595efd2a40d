"""Several training processes share their gradients (needs accelerate; started by torchrun)."""
import json
import os
import subprocess
import sys

import pytest
from support.tiny_model import write_tiny_checkpoint

from flashdrive_ros.training.parallel import Workgroup

OPTIONS = {
    'steps': 2, 'batch': 2, 'warmup-steps': 1, 'image': '96x64', 'clip-frames': 6,
    'validation-frames': 6, 'log-every': 1, 'clips-per-episode': 2, 'episode-seconds': 12,
    'first-clips': 1, 'store-gib': 0.01, 'device': 'cpu', 'validation-clips': 0, 'draws': 2}


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path):
    pytest.importorskip('accelerate')
    model = write_tiny_checkpoint(tmp_path / 'model')
    subprocess.run(
        [sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node', '2', '-m',
         'flashdrive_ros.training', 'run', '--model', str(model), '--out', str(tmp_path / 'out'),
         *(f'--{name}={value}' for name, value in OPTIONS.items())],
        check=True, timeout=600, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    config = json.loads((tmp_path / 'out' / 'checkpoint' / 'config.json').read_text())
    assert config['flashdrive']['training']['windows'] == 2 * 2 * 2


def test_several_processes_without_accelerate_are_refused(monkeypatch):
    monkeypatch.setenv('WORLD_SIZE', '2')
    monkeypatch.setitem(sys.modules, 'accelerate', None)
    with pytest.raises(RuntimeError, match='pip install accelerate'):
        Workgroup('cpu')
