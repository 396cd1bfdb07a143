"""Tiers: several sources as one. Each source is asked only for keys that the sources before it do not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..interface import ConnectorConfig

__all__ = ["Tiers", "tiers"]


@dataclass(frozen=True, slots=True)
class Tiers:
    """
    Several sources as one, made by `tiers`: a source for `enrich`, `enrich_frame` and `register_function`.

    Attributes:
        sources: Names of sources or their configs, in the order in which the sources are asked.
        write_back: Whether a value that a source has found is written to the sources that are asked before it.
        ttl: Seconds after which the sources forget values that were written to them; None: enrichkit sets no
            expiration time.
        timeout: Most seconds that each source but the last may take for a key.
    """

    sources: tuple[str | ConnectorConfig, ...]
    write_back: bool = False
    ttl: float | None = None
    timeout: float = 0.5


def tiers(
    *sources: str | ConnectorConfig, write_back: bool = False, ttl: float | None = None, timeout: float = 0.5
) -> Tiers:
    """
    Return several sources as one: each key is looked up in one source after the other, until a source holds it.

    If a source before the last one fails, is unavailable or takes too long, the next source is asked for the same keys,
    and no row fails because of that. All options of the lookup, such as `capacity`, refer to the last source.

    Args:
        sources: Two or more names of sources or their configs, for example a Redis before a service.
        write_back: Whether a value that a source has found is written, in the background, to the sources that are asked
            before it.
        ttl: Seconds after which the sources forget values that were written to them, 1 to 31,536,000 (a year); None:
            enrichkit sets no expiration time.
        timeout: Most seconds that each source but the last may take for a key, 0.001 to 3,600. These seconds are part
            of the seconds that the option `timeout` of the lookup allows.

    Raises:
        ConfigError: An argument is wrong.

    >>> tiers("redis", "users", write_back=True, ttl=3600).sources
    ('redis', 'users')
    """
    if len(sources) < 2 or not all(isinstance(source, str | ConnectorConfig) for source in sources):
        raise ConfigError(
            f"tiers() was given {', '.join(map(repr, sources)) or 'no source'}; it must be given two or more sources, "
            "each a name or a config, for example tiers('redis', 'users')."
        )
    if not isinstance(write_back, bool):
        raise ConfigError(f"tiers(write_back=) is {write_back!r}; it must be True or False, for example True.")
    if ttl is not None:
        _check_seconds("ttl", ttl, 1.0, 31_536_000.0)
        if not write_back:
            raise ConfigError(f"tiers(ttl=) is {ttl!r}, but nothing is written. Set write_back=True, or leave ttl out.")
    _check_seconds("timeout", timeout, 0.001, 3_600.0)
    return Tiers(sources, write_back, ttl, timeout)


def _check_seconds(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(
            f"tiers({name}=) is {value!r}; it must be a number of seconds from {low:g} to {high:,.0f}, for example "
            f"{name}=1.0."
        )
