"""Values of settings on command lines."""
from __future__ import annotations

import yaml

WORDS = ('on', 'off', 'yes', 'no', 'y', 'n')
"""YAML 1.1 takes these for true and false; to us they are words, as in `drafting=on`."""


def value_of(text: str):
    """Value of a YAML `text`; raises `yaml.YAMLError`."""
    return text.strip() if text.strip().lower() in WORDS else yaml.safe_load(text)
