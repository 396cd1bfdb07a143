"""What a connector offers whose service answers files of requests later. Loads nothing: `enrichkit.plugin` has it."""

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
        word: The service's own word for it, for example `in_progress`.
        done: True when the batch has ended, so that no more answers come; they may be some, all or none.
        answered: Number of requests that it has answered so far.
        reason: Why the service refused the whole batch, as a code without any text of a request; empty: it did not.
    """

    word: str
    done: bool = False
    answered: int = 0
    reason: str = ""


class BatchForm(Protocol):
    """
    The batch form of a source; `Connector.batches` returns it.

    It is made and used on the driver, which calls `open` first, one method at a time after that, and `close` at the
    end. A method that raises a `TransientError` is called again.

    Attributes:
        max_requests: Most requests of a batch.
        max_bytes: Most bytes of all requests of a batch.
    """

    max_requests: int
    max_bytes: int

    async def open(self) -> None:
        """Make the client; raises a `ConnectorError`."""
        ...

    async def close(self) -> None:
        """Free all resources."""
        ...

    def request(self, name: str, key: Key) -> bytes:
        """
        Return the request for *key*, which has the *name* of 32 hexadecimal digits, as it stands in the file.

        It is the same at each call. Raises `PermanentError` for a key that is not to be sent.
        """
        ...

    async def submit(self, name: str, requests: Sequence[bytes], *, again: bool) -> str:
        """
        Submit a batch and return the id that the service gives it.

        Args:
            name: Name of the batch, 32 hexadecimal digits that no other batch has.
            requests: 1 to `max_requests` requests, as `request` returned them.
            again: True when this batch may have been submitted before, by a driver that was killed or a call that
                failed: the service is asked for a batch of this *name*, and what it has is not submitted twice.

        Raises:
            ConnectorError: The batch was not submitted, or it is not known whether it was.
        """
        ...

    async def status(self, batch: str) -> BatchStatus:
        """Return how far the service is with the *batch* of this id; raises a `ConnectorError`."""
        ...

    async def answers(self, batch: str, call: Call) -> Iterable[tuple[str, Value | Failure | None]]:
        """
        Return the answers of a batch that has ended: names of requests and values in the connector's encoding.

        None is a miss. A request that was not answered has a `Failure`, or is absent. The costs go to `Call.spent`.

        Raises:
            ConnectorError: The answers cannot be had.
        """
        ...
