"""
Several matches per key: a value is a list, with one element for each match.

The matches of all keys of a call are decoded as one column, because a decoder's price is per call as much as per value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any

from .decode import Decode, decoder
from .errors import PermanentError
from .outcome import Outcomes

if TYPE_CHECKING:
    from .scalars import Encoding

__all__ = ["decoder_of_matches", "exploded", "picked"]


def decoder_of_matches(data_type: Any, encoding: Encoding) -> Decode:
    """
    Return the function that decodes the answers of one call, each of them a list of raw values, or None for a null.

    A match that cannot be decoded is the error of its key: a key has all its matches, or none.

    Args:
        data_type: The Arrow type of the list.
        encoding: Of one match, see `Connector.encoding`.

    >>> import pyarrow as pa
    >>> values, errors = decoder_of_matches(pa.list_(pa.int32()), "json")([[b"1", b"2"], None, [b'"x"'], b"3"])
    >>> values, sorted(errors)
    ([[1, 2], None, None, None], [2, 3])
    >>> print(errors[3])
    The value is a bytes; with many=True it must be a list, with an element for each match. Mend the connector.
    """
    one = decoder(data_type.value_type, encoding)

    def decode(values: Sequence[Any]) -> tuple[list[Any], dict[int, PermanentError]]:
        bad = {index: _no_list(value) for index, value in enumerate(values) if not isinstance(value, _LISTS)}
        lists = [value if isinstance(value, list | tuple) else () for value in values]
        flat, errors = one(list(chain.from_iterable(lists)))
        if errors:
            owner = list(chain.from_iterable([index] * len(matches) for index, matches in enumerate(lists)))
            for position, error in errors.items():
                bad.setdefault(owner[position], error)
        following = iter(flat)
        decoded = [list(islice(following, len(matches))) for matches in lists]
        return [
            None if value is None or index in bad else matches
            for index, (value, matches) in enumerate(zip(values, decoded, strict=True))
        ], bad

    return decode


_LISTS = (list, tuple, type(None))


def _no_list(value: Any) -> PermanentError:
    return PermanentError(
        f"The value is a {type(value).__name__}; with many=True it must be a list, with an element for each match. "
        "Mend the connector."
    )


def picked(outcomes: Outcomes, indices: Sequence[int], rows: int) -> Outcomes:
    """Return the outcomes of the keys with *indices*, which may come again or not at all, as those of *rows* rows."""
    assert not outcomes.columns, "a part of a slice is picked from values"
    some = Outcomes([outcomes.keys[index] for index in indices], rows)
    some.values = [outcomes.values[index] for index in indices]
    some.statuses = bytearray(outcomes.statuses[index] for index in indices)
    if outcomes.errors:
        errors = outcomes.errors
        some.errors = {place: errors[index] for place, index in enumerate(indices) if index in errors}
    if outcomes.attempts is not None and outcomes.latencies is not None and outcomes.origins is not None:
        some.attempts = [outcomes.attempts[index] for index in indices]
        some.latencies = [outcomes.latencies[index] for index in indices]
        some.origins = [outcomes.origins[index] for index in indices]
    return some


def exploded(
    outcomes: Outcomes, codes: Any, size: int, most: int = 0, width: Callable[[int], int] | None = None
) -> tuple[Outcomes, Iterator[tuple[list[int], list[int | None]]]]:
    """
    Turn each match into an outcome of its own.

    Args:
        outcomes: Settled; a value is a list of matches, or None.
        codes: One number of a key per row, null where the key is null.
        size: Most rows at once: thousands of rows with thousands of matches each would be millions.
        most: Bytes that rows with several matches may have at once, where there is a *width*.
        width: Bytes of the row of a number; None: *size* alone is enough.

    Returns:
        The outcomes, one per match, or one without a value for a key without a match; and for each row that comes of
        it the number of the row it comes from, and that of its match, None where the key is null, *size* at a time.

    >>> import pyarrow as pa
    >>> outcomes = Outcomes(["a", "b"], 3)
    >>> outcomes.values = [["x", "y"], None]
    >>> matches, pairs = exploded(outcomes, pa.array([1, 0, None], pa.int32()), 3)
    >>> matches.values, list(pairs)
    (['x', 'y', None], [([0, 1, 1], [2, 0, 1]), ([2], [None])])
    """
    assert not outcomes.columns, "a list of matches is no column"
    lists = [value or [None] for value in outcomes.values]
    ends = list(accumulate(map(len, lists)))
    numbers_of = [range(end - len(matches), end) for matches, end in zip(lists, ends, strict=True)]
    owners = list(chain.from_iterable([key] * len(matches) for key, matches in enumerate(lists)))
    matches = picked(outcomes, owners, outcomes.rows)
    matches.values = list(chain.from_iterable(lists))
    return matches, _pairs(numbers_of, codes.to_pylist(), size, most, width)


def _pairs(
    numbers_of: Sequence[range],
    codes: Sequence[int | None],
    size: int,
    most: int,
    width: Callable[[int], int] | None,
) -> Iterator[tuple[list[int], list[int | None]]]:
    rows: list[int] = []
    numbers: list[int | None] = []
    taken = 0
    for row, code in enumerate(codes):
        found: Sequence[int | None] = (None,) if code is None else numbers_of[code]
        at_once, each = size, 0
        if width is not None and len(found) > 1:
            each = width(row)
            if rows and taken + each * len(found) > most:
                yield rows, numbers
                rows, numbers, taken = [], [], 0
            taken += each * len(found)
            if taken > most:
                at_once = max(1, min(size, most // each))
        rows += [row] * len(found)
        numbers += found
        while len(rows) >= at_once:
            yield rows[:at_once], numbers[:at_once]
            del rows[:at_once], numbers[:at_once]
            taken = each * len(rows)  # what is left is of this row
    if rows:
        yield rows, numbers
