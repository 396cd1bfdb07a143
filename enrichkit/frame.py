"""The DataFrame form: `enrich_frame()` checks its arguments on the driver and returns a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, Unpack

from .errors import ConfigError, UnknownOptionError
from .options import Options, OptionsDict, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from .connector import ConnectorConfig, Returns

__all__ = ["enrich_frame", "enriched"]

Keys: TypeAlias = "Column | str | Sequence[Column | str]"


class FrameDict(OptionsDict, total=False):
    """The keywords of `enriched`, for type checkers; `enrich_frame` describes them."""

    on: Required[Keys]
    into: str | None
    how: Literal["left", "inner"]
    many: bool | Literal["array"]
    ordered: bool
    barrier: Column | str | None
    columns: Sequence[str] | None
    returns: Returns | None


_ARGUMENTS = ("on", "into", "how", "many", "ordered", "barrier", "columns", "returns")
_OF_THE_COLUMN = ("carrier", "deterministic")


def enrich_frame(
    df: DataFrame,
    source: str | ConnectorConfig,
    *,
    on: Keys,
    into: str | None = None,
    how: Literal["left", "inner"] = "left",
    many: bool | Literal["array"] = False,
    ordered: bool = True,
    barrier: Column | str | None = None,
    columns: Sequence[str] | None = None,
    returns: Returns | None = None,
    **options: Unpack[OptionsDict],
) -> DataFrame:
    """
    Look up a key for each row of *df* and return *df* with the values: a join with *source*.

    Args:
        df: In batch or streaming. Its columns pass through untouched, event-time watermarks included.
        source: Name of a source, or its config.
        on: The key: a column or its name, or several that form one key. A null part matches nothing.
        into: Name of the column of values; None: the fields of a struct become columns, and any other value a column
            that is named after the source.
        how: ``"left"`` keeps every row. ``"inner"`` drops the rows without a match: those whose key is null, and those
            whose key the source does not hold, unless `on_missing` gives them a value; never those whose lookup timed
            out or failed.
        many: False: a key has one match at most; more are an error of its rows. True: a row for each match.
            ``"array"``: a row with an array of the matches. Default values are lists then, too.
        ordered: Rows leave in the order in which they came; False: as their lookups are done.
        barrier: A column or its name: without order, no row leaves before or after one that has another value there
            and came earlier or later. The end of a partition, and so of a micro-batch, is a barrier by itself.
        columns: Fields of the value to keep, in this order; None: all.
        returns: Type of one match, as for `enrich`; the config's or the source's own when absent.
        options: Flow control; see `Options`. `carrier` and `deterministic` do not apply.

    Returns:
        A DataFrame with the columns of *df* and, behind them, those that come to it.

    Raises:
        UnknownConnectorError: Nothing is named *source*. Here, on the driver.
        ConfigError: An argument, option, config or type is wrong, or a column would occur twice. Here, on the driver.
        LookupFailedError: On a worker, when a lookup fails and its policy is ``"fail"``.

    Queue semantics follow Flink's async I/O operator (`UnorderedStreamElementQueue`), and join semantics its lookup
    join.

    >>> enrich_frame(df, "users", on="user_id", into="user", how="inner", ordered=False).columns
    ['id', 'user_id', 'user']
    """
    from .frame_plan import Join, join

    given: dict[str, Any] = {**options}
    known = [*_ARGUMENTS, *(field.name for field in fields(Options) if field.name not in _OF_THE_COLUMN)]
    for name in given:
        if name in _OF_THE_COLUMN:
            raise ConfigError(
                f"{name} is {given[name]!r}, but enrich_frame() has no such option: it concerns the expression that "
                f"enrich() makes, and this is a DataFrame. Leave {name}= out."
            )
        if name not in known:
            raise UnknownOptionError(
                f"enrich_frame() has no option {name!r}.{did_you_mean(name, known)} Options: {', '.join(known)}. "
                "What concerns the source belongs to its config."
            )
    _choice("how", how, ("left", "inner"))
    _choice("many", many, (False, True, "array"))
    _choice("ordered", ordered, (True, False))
    if into is not None and (not isinstance(into, str) or not into):
        raise ConfigError(f"into is {into!r}; it must be the name of a column or None, for example into='user'.")
    if columns is not None and (isinstance(columns, str) or not columns):
        raise ConfigError(
            f"columns is {columns!r}; it must be a list of one field or more, or None for all. "
            f"Write columns=[{columns or 'name'!r}]."
        )
    keys = tuple(on) if isinstance(on, list | tuple) else (on,)
    for argument, column in [
        *(("on", key) for key in keys or (None,)),
        *([("barrier", barrier)] if barrier is not None else []),
    ]:
        if not isinstance(column, str) and not hasattr(column, "alias"):
            raise ConfigError(
                f"{argument} is {column!r}; it must be a column or the name of one"
                f"{', or a list of them' if argument == 'on' else ''}, for example {argument}='user_id'."
            )
    wanted = Join(
        on=keys, into=into, how=how, many=many, ordered=ordered, barrier=barrier, columns=columns, returns=returns
    )
    return join(df, source, wanted, given)


def enriched(source: str | ConnectorConfig, **arguments: Unpack[FrameDict]) -> Callable[[DataFrame], DataFrame]:
    """
    Return `enrich_frame` with everything but the DataFrame, for `DataFrame.transform`.

    Args:
        source: Name of a source, or its config.
        arguments: As `enrich_frame` takes them.

    >>> df.transform(enriched("users", on="user_id", into="user")).columns
    ['id', 'user_id', 'user']
    """
    return lambda df: enrich_frame(df, source, **arguments)


def _choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in allowed):
        hint = (
            did_you_mean(value, [choice for choice in allowed if isinstance(choice, str)])
            if isinstance(value, str)
            else ""
        )
        raise ConfigError(
            f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.{hint} Set {name}={allowed[0]!r}."
        )
