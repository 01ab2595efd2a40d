"""Answers as text, read in the tokens of the shipped model."""
from functools import lru_cache

from flashdrive_ros.core import checkpoint
from flashdrive_ros.core.primitives.reading import Reader
from flashdrive_ros.core.tokenizer import Tokenizer


@lru_cache(maxsize=1)
def reader():
    config, file = checkpoint.read_config(checkpoint.find('small'))
    return Reader(Tokenizer.from_file(file, config))


def parse(text):
    """Primitives of an answer and what was wrong with others."""
    return reader().read(reader().tokenizer.encode(text))


def read(text):
    """Primitives of an answer."""
    return parse(text)[0]
