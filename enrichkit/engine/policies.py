"""The policies of a run: which value rows without an answer get, and which failures fail the task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import LookupFailedError, TaskFailedError, TooManyFallbacksError
from ..options import Default, Options, Retry
from ..outcome import ERROR, MISSING, OVER_BUDGET, REJECTED, TIMEOUT

if TYPE_CHECKING:
    from .records import Lookup

__all__ = ["FallbackRequest", "NamedFallback", "Policies"]

# With fewer keys, `max_fallback_ratio` is not checked, because the share of failures means little. The default window
# of resilience4j is 100, too.
RATIO_FLOOR = 100
OPTION = {
    TIMEOUT: "on_timeout",
    ERROR: "on_error",
    REJECTED: "on_error",
    OVER_BUDGET: "on_error",
    MISSING: "on_missing",
}

SLOW = "Where the source answers other keys, a lower capacity or a longer timeout may keep the answer."


class NamedFallback(Protocol):
    """
    The part of a fallback that the policies use.

    Attributes:
        name: Name of the fallback in messages.
        options: The options among `on_timeout`, `on_error` and `on_missing` that name the fallback.
        put: Function that takes a request over; the next flush of the run asks the fallback for the key of the request.
    """

    name: str
    options: tuple[str, ...]

    def put(self, request: FallbackRequest) -> None: ...


class FallbackRequest:
    """
    A lookup without an answer, which is handed to its fallbacks one after the other.

    Attributes:
        status: The status of the lookup's rows.
        text: The error text of these rows; None for a miss.
        origin: The origin (the kind of place where the outcome comes from) that these rows get, unless a fallback
            changes it.
        asked: The fallbacks to which the request was handed so far, so that no fallback gets it twice.
    """

    __slots__ = ("asked", "lookup", "origin", "status", "text")

    def __init__(self, lookup: Lookup, status: int, text: str | None, origin: str) -> None:
        self.lookup = lookup
        self.status = status
        self.text = text
        self.origin = origin
        self.asked: list[NamedFallback] = []


class Policies:
    """
    The policies of one run.

    Args:
        source: Name of the source in messages.
        options: The options: policies, `max_fallback_ratio`, `retry`, `timeout`, `details` and `show_keys` are used.
        default_values: Decoded `default(...)` values by option name.
        fallbacks: The fallbacks of the run; the `options` of each fallback are the options that name it.
        salt: Salt of the hashes that stand for keys in messages.
    """

    def __init__(
        self,
        source: str,
        options: Options,
        default_values: Mapping[str, Any],
        fallbacks: Sequence[NamedFallback],
        salt: str,
    ) -> None:
        self._source = source
        self._options = options
        self._policies = {status: options.policy(name) for status, name in OPTION.items()}
        by_option = {option: fallback for fallback in fallbacks for option in fallback.options}
        self._fallbacks = {status: by_option.get(name) for status, name in OPTION.items()}
        self._default_values = default_values
        self._salt = salt
        self._failed = 0
        self._last: str | None = None

    def note_failure(self, status: int, error: BaseException | None) -> str | None:
        """
        Count, for `max_fallback_ratio`, a lookup that ended with *status*, and return its error text.

        A miss is not counted and has no error text. A key for which the budget allowed no call is not counted either,
        because the user has set this budget.
        """
        if status == MISSING:
            return None
        text = f"{type(error).__name__}: {error}" if error is not None else None
        if status == OVER_BUDGET:
            return text
        if status == TIMEOUT:
            text = f"TimeoutError: no answer within {self._options.timeout:g} s" + (f"; last: {text}" if text else "")
        self._count(text)
        return text

    def fallback(self, status: int) -> NamedFallback | None:
        """Return the fallback that has to be asked for a lookup with *status*, or None."""
        return self._fallbacks[status]

    def misses_alike(self) -> bool:
        """Whether all misses have the same outcome: no fallback is asked for a miss, and no miss fails the task."""
        return self._fallbacks[MISSING] is None and self._policies[MISSING] != "fail"

    def next_policy(self, request: FallbackRequest, fallback: NamedFallback, status: int, text: str | None) -> int:
        """
        Record in *request* that *fallback* has no answer either: its lookup ended with *status* and the error *text*.

        Returns:
            The status whose policy comes next: `MISSING` when the fallback does not hold the key, else `ERROR`.
        """
        request.text = _joined_text(request, fallback, text if status != MISSING else None)
        if status == MISSING:
            request.origin = "fallback"
            return MISSING
        # The fallback failed and might have held the key, so the outcome is an error and no longer a miss.
        if request.status == MISSING:
            request.status = ERROR
            self._count(request.text)
        return ERROR

    def _count(self, text: str | None) -> None:
        self._failed += 1
        self._last = text

    def replacement(self, status: int) -> tuple[Any, str | None]:
        """Return the value of rows with *status*, and its origin; ``(None, None)`` if there is no default value."""
        if isinstance(self._policies[status], Default):
            return self._default_values[OPTION[status]], "fallback"
        return None, None

    def failure(self, lookup: Lookup, status: int, text: str | None, waited: float) -> TaskFailedError | None:
        """Return the error that fails the task if *lookup* ends with *status* after *waited* seconds, or None."""
        last = self._fallbacks[status] is not None  # a fallback has been asked, and had no answer either
        if last and (self._options.details or status == MISSING):
            return None
        if not last and self._policies[status] != "fail":
            return None
        what = {MISSING: "found nothing", REJECTED: "was refused"}.get(status, "failed")
        tries = f"after {_tries(lookup, self._options.retry if what == 'failed' else None)} and {waited:.3g} s"
        option = OPTION[status]
        cause = (text or "the source does not hold the key").rstrip(".")
        if status == OVER_BUDGET:
            what, tries = "was not made", "any more" if lookup.attempts else "at all"
        failed = f"{self._source}: the lookup of key {self.show(lookup.key)} {what} {tries}: {cause}."
        hidden = "" if self._options.show_keys else " Set show_keys=True to see the key."
        if status == TIMEOUT:
            hidden = f" {SLOW}{hidden}"
        if last:
            return LookupFailedError(
                f"{failed} The task fails because {option} names no fallback but the one that failed; mend that, or "
                f"set details=True, which keeps the row.{hidden}"
            )
        return LookupFailedError(
            f"{failed} The task fails because {option} is 'fail'; "
            f"{option}='null' or {option}=default(value) keeps the row.{hidden}"
        )

    def too_many(self, done: int) -> TooManyFallbacksError | None:
        """Return the error that fails the task if too many of its *done* keys have failed, or None."""
        if done < RATIO_FLOOR or self._failed <= self._options.max_fallback_ratio * done:
            return None
        last = str(self._last).rstrip(".")
        return TooManyFallbacksError(
            f"{self._source}: {self._failed:,} of {done:,} keys timed out, failed or were refused, more than "
            f"max_fallback_ratio={self._options.max_fallback_ratio:g} allows. Last: {last}. Mend the "
            "source, or set max_fallback_ratio=1.0 to accept any number of fallbacks."
        )

    def show(self, key: Any) -> str:
        """Return *key* as messages show it: as a salted hash, unless `show_keys` is set."""
        if self._options.show_keys:
            return repr(key)[:200]
        return "#" + hashlib.sha256(f"{self._salt}{key!r}".encode("utf-8", "backslashreplace")).hexdigest()[:10]


def _tries(lookup: Lookup, retry: Retry | None) -> str:
    """
    Return a text that says how many attempts were made for *lookup* and how many *retry* allows: ``1 of 3 attempts``.
    """
    made, allowed = lookup.attempts, retry.attempts if retry is not None else 1
    # Calls of a search for a bad key, and calls repeated after an outage, do not use up the attempts that *retry*
    # allows. If there were such calls, the text says only how many calls were made.
    if made <= lookup.failures + 1 and made <= allowed > 1:
        return f"{made} of {allowed} attempts"
    return f"{made} attempt{'s' * (made != 1)}"


def _joined_text(request: FallbackRequest, fallback: NamedFallback, text: str | None) -> str | None:
    """
    Return the error text of *request* after *fallback* has failed with *text* or, if *text* is None, has found nothing.
    """
    name = fallback.name
    if text is None:
        return request.text and f"{request.text}; {name} has nothing for the key"
    before = request.text or "the source does not hold the key"
    return f"{text} (in {name}, after: {before})"
