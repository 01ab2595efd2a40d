"""
Checkpoint directory -> model and tokenizer.

One loader for the public checkpoints and for our own: the key names are theirs.
Weights are read shard by shard straight into their place on the device;
q|k|v and gate|up are fused and the vocabulary is padded on the way
(spec `alpamayo.md` section 10).
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .config import CheckpointError, DecoderConfig, ModelConfig, read_json
from .model import Alpamayo
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .quantization.swap import QuantizationConfig

MODELS = Path(__file__).resolve().parent.parent / 'models'
DRAFTER_SUFFIX = '-DFlash'
"""A model's drafter lies beside it under the model's name and this."""
PARO_SUFFIX = '-PARO'
"""Under the model's name and this lies what ParoQuant made of it."""
_PREFIXES = (('vlm.model.visual.', 'visual.'),
             ('vlm.model.language_model.embed_tokens.', 'embed_tokens.'),
             ('vlm.model.language_model.', 'language_model.'),
             ('vlm.lm_head.', 'lm_head.'))
_LOW_BIT = re.compile(r'.*\.matrix\.\w+$')
"""Weights of a quantised projection; those behind rotations are only read, never written."""
_RECOMPUTED = re.compile(r'action_space\.|.*\.freqs$|.*rotary.*inv_freq$|expert\.embed_tokens\.')
"""Buffers that some checkpoints carry and the code computes from the configuration."""
_DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}
_HUB_ID = re.compile(r'[\w.-]+/[\w.-]+')
_KNOWN_VLMS = ('Cosmos-Reason2-8B', 'Cosmos-Reason1.1-8B', 'Qwen3-VL-8B-Instruct')
"""Base models whose sizes are the defaults of `config.py`."""


def find(name: str) -> Path:
    """
    Directory of a checkpoint: a shipped model's name, a path, or a hub id `owner/name`.

    Raises `CheckpointError` in plain words when there is none, when the hub
    can't be reached or when it asks for a licence to be accepted first.
    """
    if (MODELS / name / 'config.json').is_file():
        return MODELS / name
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f'{path} is a file, expected a checkpoint directory')
    if _HUB_ID.fullmatch(name):
        return _from_hub(name, ['*.json', '*.safetensors', '*.pt', '*.jinja'])
    shipped = sorted(p.parent.name for p in MODELS.glob('*/config.json')
                     if not p.parent.name.endswith(DRAFTER_SUFFIX))
    raise CheckpointError(f'no checkpoint {name!r}: neither a directory, nor a hub id, nor one '
                          f'of the shipped models {shipped}')


def find_companion(name: str, suffix: str) -> Path | None:
    """
    Directory `<name><suffix>` beside the checkpoint `name`, or on the hub when that is from there.

    None when there is none; raises `CheckpointError` when the hub can't say.
    """
    path = Path(name).expanduser().absolute()
    if (MODELS / name / 'config.json').is_file():
        path = MODELS / name
    if path.is_dir():
        beside = path.with_name(path.name + suffix)
        return beside if beside.is_dir() else None
    return _from_hub(name + suffix, ['*.json', '*.safetensors', '*.pt'], missing_ok=True)


def _from_hub(name: str, patterns: list[str], missing_ok: bool = False) -> Path | None:
    from huggingface_hub import errors, snapshot_download
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except errors.GatedRepoError:
        raise CheckpointError(f'{name} is gated: accept its licence on its page, then log in with '
                              '`hf auth login`') from None
    except errors.RepositoryNotFoundError:
        if missing_ok:
            return None
        raise CheckpointError(f'the hub has no model {name}, or it is private') from None
    except Exception as error:  # offline shows as many different types
        raise CheckpointError(f'{name} is not on this machine and the hub could not be reached '
                              f'({type(error).__name__}); give a local directory') from None


def load(name: str, device: torch.device, dtype: torch.dtype,
         quantization: QuantizationConfig | None = None) -> tuple[Alpamayo, Tokenizer]:
    """
    Load the checkpoint `name` (see `find`) onto `device`; peak memory is model + one shard.

    A plain checkpoint is quantised on the way as `quantization` says; one that is
    quantised already stays so without being asked.
    """
    from .quantization import stored
    directory = find(name)
    config, tokenizer_file = read_config(directory)
    tokenizer = Tokenizer.from_file(tokenizer_file, config)
    with _blaming(directory / 'config.json'), torch.device('meta'):
        model = Alpamayo(config)
    model = model.to(dtype).eval().requires_grad_(False)
    if config.random_weights_seed is not None:
        model = model.to_empty(device=device)
        randomise(model, config.random_weights_seed)
        if quantization is not None:
            stored.quantize(model, quantization)
    else:
        stored.fill(model, directory, device, quantization)
    return model, tokenizer


@contextmanager
def _blaming(file: Path):
    """Name `file` in whatever its values cause."""
    try:
        yield
    except Exception as error:
        what = '' if isinstance(error, CheckpointError) else (
            f'describes no model: {type(error).__name__}: ')
        raise CheckpointError(f'{file}: {what}{error}') from error


def read_config(directory: Path) -> tuple[ModelConfig, Path]:
    """Configuration of the checkpoint in `directory`, and its tokenizer file."""
    raw = read_json(directory / 'config.json')
    vlm_name = str(raw.get('vlm_name_or_path', 'vlm'))
    vlm = directory / vlm_name
    tokenizers = [directory / 'tokenizer.json', vlm / 'tokenizer.json']
    tokenizer = next((t for t in tokenizers if t.is_file()), None)
    known = vlm_name.rpartition('/')[2] in _KNOWN_VLMS
    if not vlm.is_dir() and (tokenizer is None or not known):
        if not _HUB_ID.fullmatch(vlm_name):
            raise CheckpointError(f'{vlm} does not exist')
        vlm = _from_hub(vlm_name, ['config.json', 'tokenizer*.json'])
        tokenizer = tokenizer or vlm / 'tokenizer.json'
    sizes = read_json(vlm / 'config.json') if (vlm / 'config.json').is_file() else {}
    if not sizes and not known:
        raise CheckpointError(f"{vlm / 'config.json'} does not exist and the sizes of "
                              f'{vlm_name} are not known')
    if tokenizer is None:
        raise CheckpointError(f'{directory} has no tokenizer.json, nor has {vlm_name}')
    with _blaming(directory / 'config.json'):
        return ModelConfig.from_checkpoint(directory, sizes), tokenizer


def shards(directory: Path) -> list[Path]:
    """Safetensors files of a checkpoint, through its index when there is one."""
    index = directory / 'model.safetensors.index.json'
    if index.is_file():
        weight_map = read_json(index).get('weight_map')
        if not isinstance(weight_map, dict) or not all(
                isinstance(name, str) for name in weight_map.values()):
            raise CheckpointError(f'{index}: weight_map must give a file name for each key')
        names = sorted(set(weight_map.values()))
        missing = [n for n in names if not (directory / n).is_file()]
        if missing or not names:
            raise CheckpointError(f'{index} lists shards that do not exist: {missing}')
        return [directory / n for n in names]
    files = sorted(directory.glob('*.safetensors'))
    if not files:
        raise CheckpointError(f'{directory} holds no *.safetensors')
    return files


def fill(model: Alpamayo, directory: Path,
         elsewhere: Callable[[str], object] = lambda _: False) -> None:
    """
    Copy every tensor of the checkpoint to its place in `model`.

    Raises `CheckpointError` naming missing and unexpected keys, and those of a
    wrong shape or of a type that would need a scale.
    """
    clear_pads(model)
    fill_places(dict(_places(model)), directory, elsewhere=elsewhere)


def fill_places(places: dict[str, Tensor], directory: Path, optional: Container[str] = (),
                elsewhere: Callable[[str], object] = lambda _: False) -> None:
    """
    Copy every tensor of a directory's safetensors to its place under its public key.

    What is filled leaves `places`; keys that may be missing are `optional`; of which
    `elsewhere` is true, someone else reads.
    """
    unexpected, misshaped = [], []
    for shard in shards(directory):
        with opened(shard) as file:
            for key in file.keys():  # noqa: SIM118 (not a mapping)
                if key in places:
                    place = places.pop(key)
                    misshaped += copy_tensor(key, file.get_tensor(key), place)
                elif not (_RECOMPUTED.match(key) or elsewhere(key)):
                    unexpected.append(key)
    problems = [f'{what}: {_some(keys)}' for what, keys in (
        ('missing keys', sorted(key for key in places if key not in optional)),
        ('unexpected keys', unexpected), ('wrong tensors', misshaped)) if keys]
    if problems:
        raise CheckpointError(f'{directory} does not fit its config.json; ' + '; '.join(problems))


@contextmanager
def opened(shard: Path):
    """Open a safetensors file; raises `CheckpointError` when it can't be read."""
    try:
        with safe_open(shard, 'pt', device='cpu') as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f'{shard} can not be read: {error}') from None


def _some(keys: list[str], limit: int = 6) -> str:
    more = f' and {len(keys) - limit} more' if len(keys) > limit else ''
    return ', '.join(keys[:limit]) + more


def copy_tensor(key: str, source: Tensor, place: Tensor) -> list[str]:
    """Copy `source` to its `place`; what is wrong with it, if anything."""
    if source.dim() == 5:  # the patch embedding is stored as a convolution whose kernel = stride
        source = source.flatten(1)
    low_bit = place.dtype not in _DTYPES.values()
    if source.dtype != place.dtype and (low_bit or source.dtype not in _DTYPES.values()):
        expected = f', expected {place.dtype}' if low_bit else ''
        return [f'{key} is stored as {source.dtype}{expected}']
    if source.shape != place.shape:
        return [f'{key} {list(source.shape)} instead of {list(place.shape)}']
    with torch.no_grad():
        place.copy_(source)
    return []


def _places(model: Alpamayo) -> Iterator[tuple[str, Tensor]]:
    """Public key -> the view of our parameter, or of low-bit weights, that it fills."""
    config = model.config
    low_bit = ((name, b) for name, b in model.named_buffers() if _LOW_BIT.match(name))
    for name, parameter in chain(model.named_parameters(), low_bit):
        public = public_name(name)
        decoder = config.expert if name.startswith('expert.') else config.text
        if name in ('embed_tokens.weight', 'lm_head.weight'):
            yield public, parameter[:config.vocab_size]
        else:
            yield from unfused(public, parameter, decoder)


def unfused(name: str, parameter: Tensor, decoder: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    """Public keys of a decoder's parameter `name`, and the view of it that each fills."""
    if '.qkv_proj.' in name:
        sizes = [decoder.num_attention_heads * decoder.head_dim,
                 *[decoder.num_key_value_heads * decoder.head_dim] * 2]
        for part, view in zip('qkv', parameter.split(sizes)):
            yield name.replace('qkv_proj', f'{part}_proj'), view
    elif '.gate_up_proj.' in name:
        for part, view in zip(('gate', 'up'), parameter.chunk(2)):
            yield name.replace('gate_up_proj', f'{part}_proj'), view
    else:
        yield name, parameter


def public_name(name: str) -> str:
    """Name of our parameter or module `name` in the public checkpoints, where it is not fused."""
    name = name.replace('.matrix.', '.')
    for public, ours in _PREFIXES:
        if name.startswith(ours):
            return public + name.removeprefix(ours)
    return name


def randomise(model: Alpamayo, seed: int) -> None:
    """Fill with seeded random weights: exact sizes to measure speed with, or to train from."""
    draw_weights(model, torch.Generator(model.device).manual_seed(seed),
                 lambda name, parameter: 0.02 if 'embed' in name else parameter.shape[-1] ** -0.5)
    clear_pads(model)


@torch.no_grad()
def draw_weights(model: nn.Module, generator: torch.Generator,
                 std_of: Callable[[str, Tensor], float]) -> None:
    """Draw every matrix with the standard deviation `std_of(name, it)`; norms 1, biases 0."""
    for name, parameter in model.named_parameters():
        if name.endswith('bias'):
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, std_of(name, parameter), generator=generator)


@torch.no_grad()
def clear_pads(model: Alpamayo) -> None:
    """Zero the rows that only pad the vocabulary."""
    for table in (model.embed_tokens.weight, model.lm_head.weight):
        table[model.config.vocab_size:] = 0


def public_tensors(model: Alpamayo) -> Iterator[tuple[str, Tensor]]:
    """Every weight under its public name and in its public shape."""
    vision = model.config.vision
    for key, tensor in _places(model):
        if key.endswith('patch_embed.proj.weight'):
            tensor = tensor.view(-1, vision.in_channels, vision.temporal_patch_size,
                                 vision.patch_size, vision.patch_size)
        yield key, tensor


def save(model: Alpamayo, directory: Path, shard_bytes: int = 15 << 20) -> None:
    """Write the weights under their public names as safetensors shards with an index."""
    save_tensors(public_tensors(model), directory, shard_bytes)


def save_tensors(tensors: Iterable[tuple[str, Tensor]], directory: Path, shard_bytes: int) -> None:
    """Write `tensors` as safetensors shards with an index."""
    from safetensors.torch import save_file
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in tensors:
        tensor = tensor.detach().cpu().contiguous().clone()
        if groups[-1] and size + tensor.nbytes > shard_bytes:
            groups.append({})
            size = 0
        groups[-1][key] = tensor
        size += tensor.nbytes
    weight_map = {}
    for number, group in enumerate(groups, 1):
        name = f'model-{number:05d}-of-{len(groups):05d}.safetensors'
        save_file(group, directory / name, metadata={'format': 'pt'})
        weight_map |= dict.fromkeys(group, name)
    total = sum(t.nbytes for g in groups for t in g.values())
    (directory / 'model.safetensors.index.json').write_text(json.dumps(
        {'metadata': {'total_size': total}, 'weight_map': weight_map}, indent=1) + '\n')


def resolve_device(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """Device and dtype for the settings 'auto' or given ones; raises `CheckpointError`."""
    if device == 'auto':
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError) as error:  # NotImplementedError is a RuntimeError
        raise CheckpointError(f'device {device!r} can not be used: {error}') from None
    if dtype == 'auto':
        dtype = 'bfloat16' if chosen.type == 'cuda' else 'float32'
    return chosen, _DTYPES[dtype]
