"""Action heads for driving: small diffusion transformers on the features of the frozen model."""
from __future__ import annotations


def evaluate(arguments) -> dict:
    """Measure the driving heads (see `heads.evaluation`); the body of key 'driving'."""
    from .evaluation import evaluate as measure
    return measure(arguments)
