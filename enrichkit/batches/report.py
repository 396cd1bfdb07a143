"""The result of `submit_batches` and `collect_batches`: the progress of the batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..reports.text import Report, plural, table

__all__ = ["Batch", "Batches"]


@dataclass(frozen=True)
class Batch:
    """
    The progress of one batch.

    Attributes:
        id: Id that the service has given the batch; empty while the batch is planned, i.e. recorded but not sent yet.
        status: The service's word for the state of the batch; `planned` or `submitted` until the service was asked.
        requests: Number of its requests.
        answered: Number of requests that the service has answered; once the batch is collected, only those with a
            usable answer.
        missing: Number of answers that say that the source does not hold the key; part of *answered*.
        failed: Number of requests without a usable answer, for each reason; empty until the batch is collected.
        collected: Whether the batch has ended and its answers are in the journal.
        spent: Cost of the batch by unit, as the service reports it; empty until the batch is collected.
    """

    id: str
    status: str
    requests: int
    answered: int
    missing: int
    failed: Mapping[str, int]
    collected: bool
    spent: Mapping[str, float]


@dataclass(frozen=True, repr=False)
class Batches(Report):
    """
    The batches of one source in a journal; its `str` is the text to print.

    Attributes:
        source: Name of the source.
        batches: The batches, the oldest first.
        submitted: Number of keys that this call has submitted.
        known: Number of keys of the DataFrame that were not submitted, because the journal has their answers.
        waiting: Number of keys of the DataFrame that are in a batch that was submitted before and is not collected yet.
        refused: Number of keys that were not submitted, because the source does not take them.
    """

    source: str
    batches: tuple[Batch, ...]
    submitted: int = 0
    known: int = 0
    waiting: int = 0
    refused: int = 0

    @property
    def done(self) -> bool:
        """Whether all batches are collected."""
        return all(each.collected for each in self.batches)

    @property
    def spent(self) -> Mapping[str, float]:
        """Cost of the collected batches, by unit."""
        return dict(sum((Counter(each.spent) for each in self.batches), Counter()))

    def __str__(self) -> str:
        counts = {"submitted": self.submitted, "in the journal": self.known, "in earlier batches": self.waiting}
        counts["refused"] = self.refused
        said = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
        head = f"{self.source}: {len(self.batches):,} batch{'es' * (len(self.batches) != 1)}"
        lines = [f"{head}; keys: {said}" if said else head]
        if self.batches:
            lines += table([_cells(each) for each in self.batches])
        return "\n".join(lines)


def _cells(batch: Batch) -> tuple[str, str, str]:
    parts = [f"{batch.answered:,} of {plural(batch.requests, 'request')} answered"]
    parts += [f"{batch.missing:,} missing"] * bool(batch.missing)
    parts += [f"{number:,} failed: {reason}" for reason, number in batch.failed.items()]
    return batch.id or "(no id yet)", batch.status + ", collected" * batch.collected, "; ".join(parts)
