"""Several trajectories: shared or separate reasonings, guidance, and what the expert sees."""
import numpy as np
import pytest
import torch
from support.golden import DATA
from support.tiny import drive, ego_history, same, tiny_engine, tiny_model

from flashdrive_ros.core import engine, trajectories
from flashdrive_ros.core.action import integrate
from flashdrive_ros.core.branches import BranchTails, shared_prefix
from flashdrive_ros.core.config import EngineConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.reasoning import Reasoned, follow, reason_separately
from flashdrive_ros.core.sampling import choose, probabilities
from flashdrive_ros.core.trajectories import ActionContext, VelocityField
from flashdrive_ros.core.types import GRID_NS, CameraFrame, FrameSet, Reasoning

SAMPLES = 3
# One flow step where results are compared: random weights amplify roundings from step to step.


@pytest.fixture(scope='module')
def model():
    return tiny_model()


@pytest.fixture
def prompted(model):
    """A stream after three windows, with the last hidden state of its prompt."""
    made = tiny_engine(model, max_new_tokens=12)
    drive(made, [1, 2, 3], nav_text='Turn left')
    stream = made.streams['guided']
    stream.truncate(stream.layout.size)
    ids = torch.from_numpy(stream.layout.token_ids[-1:])
    return made, stream, ids


def repeat_last(stream, ids):
    """Hidden state of the last prompt token, computed again in its place."""
    stream.truncate(stream.layout.size - 1)
    return stream.extend(ids)[-1]


def test_shared_prefix_equals_attention_to_copies():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator)
    q, prefix = random(3, 4, 5, 8), (random(2, 7, 8), random(2, 7, 8))
    own = random(3, 2, 6, 8), random(3, 2, 6, 8)
    mask = torch.where(torch.rand(3, 1, 10, 6, generator=generator) < 0.3, -torch.inf, 0.0)
    mask[..., 0] = 0
    keys, values = (torch.cat((p.expand(3, -1, -1, -1), o), 2).repeat_interleave(2, 1)
                    for p, o in zip(prefix, own))
    grouped = torch.cat((torch.zeros(3, 1, 10, 7), mask), -1).view(3, 1, 2, 5, 13)
    full = grouped.expand(3, 2, 2, 5, 13).reshape(3, 4, 5, 13)
    expected = torch.nn.functional.scaled_dot_product_attention(q, keys, values, full)
    with torch.no_grad():  # the CPU kernel
        torch.testing.assert_close(shared_prefix(q, *prefix, *own, mask), expected)
    q.requires_grad_()  # written out, so that gradients are right
    ours = shared_prefix(q, *prefix, *own, mask)
    torch.testing.assert_close(ours, expected)
    (wanted,) = torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(
        q, keys, values, full).square().sum(), q)
    torch.testing.assert_close(torch.autograd.grad(ours.square().sum(), q)[0], wanted)


def test_separate_reasonings_as_a_batch_equal_one_by_one(prompted):
    made, stream, last = prompted
    config = EngineConfig(num_trajectories=SAMPLES, max_new_tokens=10, temperature=3.0, top_p=1.0)
    generator = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        hidden = repeat_last(stream, last)
        together = reason_separately(stream, made.tokenizer, hidden, config, generator)
        assert len({text.token_ids for text in together.texts}) == SAMPLES
        noise = torch.randn(SAMPLES, 64, 2, generator=generator)
        joint = integrate(
            VelocityField(made.model, ActionContext(stream, SAMPLES, together)), noise, 1)
        for k, text in enumerate(together.texts):
            repeat_last(stream, last)
            ids = torch.tensor(text.token_ids)
            forwarded = together.visible[k] - stream.layout.size
            for token in ids[:forwarded]:
                stream.extend(token[None])
            alone = Reasoned((text,), (together.first_action_slot[k],), (stream.length,))
            own = integrate(VelocityField(made.model, ActionContext(stream, 1, alone)),
                       noise[k:k + 1], 1)
            torch.testing.assert_close(joint[k:k + 1], own, rtol=0, atol=1e-5)


def test_each_token_of_a_batch_has_the_logits_it_has_alone(prompted):
    made, stream, last = prompted
    model = made.model
    rows = torch.randint(0, 500, (SAMPLES, 6), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        hidden = repeat_last(stream, last)
        assert hidden.shape == (32,)
        one_at_a_time = BranchTails(stream.cache, SAMPLES, 6)
        steps = []
        for t in range(6):
            steps.append(model.language_model(model.embed_tokens(rows[:, t])[:, None],
                                              one_at_a_time.attend)[:, 0])
            one_at_a_time.length += 1
        at_once = BranchTails(stream.cache, SAMPLES, 6)
        block = model.language_model(model.embed_tokens(rows), at_once.attend)
        alone = []
        for row in rows:
            stream.truncate(stream.layout.size)
            alone.append(stream.extend(row))
    torch.testing.assert_close(torch.stack(steps, 1), torch.stack(alone), rtol=0, atol=2e-6)
    torch.testing.assert_close(block, torch.stack(alone), rtol=0, atol=2e-6)


def test_one_shared_reasoning_serves_all_samples_like_copies_of_it(prompted):
    made, stream, last = prompted
    text = Reasoning('', (5, 6, 7))
    noise = torch.randn(SAMPLES, 64, 2, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        repeat_last(stream, last)
        shared = follow(stream, Reasoned((text,), (), ()))
        assert shared.tails is None
        one = integrate(
            VelocityField(made.model, ActionContext(stream, SAMPLES, shared)), noise, 1)
        copies = follow(stream, Reasoned((text,) * SAMPLES, (), ()))
        assert copies.tails is not None
        many = integrate(
            VelocityField(made.model, ActionContext(stream, SAMPLES, copies)), noise, 1)
    torch.testing.assert_close(one, many, rtol=0, atol=1e-5)


def test_guidance_of_weight_one_is_none(model):
    plain, guided = tiny_engine(model), tiny_engine(model, nav_guidance_weight=1.0)
    for a, b in zip(drive(plain, [1, 2], nav_text='Turn left'),
                    drive(guided, [1, 2], nav_text='Turn left')):
        assert same(a, b)


@pytest.mark.parametrize('separate', [False, True])
def test_guidance_of_weight_zero_acts_as_if_nothing_was_said_about_the_way(model, separate):
    """The unguided prompt after the same reasoning: its velocity alone counts."""
    settings = {'num_trajectories': SAMPLES, 'separate_reasonings': separate}
    guided = tiny_engine(model, nav_guidance_weight=0.0, **settings)
    plan = drive(guided, [1], nav_text='Turn left')[0]
    silent = tiny_engine(model, **settings)
    texts = Reasoned(plan.all_reasonings, (), ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, 'reason', lambda stream, *_: follow(stream, texts))
        patch.setattr(engine, 'reason_separately', lambda stream, *_: follow(stream, texts))
        patch.setattr(trajectories.torch, 'randn', _same_noise(guided, SAMPLES))
        unsaid = drive(silent, [1])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trajectories.torch, 'randn', _same_noise(guided, SAMPLES))
        guided.reset('again')
        said = drive(guided, [1], nav_text='Turn left')[0]
    assert said.all_reasonings == plan.all_reasonings
    np.testing.assert_allclose(said.xyz, unsaid.xyz, atol=1e-4)


def _same_noise(made, samples):
    noise = torch.Generator().manual_seed(7)
    fixed = torch.empty(samples, 64, 2).normal_(generator=noise)
    return lambda *shape, **keywords: fixed.clone()


def test_guided_streams_keep_up_while_streaming(model):
    made = tiny_engine(model, nav_guidance_weight=1.5, num_trajectories=2)
    plans = drive(made, [1, 2, 3], nav_text='Turn left')
    assert [p.window.mode for p in plans] == ['prefill', 'streaming', 'streaming']
    silent = drive(made, [4])[0]
    assert silent.window.reason.startswith('prompt length changed')
    assert 'unguided' not in made.streams
    again = drive(made, [5], nav_text='Turn left')[0]
    assert again.window.mode == 'prefill'
    assert all(p.is_finite for p in (*plans, silent, again))


def test_trajectory_tokens_and_pad_rows_are_never_said(model):
    made = tiny_engine(model, max_new_tokens=40, temperature=5.0, top_p=1.0)
    prompt = model.config.prompt
    said = drive(made, [1, 2])[1].reasoning.token_ids
    bins = range(prompt.traj_token_start_idx, prompt.traj_token_start_idx + prompt.traj_vocab_size)
    assert not set(said) & set(bins) and max(said) < model.config.vocab_size


def test_nucleus_holds_the_likeliest_tokens_up_to_its_mass():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    kept = probabilities(logits, temperature=1.0, top_p=0.7)
    torch.testing.assert_close(kept, torch.tensor([0.625, 0.375, 0.0, 0.0]))
    torch.testing.assert_close(probabilities(logits, 1.0, 1.0), logits.exp())
    sharp = probabilities(logits, temperature=0.5, top_p=1.0)
    torch.testing.assert_close(sharp, logits.exp() ** 2 / (logits.exp() ** 2).sum())
    tiny = probabilities(logits, 1.0, 1e-6)
    torch.testing.assert_close(tiny, torch.tensor([1.0, 0, 0, 0]))
    assert int(choose(logits, EngineConfig(greedy=True), torch.zeros(()))) == 0


def test_reasoning_without_an_end_token_still_gives_a_plan(model):
    made = tiny_engine(model, max_new_tokens=3, temperature=5.0, top_p=1.0, seed=4)
    plan = drive(made, [1])[0]
    assert plan.reasoning.stop_reason == 'length' and len(plan.reasoning.token_ids) == 3
    assert plan.reasoning.text == '' and plan.is_finite


def test_engine_reproduces_a_golden_plan_from_camera_frames(monkeypatch):
    """The whole engine, fed like a node feeds it, against the released pipeline's trajectory."""
    golden = np.load(DATA / 'golden/alpamayo1_5/cases/c2f4_cfgnav_n2.npz')
    settings = EngineConfig(device='cpu', greedy=True, num_trajectories=2, max_new_tokens=16,
                            nav_guidance_weight=1.5, noise_temperature=0.6)
    made = Engine.from_checkpoint(str(DATA / 'golden/alpamayo1_5/checkpoint'), settings)
    noise = torch.from_numpy(golden['noise_x0'])
    monkeypatch.setattr(engine, 'draw_noise', lambda *_: noise)
    cameras = golden['camera_indices'].tolist()
    sets = [FrameSet(t * GRID_NS, {
        c: CameraFrame(np.ascontiguousarray(golden['images_u8'][v, t].transpose(1, 2, 0)),
                       t * GRID_NS) for v, c in enumerate(cameras)}) for t in range(4)]
    history = ego_history(3 * GRID_NS)
    object.__setattr__(history, 'xyz', golden['ego_history_xyz'][0, 0])
    object.__setattr__(history, 'rot', golden['ego_history_rot'][0, 0])
    plan = made.step(sets[-1], history, 'Turn right in 9m', history=sets[:-1])
    assert plan.window.frames_known == 4 and plan.window.images_encoded == 8
    np.testing.assert_allclose(plan.xyz, golden['pred_xyz'][0, 0], atol=1e-3)
    said = golden['generated_ids'][0].tolist()
    assert list(plan.reasoning.token_ids) == said[:-1]
    assert plan.reasoning.text == '� selfence'

