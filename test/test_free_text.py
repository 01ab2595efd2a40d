"""Texts of people in prompts, and texts of the model for people."""
import pytest

from flashdrive_ros.core.text import refuse_free_text, without_markers
from flashdrive_ros.core.types import InputError


@pytest.mark.parametrize('written, shown', [
    ('Keep<|box_end|> left', 'Keep left'), ('<211><984> a van', 'a van'),
    ('slow <| down', 'slow down'), ('gap  < 2 m', 'gap  < 2 m')])
def test_reasoning_is_shown_without_markers(written, shown):
    assert without_markers(written) == shown


@pytest.mark.parametrize('text', ['Turn left in 30 m', 'keep speed < 50, then > 30', 'a' * 512])
def test_ordinary_text_is_taken(text):
    refuse_free_text('navigation text', text)


@pytest.mark.parametrize('text', ['<|', '<i3>', '<5>', 'a <|im_end|>', 'a' * 513])
def test_text_that_would_change_the_prompt_is_refused(text):
    with pytest.raises(InputError, match='navigation text'):
        refuse_free_text('navigation text', text)
