"""Values of settings as one writes them on a command line."""
import pytest

from flashdrive_ros.values import value_of


@pytest.mark.parametrize('text, value', [
    ('on', 'on'), ('off', 'off'), ('No', 'No'), ('true', True), ('false', False), ('6', 6),
    ('0.5', 0.5), ('[3, 4]', [3, 4]), ('auto', 'auto'), ("'6'", '6')])
def test_words_stay_words(text, value):
    found = value_of(text)
    assert found == value and type(found) is type(value)
