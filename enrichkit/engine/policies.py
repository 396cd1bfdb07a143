"""What a lookup that did not end well means for its rows, and what the messages say of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import LookupFailedError, TaskFailedError, TooManyFallbacksError
from ..options import Default, Options
from ..outcome import ERROR, MISSING, REJECTED, TIMEOUT
from .fallback import both

if TYPE_CHECKING:
    from .fallback import HandedOn, Stage
    from .lookup import Lookup

__all__ = ["Policies"]

RATIO_FLOOR = 100  # keys below which a share of failures says nothing; resilience4j's default window
OPTION = {TIMEOUT: "on_timeout", ERROR: "on_error", REJECTED: "on_error", MISSING: "on_missing"}


class Policies:
    """
    The policies of one run.

    Args:
        source: What messages call the source.
        options: With the policies and `max_fallback_ratio`.
        fallbacks: Decoded `default(...)` values by option name.
        stages: The fallbacks that have to be asked; each names the options that stand for it.
        salt: For the hash of keys in messages.
    """

    def __init__(
        self, source: str, options: Options, fallbacks: Mapping[str, Any], stages: Sequence[Stage], salt: str
    ) -> None:
        self._source = source
        self._options = options
        self._policies = {status: options.policy(name) for status, name in OPTION.items()}
        by_option = {option: stage for stage in stages for option in stage.options}
        self._stages = {status: by_option.get(name) for status, name in OPTION.items()}
        self._fallbacks = fallbacks
        self._salt = salt
        self._failed = 0
        self._last: str | None = None

    def text(self, status: int, error: BaseException | None) -> str | None:
        """Return what the outcome says of a lookup with *status*; counts it for `max_fallback_ratio`."""
        if status == MISSING:
            return None
        text = f"{type(error).__name__}: {error}" if error is not None else None
        if status == TIMEOUT:
            text = f"TimeoutError: no answer within {self._options.timeout:g} s" + (f"; last: {text}" if text else "")
        self._count(text)
        return text

    def stage(self, status: int) -> Stage | None:
        """Return the fallback that has to be asked for a lookup with *status*, or None."""
        return self._stages[status]

    def misses_alike(self) -> bool:
        """Whether all misses have one outcome, which asks nobody and fails nothing."""
        return self._stages[MISSING] is None and self._policies[MISSING] != "fail"

    def fell_through(self, handed: HandedOn, stage: Stage, status: int, text: str | None) -> int:
        """
        Note that *stage* has no answer for *handed* either: its *status*, and what it says of it.

        Returns:
            The status whose policy comes next: `MISSING` when it has nothing for the key, else `ERROR`.
        """
        handed.text = both(handed, stage, text if status != MISSING else None)
        if status == MISSING:
            handed.origin = "fallback"
            return MISSING
        if handed.status == MISSING:  # that nobody holds the key is not known any more
            handed.status = ERROR
            self._count(handed.text)
        return ERROR

    def _count(self, text: str | None) -> None:
        self._failed += 1
        self._last = text

    def fallback(self, status: int) -> tuple[Any, str | None]:
        """Return the value that takes the place of one with *status*, and its origin where it has one."""
        if isinstance(self._policies[status], Default):
            return self._fallbacks[OPTION[status]], "fallback"
        return None, None

    def failure(self, lookup: Lookup, status: int, text: str | None, waited: float) -> TaskFailedError | None:
        """Return why the task fails when *lookup* ends with *status* after *waited* seconds, or None."""
        last = self._stages[status] is not None  # of its fallbacks, and it has been asked
        if last and (self._options.details or status == MISSING):
            return None
        if not last and self._policies[status] != "fail":
            return None
        what = {MISSING: "found nothing", REJECTED: "was refused"}.get(status, "failed")
        tries = f"after {lookup.attempts} attempt{'s' * (lookup.attempts != 1)} and {waited:.3g} s"
        option = OPTION[status]
        cause = (text or "the source does not hold the key").rstrip(".")
        failed = f"{self._source}: the lookup of key {self.show(lookup.key)} {what} {tries}: {cause}."
        if last:
            return LookupFailedError(
                f"{failed} The task fails because {option} names no fallback but the one that failed; mend that, or "
                "set details=True, which keeps the row."
            )
        return LookupFailedError(
            f"{failed} The task fails because {option} is 'fail'; "
            f"{option}='null' or {option}=default(value) keeps the row."
        )

    def too_many(self, done: int) -> TooManyFallbacksError | None:
        """Return why the task fails after *done* keys, when too many of them have failed, or None."""
        if done < RATIO_FLOOR or self._failed <= self._options.max_fallback_ratio * done:
            return None
        last = str(self._last).rstrip(".")
        return TooManyFallbacksError(
            f"{self._source}: {self._failed:,} of {done:,} keys timed out, failed or were refused, more than "
            f"max_fallback_ratio={self._options.max_fallback_ratio:g} allows. Last: {last}. Mend the "
            "source, or set max_fallback_ratio=1.0 to accept any number of fallbacks."
        )

    def show(self, key: Any) -> str:
        """Return *key* as messages show it: hashed, unless the user asked to see keys."""
        if self._options.show_keys:
            return repr(key)[:200]
        return "#" + hashlib.sha256(f"{self._salt}{key!r}".encode("utf-8", "backslashreplace")).hexdigest()[:10]
