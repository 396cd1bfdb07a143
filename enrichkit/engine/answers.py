"""
The answers of a call: the types of the functions that decode answers, and checks for answers that break the contract of
a connector.

The package `enrichkit.values` has the decoding functions themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..errors import ConnectorError, ContractError, PermanentError
from ..interface import Answers, Key

__all__ = ["Columns", "Decode", "FirstAnswers", "breach", "in_rows"]

Decode = Callable[[Sequence[Any]], tuple[list[Any], dict[int, PermanentError]]]
Columns = Callable[[Answers, Sequence[Key]], tuple[Any, Sequence[int]]]


class FirstAnswers(Protocol):
    """
    The check whether the first answers of a task have the declared fields; see `values/first_answers.py`.

    Attributes:
        done: Whether the check has ended.
        see: Method that inspects the answers of a call, and returns an error if they show that a declared field is
            wrong, else None.
        verdict: Method that returns an error if the answers of the task show that a declared field is wrong, else None.
    """

    done: bool

    def see(self, answers: Mapping[Any, Any]) -> BaseException | None: ...
    def verdict(self) -> BaseException | None: ...


def breach(source: str, asked: dict[Any, Any], answers: Any) -> ContractError | None:
    """Return an error if *answers* is not a mapping, or has a key that was not in the call; otherwise return None."""
    if not isinstance(answers, Mapping):
        return ContractError(
            f"{source}: fetch_many returned a {type(answers).__name__}; it must return a mapping of the keys it was "
            "asked for to their values. Return {key: value}, and leave a key out that the source does not hold."
        )
    if not answers.keys() <= asked.keys():
        extra = sum(key not in asked for key in answers)
        return ContractError(
            f"{source}: fetch_many returned {extra:,} key(s) that it was not asked for; it must answer under the "
            f"very keys it was given ({len(asked):,} in this call). Map the source's answers back to those keys."
        )
    return None


def in_rows(source: str, answers: Answers) -> tuple[Mapping[Any, Any], ConnectorError | None]:
    """
    Convert *answers*, which came in columns, to a dict by key, and return `(dict, None)`.

    If the columns hold an invalid value, or invalid or repeated keys, return `({}, error)`.
    """
    try:
        rows = answers.rows()
    except Exception as error:  # noqa: BLE001  # Arrow raises for text that is not UTF-8, or for the year 10000
        if _can_be_hashed(answers.found):
            name = type(error).__name__
            return {}, PermanentError(f"the connector returned a column with a value that is none: {name}")
        return {}, ContractError(
            f"{source}: fetch_many returned Answers whose keys cannot be hashed; it must answer under the very keys it "
            "was given. Map the source's answers back to those keys."
        )
    if len(rows) < len(answers.found):
        return {}, ContractError(
            f"{source}: fetch_many returned {len(answers.found) - len(rows):,} key(s) twice; each key has one answer. "
            "Return a list of its values where call.many is set, and a Failure for the key else."
        )
    return rows, None


def _can_be_hashed(keys: Iterable[Any]) -> bool:
    try:
        set(keys)
    except TypeError:
        return False
    return True
