"""What the engine tells a connector about a call, and the answers of a call that are not values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..errors import ConnectorError, ContractError

if TYPE_CHECKING:
    from ..columnar import Key

__all__ = ["Absent", "Call", "Failure", "Meter", "TaskInfo"]


@dataclass(frozen=True, slots=True)
class Failure:
    """
    The answer for one key that failed, in a call that can still answer its other keys.

    Attributes:
        error: A `TransientError`, after which the engine looks the key up again, or a `PermanentError`.
        rejected: True when the key was never sent because it is invalid for the source.
    """

    error: ConnectorError
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """
    A miss: the source has sent an answer for the key, but the answer has no value at the path that the config names.

    A connector may also return no answer for such a key. If it returns `Absent`, however, the task fails when none of
    the task's first answers has a value at the path, because the path is then probably wrong; see the option
    `absent_fields`.

    Attributes:
        path: The path, for example `data.profile`.
        names: Function that follows the path until a name of it is absent, and returns the names of the fields that the
            answer has at this place. It returns None if the answer has a null there, because a null does not tell
            whether the path is wrong. It may be slow,
            because the engine calls it for a few answers only.
    """

    path: str
    names: Callable[[], Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """
    The Spark task that a call is made for. Use it for logs and idempotency, never for connections.

    Attributes:
        partition: Number of the partition.
        attempt: Attempt number of the task, from 0.
        stage: Number of the stage.
        query_id: Id of the streaming query; None in a batch query.
        batch_id: Number of the micro-batch; None in a batch query.
    """

    partition: int = 0
    attempt: int = 0
    stage: int = 0
    query_id: str | None = None
    batch_id: int | None = None


class Meter(Protocol):
    """
    The receiver of a call's reports. A call has one if `Connector.reports` is True, or if a limit needs the reports.
    """

    def spent(self, units: Mapping[str, float]) -> None:
        """Record *units*, amounts by unit, as the total cost of the call so far."""

    def allows(self, remaining: float, seconds: float, limit: float | None, unit: str) -> None:
        """Record that the source allows *remaining* of *unit* in the next *seconds*, out of *limit* in each period."""


@dataclass(frozen=True, slots=True)
class Call:
    """
    The facts about one call that a connector may use, and the methods by which the connector reports on the call.

    Attributes:
        timeout: Seconds until the engine cancels the call; at most a day. The cancellation is the last resort, in case
            the timeouts of the client package have not ended the call earlier.
        attempt: How often the keys of the call have been asked for, this call included: 1 for their first call.
        many: True when a value is a list with one element per match.
        task: The Spark task.
        meter: The receiver of the call's reports; None: nobody needs the reports.
        run: Fingerprint of the source and the run, from which `idempotency_key` makes its digits; empty: the connector
            does not call `idempotency_key`.
    """

    timeout: float
    attempt: int = 1
    many: bool = False
    task: TaskInfo = field(default_factory=TaskInfo)
    meter: Meter | None = field(default=None, repr=False, compare=False)
    run: str = field(default="", repr=False)

    def idempotency_key(self, key: Key) -> str:
        """
        Return 32 hexadecimal digits by which a service can detect a repeated request.

        The digits of *key* are the same in each attempt of its lookup, in each attempt of the task, and in each replay.
        A replay repeats the micro-batch of a streaming query, or a batch job with the same `run_id` of its journal. A
        batch job without a `run_id` has other digits for each call of `enrich`. Another key, config or declared type
        has other digits.

        Raises:
            ContractError: The connector's `idempotency_keys` is False, so that the driver has made no fingerprint.
        """
        if not self.run:
            raise ContractError(
                "idempotency_key was called by a connector whose idempotency_keys is False, so there is no fingerprint "
                "of the run. Set idempotency_keys = True in its class."
            )
        return hashlib.sha256(f"{self.run} {_exact(key)}".encode("utf-8", "backslashreplace")).hexdigest()[:32]

    def spent(self, **units: float) -> None:
        """
        Report what the call has cost, as the source says, for example ``call.spent(tokens=1_250)``.

        The report replaces the estimate of `Connector.cost` for these units; a later report replaces an earlier one.
        Report `math.nan` for a unit whose amount is not known, for example because an answer was lost: then an earlier
        report of the unit stays valid, and the statistics count the call as one of unknown cost.
        """
        if self.meter is not None:
            self.meter.spent(units)

    def allows(self, remaining: float, seconds: float, limit: float | None = None, *, unit: str = "requests") -> None:
        """
        Report that the source allows *remaining* further calls in the next *seconds*, out of *limit* calls in each
        period.

        When few calls remain, the engine spreads them evenly over the *seconds*; when none remain, it waits. With
        another *unit*, such as `"tokens"`, *remaining* and *limit* are amounts of this unit; the engine converts them
        into calls, with the average amount per call that `spent` has reported.
        """
        if self.meter is not None:
            self.meter.allows(remaining, seconds, limit, unit)


def _exact(key: Key) -> str:
    """Return a text of *key* that differs for keys of different types, such as `1` and `"1"`."""
    return f"({','.join(map(_exact, key))})" if isinstance(key, tuple) else f"{type(key).__name__}:{key!r}"
