"""Choice of tokens from logits, without sorting."""
from .reference import likeliest, sample

__all__ = ['likeliest', 'sample']
