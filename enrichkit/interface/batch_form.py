"""
The batch form of a connector, for a service that answers files of requests later.

At run time this module imports only the standard library, because `enrichkit.plugin` exports its classes and must load
neither pyarrow nor pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..columnar import Key, Value
    from .call import Call, Failure

__all__ = ["BatchForm", "BatchStatus"]


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """
    How far a service is with one batch.

    Attributes:
        word: The service's own word for the progress, for example `in_progress`.
        done: True when the batch has ended, so that no more answers come; all, some or none of its requests have been
            answered.
        answered: Number of requests that the service has answered so far.
        reason: Why the service refused the whole batch, as a code without any text of a request; empty: the batch was
            not refused.
    """

    word: str
    done: bool = False
    answered: int = 0
    reason: str = ""


class BatchForm(Protocol):
    """
    The batch form of a source; `Connector.batches` returns it.

    The driver makes the object and uses it. It first calls `open`, then other methods one at a time, and at the end
    `close`. If a method raises a `TransientError`, the driver calls it again.

    Attributes:
        max_requests: The most requests that a batch may have.
        max_bytes: The most bytes that all requests of a batch may have together.
    """

    max_requests: int
    max_bytes: int

    async def open(self) -> None:
        """Make the client; raises a `ConnectorError` if that fails."""
        ...

    async def close(self) -> None:
        """Free all resources."""
        ...

    def request(self, name: str, key: Key) -> bytes:
        """
        Return the request for *key*, as bytes for the file of requests; *name*, 32 hexadecimal digits, is the name of
        the request.

        Each call with the same arguments returns the same bytes. Raises `PermanentError` for a key that must not be
        sent.
        """
        ...

    async def submit(self, name: str, requests: Sequence[bytes], *, again: bool) -> str:
        """
        Submit a batch and return the id that the service gives it.

        Args:
            name: Name of the batch, 32 hexadecimal digits that no other batch has.
            requests: 1 to `max_requests` requests, as `request` returned them.
            again: True when this batch may have been submitted before, by a driver that was killed or a call that
                failed. Then `submit` first asks the service for a batch of this *name*, and sends the batch only if the
                service has none.

        Raises:
            ConnectorError: The batch was not submitted, or it is not known whether it was.
        """
        ...

    async def status(self, batch: str) -> BatchStatus:
        """
        Return how far the service is with the batch whose id is *batch*; raises a `ConnectorError` if it does not tell.
        """
        ...

    async def answers(self, batch: str, call: Call) -> Iterable[tuple[str, Value | Failure | None]]:
        """
        Return the answers of a batch that has ended, each as the name of its request and a value in the connector's
        encoding.

        The value None means a miss. A request that was not answered has a `Failure`, or is absent. An
        implementation reports the costs of the batch with ``call.spent(...)``.

        Raises:
            ConnectorError: The answers cannot be fetched.
        """
        ...
