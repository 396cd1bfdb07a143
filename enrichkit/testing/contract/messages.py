"""
Functions that write the parts of a check's failure message that show what the connector did.

A message says what the connector must do, what it did, and where to look in its code. Long values are cut, because one
call can have thousands of keys, and one of the test keys has 5,000 characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...interface import Key

__all__ = ["raised", "short", "told"]

_CHARACTERS = 300  # the most characters of a value that a message shows
_MISTAKES = 3  # the most mistakes of one call that a message names


def short(value: Any, most: int = _CHARACTERS) -> str:
    """
    Return the repr of *value*, cut to *most* characters.

    >>> short("long" * 100, 10)
    "'longlongl... (402 characters)"
    """
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def raised(error: BaseException) -> str:
    """
    Return the class of *error* and the first line of its text, without a period at the end.

    >>> raised(KeyError("a")), raised(ValueError("No number.")), raised(TimeoutError())
    ("KeyError: 'a'", 'ValueError: No number', 'TimeoutError')
    """
    text, more, _ = str(error).partition("\n")
    text = f"{text[:_CHARACTERS]} ..." if more or len(text) > _CHARACTERS else text.removesuffix(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def told(right: Mapping[Key, Any], got: Mapping[Key, Any]) -> str:
    """
    Return how the answers *got* differ from the *right* ones, as words that complete the sentence "it returned ...".

    >>> told({"a": 1, "b": 2}, {"b": 1})
    "nothing for the key 'a', whose value is 1, and 1 for the key 'b', whose value is 2"
    >>> told({}, {"c": None})
    "None for the key 'c', which must have no answer"
    """
    mistakes = [*_mistakes(right, got)]
    more = len(mistakes) - _MISTAKES
    return ", and ".join(mistakes[:_MISTAKES]) + (f", and {more} more of this kind" if more > 0 else "")


def _mistakes(right: Mapping[Key, Any], got: Mapping[Key, Any]) -> Iterable[str]:
    for key in {**right, **got}:
        answer = short(got[key]) if key in got else "nothing"
        if key not in right:
            yield f"{answer} for the key {short(key)}, which must have no answer"
        elif key not in got or got[key] != right[key]:
            yield f"{answer} for the key {short(key)}, whose value is {short(right[key])}"
