"""Rows to answers: whole columns at once give what a look at each row gives."""

from __future__ import annotations

from typing import Any

import pytest
from enrichkit_postgres import PostgresConfig
from enrichkit_postgres.lookup import Lookup
from enrichkit_postgres.pgtypes import Kept, PgType, Taken, key_type
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.connector import Failure
from enrichkit.errors import TransientError
from enrichkit.sql import Source

INT4 = PgType("int4", True, "b", "N", -1, "pg_catalog.int4[]", "pg_catalog", None)
PLAIN, REFUSED = Kept("string", "t.v"), Kept("date", "t.d", "t.d > '9999-12-31'")
Row = tuple[Any, ...]


def lookup(width: int, kept: dict[str, Kept], *, gathered: bool) -> Lookup:
    integer = key_type(INT4)
    assert integer is not None
    taken = [Taken(f"k{n}", "int4", integer, "pg_catalog.int4[]") for n in range(width)]
    return Lookup(
        source=Source(PostgresConfig(table="t"), "the table t"),
        sql="",
        taken=taken,
        kept=kept,
        width=width,
        numbered=False,
        gathered=gathered,
        foreign=lambda: TransientError("foreign"),
    )


def one_by_one(rows: list[Row], width: int, names: list[str], refuses: bool, many: bool) -> dict[Any, Any]:
    """What the answers are, found row by row."""
    matches: dict[Any, list[Row]] = {}
    for row in rows:
        matches.setdefault(row[0] if width == 1 else row[:width], []).append(row)
    found: dict[Any, Any] = {}
    for key, group in matches.items():
        values = [
            row[width] if len(names) == 1 else {name: row[width + n] for n, name in enumerate(names)} for row in group
        ]
        if refuses and any(row[-1] for row in group):
            found[key] = Failure
        elif many:
            found[key] = values
        else:
            found[key] = values[0] if len(values) == 1 else Failure
    return found


@settings(derandomize=True, deadline=None)
@given(
    data=st.data(),
    width=st.integers(1, 2),
    names=st.sampled_from([["v"], ["v", "it's"], ["a", "b", "c"]]),
    refuses=st.booleans(),
    many=st.booleans(),
)
def test_columns_are_read_as_their_rows_are(
    data: st.DataObject, width: int, names: list[str], refuses: bool, many: bool
) -> None:
    kept = dict.fromkeys(names, PLAIN)
    if refuses:
        kept[names[-1]] = REFUSED
    keys = st.integers(0, 5)
    value = st.one_of(st.none(), st.text(max_size=3))
    code = [st.sampled_from([None, None, len(names)])] if refuses else []
    row = st.tuples(*[keys] * width, *[value] * len(names), *code)
    rows: list[Row] = data.draw(st.lists(row, max_size=8))
    asked = [(a, b) if width == 2 else a for a in range(6) for b in range(6 if width == 2 else 1)]
    expected = one_by_one(rows, width, names, refuses, many)
    columns = [list(column) for column in zip(*rows, strict=True)] or [None] * (width + len(names) + refuses)
    for gathered, answer in ((True, [columns]), (False, rows)):
        made = lookup(width, kept, gathered=gathered)
        found = made.read(answer, made.ask(asked), many)
        assert expected == {key: Failure if isinstance(one, Failure) else one for key, one in found.items()}


@pytest.mark.parametrize("gathered", [True, False])
def test_a_row_of_another_key_makes_the_whole_answer_foreign(gathered: bool) -> None:
    made = lookup(1, {"v": PLAIN}, gathered=gathered)
    answer: list[Any] = [([1, 7], ["a", "b"])] if gathered else [(1, "a"), (7, "b")]
    with pytest.raises(TransientError, match="foreign"):
        made.read(answer, made.ask([1, 2]), False)
