"""
The exceptions of enrichkit::

    EnrichkitError
    ├── ConfigError (ValueError)            driver: an option or a config is wrong
    │   ├── UnknownOptionError              an option that does not exist
    │   └── UnknownConnectorError           no source or plugin has that name
    ├── PluginError                         driver: a plugin is installed but cannot be used
    │   ├── DuplicateConnectorError         two packages offer one name
    │   └── MissingDriverError              the package that the connector needs is absent
    ├── ConnectorError                      worker: raised by connectors
    │   ├── TransientError                  try again: refused, reset, busy, throttled
    │   ├── PermanentError                  this key will not work: bad value, 4xx, wrong type
    │   └── FatalError                      nothing will work: authentication, unknown table
    │       └── ContractError               the connector broke its contract
    └── TaskFailedError                     worker: fails the Spark task
        ├── LookupFailedError               a lookup failed and its policy is "fail"
        ├── TooManyFallbacksError           more fallbacks than max_fallback_ratio allows
        ├── SourceStalledError              the source failed for longer than stall_timeout
        └── ConnectorBlockedError           a connector blocked the event loop

Spark drops exception chains on the way to the driver, so each message repeats its cause.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "ConnectorBlockedError",
    "ConnectorError",
    "ContractError",
    "DuplicateConnectorError",
    "EnrichkitError",
    "FatalError",
    "LookupFailedError",
    "MissingDriverError",
    "PermanentError",
    "PluginError",
    "SourceStalledError",
    "TaskFailedError",
    "TooManyFallbacksError",
    "TransientError",
    "UnknownConnectorError",
    "UnknownOptionError",
]


class EnrichkitError(Exception):
    """Every error that enrichkit raises on purpose."""


class ConfigError(EnrichkitError, ValueError):
    """
    An argument, option or config is wrong. Raised on the driver, before any row moves.

    On a worker where only it can tell: a secret that is not there, a key column of a type that is no key.
    """


class UnknownOptionError(ConfigError, TypeError):
    """An option that does not exist, most often a misspelt one. Raised on the driver."""


class UnknownConnectorError(ConfigError):
    """No source is registered and no plugin is installed under that name. Raised on the driver."""


class PluginError(EnrichkitError):
    """A plugin is installed but cannot be used. Raised on the driver."""


class DuplicateConnectorError(PluginError):
    """Two installed packages offer a connector of one name."""


class MissingDriverError(PluginError, ImportError):
    """The package that a connector talks through is not installed."""


class ConnectorError(EnrichkitError):
    """What a connector raises, or returns inside a `Failure`, on a worker."""


class TransientError(ConnectorError):
    """
    The same lookup may work a moment later: refused, reset, timed out, throttled. It is retried.

    Attributes:
        retry_after: Seconds that the source asked us to wait, or None. Clamped by the engine to 0..60.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PermanentError(ConnectorError):
    """This key will fail however often it is asked. Never retried; a group of keys is bisected to find it."""


class FatalError(ConnectorError):
    """No key can succeed: authentication, configuration, unknown table. Fails the task at once."""


class ContractError(FatalError):
    """A connector returned something else than a mapping of the keys that it was asked for."""


class TaskFailedError(EnrichkitError):
    """Fails the Spark task. Raised on a worker."""


class LookupFailedError(TaskFailedError):
    """A lookup failed, and `on_error`, `on_timeout` or `on_missing` is ``"fail"``."""


class TooManyFallbacksError(TaskFailedError):
    """More lookups than `max_fallback_ratio` timed out or ended in an error."""


class SourceStalledError(TaskFailedError):
    """The source failed for longer than `stall_timeout`, so admission was held back all that time."""


class ConnectorBlockedError(TaskFailedError):
    """A connector blocked the event loop for too long, or the loop died."""
