"""The batched forward of training computes what the engine computes."""
import numpy as np
import pytest
import torch
from support.tiny_model import random_images, tiny_model

from flashdrive_ros.core import images
from flashdrive_ros.core.prompt import build_layout
from flashdrive_ros.core.reasoning import Reasoned
from flashdrive_ros.core.stream import PromptStream
from flashdrive_ros.core.trajectories import ActionContext, VelocityField
from flashdrive_ros.training.forward import (
    ActionAttention,
    Geometry,
    forward,
    slid,
    velocity,
)

pytestmark = pytest.mark.usefixtures('one_thread')
CAMERAS = (1, 6)
FRAMES = 4
NAVIGATION = ('Limit 50 km/h. Turn left in 40 m.', '')
REASON = ('Slow down because the light ahead is red.', 'Wait because our lane is free.')
QUESTION = 'Which light is ahead?'


@pytest.fixture(scope='module')
def rig():
    model, tokenizer = tiny_model()
    return model, tokenizer, Geometry(model, tokenizer, CAMERAS, (64, 96))


def engine_window(model, tokenizer, geometry, windows, navigation, reason, noisy, t,
                  question=None):
    """Feed windows of pictures [views, frames, 3, h, w] one after the other to the engine's path.

    Returns the hidden states of prompt suffix and text, and the velocity.
    """
    layout = build_layout(model.config, tokenizer, CAMERAS, geometry.layout.grids,
                          nav_text=navigation, question=question)
    stream = PromptStream(model, layout, 40)
    history = (np.arange(48) % 7 + model.config.prompt.history_token_start
               if question is None else None)
    for step, pictures in enumerate(windows):
        patches = images.to_patches(pictures.flatten(0, 1), model.config.vision)
        encoded = model.visual(patches, geometry.patch_grid)
        features = [encoded[v * FRAMES:(v + 1) * FRAMES] for v in range(len(CAMERAS))]
        hidden, _ = stream.prefill(features, 1 if step else FRAMES, history)
    ids = tokenizer.encode(reason)
    tail = torch.cat((hidden[-(layout.size - layout.suffix):], stream.extend(torch.tensor(ids))))
    context = ActionContext(stream, 1, Reasoned((), (stream.length,), (stream.length,)))
    return layout, tail, VelocityField(model, context)(noisy[None], t)[0]


def branch(tokenizer, layout, reason, width):
    ids = layout.token_ids[layout.suffix:].copy()
    if layout.history[1]:
        first = layout.history[0] - layout.suffix
        ids[first:first + 48] = np.arange(48) % 7 + 698
    ids = np.concatenate((ids, tokenizer.encode(reason)))
    row = np.zeros(width, np.int64)
    row[:len(ids)] = ids
    return torch.from_numpy(row), len(ids)


@pytest.mark.parametrize('steps', [1, 4])
def test_batched_windows_equal_the_engine_one_by_one(rig, steps):
    model, tokenizer, geometry = rig
    assert model.config.prompt.history_token_start == 698
    generator = torch.Generator().manual_seed(5)
    noisy = torch.randn(2, 64, 2, generator=generator)
    t = torch.tensor([0.25, 0.5])
    film = random_images(2, len(CAMERAS), FRAMES + steps - 1)
    expected, plans, asks = [], [], []
    for b in range(2):
        windows = [film[b, :, s:s + FRAMES] for s in range(steps)]
        layout, tail, v = engine_window(model, tokenizer, geometry, windows, NAVIGATION[b],
                                        REASON[b], noisy[b], t[b])
        ask_layout, ask_tail, _ = engine_window(model, tokenizer, geometry, windows, '', '<1><2>',
                                                noisy[b], t[b], QUESTION)
        expected.append((tail, ask_tail, v))
        plans.append(branch(tokenizer, layout, REASON[b], 112))
        asks.append(branch(tokenizer, ask_layout, '<1><2>', 24))
    plan_ids, ask_ids = (torch.stack([ids for ids, _ in rows]) for rows in (plans, asks))
    with torch.no_grad():
        result = forward(model, geometry, film[:, :, :FRAMES],
                         (plan_ids, ask_ids) if steps == 1 else ())
        for step in range(1, steps):
            newest = film[:, :, step + FRAMES - 1:step + FRAMES]
            result = forward(model, geometry, newest,
                             (plan_ids, ask_ids) if step == steps - 1 else (),
                             slid(result.keys, geometry))
        lengths = torch.tensor([n for _, n in plans])
        attend = ActionAttention(geometry, result.keys, lengths, 112, 1, 64)
        predicted = velocity(model, attend, noisy[:, None], t[:, None])[:, 0]
    for b, (tail, ask_tail, v) in enumerate(expected):
        logits = model.lm_head(result.hidden[b])
        for mine, theirs in ((logits[:plans[b][1]], model.lm_head(tail)),
                             (logits[112:112 + asks[b][1]], model.lm_head(ask_tail))):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(predicted[b], v, rtol=1e-4, atol=1e-4)


def test_a_branch_added_later_equals_one_computed_at_once(rig):
    model, _, geometry = rig
    film = random_images(2, len(CAMERAS), FRAMES, seed=3)
    ids = torch.randint(700, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        at_once = forward(model, geometry, film, (ids,))
        window = forward(model, geometry, film)
        later = forward(model, geometry, None, (ids,), window.keys)
    torch.testing.assert_close(at_once.hidden, later.hidden, rtol=1e-5, atol=1e-5)


def test_draws_of_noise_do_not_see_each_other(rig):
    model, _, geometry = rig
    film = random_images(1, len(CAMERAS), FRAMES, seed=4)
    ids = torch.randint(700, (1, 9), generator=torch.Generator().manual_seed(1))
    noisy = torch.randn(1, 3, 64, 2, generator=torch.Generator().manual_seed(2))
    t = torch.tensor([[0.1, 0.5, 0.9]])
    with torch.no_grad():
        keys = forward(model, geometry, film, (ids,)).keys
        visible = torch.tensor([7])
        together = velocity(model, ActionAttention(geometry, keys, visible, 9, 3, 64), noisy, t)
        alone = velocity(model, ActionAttention(geometry, keys, visible, 9, 1, 64),
                         noisy[:, 1:2], t[:, 1:2])
    torch.testing.assert_close(together[:, 1:2], alone, rtol=1e-4, atol=1e-5)


