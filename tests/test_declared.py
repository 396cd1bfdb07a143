"""A declared type beside the type that the source tells, part by part."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantType

from enrichkit.driver.declared import check_declared
from enrichkit.errors import ConfigError
from enrichkit.values.types import arrow_type_of

INT, LONG, DOUBLE, TEXT, DATE = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.date32()
TIMESTAMP, VARIANT = pa.timestamp("us", tz="UTC"), arrow_type_of(VariantType())[1]


def of(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("declared", "told", "message"),
    [
        (INT, TEXT, "The value|int|string"),
        (pa.list_(INT), TEXT, "The value|array<int>|string"),
        (pa.list_(INT), pa.list_(TEXT), "The value|array<int>|array<string>"),
        (pa.list_(pa.list_(INT)), pa.list_(TEXT), "The value|array<array<int>>|array<string>"),
        (of(id=INT, tags=pa.list_(INT)), of(id=INT, tags=pa.list_(TEXT)), "The field 'tags'|array<int>|array<string>"),
        (of(home=of(born=TIMESTAMP)), of(home=of(born=DATE)), "The field 'home.born'|timestamp|date"),
        (pa.list_(of(n=INT)), pa.list_(of(m=INT, n=TEXT)), "The field 'n'|int|string"),
        (
            of(orders=pa.list_(of(items=pa.list_(INT)))),
            of(orders=pa.list_(of(items=pa.list_(TEXT)))),
            "The field 'orders.items'|array<int>|array<string>",
        ),
    ],
    ids=str,
)
def test_a_part_that_no_value_fits_is_named_with_both_types(
    declared: pa.DataType, told: pa.DataType, message: str
) -> None:
    what, one, other = message.split("|")
    with pytest.raises(ConfigError) as caught:
        check_declared("users", declared, told)
    assert str(caught.value) == (
        f"{what} of 'users' is declared as {one}, but it is of type {other} in the source, and such a value does not "
        f"fit. Declare {other}, or leave returns= out."
    )


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (pa.list_(INT), pa.list_(LONG)),
        (pa.list_(DOUBLE), pa.list_(INT)),
        (pa.list_(pa.list_(TEXT)), pa.list_(TEXT)),
        (pa.list_(TEXT), pa.list_(pa.list_(TEXT))),
        (pa.list_(VARIANT), pa.list_(TEXT)),
        (VARIANT, pa.list_(TEXT)),
        (of(value=INT, more=TEXT), of(value=LONG)),
        (pa.list_(of(n=INT, more=TEXT)), pa.list_(of(n=LONG))),
        (of(a=INT), pa.map_(TEXT, TEXT)),
        (pa.map_(TEXT, INT), of(a=TEXT)),
    ],
    ids=str,
)
def test_a_part_that_some_value_fits_is_taken(declared: pa.DataType, told: pa.DataType) -> None:
    """A column of PostgreSQL tells no number of dimensions, and a field that it lacks is another message's business."""
    check_declared("users", declared, told)
