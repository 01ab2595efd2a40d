"""Plan features over real DDS, heard by another process."""
import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('flashdrive_ros.msg')

from support.drive_rig import T0, jpeg, rig
from support.engine_double import EngineDouble

from flashdrive_ros.core.types import PlanFeatures
from flashdrive_ros.nodes.drive_node import load_engine

HERE = Path(__file__).resolve().parent
PROFILE = HERE.parent / 'config' / 'large_images.xml'


class Feeding(EngineDouble):
    """Its plans come with the `features` that it holds."""

    features = None

    def step(self, *args, **more):
        """Plan."""
        plan = super().step(*args, **more)
        return plan and replace(plan, features=self.features)


def made(tokens=6, layers=2, hidden=8):
    values = np.random.default_rng(0).normal(size=(layers, tokens, hidden)).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    valid = np.arange(tokens) < tokens - 1
    return PlanFeatures(bits, tuple(range(1, layers + 1)), np.arange(tokens, dtype=np.uint32) + 70,
                        np.arange(tokens, dtype=np.int32) - 2,
                        np.arange(tokens, dtype=np.uint8) % 3, valid, dtype='bfloat16',
                        decode_path='direct')


def floats(features):
    return (features.values.astype(np.uint32) << 16).view(np.float32)


@pytest.fixture
def listener():
    """Start the other process and give a function that waits for what it says next."""
    child = subprocess.Popen([sys.executable, HERE / 'hear_features.py'], cwd=HERE, text=True,
                             stdout=subprocess.PIPE, env={
                                 **os.environ, 'FASTDDS_DEFAULT_PROFILES_FILE': str(PROFILE)})
    said = queue.Queue()
    threading.Thread(target=lambda: [said.put(json.loads(line)) for line in child.stdout],
                     daemon=True).start()
    yield lambda: said.get(timeout=60)
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()


def heard_by(r):
    return r.until(lambda: r.car.node.count_subscribers('drive/features') > 0, 60)


def test_another_process_gets_the_features_of_each_plan(listener):
    engine = Feeding()
    with rig(lambda *_: engine, parameters={'feature_budget_mb': 1.0}) as r:
        r.started()
        assert heard_by(r)
        engine.features = made()
        r.plan_at(0)
        heard, plan = listener(), r.car.heard['plan'][0]
        assert (heard['plan_id'], heard['stamp_ns'], heard['model'], heard['path']) == (
            plan.plan_id, T0, 'double', 'direct')
        true = floats(engine.features)[:, :5]
        assert heard['states'] == [2, 1, 6, 8] and heard['last'] == [1, 5, 8]
        assert heard['sum'] == pytest.approx(float(true.sum()), rel=1e-5)
        assert heard['mask'] == [[True] * 5 + [False]]
        assert heard['segments'] == [0, 1, 2, 0, 1, 2]
        assert heard['tokens'] == list(range(70, 76)) and heard['positions'] == [*range(-2, 4)]
        engine.features = made(tokens=400, layers=36, hidden=64)  # 1.8 MB
        r.plan_at(100)
        assert r.until(lambda: r.car.values('plan').get('last problem')), r.story()
        told = r.car.values('plan')['last problem']
        for part in ('1.8 MB', '36 layers, 400 tokens, 64 channels', 'feature_budget_mb = 1',
                     'config/large_images.xml'):
            assert part in told
        engine.features = made(tokens=7)
        r.plan_at(200)
        assert len(listener()['tokens']) == 7  # nothing of the refused plan came between
        engine.features = None
        r.plan_at(300)
        assert len(r.car.heard['plan']) == 4


def test_large_features_cross_the_border(listener):
    engine = Feeding()
    with rig(lambda *_: engine) as r:
        r.started()
        assert heard_by(r)
        engine.features = made(tokens=400, layers=3, hidden=2560)  # 5.9 MB
        r.plan_at(0)
        heard = listener()
        assert heard['states'] == [3, 1, 400, 2560]
        assert heard['sum'] == pytest.approx(float(floats(engine.features)[:, :399].sum(
            dtype=np.float64)), abs=1.0)


def test_the_shipped_model_feeds_another_process(listener):
    settings = {'model': 'small', 'device': 'cpu', 'max_new_tokens': 4, 'flow_steps': 1,
                'timeout_s': 60.0, 'features': 'plan', 'feature_layers': [-2, -1]}
    with rig(load_engine, cameras=(0, 1, 2, 6), parameters=settings) as r:
        assert r.until(lambda: r.drive.health.engine_state in ('ready', 'failed'), 240)
        r.started()
        assert heard_by(r)
        r.car.drive_on(-50, 0)
        r.car.see(0, data=jpeg(size=(320, 180)))
        assert r.until(lambda: r.car.heard['plan'], 240), r.story()
        heard, plan = listener(), r.car.heard['plan'][0]
        assert heard['plan_id'] == plan.plan_id and len(heard['states']) == 4
        assert set(heard['segments']) == {0, 1}
        text = [t for t, s in zip(heard['tokens'], heard['segments']) if s == 1]
        assert text == list(plan.reasoning.token_ids)
