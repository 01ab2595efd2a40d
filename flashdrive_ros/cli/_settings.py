"""Settings of the engine on the command line: `--set NAME=VALUE`."""
from __future__ import annotations

GIVEN_OTHERWISE = ('device', 'dtype', 'streaming', 'seed')
"""Settings that are not for --set: options of their own, or what is compared."""


def engine_settings(texts: list[str], *taken: str) -> dict:
    """Fields of `EngineConfig` from SETTING=VALUE; those `taken` have options of their own."""
    import yaml

    from ..core.config import EngineConfig
    from ..errors import UserError
    from ..values import value_of
    found = {}
    for text in texts:
        name, sign, value = text.partition('=')
        if not sign or name not in EngineConfig.__dataclass_fields__:
            raise UserError(f'--set {text}: expected SETTING=VALUE, with a setting of the engine')
        if name in (*GIVEN_OTHERWISE, *taken):
            raise UserError(f'--set {text}: {name} follows from the other options')
        try:
            found[name] = value_of(value)
            EngineConfig(**found)
        except (yaml.YAMLError, TypeError) as error:
            raise UserError(f'--set {text}: {error}') from None
    return found
