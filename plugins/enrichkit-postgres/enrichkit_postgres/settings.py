"""The settings of a PostgreSQL session: enrichkit fixes some of them, and the config gives others, such as a tenant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from enrichkit.errors import ConfigError, FatalError
from enrichkit.plugin import Secret, revealed

if TYPE_CHECKING:
    from .config import PostgresConfig

__all__ = ["SEARCH_PATH", "SETTINGS", "Settings", "local_settings", "milliseconds", "setting_pairs", "settings_of"]

Settings: TypeAlias = tuple[tuple[str, "str | Secret"], ...]

SEARCH_PATH = "public, pg_temp"  # the server would search pg_temp first if this list did not name it

# Each session has these settings, so that no setting of the role, the database or a DSN changes the meaning of a name,
# date or statement.
SETTINGS = {
    "search_path": SEARCH_PATH,
    "default_transaction_read_only": "on",
    "idle_in_transaction_session_timeout": "10s",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "jit": "off",  # JIT compilation takes longer than a lookup
}
_OF_THE_USER = ("search_path", "jit")
_FIXED = {
    *(name.lower() for name in SETTINGS if name not in _OF_THE_USER),
    *("transaction_read_only", "statement_timeout", "client_encoding", "extra_float_digits", "bytea_output"),
    *("standard_conforming_strings", "application_name"),
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*").fullmatch
_EXAMPLE = "settings={'app.tenant': 'acme'}"


def setting_pairs(values: Any) -> Settings:
    """
    Return *values*, a mapping or pairs of names and values, as pairs; raises `ConfigError` if a name or a value is
    wrong.
    """
    if isinstance(values, Mapping):
        values = values.items()
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"PostgresConfig.settings is {values!r}; it must be a mapping. Write {_EXAMPLE}.")
    pairs = tuple(tuple(pair) if isinstance(pair, list | tuple) else (pair,) for pair in values)
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], str) or not _NAME(pair[0]):
            raise ConfigError(
                f"PostgresConfig.settings has the name {pair[0]!r}; it must be the name of a setting of PostgreSQL. "
                f"Write {_EXAMPLE}."
            )
        name, value = pair
        if name.lower() in _FIXED:
            raise ConfigError(
                f"PostgresConfig.settings names {name!r}, which enrichkit sets itself: another value would change what "
                "is read, or how a session ends. Leave it out."
            )
        if not isinstance(value, Secret) and (not isinstance(value, str) or "\0" in value):
            raise ConfigError(
                f"PostgresConfig.settings gives {name!r} a value of the type {type(value).__name__}; it must be text "
                f"without NUL, or a Secret. Write {_EXAMPLE}."
            )
    names = [name.lower() for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"PostgresConfig.settings names {twice[0]!r} twice. Leave one out.")
    return tuple((name.lower() if name.lower() in _OF_THE_USER else name, value) for name, value in pairs)


async def settings_of(config: PostgresConfig) -> dict[str, str]:
    """Return the settings of *config* with their values; raises `FatalError` for a secret that cannot be read."""
    try:
        settings = {name: await revealed(value) or "" for name, value in config.setting_pairs}
    except ConfigError as error:
        raise FatalError(str(error)) from None
    if "pg_temp" not in (path := settings.get("search_path", SEARCH_PATH)):
        settings["search_path"] = f"{path}, pg_temp"
    return settings


def milliseconds(timeout: float) -> int:
    """
    Return the `statement_timeout` of a call in milliseconds: nine tenths of *timeout* seconds, but at most nine tenths
    of a day.
    """
    return max(1, int(0.9 * min(timeout, 86_400.0) * 1000))


def local_settings(timeout: float, given: Mapping[str, str]) -> str:
    """Return the SQL that applies the fixed settings and the *given* settings to the current transaction."""
    settings = SETTINGS | {"statement_timeout": str(milliseconds(timeout))}
    del settings["default_transaction_read_only"]  # BEGIN says whether the transaction may write
    # set_config() takes any text as one argument, even a list such as a search_path; SET would read a quoted list as a
    # single name.
    both = {**settings, **given}
    return "; ".join(
        f"SET LOCAL {name} = '{value}'" if name not in ("search_path", *given) else _set_config(name, value)
        for name, value in both.items()
    )


def _set_config(name: str, value: str) -> str:
    quoted = value.replace("'", "''")
    return f"SELECT pg_catalog.set_config('{name}', '{quoted}', true)"
