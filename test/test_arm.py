"""The robot arm: kinematics, cameras, expert, what the VLM says, plans and results."""
import json

import numpy as np
import pytest
import torch

from flashdrive_ros.arm import train_vlm, vlm
from flashdrive_ros.arm.head import ActionHead
from flashdrive_ros.arm.kinematics import ReachError, joints_of, tip_of
from flashdrive_ros.arm.plans import SUBTASK, TRAJECTORY, Planner
from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.drafter import Drafter, DrafterConfig
from flashdrive_ros.core.primitives.layouts import SLOT_KINDS
from flashdrive_ros.core.primitives.reading import Reader
from flashdrive_ros.core.tokenizer import Tokenizer
from flashdrive_ros.evaluation.heads_results import merge


def test_joints_bring_the_tip_where_it_is_wanted():
    rng = np.random.default_rng(0)
    for point in rng.uniform((0.2, -0.2, 0.02), (0.35, 0.2, 0.2), (20, 3)):
        assert np.allclose(tip_of(joints_of(point)), point)
        assert np.isclose(joints_of(point)[1:].sum(), -np.pi / 2)  # the tool hangs down


def test_a_point_out_of_reach_is_named():
    with pytest.raises(ReachError, match=r'\(0\.900, 0\.000, 0\.100\)'):
        joints_of((0.9, 0, 0.1))


@pytest.mark.parametrize('task', ['pick', 'place', 'open', 'close'])
def test_the_expert_does_every_task_and_nothing_does_none(task):
    pytest.importorskip('mujoco')
    from flashdrive_ros.arm.expert import Expert
    from flashdrive_ros.arm.simulator import LIMIT_STEPS, ArmSimulator
    sim = ArmSimulator()
    for seed in range(3):
        sim.reset(task, seed)
        for _ in range(20):
            sim.act(sim.joints, sim.gripper)
        assert not sim.success
        sim.reset(task, seed)
        expert = Expert(sim)
        while not sim.success and sim.steps < LIMIT_STEPS[task]:
            sim.act(*expert.act())
        assert sim.success, (task, seed)


def test_the_tip_of_the_model_is_that_of_the_kinematics():
    pytest.importorskip('mujoco')
    from flashdrive_ros.arm.simulator import ArmSimulator
    sim = ArmSimulator()
    sides = [sim.data.body(f'finger_{s}').xpos for s in ('left', 'right')]
    hand = sim.data.body('hand')
    along = hand.xmat.reshape(3, 3)[:, 0] * 0.02
    assert np.allclose(np.mean(sides, 0) + along, sim.tip, atol=1e-6)


def test_projection_finds_the_can_in_the_main_picture():
    pytest.importorskip('mujoco')
    from flashdrive_ros.arm.cameras import MAIN_CAMERA
    from flashdrive_ros.arm.simulator import ArmSimulator
    sim = ArmSimulator()
    for seed in range(4):
        sim.reset('pick', seed)
        colour = sim.model.geom('can0').rgba[:3]
        x, y = (MAIN_CAMERA.shares(sim.can[None])[0] * 96).astype(int)
        seen = sim.observe().main[y, x].astype(float)
        seen /= np.linalg.norm(seen)
        assert seen @ colour / np.linalg.norm(colour) > 0.98
        assert np.allclose(MAIN_CAMERA.from_optical(MAIN_CAMERA.to_optical(sim.can[None])),
                           sim.can)


def test_an_unknown_task_is_refused():
    pytest.importorskip('mujoco')
    from flashdrive_ros.arm.simulator import ArmSimulator
    with pytest.raises(ValueError, match="'dance'.*pick, place, open, close"):
        ArmSimulator().reset('dance', 0)


@pytest.fixture(scope='module')
def planner(tmp_path_factory):
    folder = vlm.write_shape(tmp_path_factory.mktemp('arm'))
    config, file = checkpoint.read_config(folder)
    tokenizer = Tokenizer.from_file(file, config)
    from flashdrive_ros.core.model import Alpamayo
    from flashdrive_ros.training.initialise import initialise
    model = Alpamayo(config)
    initialise(model, tokenizer, 0)
    model = model.requires_grad_(False).eval()
    drafter = Drafter.random(DrafterConfig.for_target(
        config, num_hidden_layers=1, target_layer_ids=(1, 2), window_context=True,
        slot_kinds=SLOT_KINDS), 0).requires_grad_(False)
    return Planner(model, tokenizer, drafter)


def test_an_answer_is_read_back_to_a_centimetre(planner):
    rng = np.random.default_rng(1)
    uv, metres = rng.uniform(0, 1, (10, 2)), rng.uniform((-1, -1, 0), 1, (10, 3))
    uv[3] = np.nan
    for form, size in (('3d', 32), ('2d3d', 54)):
        ids = planner.tokenizer.encode(vlm.answer('Lift the red can.', form, uv, metres))
        (block,), problems = Reader(planner.tokenizer).read(ids)
        assert not problems and block.layout.size == size
        assert np.abs(block.values[:, -3:] - metres).max() <= 0.005 + 1e-9
        if form == '2d3d':
            assert np.isnan(block.values[3, :2]).all()


def test_a_flash_plan_is_whole(planner):
    """From a start token on, the block has its declared size whatever the draft."""
    schema = planner.schemas['2d3d']
    seen = torch.randint(0, 256, (2, 2, 1, 3, 96, 96), dtype=torch.uint8)
    from flashdrive_ros.training.forward import encode
    texts = [[*planner.tokenizer.encode(vlm.asked('Open the drawer.', '2d3d')), schema.start],
             planner.tokenizer.encode('Lift.')]
    done = planner._drafted(texts, encode(planner.model, planner.geometry, seen), schema)
    assert schema.read(done[0][len(texts[0]) - 1:])[1] == 54
    assert done[0][-1] == planner.end and done[1] == texts[1]


def test_features_of_a_plan_do_not_depend_on_the_batch(planner):
    seen = torch.randint(0, 256, (3, 2, 1, 3, 96, 96), dtype=torch.uint8)
    told = ['Open the drawer.', 'Pick up the red can.', 'Close the drawer.']
    many = planner.plans(seen, told, 'text', True)
    one = planner.plans(seen[1:2], told[1:2], 'text', True)
    there = one.segments[0] >= 0
    n = len(there)
    assert torch.equal(many.segments[1, :n][there], one.segments[0][there])
    assert torch.allclose(many.features[1, :n][there], one.features[0][there], atol=1e-4)
    assert (many.keep(TRAJECTORY).segments == -1).all()
    assert (many.keep(SUBTASK).segments >= 0).any()


def test_absent_features_do_not_change_an_action():
    torch.manual_seed(0)
    head = ActionHead(8).eval()
    segments = torch.tensor([[0, 1, 2, -1]])
    features, state, age = torch.randn(1, 4, 8), torch.zeros(1, 5), torch.zeros(1).long()
    chunks = []
    for value in (0.0, 5.0):
        features[0, 3] = value
        memory = head.memory((features, segments), None)
        chunks.append(head.act(state, age, memory, torch.Generator().manual_seed(0)))
    assert torch.equal(*chunks)
    features[0, 1] += 5
    other = head.act(state, age, head.memory((features, segments), None),
                     torch.Generator().manual_seed(0))
    assert chunks[0].shape == (1, 20, 5) and not torch.equal(chunks[0], other)


def test_soft_labels_prefer_neighbours():
    logits = torch.full((3, 2000), -5.0)
    for row, at in enumerate((500, 502, 700)):
        logits[row, 100 + at] = 5
    losses = [float(train_vlm.loss_of(r[None], torch.tensor([600]), 100)) for r in logits]
    assert losses[0] < losses[1] < losses[2]


def test_results_of_arm_and_driving_stay_side_by_side(tmp_path):
    path = tmp_path / 'heads.json'
    merge(path, 'driving', {'plan': {'ade_3s': 1.5}})
    merge(path, 'arm', {'flash_3d': {'success': 0.5, 'episodes': 100}}, seeds=[1])
    data = json.loads(path.read_text())
    assert data['driving'] == {'plan': {'ade_3s': 1.5}}
    assert data['arm']['flash_3d']['success'] == 0.5
    assert data['made']['arm']['seeds'] == [1] and 'commit' in data['made']['driving']
    with pytest.raises(ValueError, match="'legs'"):
        merge(path, 'legs', {})
