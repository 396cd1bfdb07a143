"""The DataFrame form: `enrich_frame()` checks its arguments on the driver and returns a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, Unpack

from ..errors import ConfigError
from ..options import Options, OptionsDict, check_choice, check_known

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ..interface import ConnectorConfig, Returns
    from ..sources.tiers import Tiers

__all__ = ["enrich_frame", "enriched"]

KeyColumns: TypeAlias = "Column | str | Sequence[Column | str]"
"""A key column or its name, or several of them, which form one key."""


class FrameDict(OptionsDict, total=False):
    """The keywords of `enriched`, for type checkers; `enrich_frame` describes them."""

    on: Required[KeyColumns]
    into: str | None
    how: Literal["left", "inner"]
    many: bool | Literal["array"]
    ordered: bool
    barrier: Column | str | None
    columns: Sequence[str] | None
    shuffle: bool | int
    returns: Returns | None


_ARGUMENTS = ("on", "into", "how", "many", "ordered", "barrier", "columns", "shuffle", "returns")
_COLUMN_OPTIONS = ("carrier", "deterministic")


def enrich_frame(
    df: DataFrame,
    source: str | ConnectorConfig | Tiers,
    *,
    on: KeyColumns,
    into: str | None = None,
    how: Literal["left", "inner"] = "left",
    many: bool | Literal["array"] = False,
    ordered: bool = True,
    barrier: Column | str | None = None,
    columns: Sequence[str] | None = None,
    shuffle: bool | int = False,
    returns: Returns | None = None,
    **options: Unpack[OptionsDict],
) -> DataFrame:
    """
    Look up a key for each row of *df* and return *df* with the values: a join with *source*.

    Args:
        df: A batch or streaming DataFrame. Its columns pass through untouched, event-time watermarks included.
        source: Name of a source, its config, or `tiers(...)` of several.
        on: The key column or its name, or several columns that form one key. A key with a null part matches nothing.
        into: Name of the column of values. None: the fields of a struct become columns, and any other value becomes a
            column that is named after the source.
        how: ``"left"`` keeps every row. ``"inner"`` drops the rows without a match: rows whose key is null, and rows
            whose key the source does not hold, unless `on_missing` gives these rows a value. Rows whose lookup timed
            out or failed are never dropped.
        many: False: a key has at most one match, and more matches are an error of its rows. True: a row is returned
            once for each match. ``"array"``: a row gets an array of its matches. Unless *many* is False, a
            default value is a list, too.
        ordered: True: rows are returned in the order of the input. False: rows are returned when their lookups end.
        barrier: A column or its name, for ``ordered=False``: where the value of the column changes, all rows before the
            change are returned before all rows after it. The end of a partition, and so of a micro-batch, is always a
            barrier.
        columns: Names of the fields of the value to keep, in this order; None: all fields.
        shuffle: True: Spark first sends all rows with the same key to one task, so that the whole job asks for each key
            only once. Rows without a key are spread evenly over all tasks. Spark chooses the number of tasks, as for
            ``repartition("key")``; a number, 1 to 1,000,000, sets it instead, as for ``repartition(200, "key")``. The
            order of the rows changes.
        returns: Type of one match, as for `enrich`. None: the type that the config declares, or else the type that the
            source reports.
        options: Options of the lookups, such as timeouts; see `Options`. The options `carrier` and `deterministic` are
            refused.

    Returns:
        A DataFrame with the columns of *df*, followed by the columns of values.

    Raises:
        UnknownConnectorError: No source and no plugin has the name *source*. Raised here, on the driver.
        ConfigError: An argument, option, config or type is wrong, or a column would occur twice. Raised here, on the
            driver.
        LookupFailedError: A lookup failed, and the option for this case, such as `on_error`, is ``"fail"``. Raised on a
            worker.

    With ``ordered=False``, the queue of rows under way works like that of Flink's async I/O operator
    (`UnorderedStreamElementQueue`). The join works like Flink's lookup join.

    >>> enrich_frame(df, "users", on="user_id", into="user", how="inner", ordered=False).columns
    ['id', 'user_id', 'user']
    """
    from .frame_plan import Join, join

    keywords: dict[str, Any] = {**options}
    _check_options(keywords, source)
    check_choice("how", how, ("left", "inner"))
    check_choice("many", many, (False, True, "array"))
    check_choice("ordered", ordered, (True, False))
    _check_shuffle(shuffle, barrier)
    if into is not None and (not isinstance(into, str) or not into):
        raise ConfigError(f"into is {into!r}; it must be the name of a column or None, for example into='user'.")
    if columns is not None and (isinstance(columns, str) or not columns):
        raise ConfigError(
            f"columns is {columns!r}; it must be a list of one field or more, or None for all. "
            f"Write columns=[{columns or 'name'!r}]."
        )
    keys = tuple(on) if isinstance(on, list | tuple) else (on,)
    for key in keys or (None,):
        _check_column("on", key, ", or a list of them")
    if barrier is not None:
        _check_column("barrier", barrier)
    arguments = Join(
        on=keys,
        into=into,
        how=how,
        many=many,
        ordered=ordered,
        barrier=barrier,
        columns=columns,
        shuffle=shuffle,
        returns=returns,
    )
    return join(df, source, arguments, keywords)


def enriched(source: str | ConnectorConfig | Tiers, **arguments: Unpack[FrameDict]) -> Callable[[DataFrame], DataFrame]:
    """
    Return a function for `DataFrame.transform`: it takes a DataFrame, and calls `enrich_frame` with the DataFrame,
    *source* and *arguments*.

    Args:
        source: Name of a source, its config, or `tiers(...)` of several.
        arguments: The keywords of `enrich_frame`.

    >>> df.transform(enriched("users", on="user_id", into="user")).columns
    ['id', 'user_id', 'user']
    """
    return lambda df: enrich_frame(df, source, **arguments)


def _check_shuffle(shuffle: Any, barrier: Any) -> None:
    if type(shuffle) is not bool and not (type(shuffle) is int and 1 <= shuffle <= 1_000_000):
        raise ConfigError(
            f"shuffle is {shuffle!r}; it must be True, False, or a number of partitions from 1 to 1,000,000, for "
            "example shuffle=True."
        )
    if shuffle and barrier is not None:
        raise ConfigError(
            "barrier is given with shuffle, which mixes the rows, so that no order is left to keep. Leave one of them "
            "out."
        )


def _check_options(options: Mapping[str, Any], source: str | ConnectorConfig | Tiers) -> None:
    from ..sources.config import check_no_fields
    from .tiers import main_source

    for name in _COLUMN_OPTIONS:
        if name in options:
            raise ConfigError(
                f"{name} is {options[name]!r}, but enrich_frame() has no such option: it concerns the expression that "
                f"enrich() makes, and this is a DataFrame. Leave {name}= out."
            )
    known = [*_ARGUMENTS, *(field.name for field in fields(Options) if field.name not in _COLUMN_OPTIONS)]
    check_no_fields(options, known, main_source(source), "enrich_frame()")
    check_known(options, known, "enrich_frame()")


def _check_column(argument: str, column: Any, other_form: str = "") -> None:
    """
    Raise a `ConfigError` when *column* is neither a column nor a name; *other_form* is added to the valid forms in the
    message.
    """
    if not isinstance(column, str) and not hasattr(column, "alias"):
        raise ConfigError(
            f"{argument} is {column!r}; it must be a column or the name of one{other_form}, for example "
            f"{argument}='user_id'."
        )
