"""Training a drafter: blocks, packed attention, the model's own texts, and whole small runs."""
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.tiny_clips import CAMERAS, tiny_maker
from support.tiny_model import tiny_model, write_tiny_checkpoint

from flashdrive_ros.core import drafter as drafters
from flashdrive_ros.core import images
from flashdrive_ros.core.config import CheckpointError, EngineConfig
from flashdrive_ros.core.drafter import Drafter, DrafterConfig
from flashdrive_ros.core.primitives.layouts import SLOT_KINDS, trajectory_2d_3d
from flashdrive_ros.core.primitives.reading import Reader
from flashdrive_ros.core.primitives.writer import Writer
from flashdrive_ros.core.prompt import build_layout
from flashdrive_ros.core.reasoning import Generation, write
from flashdrive_ros.core.stream import PromptStream
from flashdrive_ros.training import blocks as packing
from flashdrive_ros.training.blocks import Blocks, Branches, blocks_at, pack, primitive_blocks
from flashdrive_ros.training.decoding import greedy
from flashdrive_ros.training.drafter_settings import DrafterSettings
from flashdrive_ros.training.drafter_trainer import DrafterTrainer
from flashdrive_ros.training.drafter_validation import proposals, simulated_rounds
from flashdrive_ros.training.drafting import PLAN, SAID, DraftLoss, Rooms, Target
from flashdrive_ros.training.forward import Geometry
from flashdrive_ros.training.losses import IGNORE
from flashdrive_ros.training.questions import LAYOUTS
from flashdrive_ros.training.store import ClipStore

pytestmark = pytest.mark.usefixtures('one_thread')
ROOMS = Rooms(96, 64, 24, 128, 40)


class Rig:
    """The tiny model as a target, a random drafter, and two windows that it looked at."""

    def __init__(self, scale=6.0):
        self.model, self.tokenizer = tiny_model()
        self.model.lm_head.weight.data *= scale  # likeliest tokens by a margin
        maker = tiny_maker()
        self.store = ClipStore(maker.fields, self.model.config, 2, torch.device('cpu'))
        for clip, _ in zip(maker.clips(0), range(2)):
            self.store.add(clip)
        self.geometry = Geometry(self.model, self.tokenizer, CAMERAS, self.store.size)
        config = DrafterConfig.for_target(
            self.model.config, target_layer_ids=(0, 2), context_len=5, window_context=True,
            slot_kinds=SLOT_KINDS)
        self.drafter = Drafter.random(config, 0)
        self.target = Target(self.model, self.tokenizer, self.geometry, self.drafter)
        self.loss = DraftLoss(self.drafter, self.target)
        rows = torch.arange(2)
        self.batch = self.store.batch(rows, rows)
        self.asked = self.store.asked(rows, rows, torch.arange(6).expand(2, -1))
        self.material = self.target.study(self.batch, self.asked, ROOMS, greedy)


@pytest.fixture(scope='module')
def rig():
    return Rig()


def answer(rig, text):
    """A branch of a two-token question and this answer, and another row that is empty."""
    ids = [5, 6, *rig.tokenizer.encode(text)]
    table = torch.zeros(2, len(ids) + 3, dtype=torch.long)
    table[0, :len(ids)] = torch.tensor(ids)
    return Branches(table, (0,), torch.tensor([[len(ids)], [2]]), torch.tensor([[2], [2]]), 7)


def test_every_primitive_of_an_answer_is_a_block_of_its_full_size(rig):
    text = ('<|object_ref_start|>car<|object_ref_end|><|box_start|><1><2><3><4><|box_end|>'
            '<|object_ref_start|>truck<|object_ref_end|><|box_start|><|none|><|box_end|>'
            '<tool_call>trajectory_2d_3d 2</tool_call><|trajectory_2d_start|><1><2>'
            '<|none|><|none|><|trajectory_2d_end|><|trajectory_3d_start|><5><6><7><8><|trajectory_3d_end|>'
            '<|answer_end|>')
    branches = answer(rig, text)
    table = torch.zeros(2, 1, 6, 4, dtype=torch.int32)
    for k, block in enumerate(Reader(rig.tokenizer).read(branches.ids[0, 2:].tolist())[0]):
        table[0, 0, k] = torch.tensor([block.start, block.layout.size, len(block.token_ids),
                                       0 if block.layout.is_box else LAYOUTS.index(
                                           trajectory_2d_3d(8))])
    found = primitive_blocks(table, branches, 0)
    assert found.size.tolist() == [[6, 6, 12, 0, 0, 0], [0] * 6]
    assert found.learned[0, :3].tolist() == [6, 3, 12]
    starts = [rig.tokenizer.id(f'{name}_start') for name in ('box', 'box', 'trajectory_2d')]
    assert branches.ids[0, found.anchor[0, :3]].tolist() == starts
    packed = pack(found, 32, branches, rig.drafter.config)
    label = packed.label[0].tolist()
    ids = branches.ids[0].tolist()
    for first, size, anchor in ((0, 6, found.anchor[0, 0]), (6, 3, found.anchor[0, 1]),
                                (12, 12, found.anchor[0, 2])):
        assert label[first:first + size] == [IGNORE, *ids[anchor + 1:anchor + size]]
    assert label[9:12] == [IGNORE] * 3 and label[24:] == [IGNORE] * 8
    assert set(packed.weight[0][packed.label[0] != IGNORE].tolist()) == {1.0}
    assert packed.whole[0, :24].all() and packed.first[0, 0] == 7


def test_text_fades_and_ends_with_its_branch(rig):
    branches = answer(rig, 'Stop because the light ahead of us all is red.')
    last = int(branches.length[0]) - 1
    anchor = torch.tensor([[2, last - 2], [2, 2]])
    packed = pack(blocks_at(branches, 0, anchor, torch.full_like(anchor, 8)), 16, branches,
                  rig.drafter.config)
    ids = branches.ids[0].tolist()
    assert packed.label[0, :8].tolist() == [IGNORE, *ids[3:10]]
    assert packed.label[0, 8:].tolist() == [IGNORE, *ids[last - 1:last + 1], *[IGNORE] * 5]
    fading = torch.exp(-torch.arange(7) / 4)
    torch.testing.assert_close(packed.weight[0, 1:8], fading)
    assert (packed.label[1] == IGNORE).all()
    assert packed.positions[0, -16:-8].tolist() == [9 + k for k in range(8)]
    assert (packed.end[0, 8], packed.first[0, 8]) == (7 + last - 2, 7 + last - 2 - 5)


def test_anchors_are_answered_tokens_with_a_next_one(rig):
    branches = answer(rig, 'Stop<1><2> now')
    weights = packing.anchor_weights(branches, 0, rig.target.coordinates, 0.25)
    following = branches.ids[0, 3:int(branches.length[0])]
    inside = rig.target.coordinates[following]
    assert inside.sum() == 2
    assert weights[0, 2:2 + len(following)].tolist() == [
        0.25 if i else 1.0 for i in inside.tolist()]
    assert weights[0, :2].sum() == weights[0, 2 + len(following):].sum() == weights[1].sum() == 0
    drawn = packing.text_blocks(branches, 0, 8, weights, 50, torch.Generator().manual_seed(0))
    assert (weights[0, drawn.anchor[0]] > 0).all() and not drawn.size[1].any()


def mixture(rig, size=8):
    """Blocks of both kinds in all branches of the rig's windows."""
    branches = rig.material.branches
    some = [blocks_at(branches, number, branches.spoken[:, number, None] + torch.tensor([0, 2]),
                      torch.full((2, 2), size)) for number in (PLAN, SAID)]
    return Blocks.join([*some, rig.material.primitives])


def one_at_a_time(rig, blocks, w, k):
    """States of one block through the drafter's own forward."""
    material, config = rig.material, rig.drafter.config
    branches, p = material.branches, material.branches.prefix
    number, anchor, size = (int(t[w, k]) for t in (blocks.branch, blocks.anchor, blocks.size))
    first = branches.first[number]
    behind = material.behind[w, first:first + anchor]
    kinds = (torch.from_numpy(LAYOUTS[blocks.layout[w, k]].kinds) if blocks.layout[w, k] >= 0
             else None)
    if kinds is not None:
        context = torch.cat((material.prompt[w], behind))
    else:
        context = behind[-config.context_len:]
    features = rig.drafter.fuse([context])[None]
    token = branches.ids[w, first + anchor]
    x = rig.drafter.block(rig.model.embed_tokens(token)[None], size, kinds)
    end = p + anchor + size
    positions = torch.arange(end - size - len(context), end)[None]
    return rig.model.lm_head(rig.drafter(x, features, positions))[0]


@pytest.mark.parametrize('kind', ['plain', 'flex'])
@torch.no_grad()
def test_packed_blocks_equal_one_block_at_a_time(rig, kind):
    blocks = mixture(rig)
    room = int(blocks.size.sum(1).max()) + 10
    loss = DraftLoss(rig.drafter, rig.target, kind)
    packed = pack(blocks, room, rig.material.branches, rig.drafter.config)
    logits = loss.logits(rig.material, packed)
    checked = 0
    for w in range(2):
        at = 0
        for k in range(blocks.size.shape[1]):
            size = int(blocks.size[w, k])
            if size:
                alone = one_at_a_time(rig, blocks, w, k)
                kept = rig.target.anything
                torch.testing.assert_close(logits[w, at:at + size][:, kept], alone[:, kept],
                                           rtol=0, atol=2e-4)
                at, checked = at + size, checked + 1
    assert checked >= 12


def test_blocks_without_room_are_left_out_whole(rig):
    blocks = mixture(rig)
    packed = pack(blocks, 20, rig.material.branches, rig.drafter.config)
    assert (packed.label[:, 16:] == IGNORE).all() and (packed.label[:, :16] != IGNORE).any()


@torch.no_grad()
def engine_stream(rig, w, tail, drafter=None, question=None):
    """The window w in the engine's own stream, and its last hidden state."""
    model, geometry = rig.model, rig.geometry
    layout = build_layout(model.config, rig.tokenizer, CAMERAS, geometry.layout.grids)
    stream = PromptStream(model, layout, tail, drafter)
    pictures = rig.batch.images[w]
    encoded = model.visual(images.to_patches(pictures.flatten(0, 1), model.config.vision),
                           geometry.patch_grid)
    frames = pictures.shape[1]
    stream.prefill([encoded[v * frames:(v + 1) * frames] for v in range(len(CAMERAS))], frames,
                   None)
    stream.truncate(layout.suffix)
    return stream


@torch.no_grad()
def test_own_texts_are_those_of_the_engine(rig):
    branches, config = rig.material.branches, EngineConfig(greedy=True, device='cpu')
    for w in range(2):
        for number, prompt, length, room, last, allowed in (
                (PLAN, rig.batch.prompt_ids, rig.batch.prompt_length, ROOMS.reason,
                 rig.target.reason_end, rig.target.plain),
                (SAID, rig.asked.question_ids[:, 0], rig.asked.question_length[:, 0],
                 ROOMS.own, rig.target.answer_end, rig.target.anything)):
            stream = engine_stream(rig, w, 200)
            hidden = stream.extend(prompt[w, :length[w]].long())
            row = Generation({last: 'end'}, room)
            write(stream, row, hidden[-1], config, torch.Generator(), allowed)
            first, end = int(branches.spoken[w, number]), int(branches.length[w, number])
            assert branches.branch(number)[w, first:end].tolist() == row.ids


@torch.no_grad()
def test_a_block_in_training_is_that_of_the_decoder(rig):
    """The decoder's stream gives the drafter what it was trained on: features and positions."""
    material = rig.material
    branches, blocks = material.branches, material.primitives
    w = int(blocks.size[:, 0].argmax())
    number, anchor, size = (int(t[w, 0]) for t in (blocks.branch, blocks.anchor, blocks.size))
    spoken = int(branches.spoken[w, number])
    ids = branches.branch(number)[w]
    stream = engine_stream(rig, w, 300, rig.drafter)
    writer = Writer(stream, rig.drafter, rig.target.anything, None)
    writer.begin(ids[:spoken].long())
    writer.push(ids[spoken:anchor].tolist())
    writer.look()
    writer.push([int(ids[anchor])])
    schema = Reader(rig.tokenizer).opened(writer.ids)
    assert schema.layout.size == size
    packed = pack(blocks, room=size, branches=branches, config=rig.drafter.config)
    trained = rig.loss.logits(material, packed)[w, 1:size]
    kept = rig.target.anything
    torch.testing.assert_close(writer.draft(size, schema)[:, kept], trained[:, kept],
                               rtol=0, atol=1e-4)
    text = blocks_at(branches, number, torch.tensor([[anchor]] * 2), torch.full((2, 1), 8))
    torch.testing.assert_close(writer.draft(8)[:, kept],
                               proposals(rig.loss, material, text)[w, 0][:, kept],
                               rtol=0, atol=2e-4)


def test_rounds_are_counted_as_the_decoder_runs_them():
    text = [1, 2, 3, 4, 5]
    right = [text[i + 1:i + 4] + [0] * (3 - len(text[i + 1:i + 4])) for i in range(5)]
    assert simulated_rounds(text, right) == 1  # three proposals and the one after
    assert simulated_rounds(text, [[9, 9, 9]] * 5) == 4
    assert simulated_rounds(text, [[2, 9, 9]] * 5) == 3
    assert simulated_rounds([7], [[1]]) == simulated_rounds([], []) == 0


@pytest.fixture(scope='module')
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tiny')
    return DrafterSettings(
        model=str(write_tiny_checkpoint(folder / 'model')), out=str(folder / 'out'), steps=3,
        batch=4, part=2, passes=2, image='96x64', clips_per_episode=2, episode_seconds=12.0,
        first_clips=2, store_gib=0.01, device='cpu', validation_clips=0, log_every=1, taps='0,2',
        text_tokens=64, primitive_tokens=64, questions=2, warmup_steps=1)


def lines(trainer):
    return [json.loads(line) for line in (trainer.out / 'log.jsonl').read_text().splitlines()]


def test_a_drafter_learns_and_is_loaded_by_the_engine(settings, tmp_path):
    trainer = DrafterTrainer(replace(
        settings, out=str(tmp_path), steps=12, passes=8, learning_rate=2e-2, augment=0.0,
        clips_per_step=0.0, validation_clips=2, validation_workers=0, ema=0.5))
    frozen = {name: p.clone() for name, p in trainer.model.named_parameters()}
    figures = trainer.run()
    losses = lines(trainer)
    first, last = (np.mean([line[k] for line in part]) for part, k in (
        (losses[:2], 'primitive'), (losses[-3:-1], 'primitive')))
    print(f'primitive {first:.2f} -> {last:.2f}')  # texts of random weights are mere noise
    assert last < 0.88 * first
    assert figures['windows'] == 2 and figures['tokens_per_round/reason_B8'] >= 1
    assert {'tokens_per_round/reason_B16', 'primitive_right'} <= set(figures)
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, frozen[name])
    loaded = drafters.load(tmp_path / 'checkpoint', trainer.model)
    assert (loaded.config.block_size, loaded.config.window_context) == (8, True)
    weight = trainer.averaged.by_name()['mask_embedding']
    torch.testing.assert_close(loaded.mask_embedding, weight.bfloat16().float())


def test_a_resumed_run_ends_with_the_same_drafter(settings, tmp_path):
    repeatable = replace(settings, clips_per_step=0.5, store_gib=1e-9, first_clips=1, passes=1)
    whole = DrafterTrainer(replace(repeatable, out=str(tmp_path / 'whole')))
    whole.run()
    half = DrafterTrainer(replace(repeatable, out=str(tmp_path / 'half')))
    half.run(stop_at=2)
    rest = DrafterTrainer(replace(repeatable, out=str(tmp_path / 'half'), resume=True))
    rest.run()
    for a, b in zip(whole.network.parameters(), rest.network.parameters()):
        assert torch.equal(a, b)


def test_primitives_alone_need_no_texts(settings, tmp_path):
    trainer = DrafterTrainer(replace(settings, out=str(tmp_path), text_tokens=0, steps=1))
    trainer.run()
    line, = lines(trainer)
    assert line['primitive'] > 0 and line['text'] == 0


def test_what_does_not_fit_is_refused(settings, tmp_path):
    with pytest.raises(CheckpointError, match='target_layer_ids has 7'):
        DrafterTrainer(replace(settings, out=str(tmp_path), taps='1,7'))
    for changes in ({'blocks': '1'}, {'questions': 9}, {'text_tokens': 4},
                    {'attention': 'sparse'}, {'passes': 0}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            replace(settings, **changes)
