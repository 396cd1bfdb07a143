"""Checks of bad keys: the lookup of a bad key always fails, but it must fail only the rows with this key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import FatalError, PermanentError, TransientError
from ...interface import Failure
from .base import Fixtures
from .messages import raised, short, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...interface import Key
    from .source import Source

__all__ = ["BadKeyChecks"]


class BadKeyChecks(Fixtures):
    """
    When a call fails with a `PermanentError`, the engine repeats it in smaller calls until it has found the bad keys.

    A key must get its own value, or an error that says why it gets none. If a character is replaced, a number is cut,
    or a failed key looks like a missing key, the row is wrong and nobody notices.
    """

    def test_a_value_that_cannot_be_read_is_an_error(self, source: Source, unreadable: Sequence[Key]) -> None:
        """Look for ways in which an unreadable value is hidden: `errors="replace"`, rounding, a default value, None."""
        for key in unreadable:
            answers = _searched(source, [key])
            assert key in answers, (
                f"A key whose value cannot be read must have an error; `fetch_many` of {short(key)} returned nothing, "
                "which looks like a missing key. Raise a PermanentError, or return a Failure with one."
            )
            assert _is_error(source, answers[key]), (
                f"A key whose value cannot be read must have an error; `fetch_many` of {short(key)} returned "
                f"{short(answers[key])}, which is another value than the source holds. Return a Failure for it: "
                "nothing is replaced, cut or rounded."
            )

    def test_bad_keys_in_any_number_harm_no_other(self, source: Source, unreadable: Sequence[Key]) -> None:
        """Look at a call with several bad keys: return a Failure for each of them, or raise a PermanentError."""
        bad = list(unreadable) or source.hostile_keys()
        for count in sorted({1, 3, len(bad)}):
            some, keys = bad[:count], list(source.keys)
            for n, key in enumerate(some):
                keys.insert((2 * n + 1) % (len(keys) + 1), key)
            answers = _searched(source, keys)
            right = source.expected(source.keys)
            got = source.values({key: answers[key] for key in source.keys if key in answers})
            assert right == got, (
                f"In calls with {len(some)} bad keys, all known keys must get their own values; `fetch_many` returned "
                f"{told(right, got)}. Return a Failure for each bad key, or raise a PermanentError for a call that has "
                "one: the engine then asks for the others without it."
            )


def _searched(source: Source, keys: list[Key]) -> dict[Key, Any]:
    """Return the answers for *keys*; if a call fails with a `PermanentError`, make a call for each half of its keys."""
    most = source.connector.max_batch_size
    if len(keys) > most:
        return _searched(source, keys[:most]) | _searched(source, keys[most:])
    try:
        return dict(source.fetch(keys))
    except PermanentError as error:
        if len(keys) == 1:
            return {keys[0]: Failure(error)}
        half = len(keys) // 2
        return _searched(source, keys[:half]) | _searched(source, keys[half:])
    except (FatalError, TransientError) as error:
        raise AssertionError(
            f"A bad key must make its call fail with a PermanentError, or have a Failure with one; the call for "
            f"{short(keys)} raised {raised(error)}. A FatalError fails the task, and after a TransientError the engine "
            "repeats the call. Look at which class the exception of the client package is translated to."
        ) from error


def _is_error(source: Source, answer: Any) -> bool:
    """Return whether *answer* is a permanent failure, or a value that the engine cannot decode as JSON or text."""
    if isinstance(answer, Failure):
        return isinstance(answer.error, PermanentError)
    try:
        source.values({source.missing: answer})
    except ValueError:  # the JSON and UTF-8 decoders raise subclasses of ValueError
        return True
    return False
