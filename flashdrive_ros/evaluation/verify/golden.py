"""Reading a golden directory: what is there, and which arrays were looked at."""
from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ...core import checkpoint
from ...core.config import ModelConfig
from ...core.model import Alpamayo
from ...core.tokenizer import Tokenizer

ROOMS = ('pure', 'preprocess', 'tokenizer')
_DATA = ('.npz', '.json')


class GoldenError(RuntimeError):
    """A golden directory can't be used; the text names the file."""


@dataclass
class GoldenFile:
    """
    Arrays (or JSON fields) of one file by name; `take` marks one as looked at.

    `info` holds the fields of the JSON beside a case's arrays.
    """

    title: str
    path: Path
    arrays: dict
    info: dict

    def __post_init__(self):
        """Nothing was looked at yet."""
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Say whether there is such an array."""
        return name in self.arrays

    def __getitem__(self, name: str):
        """Take an array; raises `GoldenError` naming it and the file when there is none."""
        if name not in self.arrays:
            raise GoldenError(f'{self.path} has no array {name!r}')
        self.taken.add(name)
        return self.arrays[name]

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Take an array as a tensor."""
        return torch.from_numpy(self[name]).to(dtype)

    def names(self, *starts: str) -> list[str]:
        """Names of the arrays that begin with one of `starts`."""
        return [n for n in self.arrays if n.startswith(starts)]

    def get(self, name: str, default=None):
        """Take an array if there is one."""
        return self[name] if name in self.arrays else default

    def left(self) -> list[str]:
        """Names that nobody took."""
        return [n for n in self.arrays if n not in self.taken]


class GoldenDirectory:
    """A directory with `index.json`, `MODEL/checkpoint`, `MODEL/cases` and the pure rooms."""

    def __init__(self, directory: Path | str):
        self.root = Path(directory)
        self.index = read(self.root / 'index.json')
        self._models: dict[str, tuple[Alpamayo, Tokenizer]] = {}
        for name in self.index.get('sha256', {}):
            if not (self.root / name).is_file():
                raise GoldenError(f'{self.root / name} is listed in index.json but missing')

    def model(self, name: str) -> tuple[Alpamayo, Tokenizer]:
        """Model and tokenizer of a checkpoint of this directory, in float32 on the CPU."""
        if name not in self._models:
            folder = self.root / name / 'checkpoint'
            if not folder.is_dir():
                raise GoldenError(f'{folder} does not exist')
            self._models[name] = checkpoint.load(str(folder), torch.device('cpu'), torch.float32)
        return self._models[name]

    def config(self) -> ModelConfig:
        """Configuration of the first checkpoint: the constants of the pure functions."""
        for name in self.index.get('models', {}):
            return checkpoint.read_config(self.root / name / 'checkpoint')[0]
        return ModelConfig()

    def full_vocabulary(self, is_r1: bool) -> tuple[ModelConfig, Tokenizer]:
        """Configuration at full size and the tokenizer in `tokenizer/`."""
        path = self.root / 'tokenizer' / 'tokenizer.json'
        packed = path.with_suffix('.json.gz')
        if path.is_file():
            text = path.read_text(encoding='utf-8')
        elif packed.is_file():
            text = gzip.decompress(packed.read_bytes()).decode()
        else:
            raise GoldenError(f'neither {path} nor {packed.name} exists')
        config = ModelConfig(model_type='alpamayo_r1' if is_r1 else 'alpamayo1_5')
        if is_r1:
            config = replace(config, prompt=replace(
                config.prompt, include_camera_ids=False, include_frame_nums=False))
        return config, Tokenizer.from_text(text, config, str(path))

    def cases(self) -> list[GoldenFile]:
        """End-to-end cases: those of the index, then any others that lie beside them."""
        listed = [self.root / case['file'] for case in self.index.get('cases', [])]
        found = sorted(self.root.glob('*/cases/*.npz'))
        return [self._case(p) for p in [*listed, *(f for f in found if f not in listed)]]

    def _case(self, path: Path) -> GoldenFile:
        info = read(path.with_suffix('.json'))
        return GoldenFile(f'{path.parent.parent.name}/{path.stem}', path, read(path), info)

    def files(self, room: str) -> list[GoldenFile]:
        """Data files of one of the pure rooms; arrays and fields of one stem belong together."""
        stems: dict[str, list[Path]] = {}
        for path in sorted((self.root / room).glob('*')):
            if path.suffix in _DATA and path.name != 'tokenizer_config.json':
                stems.setdefault(path.stem, []).append(path)
        return [GoldenFile(f'{room}/{stem}', paths[0], _merge(paths), {})
                for stem, paths in stems.items() if stem != 'tokenizer']


def _merge(paths: list[Path]) -> dict:
    merged: dict = {}
    for path in paths:
        content = read(path)
        merged |= content if isinstance(content, dict) else {'rows': content}
    return merged


def read(path: Path):
    """Content of a JSON or NPZ file; raises `GoldenError` naming it."""
    try:
        if path.suffix == '.npz':
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        return json.loads(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
        raise GoldenError(f'{path} does not exist') from None
    except Exception as error:  # zip, JSON and NumPy each raise their own
        raise GoldenError(f'{path} can not be read: {error}') from None
