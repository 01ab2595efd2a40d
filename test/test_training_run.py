"""Training runs at a size for tests: they learn, repeat, resume, stream and save what loads."""
import json
from dataclasses import replace

import pytest
import torch
from support.tiny_model import write_tiny_checkpoint

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.action import fourier_frequencies
from flashdrive_ros.core.config import CheckpointError, EngineConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.training import trainer as trainers
from flashdrive_ros.training.losses import IGNORE, join, widths_of
from flashdrive_ros.training.settings import TrainSettings

pytestmark = pytest.mark.usefixtures('one_thread')


@pytest.fixture(scope='module')
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tiny')
    return TrainSettings(
        model=str(write_tiny_checkpoint(folder / 'model')), out=str(folder / 'out'), steps=4,
        batch=4, learning_rate=3e-3, warmup_steps=1, image='96x64', clip_frames=6,
        validation_frames=6, clips_per_episode=2, episode_seconds=12.0, first_clips=2,
        store_gib=0.01, device='cpu', validation_clips=0, log_every=1, draws=2)


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def lines(trainer):
    return [json.loads(line) for line in (trainer.out / 'log.jsonl').read_text().splitlines()]


def test_a_few_windows_are_learned(settings, tmp_path):
    trainer = trainers.Trainer(replace(
        settings, out=str(tmp_path), steps=60, batch=4, wrong_reason_share=0.0, first_clips=2,
        learning_rate=1e-2, decay_share=0.3, ema=0.9, validation_clips=2, validation_workers=0))
    figures = trainer.run()
    losses = lines(trainer)
    first = sum(line['loss'] for line in losses[:5]) / 5
    last = sum(line['loss'] for line in losses[-5:]) / 5
    print(f'loss {first:.2f} -> {last:.2f}')
    assert last < 0.4 * first
    assert losses[-1]['reason_right'] > 0.8
    assert figures['windows'] == 2 and figures['minADE6'] <= figures['minADE1']
    engine = Engine.from_checkpoint(str(tmp_path / 'checkpoint'), EngineConfig(device='cpu'))
    assert engine.trained
    saved = engine.model.config.action
    assert saved.accel_std == pytest.approx(trainer.model.config.action.accel_std)
    weights = trainer.averaged.by_name()['expert.norm.weight']
    torch.testing.assert_close(engine.model.expert.norm.weight, weights.bfloat16().float())


def test_a_resumed_run_ends_with_the_same_parameters(settings, tmp_path):
    repeatable = replace(settings, clips_per_step=0.5, store_gib=1e-9, batch=2)  # one clip fits
    whole = trainers.Trainer(replace(repeatable, out=str(tmp_path / 'whole')))
    whole.run()
    half = trainers.Trainer(replace(repeatable, out=str(tmp_path / 'half')))
    half.run(stop_at=2)
    rest = trainers.Trainer(replace(repeatable, out=str(tmp_path / 'half'), resume=True))
    assert rest.step == 2 and torch.equal(parameters(rest), parameters(half))
    rest.run()
    assert rest.step == whole.step == 4 and rest.taken == whole.taken
    assert torch.equal(parameters(rest), parameters(whole))
    for name, weight in whole.averaged.by_name().items():
        assert torch.equal(weight, rest.averaged.by_name()[name])


def test_resuming_nothing_names_the_file(settings, tmp_path):
    with pytest.raises(CheckpointError, match=r'state\.pt does not exist'):
        trainers.Trainer(replace(settings, out=str(tmp_path), resume=True))


@pytest.mark.parametrize(('stage', 'trained'), [
    ('streaming-expert', trainers.EXPERT), ('streaming-vlm', ('visual.', 'language_model.'))])
def test_streaming_fine_tuning_changes_only_its_part(settings, tmp_path, stage, trained):
    trainer = trainers.Trainer(replace(settings, out=str(tmp_path), stage=stage, rollout='2,3',
                                       steps=2))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.run()
    changed = {name for name, p in trainer.model.named_parameters()
               if not torch.equal(p, before[name])}
    in_expert = {name for name in before if name.startswith(trainers.EXPERT)}
    assert changed and any(name.startswith(trained) for name in changed)
    assert changed <= (in_expert if stage == 'streaming-expert' else set(before) - in_expert)
    assert all(line['loss'] == line['loss'] for line in lines(trainer))


def test_too_short_clips_for_a_rollout_are_refused(settings, tmp_path):
    with pytest.raises(ValueError, match='--clip-frames 7'):
        trainers.Trainer(replace(settings, out=str(tmp_path), stage='streaming-expert',
                                 rollout='2,4'))


@pytest.mark.parametrize('changes', [{'stage': 'other'}, {'steps': 0}, {'rollout': '5,4'},
                                     {'precision': 'float8'}])
def test_settings_out_of_range_are_refused(settings, changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(settings, **changes)


def test_text_is_joined_to_its_prompt_and_only_the_text_is_learned():
    prompt, text = torch.tensor([[1, 2, 3], [1, 2, 0]]), torch.tensor([[7, 8], [9, 0]])
    joined = join(prompt, torch.tensor([3, 2]), text, torch.tensor([2, 1]), 6)
    assert joined.ids.tolist() == [[1, 2, 3, 7, 8, 0], [1, 2, 9, 0, 0, 0]]
    x = IGNORE
    assert joined.labels.tolist() == [[x, x, 7, 8, x, x], [x, 9, x, x, x, x]]
    assert joined.length.tolist() == [5, 3]
    widths = widths_of({'prompt': 90, 'reason': 12, 'question': 3, 'answer': 4})
    assert (widths.plan, widths.question) == (104, 8)


def test_the_small_model_can_tell_noise_from_data():
    """Noise spans some six units; with waves of one unit and less only, nothing is learned."""
    config, _ = checkpoint.read_config(checkpoint.find('small'))
    assert fourier_frequencies(config.action, torch.bfloat16).min() < 0.1


def test_the_small_model_fits_its_limits():
    config, _ = checkpoint.read_config(checkpoint.find('small'))
    from flashdrive_ros.core.model import Alpamayo
    with torch.device('meta'):
        count = sum(p.numel() for p in Alpamayo(config).parameters())
    assert 8e6 <= count <= 16e6 and 2 * count <= 32e6
