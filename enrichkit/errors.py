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
    │   ├── TransientError                  try again: busy, throttled, timed out
    │   │   └── UnavailableError            the source cannot be reached, or refuses
    │   ├── PermanentError                  this key will not work: bad value, 4xx, wrong type
    │   └── FatalError                      nothing will work: authentication, unknown table
    │       └── ContractError               the connector broke its contract
    ├── JournalError                        worker: the journal cannot be read or written
    ├── OverBudgetError                     worker: the budget left no call for the key
    └── TaskFailedError                     worker: fails the Spark task
        ├── LookupFailedError               a lookup failed and its policy is "fail"
        ├── TooManyFallbacksError           more fallbacks than max_fallback_ratio allows
        ├── SourceStalledError              the source failed for longer than stall_timeout
        └── ConnectorBlockedError           a connector blocked the event loop

Spark drops exception chains on the way to the driver, so the message of an error repeats the text of its cause.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "ConnectorBlockedError",
    "ConnectorError",
    "ContractError",
    "DuplicateConnectorError",
    "EnrichkitError",
    "FatalError",
    "JournalError",
    "LookupFailedError",
    "MissingDriverError",
    "OverBudgetError",
    "PermanentError",
    "PluginError",
    "SourceStalledError",
    "TaskFailedError",
    "TooManyFallbacksError",
    "TransientError",
    "UnavailableError",
    "UnknownConnectorError",
    "UnknownOptionError",
]


class EnrichkitError(Exception):
    """Base class of all errors that enrichkit raises on purpose."""


class ConfigError(EnrichkitError, ValueError):
    """
    An argument, option or config is wrong. Raised on the driver before any row is processed, if the driver can detect
    the mistake.

    Raised on a worker if only a worker can detect the mistake: a secret is absent, or a key column has a type that a
    key cannot have.
    """


class UnknownOptionError(ConfigError, TypeError):
    """An option that does not exist, most often a misspelled one. Raised on the driver."""


class UnknownConnectorError(ConfigError):
    """No source is registered and no plugin is installed under the name that the user gave. Raised on the driver."""


class PluginError(EnrichkitError):
    """A plugin is installed but cannot be used. Raised on the driver."""


class DuplicateConnectorError(PluginError):
    """Two installed packages offer a connector of the same name."""


class MissingDriverError(PluginError, ImportError):
    """The client package that a connector needs is not installed. Raised on the driver."""


def _seconds(given: object) -> float | None:
    """Return *given* as a number of seconds, or None when it is not a number."""
    try:
        seconds = float(given)  # type: ignore[arg-type]  # *given* may be anything
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None
    return None if math.isnan(seconds) else seconds


class ConnectorError(EnrichkitError):
    """
    An error that a connector raises, or returns inside a `Failure`, on a worker.

    Attributes:
        said: Text that the source has sent, for example the beginning of a response. The connector sets this attribute;
            the text may hold keys and values, but no secret. Error messages of a task show the text only with
            `show_keys=True`; the command `enrichkit check` always shows it.
    """

    said: str = ""


def reworded(error: ConnectorError, text: str) -> ConnectorError:
    """
    Return an error like *error* with the message *text*; *error* itself stays unchanged, as other code may hold it.

    No `__init__` is called, because a subclass in a plugin may take arguments that are not known here.
    """
    changed: ConnectorError = Exception.__new__(type(error), text)
    changed.__dict__.update(error.__dict__)
    return changed


class TransientError(ConnectorError):
    """
    The same lookup may work a moment later, for example after a refused connection, a timeout or throttling. The engine
    retries the lookup.

    Attributes:
        retry_after: Seconds that the source asks its clients to wait, or None. The engine cuts a wait that is longer
            than `stall_timeout` to at most 60 seconds. A value that cannot be read as a number becomes None, because a
            connector may pass on a value from the source without a check.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = _seconds(retry_after)


class UnavailableError(TransientError):
    """
    The source gave no answer, and the key is not the reason: a call for any other key would have failed as well.

    The source is not reachable, refuses connections, closes a connection before it answers, starts up or shuts down, or
    has no free connection. While the source answers no call at all, the engine keeps the keys, counts no attempt, and
    makes one call at a time to find out whether the source is back. While the source answers other calls, the engine
    asks for the key again a moment later without counting an attempt. It does so up to eight times, or 60 times if
    *busy* is True; after that the engine treats the error like any other `TransientError`.

    Attributes:
        node: Name of the server that is not available, if the source has other servers that may still answer; None: the
            whole source is not available. The keys of this server wait and are asked for again; no attempt is counted,
            and other keys are not held back.
        sent: Whether the keys may have reached the source. False proves that no key caused the error. If True, the keys
            of the call may be the reason for the error. So a key that fails alone, while no other key is asked for,
            waits for the source no longer than its `timeout`.
        busy: Whether the source has refused the call because it has as many calls as it can take, for example by HTTP
            429 or for lack of a free connection. If *busy* is True while the source answers other calls, the engine
            keeps fewer calls in flight. If *busy* is True and *sent* is False, the source has no free connection. Then
            the idle engines of this process whose connector has the same class close their connections.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        node: str | None = None,
        sent: bool = True,
        busy: bool = False,
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.node = node
        self.sent = sent
        self.busy = busy


class PermanentError(ConnectorError):
    """
    This key fails at every attempt, so the engine never retries it. If the call had several keys, the engine splits
    them into smaller calls to find this key.
    """


class FatalError(ConnectorError):
    """No key can succeed, for example because the login fails or a table is unknown. The task fails at once."""


class ContractError(FatalError):
    """A connector broke the interface, for example by returning no mapping from the keys of the call to answers."""


class JournalError(EnrichkitError):
    """
    The journal, which stores answers in files, cannot be read or written, for example because the disk is full or a
    folder is not accessible. Raised on a worker.

    `Journal.on_error` decides whether the task goes on without the journal.
    """


class OverBudgetError(EnrichkitError):
    """
    The budget of the job is spent, so no call was made for a key. The error is the outcome of that key; it is never
    raised.
    """


class TaskFailedError(EnrichkitError):
    """Base class of the errors that fail the Spark task. Raised on a worker."""


class LookupFailedError(TaskFailedError):
    """
    A lookup failed, timed out or found nothing, and the option for this case (`on_error`, `on_timeout` or `on_missing`)
    is ``"fail"``.
    """


class TooManyFallbacksError(TaskFailedError):
    """A larger share of a task's lookups than `max_fallback_ratio` timed out or ended in an error."""


class SourceStalledError(TaskFailedError):
    """
    The source was unreachable or failed calls for longer than `stall_timeout`; the engine held calls back all that
    time.
    """


class ConnectorBlockedError(TaskFailedError):
    """A connector blocked the event loop for too long, or the event loop ended."""


def did_you_mean(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """
    Return ``" Did you mean 'x'?"`` when one of *known* looks like *name*, otherwise an empty text.

    Args:
        name: The name that the user has written.
        known: The names that are valid.
        likeness: Least ratio of `difflib.SequenceMatcher` for *name* and the suggested name; 0 to 1.

    >>> f"No column is named 'teir'.{did_you_mean('teir', ['name', 'tier'])}"
    "No column is named 'teir'. Did you mean 'tier'?"
    """
    known = list(known)
    close = [other for other in known if other.lower() == name.lower()] or difflib.get_close_matches(
        name, known, n=1, cutoff=likeness
    )
    return f" Did you mean {close[0]!r}?" if close else ""
