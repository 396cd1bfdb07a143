"""What connectors of SQL databases share, without a database: config, messages, connections, the frame."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import ConfigError, FatalError, Secret, TransientError
from enrichkit.sql import Pool, Session, Source, SqlConnector, SqlServerConfig, no_table, pool, tls_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from enrichkit.errors import ConnectorError


@dataclass(frozen=True)
class Address:
    password: str | None = None

    def __str__(self) -> str:
        return "there:1"


@dataclass(frozen=True, kw_only=True)
class AcmeConfig(SqlServerConfig):
    table: Any = "users"
    query: Any = None
    password: Any = None
    tls_ca: Any = None
    tls_cert: Any = None
    tls_key: Any = None
    insecure: Any = False
    url: str | None = None

    @property
    def address(self) -> Address:
        return Address(self.url)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_query(self.query, mark=":", takes="one value", condition="{} = {}", examples="this or that")
        if self.table is not None:
            self.split_table("schema", "main")
        self.check_server("url")


# The config -------------------------------------------------------------------------------------------------------


def test_lists_and_a_single_column_become_tuples() -> None:
    """As they come from a TOML file, or from forgetting the comma of a tuple."""
    given: dict[str, Any] = {"table": ["a.b", "c"], "key": ["x", "y"], "columns": "name"}
    expected = AcmeConfig(table=("a.b", "c"), key=("x", "y"), columns=("name",))
    assert {expected} == {AcmeConfig(**given)}
    assert (2, ("x", "y")) == (expected.key_parts, expected.key_columns)
    assert ("id",) == AcmeConfig().key_columns


@pytest.mark.parametrize(
    ("table", "expected"), [("t", ("main", "t")), ("s.t", ("s", "t")), (("s.1", "t.1"), ("s.1", "t.1"))]
)
def test_a_table_is_one_name_or_two(table: Any, expected: tuple[str, str]) -> None:
    assert expected == AcmeConfig(table=table).split_table("schema", "main")


QUERY = {"table": None, "query": "SELECT :1"}
ILLEGAL = "cannot hold a NUL or half a surrogate pair. Remove that character."


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"key": ()}, ".key is (); it must be the name of a column, for example 'id', or a tuple of them."),
        ({"key": ("a", "a")}, ".key is ('a', 'a'); it must hold each name once. Remove the second."),
        ({"columns": {"a"}}, ".columns is {'a'}; it must be a tuple of names, for example ('name', 'tier')."),
        ({"key": None}, ".key holds None; it must be the name of a column, a str."),
        ({"key": "*"}, ".key holds '*'; it must be the name of a column. Write its name."),
        (
            {"columns": "*"},
            (".columns holds '*'; it must be the name of a column. Leave columns empty for all columns but the key."),
        ),
        ({"columns": ("a\0",)}, rf".columns holds 'a\x00'; the name of a column {ILLEGAL}"),
        ({"table": "s.\ud800"}, rf".table holds '\ud800'; the name of a table {ILLEGAL}"),
        (
            {"table": ".t"},
            ".table holds an empty name; it must be the name of a schema. Write the name as the database has it.",
        ),
        (
            {"table": "a.b.c"},
            (
                ".table is 'a.b.c'; it must be 'table', 'schema.table', or a tuple (schema, table) when a name itself "
                "holds a dot."
            ),
        ),
        ({"table": None}, " has neither a table nor a query; it must have one of them. Write this or that."),
        ({"query": "SELECT"}, " has both a table and a query; it must have one of them. Write this or that."),
        (
            {**QUERY, "columns": ("a",)},
            ".columns is ('a',) beside a query; it must be empty then. Select these columns in the query.",
        ),
        (
            {"table": None, "query": 5},
            ".query is 5; it must be one SELECT statement, a str without NUL. Write this or that.",
        ),
        (
            {**QUERY, "key": ("a", "b")},
            ".query does not mention :2; it takes one value for each of the 2 key columns, for example WHERE b = :2.",
        ),
        ({"insecure": "no"}, ".insecure is 'no'; it must be True or False."),
        ({"tls_ca": ""}, ".tls_ca is ''; it must be the path of a file, or None."),
        ({"tls_key": "k"}, ".tls_key is given without tls_cert; name the certificate that it belongs to."),
        (
            {"password": b"S3cret"},
            ".password has the type bytes; it must be a str or a Secret, for example Secret.env('SHOP_PASSWORD').",
        ),
        (
            {"password": "S3cret", "url": "S3cret"},
            " has a password and another one in its url; remove the one in the url.",
        ),
    ],
)
def test_a_wrong_field_is_refused_in_these_words(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AcmeConfig(**config)
    assert f"AcmeConfig{expected}" == str(caught.value)


# Messages ---------------------------------------------------------------------------------------------------------


def test_columns_are_chosen_by_their_names() -> None:
    columns = {name: name.upper() for name in ("id", "a", "b")}
    assert (["ID"], ["A", "B"]) == Source(AcmeConfig(), "it").choose(columns)
    assert (["B", "A"], ["ID"]) == Source(AcmeConfig(key=("b", "a"), columns=("id",)), "it").choose(columns)


def test_what_is_not_there_comes_with_what_is() -> None:
    names = [f"c{i}" for i in range(21)]
    listed = ", ".join(map(repr, names[:20])) + ", ..."
    with pytest.raises(FatalError) as caught:
        Source(AcmeConfig(key="C1"), "the table t").choose(dict.fromkeys(names))
    assert str(caught.value) == (
        "AcmeConfig.key names the column 'C1', which the table t does not have. Did you mean 'c1'? Its columns: "
        f"{listed}."
    )
    assert [
        "AcmeConfig.table names 'T', which the file does not have. Did you mean 't'? Its tables and views: 't'.",
        "AcmeConfig.table names 'T', which the file does not have. Look there. Its tables and views: 't'.",
        "AcmeConfig.table names 'T', which the file does not have. It has no table that this user can see.",
    ] == [str(no_table(AcmeConfig(), "T", "the file", *rest)) for rest in ((["t"],), (["t"], " Look there."), ([],))]


def test_each_declared_field_is_a_column() -> None:
    """Or it would be null in every row, and nobody would know."""
    source = Source(AcmeConfig(returns="struct<a:int,b:int>"), "it")
    source.check_fields(["a", "b"])
    source.check_fields(["only"])  # whose value is such a struct
    with pytest.raises(FatalError, match=r"^AcmeConfig\.returns names the column 'b', which it does not have\. "):
        source.check_fields(["a", "c"])


# Connections ------------------------------------------------------------------------------------------------------


class Transport:
    def __init__(self) -> None:
        self.aborted = False

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class AcmePool(Pool[Session]):
    product = "Acme"

    def __init__(self, config: AcmeConfig, size: int) -> None:
        super().__init__(config, size)
        self.made: list[Session] = []
        self.down = False
        self.connecting: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)

    async def connect(self, timeout: float) -> Session:
        await self.connecting()
        if self.down:
            raise OSError
        self.made.append(Session(None, Transport()))
        return self.made[-1]

    def survives(self, session: Session, error: BaseException) -> bool:
        return isinstance(error, KeyError)

    def translate(self, error: Exception) -> ConnectorError:
        return error if isinstance(error, TransientError | FatalError) else TransientError(type(error).__name__)


async def hold(session: Session, left: float) -> Session:
    await asyncio.sleep(0)
    return session


async def stall(session: Session, left: float) -> None:
    await asyncio.Event().wait()


def failing(error: Exception) -> Callable[[Session, float], Awaitable[None]]:
    async def fail(session: Session, left: float) -> None:
        raise error

    return fail


async def fault(
    made: AcmePool, use: Callable[[Session, float], Awaitable[Any]], timeout: float = 5.0
) -> TransientError:
    with pytest.raises(TransientError) as caught:
        await made.run(use, timeout)
    return caught.value


def test_connections_are_made_when_needed_and_used_again() -> None:
    async def run() -> None:
        made = AcmePool(AcmeConfig(), 2)
        used = await asyncio.gather(*(made.run(hold, 5.0) for _ in range(9)))
        assert {*made.made} == {*used}
        assert "<Pool there:1: 0 busy, 2 idle, 2 at most>" == repr(made)
        made.close()
        assert [True, True] == [session.closed for session in made.made]

    asyncio.run(run())


def test_only_a_connection_whose_state_is_known_is_used_again() -> None:
    async def run() -> None:
        made = AcmePool(AcmeConfig(), 1)
        assert "KeyError" == str(await fault(made, failing(KeyError())))
        assert "ValueError" == str(await fault(made, failing(ValueError())))
        assert [True] == [session.closed for session in made.made]  # which was used again after the first error
        assert "TimeoutError" == str(await fault(made, stall, 0.01))
        assert [True, True] == [session.closed for session in made.made]
        last = await made.run(hold, 5.0)
        assert [last] == made.made[2:]

    asyncio.run(run())


@pytest.mark.parametrize("limit", ["IDLE", "LIFETIME"])
def test_an_old_connection_is_not_used_again(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, limit, 0.0)

    async def run() -> list[bool]:
        made = AcmePool(AcmeConfig(), 1)
        for _ in range(2):
            await made.run(hold, 5.0)
        return [session.closed for session in made.made]

    assert [True, False] == asyncio.run(run())


def test_after_a_failed_connect_nobody_dials_for_a_while() -> None:
    async def run() -> None:
        made = AcmePool(AcmeConfig(), 1)
        made.down = True
        first = await fault(made, hold)
        made.down = False
        second = await fault(made, hold)
        assert ["OSError", "Acme at there:1 could not be reached a moment ago."] == [str(first), str(second)]
        assert first.retry_after is not None
        assert second.retry_after is not None
        assert 0 < second.retry_after <= first.retry_after <= 1.3
        assert [] == made.made

    asyncio.run(run())


def test_a_connection_that_comes_after_the_close_is_ended() -> None:
    async def run() -> None:
        made = AcmePool(AcmeConfig(), 1)

        async def connecting() -> None:
            made.close()

        made.connecting = connecting
        assert "The connections to Acme at there:1 were closed." == str(await fault(made, hold))
        assert made.made[0].closed

    asyncio.run(run())


def test_a_secret_is_read_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        made = AcmePool(AcmeConfig(password=Secret.env("ACME_PASSWORD")), 1)
        with pytest.raises(FatalError) as caught:
            made.password()
        assert "The environment variable ACME_PASSWORD is not set on this worker; a Secret names it." == str(
            caught.value
        )
        monkeypatch.setenv("ACME_PASSWORD", "S3cret")
        assert ("S3cret", ("S3cret", None)) == (made.password(), made.secrets)
        assert "ours" == AcmePool(AcmeConfig(url="ours"), 1).password()

    asyncio.run(run())


def test_tls_verifies_and_says_which_files_it_needs() -> None:
    context = tls_context(AcmeConfig())
    assert (ssl.CERT_REQUIRED, True) == (context.verify_mode, context.check_hostname)
    with pytest.raises(FatalError) as caught:
        tls_context(AcmeConfig(tls_ca="/no/such/file"))
    assert str(caught.value) == (
        "A certificate of AcmeConfig cannot be used on this worker: No such file or directory. tls_ca, tls_cert and "
        "tls_key must be paths of PEM files there."
    )


# The frame --------------------------------------------------------------------------------------------------------


@dataclass
class Lookup:
    ddl: str = "int"


class AcmeConnector(SqlConnector[AcmeConfig, AcmePool, Lookup]):
    name = "acme"
    fails = False

    def make_pool(self) -> AcmePool:
        return AcmePool(self.config, self.capacity)

    async def prepare(self, pool: AcmePool) -> Lookup:
        await pool.run(failing(ValueError()) if self.fails else hold, self.open_timeout)
        return Lookup()


def test_a_connector_is_open_or_closed() -> None:
    async def run() -> None:
        connector = AcmeConnector(AcmeConfig())
        with pytest.raises(FatalError) as caught:
            await connector.describe()
        assert "The connector 'acme' is not open; call open() before it is asked." == str(caught.value)
        await connector.open()
        assert "<AcmeConnector users: <Pool there:1: 0 busy, 1 idle, 8 at most>>" == repr(connector)
        assert "int" == await connector.describe()
        for _ in range(2):
            await connector.close()
        connector.fails = True
        with pytest.raises(TransientError):
            await connector.open()
        assert "<AcmeConnector users: closed>" == repr(connector)
        assert "string" == await AcmeConnector(AcmeConfig(returns="string")).describe()

    asyncio.run(run())
