"""A wrong call of `enrich` raises on the driver, before any job starts, and says what would be right."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F

from enrichkit import ConfigError, Connector, ConnectorConfig, Retry, UnknownConnectorError, default, enrich
from enrichkit.errors import FatalError, MissingDriverError, UnknownOptionError
from enrichkit.secrets import Secret

from ..installed import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService, PostgresServer

pytestmark = pytest.mark.spark

EXAMPLE = "for example 'name string, tier int' for a struct, or 'bigint'"


class SilentConfig(ConnectorConfig):
    """The source cannot tell the type of its values."""


class SilentConnector(Connector[SilentConfig]):
    name = "silent"
    config_class = SilentConfig
    max_batch_size = 1000


class ClosedConfig(ConnectorConfig):
    """The source cannot be opened."""


class ClosedConnector(SilentConnector):
    name = "closed"
    config_class = ClosedConfig

    async def open(self) -> None:
        raise OSError("cannot reach redis://user:hunter2@host")


@dataclass(frozen=True, kw_only=True)
class TellingConfig(ConnectorConfig):
    """The source tells its secret when it is opened."""

    token: Secret


class TellingConnector(SilentConnector):
    name = "telling"
    config_class = TellingConfig

    async def open(self) -> None:
        try:
            raise OSError(f"login of redis://user:hunter2@host with {self.config.token.resolve()}")
        except OSError as error:
            raise RuntimeError(f"refused for {self.config.token.resolve()}") from error


class RefusedConfig(ConnectorConfig):
    """The source refuses to be asked."""


class RefusedConnector(SilentConnector):
    name = "refused"
    config_class = RefusedConfig

    async def describe(self) -> str:
        raise FatalError("The user may not read the catalog.")


class SlowConfig(ConnectorConfig):
    """The source never answers."""


class SlowConnector(SilentConnector):
    name = "slow"
    config_class = SlowConfig

    async def describe(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError


class StubbornConfig(ConnectorConfig):
    """The source never answers, and its connector blocks."""


class StubbornConnector(SilentConnector):
    name = "stubborn"
    config_class = StubbornConfig
    block = threading.Event()

    async def describe(self) -> str:
        self.block.wait(60.0)
        raise AssertionError


class DriverlessConfig(ConnectorConfig):
    """The source needs a package that is not installed."""


class DriverlessConnector(SilentConnector):
    name = "driverless"
    config_class = DriverlessConfig
    requires = ("acme_driver",)


@pytest.fixture(autouse=True)
def no_job(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark Connect cannot tell which jobs there were; what runs before them is the same."""

    def jobs() -> list[int]:
        if request.config.getoption("--connect"):
            return []
        return sorted(spark.sparkContext.statusTracker().getJobIdsForGroup())

    before = jobs()
    yield
    assert before == jobs()


def refusal(call: Callable[[], Any], kind: type[Exception] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


# --- the source and the keys


def test_a_source_that_nobody_knows_is_told_the_closest_one() -> None:
    assert refusal(lambda: enrich("reddis", "k"), UnknownConnectorError) == (
        f"No connector is named 'reddis'. Did you mean 'redis'? Installed or registered: {listed()}. Install a "
        "plugin, or call enrichkit.register('reddis', config)."
    )


def test_a_source_is_a_name_or_a_config() -> None:
    source: Any = {"url": "redis://user:hunter2@host"}
    assert refusal(lambda: enrich(source, "k")) == (
        "source is a dict; it must be the name of a source or a config, for example enrich('redis', 'user_id') or "
        "enrich(RedisConfig(...), 'user_id')."
    )


def test_a_source_whose_driver_is_absent_says_what_to_install() -> None:
    assert refusal(lambda: enrich(DriverlessConfig(), "k"), MissingDriverError) == (
        "The connector 'driverless' needs the package acme_driver, which is not installed. Run: pip install acme_driver"
    )


def test_a_key_is_needed() -> None:
    assert refusal(lambda: enrich("redis")) == (
        "enrich() was given no key; it needs one or more key columns, as in enrich('redis', 'user_id')."
    )


@pytest.mark.parametrize("key", [7, None, ["a", "b"], ("a",)])
def test_a_key_is_a_column_or_its_name(key: Any) -> None:
    for keys in ((key,), ("a", key)):
        assert refusal(lambda keys=keys: enrich("redis", *keys)) == (
            f"A key of enrich() is a {type(key).__name__}; it must be a column or the name of one, as in "
            "enrich('redis', 'user_id') or enrich('redis', col('user_id'))."
        )


@pytest.mark.parametrize(
    ("config", "kind", "columns", "needs"),
    [
        (RedisConfig(key="{}:{}"), "redis", 1, 2),
        (PostgresConfig(table="t", key=("a", "b")), "postgres", 3, 2),
        (HttpConfig(url="http://localhost/{0}"), "http", 2, 1),
    ],
    ids=["redis", "postgres", "http"],
)
def test_the_source_says_how_many_key_columns_it_needs(
    config: ConnectorConfig, kind: str, columns: int, needs: int
) -> None:
    assert refusal(lambda: enrich(config, *"abc"[:columns], returns="string")) == (
        f"enrich({kind!r}, ...) was given {columns} key column{'s' * (columns > 1)}; its {type(config).__name__} needs "
        f"{needs}. Name as many key columns as the config has, in its order."
    )


# --- options


def test_a_misspelt_option_is_told_the_closest_one() -> None:
    wrong: Any = {"on_timout": "null"}
    assert refusal(lambda: enrich("redis", "k", **wrong), UnknownOptionError).startswith(
        "enrich() has no option 'on_timout'. Did you mean 'on_timeout'? Options: capacity, max_capacity, "
    )


def test_an_option_of_the_wrong_type_is_refused() -> None:
    wrong: Any = {"timeout": "10s"}
    assert refusal(lambda: enrich("redis", "k", **wrong)) == (
        "timeout is '10s'; it must be a number of seconds from 0.001 to 86,400, for example timeout=1.0."
    )


def test_a_column_is_always_ordered() -> None:
    wrong: Any = {"ordered": False}
    assert refusal(lambda: enrich("redis", "k", **wrong), UnknownOptionError) == (
        "enrich() has no option 'ordered', because a column has one value for each row, in the order of the rows. "
        "enrich_frame(df, source, on=..., ordered=...) has it."
    )


def test_a_batch_is_no_larger_than_the_connector_takes() -> None:
    for config, most in ((SilentConfig(returns="int"), 1000), (HttpConfig(url="http://localhost/{}"), 1)):
        name = "silent" if most > 1 else "http"
        hint = "" if most > 1 else " If the service takes many keys in one POST, say so with HttpConfig(bulk=True)."
        assert refusal(lambda config=config, most=most: enrich(config, "k", batch_size=most + 1)) == (
            f"batch_size is {most + 1:,}; the connector {name!r} takes at most {most:,} keys per call. Set "
            f"batch_size={most}.{hint}"
        )


@pytest.mark.parametrize("option", ["on_missing", "on_error", "on_timeout"])
def test_a_default_is_of_the_declared_type(option: str) -> None:
    policy: Any = {option: default("x")}
    assert refusal(lambda: enrich(SilentConfig(), "k", returns="int", **policy)) == (
        f"{option} is default('x'). The value does not fit the declared type int: it is of type str; it must be an int "
        f"from -2147483648 to 2147483647. Change {option}, or declare another type with returns=."
    )


def test_a_part_of_a_default_is_of_its_declared_type() -> None:
    value = {"a": 2**40, "b": "x"}
    assert refusal(lambda: enrich(SilentConfig(), "k", returns="a int, b string", on_error=default(value))) == (
        "on_error is default({'a': 1099511627776, 'b': 'x'}). The part 'a' of the value does not fit the declared type "
        "int: it is out of range; it must be an int from -2147483648 to 2147483647. Change on_error, or declare "
        "another type with returns=."
    )


def test_a_default_has_no_fields_that_are_not_declared() -> None:
    value = {"a": 1, "bb": "x"}
    assert refusal(lambda: enrich(SilentConfig(), "k", returns="a int, b string", on_error=default(value))) == (
        "on_error is default({'a': 1, 'bb': 'x'}), whose field 'bb' is not declared. Did you mean 'b'? Declared are: "
        "a, b. Rename it, or declare it with returns=."
    )


def test_a_call_that_must_not_be_made_twice_has_no_attempt_timeout() -> None:
    config = HttpConfig(url="http://localhost/", method="POST", body={"id": "{0}"})
    assert refusal(lambda: enrich(config, "k", attempt_timeout=1.0)) == (
        "attempt_timeout is 1.0, but a call to 'http' must not be made twice (its HttpConfig says so). Leave "
        "attempt_timeout out, or declare the call idempotent."
    )


def test_a_call_that_must_not_be_made_twice_is_not_repeated_for_a_miss() -> None:
    config = HttpConfig(url="http://localhost/", method="POST", body={"id": "{0}"})
    assert refusal(lambda: enrich(config, "k", retry=Retry(on_missing=True))) == (
        "retry has on_missing=True, which repeats a call that finds nothing, but a call to 'http' must not be made "
        "twice (its HttpConfig says so). Leave on_missing out, or declare the call idempotent."
    )


# --- the type of a value


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        (
            "nonsense",
            (
                f"returns is 'nonsense', which is no Spark type; it must be DDL, {EXAMPLE}. Spark says: "
                "[PARSE_SYNTAX_ERROR] Syntax error at or near end of input. SQLSTATE: 42601 (line 1, pos 8)"
            ),
        ),
        (
            "a int, b strin",
            (
                f"returns is 'a int, b strin', which is no Spark type; it must be DDL, {EXAMPLE}. Spark says: "
                '[UNSUPPORTED_DATATYPE] Unsupported data type "STRIN". SQLSTATE: 0A000 (line 1, pos 9)'
            ),
        ),
        ("", f"returns declares a struct without fields; it needs one, {EXAMPLE}. Name a field."),
        ("a int, a string", "returns declares the field 'a' twice; names must differ. Rename one."),
        (
            "a int, b struct<c:array<char(3)>>",
            (
                "returns declares char(3) at 'b.c[]', which a worker cannot build; allowed are string, binary, "
                "boolean, tinyint, smallint, int, bigint, float, double, decimal, date, timestamp, timestamp_ntz, "
                "time, interval day to second, array, map with plain keys, struct, variant and void. For this one, "
                "declare string."
            ),
        ),
        (
            7,
            (
                f"returns is 7, which is no Spark type; it must be DDL text, {EXAMPLE}, a PySpark type, an Arrow type "
                "or schema, or a dataclass or TypedDict with annotated fields. Write it as DDL."
            ),
        ),
    ],
    ids=["nonsense", "field", "empty", "twice", "char", "number"],
)
def test_a_wrong_type_is_refused(returns: Any, said: str) -> None:
    assert said == refusal(lambda: enrich(SilentConfig(), "k", returns=returns))


def test_a_source_that_cannot_tell_its_type_must_be_told() -> None:
    assert refusal(lambda: enrich(SilentConfig(), "k")) == (
        "The type of the values of 'silent' is not known: the source cannot tell it. Declare it, for example "
        "enrich('silent', ..., returns='string')."
    )


def test_a_source_that_cannot_be_asked_says_why_and_shows_no_secret() -> None:
    assert refusal(lambda: enrich(ClosedConfig(), "k")) == (
        "The type of the values of 'closed' could not be asked: OSError: cannot reach redis://***@host. Declare it, "
        "for example enrich('closed', ..., returns='string')."
    )
    assert refusal(lambda: enrich(RefusedConfig(), "k")) == (
        "The type of the values of 'refused' could not be asked: The user may not read the catalog."
    )
    config = PostgresConfig(dsn="postgresql://user:hunter2@127.0.0.1:1/shop", table="users")
    assert refusal(lambda: enrich(config, "k")) == (
        "The type of the values of 'postgres' could not be asked: PostgreSQL at 127.0.0.1:1 cannot be reached: Connect "
        "call failed ('127.0.0.1', 1). Declare it, for example enrich('postgres', ..., returns='string')."
    )


def test_no_secret_is_in_the_traceback_of_a_source_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELLING_TOKEN", "t0ken")
    with pytest.raises(ConfigError) as caught:
        enrich(TellingConfig(token=Secret.env("TELLING_TOKEN")), "k")
    assert str(caught.value).startswith(
        "The type of the values of 'telling' could not be asked: RuntimeError: refused for ***."
    )
    shown = "".join(traceback.format_exception(caught.value))
    assert "t0ken" not in shown
    assert "hunter2" not in shown


REFUSED: dict[str, Callable[[], object]] = {
    "kind is 'sorted set'": lambda: RedisConfig(password=os.environ["TELLING_TOKEN"], kind="sorted set"),
    "argument 'sort'": lambda: RedisConfig(password=os.environ["TELLING_TOKEN"], sort=True),  # type: ignore[call-arg]
    "url cannot be read": lambda: RedisConfig(url=f"redis://{os.environ['TELLING_TOKEN']}@@127.0.0.1"),
    "body is not JSON": lambda: HttpConfig(url="http://127.0.0.1/{}", body=os.environ["TELLING_TOKEN"], method="POST"),
    "on_missing is default(1)": lambda: enrich(
        RedisConfig(password=os.environ["TELLING_TOKEN"]), "k", returns="date", on_missing=default(1)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_no_frame_of_a_refused_config_holds_its_password(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """Not in the variables of the frames either; they come from the environment, since our own frames are shown too."""
    monkeypatch.setenv("TELLING_TOKEN", "t0ken")
    with pytest.raises((ConfigError, TypeError)) as caught:
        REFUSED[said]()
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    shown = "".join(told.format())
    assert said in shown
    assert "t0ken" not in shown


def test_no_frame_of_an_error_behind_a_refused_config_holds_its_password() -> None:
    @dataclass(frozen=True, kw_only=True)
    class TellingConfig(ConnectorConfig):
        token: str

        def __post_init__(self) -> None:
            try:
                int(self.token)
            except ValueError as error:
                raise error from error

    with pytest.raises(ValueError, match="invalid literal") as caught:
        TellingConfig(token="".join(["t0", "ken"]))
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:]
    assert not any("token" in str(frame.f_locals) for frame in frames)


def test_help_shows_the_fields_of_a_config() -> None:
    @dataclass(frozen=True, kw_only=True)
    class NamedConfig(ConnectorConfig):
        place: str = "here"

    assert str(inspect.signature(NamedConfig)) == "(*, returns: 'Any' = None, place: 'str' = 'here') -> None"


def test_a_source_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enrichkit.driver.planner.DESCRIBE_TIMEOUT", 0.1)
    assert refusal(lambda: enrich(SlowConfig(), "k")) == (
        "The type of the values of 'slow' could not be asked within 0.1 s. Declare it, for example enrich('slow', ..., "
        "returns='string')."
    )


def test_a_connector_that_blocks_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enrichkit.driver.planner.DESCRIBE_TIMEOUT", 0.1)
    try:
        message = refusal(lambda: enrich(StubbornConfig(), "k"))
    finally:
        StubbornConnector.block.set()
    assert message == (
        "The type of the values of 'stubborn' could not be asked within 0.1 s. Declare it, for example "
        "enrich('stubborn', ..., returns='string')."
    )


def test_a_table_that_is_not_there_is_found_out_on_the_driver(postgres_dsn: str) -> None:
    message = refusal(lambda: enrich(PostgresConfig(dsn=postgres_dsn, table="userz"), "k"))
    assert message.startswith("The type of the values of 'postgres' could not be asked: ")
    assert "userz" in message
    assert "Declare" not in message, "which would not help"


@pytest.mark.parametrize("how", [{"table": "totals"}, {"query": "SELECT id, score FROM totals WHERE id = ANY($1)"}])
def test_a_materialised_view_without_data_is_found_out_on_the_driver(
    postgres_server: PostgresServer, postgres_dsn: str, how: dict[str, str]
) -> None:
    view = "CREATE MATERIALIZED VIEW totals AS SELECT 1 AS id, 2 AS score WITH NO DATA"
    postgres_server.execute(view, postgres_dsn.rpartition("/")[2])
    message = refusal(lambda: enrich(PostgresConfig(dsn=postgres_dsn, **how), "k"))
    assert message == (
        "The type of the values of 'postgres' could not be asked: PostgreSQL at "
        f'{postgres_server.host}:{postgres_server.port} says: materialized view "totals" has not been populated, '
        "ObjectNotInPrerequisiteStateError, SQLSTATE 55000. Fill it first: REFRESH MATERIALIZED VIEW, with the name of "
        "the view."
    )


def test_checking_asks_an_http_service_nothing(http_service: HttpService) -> None:
    column = enrich(HttpConfig(url=f"{http_service.url}/{{}}", returns="score int"), F.col("k"))
    assert "http" in str(column)
    assert http_service.stats().connections == 0


# --- without a session


@pytest.mark.parametrize("call", ["enrich('redis', 'k')", "enrich('redis', 'k', returns='string')"])
def test_without_a_session_the_message_says_to_start_one(call: str) -> None:
    program = f"""
        from enrichkit import enrich
        try:
            {call}
        except ValueError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "returns is 'string', and DDL is parsed by Spark, but no Spark session is active. Start one first with "
        "SparkSession.builder.getOrCreate(), or pass a type object such as pyspark.sql.types.LongType().\n"
    )
