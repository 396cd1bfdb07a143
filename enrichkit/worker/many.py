"""
Several matches per key: a value is a list, with one element for each match.

The matches of all keys of a call are decoded together, because calling a decoder takes about as long as decoding one
value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any

from ..errors import PermanentError
from ..outcome import Outcomes
from ..values.decode import Decode, decoder

if TYPE_CHECKING:
    from ..values.scalars import Encoding

__all__ = ["decoder_of_matches", "explode_matches", "select_outcomes"]


def decoder_of_matches(data_type: Any, encoding: Encoding) -> Decode:
    """
    Return the function that decodes the answers of one call; an answer is a list of raw values, or None for a null.

    A match that cannot be decoded is an error of its key: a key gets all its matches or none.

    Args:
        data_type: The Arrow type of the list.
        encoding: Encoding of one match, see `Connector.encoding`.

    >>> import pyarrow as pa
    >>> values, errors = decoder_of_matches(pa.list_(pa.int32()), "json")([[b"1", b"2"], None, [b'"x"'], b"3"])
    >>> values, sorted(errors)
    ([[1, 2], None, None, None], [2, 3])
    >>> print(errors[3])
    The value is a bytes; with many=True it must be a list, with an element for each match. Mend the connector.
    """
    decode_matches = decoder(data_type.value_type, encoding)

    def decode(values: Sequence[Any]) -> tuple[list[Any], dict[int, PermanentError]]:
        errors = {index: _not_a_list(value) for index, value in enumerate(values) if not isinstance(value, _LISTS)}
        lists = [value if isinstance(value, list | tuple) else () for value in values]
        flat, errors_of_matches = decode_matches(list(chain.from_iterable(lists)))
        if errors_of_matches:
            owners = list(chain.from_iterable([index] * len(matches) for index, matches in enumerate(lists)))
            for position, error in errors_of_matches.items():
                errors.setdefault(owners[position], error)
        remaining = iter(flat)
        decoded = [list(islice(remaining, len(matches))) for matches in lists]
        return [
            None if value is None or index in errors else matches
            for index, (value, matches) in enumerate(zip(values, decoded, strict=True))
        ], errors

    return decode


_LISTS = (list, tuple, type(None))


def _not_a_list(value: Any) -> PermanentError:
    return PermanentError(
        f"The value is a {type(value).__name__}; with many=True it must be a list, with an element for each match. "
        "Mend the connector."
    )


def select_outcomes(outcomes: Outcomes, indices: Sequence[int], rows: int) -> Outcomes:
    """
    Return the outcomes of the keys with *indices*, as the outcomes of a slice of *rows* rows.

    *indices* may name a key several times, or not at all.
    """
    assert not outcomes.value_columns, "outcomes are selected by value, and some of these values are in columns"
    selected = Outcomes([outcomes.keys[index] for index in indices], rows)
    selected.values = [outcomes.values[index] for index in indices]
    selected.statuses = bytearray(outcomes.statuses[index] for index in indices)
    if outcomes.errors:
        errors = outcomes.errors
        selected.errors = {place: errors[index] for place, index in enumerate(indices) if index in errors}
    if outcomes.details is not None:
        selected.details = outcomes.details.select(indices)
    return selected


def explode_matches(
    outcomes: Outcomes, codes: Any, size: int, most_bytes: int = 0, row_bytes: Callable[[int], int] | None = None
) -> tuple[Outcomes, Iterator[tuple[list[int], list[int | None]]]]:
    """
    Turn each match into an outcome of its own.

    The output rows come in pieces, because thousands of rows with thousands of matches each make millions of rows.

    Args:
        outcomes: Final outcomes; a value is a list of matches, or None.
        codes: For each row the index of its key; null where the key is null.
        size: Most output rows of a piece.
        most_bytes: Most bytes of a piece. Output rows of an input row with only one match are not counted; a single
            output row may be larger.
        row_bytes: Function that takes the number of an input row and returns the row's size in bytes; None: *size*
            alone limits a piece.

    Returns:
        The outcomes: one for each match, and one without a value for each key without a match. And an iterator over the
        pieces. A piece is two lists with an element for each output row: the number of its input row, and the index of
        its outcome, or None where the key is null.

    >>> import pyarrow as pa
    >>> outcomes = Outcomes(["a", "b"], 3)
    >>> outcomes.values = [["x", "y"], None]
    >>> matches, pairs = explode_matches(outcomes, pa.array([1, 0, None], pa.int32()), 3)
    >>> matches.values, list(pairs)
    (['x', 'y', None], [([0, 1, 1], [2, 0, 1]), ([2], [None])])
    """
    assert not outcomes.value_columns, "a value is a list of matches, and columns have none"
    lists = [value or [None] for value in outcomes.values]
    ends = list(accumulate(map(len, lists)))
    numbers_of_key = [range(end - len(matches), end) for matches, end in zip(lists, ends, strict=True)]
    owners = list(chain.from_iterable([key] * len(matches) for key, matches in enumerate(lists)))
    matches = select_outcomes(outcomes, owners, outcomes.rows)
    matches.values = list(chain.from_iterable(lists))
    return matches, _pieces(numbers_of_key, codes.to_pylist(), size, most_bytes, row_bytes)


def _pieces(
    numbers_of_key: Sequence[range],
    codes: Sequence[int | None],
    size: int,
    most_bytes: int,
    row_bytes: Callable[[int], int] | None,
) -> Iterator[tuple[list[int], list[int | None]]]:
    """
    Yield the output rows in pieces; see `explode_matches`. *numbers_of_key* holds the indices of the outcomes of each
    key.
    """
    rows: list[int] = []
    numbers: list[int | None] = []
    size_in_bytes = 0
    for row, code in enumerate(codes):
        row_numbers: Sequence[int | None] = (None,) if code is None else numbers_of_key[code]
        limit, each = size, 0
        if row_bytes is not None and len(row_numbers) > 1:
            each = row_bytes(row)
            if rows and size_in_bytes + each * len(row_numbers) > most_bytes:
                yield rows, numbers
                rows, numbers, size_in_bytes = [], [], 0
            size_in_bytes += each * len(row_numbers)
            if size_in_bytes > most_bytes:
                limit = max(1, min(size, most_bytes // each))
        rows += [row] * len(row_numbers)
        numbers += row_numbers
        while len(rows) >= limit:
            yield rows[:limit], numbers[:limit]
            del rows[:limit], numbers[:limit]
            size_in_bytes = each * len(rows)  # the remaining output rows all come from the input row `row`
    if rows:
        yield rows, numbers
