"""One results file for the action heads of arm and car: each part is written by itself."""
from __future__ import annotations

import json
from pathlib import Path

from ..errors import UserError
from .record import header, write_results

PARTS = ('arm', 'driving')


def merge(path: Path, part: str, body: dict, **about) -> dict:
    """
    Put `body` under the key `part` of the results file `path`, whose other part stays.

    How each part was made stands under `made`.  Raises `UserError` for a file that is no
    JSON object.
    """
    if part not in PARTS:
        raise ValueError(f'part is {part!r}, expected one of {", ".join(PARTS)}')
    known = {}
    if path.is_file():
        try:
            known = json.loads(path.read_text(encoding='utf-8'))
        except json.JSONDecodeError as error:
            raise UserError(f'{path} is no JSON: {error}') from error
        if not isinstance(known, dict):
            raise UserError(f'{path} holds a {type(known).__name__}, expected an object')
    kept = {key: known[key] for key in PARTS if key in known}
    made = {**known.get('made', {}), part: {**header(), **about}}
    return write_results(path, {**kept, part: body, 'made': made})
