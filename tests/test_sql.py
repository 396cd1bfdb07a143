"""The parts that the connectors of SQL databases share, without a database: config, messages, pool, base class."""

from __future__ import annotations

import asyncio
import platform
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import ConfigError, FatalError, Secret, TransientError
from enrichkit.errors import UnavailableError
from enrichkit.plugin import tls_context
from enrichkit.sql import Pool, Session, Source, SqlConnector, SqlServerConfig, no_table, pool, session
from enrichkit.sql.meter import Meter
from enrichkit.testing import clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

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
    """TOML has lists and no tuples, and a user may forget the comma of a tuple."""
    fields: dict[str, Any] = {"table": ["a.b", "c"], "key": ["x", "y"], "columns": "name"}
    expected = AcmeConfig(table=("a.b", "c"), key=("x", "y"), columns=("name",))
    assert {expected} == {AcmeConfig(**fields)}
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
        (
            {"expires": ""},
            ".expires holds an empty name; it must be the name of a column. Write the name as the database has it.",
        ),
        (
            {"expires": "id"},
            (
                ".expires names the column 'id', which is in key, too; it must be a column of its own. "
                "Leave it out of key."
            ),
        ),
        (
            {"expires": "a", "columns": ("a",)},
            (
                ".expires names the column 'a', which is in columns, too; it must be a "
                "column of its own. Leave it out of columns."
            ),
        ),
        (
            QUERY | {"expires": "a"},
            (
                ".expires is 'a' beside a query; it must be None then. Leave rows out whose time "
                "is over by a condition in the query."
            ),
        ),
        ({"writable": 1}, ".writable is 1; it must be True or False."),
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
        *(
            (
                {"max_bytes": size},
                (
                    f".max_bytes is {size!r}; it must be a whole number of bytes from 65536 to 1073741824, for example "
                    "67108864."
                ),
            )
            for size in (2**16 - 1, 2**30 + 1, True, 1e6, "1000000", None)
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
def test_a_wrong_field_is_refused_with_this_message(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AcmeConfig(**config)
    assert f"AcmeConfig{expected}" == str(caught.value)


# Messages ---------------------------------------------------------------------------------------------------------


def test_columns_are_chosen_by_their_names() -> None:
    columns = {name: name.upper() for name in ("id", "a", "b")}
    assert (["ID"], ["A", "B"]) == Source(AcmeConfig(), "it").choose(columns)
    assert (["B", "A"], ["ID"]) == Source(AcmeConfig(key=("b", "a"), columns=("id",)), "it").choose(columns)


def test_the_column_with_the_time_of_a_row_is_no_value() -> None:
    columns = {name: name.upper() for name in ("id", "a", "until")}
    source = Source(AcmeConfig(expires="until"), "it")
    assert (["ID"], ["A"]) == source.choose(columns)
    assert "UNTIL" == source.expiry(columns)
    assert Source(AcmeConfig(), "it").expiry(columns) is None
    with pytest.raises(FatalError) as caught:
        source.expiry({"id": 1})
    assert "AcmeConfig.expires names the column 'until', which it does not have. Its columns: 'id'." == str(
        caught.value
    )
    assert str(source.not_a_time("int", "a time")) == (
        "AcmeConfig.expires names the column 'until' of it, which has the type int; it must be a time. Name another "
        "column, or change the type of this one."
    )


def test_the_error_for_a_missing_name_lists_the_existing_names() -> None:
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
    """A field without a column would be null in every row, without an error."""
    source = Source(AcmeConfig(returns="struct<a:int,b:int>"), "it")
    source.check_fields(["a", "b"])
    source.check_fields(["only"])  # the value of the only column is such a struct
    with pytest.raises(FatalError, match=r"^AcmeConfig\.returns names the column 'b', which it does not have\. "):
        source.check_fields(["a", "c"])


# Connections ------------------------------------------------------------------------------------------------------


class Transport:
    def __init__(self) -> None:
        self.aborted = False

    def get_extra_info(self, name: str) -> None:
        return None

    def get_protocol(self) -> asyncio.Protocol:
        return asyncio.Protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class AcmePool(Pool[Session]):
    product = "Acme"

    def __init__(self, config: AcmeConfig, size: int) -> None:
        super().__init__(config, size)
        self.made: list[Session] = []
        self.down: Exception | None = None
        self.dials = 0
        self.connecting: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)

    async def connect(self, timeout: float) -> Session:
        await self.connecting()
        self.dials += 1
        if self.down is not None:
            raise self.down
        self.made.append(Session(None, Transport()))
        return self.made[-1]

    def survives(self, session: Session, error: BaseException) -> bool:
        return isinstance(error, KeyError)

    def translate(self, error: Exception) -> ConnectorError:
        if isinstance(error, TransientError | FatalError):
            return error
        kind = UnavailableError if isinstance(error, ConnectionError) else TransientError
        return kind(type(error).__name__)


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
    acme: AcmePool, use: Callable[[Session, float], Awaitable[Any]], timeout: float = 5.0
) -> TransientError:
    with pytest.raises(TransientError) as caught:
        await acme.run(use, timeout)
    return caught.value


def test_connections_are_made_when_needed_and_used_again() -> None:
    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 2)
        used = await asyncio.gather(*(acme.run(hold, 5.0) for _ in range(9)))
        assert {*acme.made} == {*used}
        assert "<Pool there:1: 0 busy, 2 idle, 2 at most>" == repr(acme)
        acme.close()
        assert [True, True] == [session.closed for session in acme.made]

    asyncio.run(run())


def test_only_a_connection_whose_state_is_known_is_used_again() -> None:
    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 1)
        assert "KeyError" == str(await fault(acme, failing(KeyError())))
        assert "ValueError" == str(await fault(acme, failing(ValueError())))
        assert [True] == [session.closed for session in acme.made]  # the session was used again after the first error
        slow = await fault(acme, stall, 0.01)
        assert (TransientError, "TimeoutError") == (type(slow), str(slow))  # the keys have reached the server
        assert [True, True] == [session.closed for session in acme.made]
        last = await acme.run(hold, 5.0)
        assert [last] == acme.made[2:]

    asyncio.run(run())


@pytest.mark.parametrize(("module", "limit"), [(pool, "IDLE"), (session, "LIFETIME")], ids=["idle", "lifetime"])
def test_an_old_connection_is_not_used_again(module: ModuleType, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, limit, 0.0)

    async def run() -> list[bool]:
        acme = AcmePool(AcmeConfig(), 1)
        for _ in range(2):
            await acme.run(hold, 5.0)
        return [session.closed for session in acme.made]

    assert [True, False] == asyncio.run(run())


MOMENT_AGO = "Acme at there:1 could not be reached a moment ago."


@pytest.mark.parametrize("error", [ConnectionRefusedError(), TimeoutError()], ids=["refused", "timeout"])
def test_a_failed_connect_is_that_of_all_callers_that_wait_for_one(error: Exception) -> None:
    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 8)
        acme.down = error
        faults = await asyncio.gather(*(fault(acme, hold) for _ in range(8)))
        assert [type(error).__name__, *[MOMENT_AGO] * 7] == [str(each) for each in faults]
        for each in faults:
            assert type(each) is UnavailableError
            assert (False, None, None) == (each.sent, each.retry_after, each.node)
        assert 1 == acme.dials

    asyncio.run(run())


def test_a_server_without_a_free_connection_has_none_for_any_caller_that_waits() -> None:
    """Else the engine would take a refusal for lack of room for an outage."""

    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 8)
        acme.down = UnavailableError("too many connections", busy=True)
        faults = await asyncio.gather(*(fault(acme, hold) for _ in range(3)))
        text = "Acme at there:1 had no free connection a moment ago."
        assert ["too many connections", text, text] == [str(each) for each in faults]
        assert [(UnavailableError, True, False)] * 3 == [
            (type(each), getattr(each, "busy", None), getattr(each, "sent", None)) for each in faults
        ]
        acme.down = ConnectionRefusedError()
        faults = await asyncio.gather(*(fault(acme, hold) for _ in range(2)))
        assert [("ConnectionRefusedError", False), (MOMENT_AGO, False)] == [
            (str(each), getattr(each, "busy", None)) for each in faults
        ]

    asyncio.run(run())


def test_the_caller_after_a_failed_connect_connects_at_once() -> None:
    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 1)
        acme.down = ConnectionRefusedError()
        assert ["ConnectionRefusedError"] * 2 == [str(await fault(acme, hold)) for _ in range(2)]
        acme.down = None
        assert [await acme.run(hold, 5.0)] == acme.made
        assert 3 == acme.dials

    asyncio.run(run())


def test_a_connect_that_reached_the_server_fails_no_other_caller() -> None:
    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 8)
        acme.down = TransientError("no")
        faults = await asyncio.gather(*(acme.run(hold, 5.0) for _ in range(8)), return_exceptions=True)
        assert [(TransientError, "no")] * 8 == [(type(each), str(each)) for each in faults]
        assert 8 == acme.dials

    asyncio.run(run())


def test_a_refused_login_is_that_of_all_callers_until_the_password_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_PASSWORD", "old")

    async def run() -> None:
        acme = AcmePool(AcmeConfig(password=Secret.env("ACME_PASSWORD")), 8)
        acme.down = FatalError("no")
        for _ in range(2):
            faults = await asyncio.gather(*(acme.run(hold, 5.0) for _ in range(8)), return_exceptions=True)
            assert [(FatalError, "no")] * 8 == [(type(each), str(each)) for each in faults]
            assert 1 == acme.dials
        monkeypatch.setenv("ACME_PASSWORD", "new")
        with pytest.raises(FatalError, match=r"^no$"):
            await acme.run(hold, 5.0)
        assert 2 == acme.dials
        monkeypatch.setenv("ACME_PASSWORD", "newer")
        acme.down = None
        assert [await acme.run(hold, 5.0)] == acme.made

    asyncio.run(run())


def test_when_a_login_has_succeeded_several_callers_log_in_at_a_time() -> None:
    async def run() -> None:
        acme, most = AcmePool(AcmeConfig(), 16), 0  # a quarter of them may
        busy = 0

        async def connecting() -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.1)
            busy -= 1

        acme.connecting = connecting
        await asyncio.gather(*(acme.run(hold, 5.0) for _ in range(16)))
        assert 4 == most
        most = 0
        await fault(acme, failing(TransientError("broken")))
        for made in acme.made:
            made.end()
        await asyncio.gather(*(acme.run(hold, 5.0) for _ in range(4)))
        assert 3 == most  # the first one logs in alone

    clock.run(run())


def test_a_refused_login_is_tried_again_after_a_pause() -> None:
    """The administrator may meanwhile have set the password that the config has."""

    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 1)
        acme.down = FatalError("no")
        for wait, dials in ((0.0, 1), (9.9, 1), (0.2, 2), (9.9, 2)):
            await asyncio.sleep(wait)
            with pytest.raises(FatalError, match=r"^no$"):
                await acme.run(hold, 5.0)
            assert dials == acme.dials
        acme.down = None
        await asyncio.sleep(0.2)
        await acme.run(hold, 5.0)
        acme.made[0].end()  # the next caller has to connect, and hears nothing of a refusal that is over
        await acme.run(hold, 5.0)
        assert 2 == len(acme.made)

    clock.run(run())


def test_a_connect_that_outlasts_the_call_has_sent_no_key() -> None:
    """`connect` may try several hosts, each with its own time limit."""

    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 3)  # two of them connect at a time
        acme.connecting = asyncio.Event().wait
        for each in await asyncio.gather(*(fault(acme, hold, 0.01) for _ in range(3))):
            assert type(each) is UnavailableError
            assert ("TimeoutError", False, None) == (str(each), each.sent, each.retry_after)
        acme.connecting = lambda: asyncio.sleep(0)
        used = await asyncio.gather(*(acme.run(hold, 5.0) for _ in range(3)))
        assert {*acme.made} == {*used}

    asyncio.run(run())


def test_a_caller_that_gets_no_connection_of_others_says_nothing_of_the_server() -> None:
    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 1)
        busy = asyncio.create_task(acme.run(stall, 5.0))
        while not acme._busy:
            await asyncio.sleep(0)
        late = await fault(acme, hold, 0.01)
        assert (TransientError, "TimeoutError") == (type(late), str(late))
        busy.cancel()
        await asyncio.wait({busy})

    asyncio.run(run())


def test_a_connection_that_comes_after_the_close_is_ended() -> None:
    async def run() -> None:
        acme = AcmePool(AcmeConfig(), 1)

        async def connecting() -> None:
            acme.close()

        acme.connecting = connecting
        closed = await fault(acme, hold)
        assert (TransientError, "The connections to Acme at there:1 were closed.") == (type(closed), str(closed))
        assert acme.made[0].closed

    asyncio.run(run())


def test_a_secret_is_read_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        acme = AcmePool(AcmeConfig(password=Secret.env("ACME_PASSWORD")), 1)
        with pytest.raises(FatalError) as caught:
            acme.password()
        assert (
            f"The environment variable ACME_PASSWORD is not set on this machine ({platform.node()}); a Secret names it."
            == str(caught.value)
        )
        monkeypatch.setenv("ACME_PASSWORD", "S3cret")
        assert ("S3cret", ("S3cret", None)) == (acme.password(), acme.secrets)
        assert "ours" == AcmePool(AcmeConfig(url="ours"), 1).password()

    asyncio.run(run())


def test_tls_verifies_and_says_which_files_it_needs() -> None:
    context = tls_context(AcmeConfig())
    assert (ssl.CERT_REQUIRED, True) == (context.verify_mode, context.check_hostname)
    assert ssl.TLSVersion.TLSv1_2 == context.minimum_version
    unverified = tls_context(AcmeConfig(), verify=False)
    assert (ssl.CERT_NONE, False) == (unverified.verify_mode, unverified.check_hostname)
    with pytest.raises(FatalError) as caught:
        tls_context(AcmeConfig(tls_ca="/no/such/file"))
    assert str(caught.value) == (
        "A certificate of AcmeConfig cannot be used on this worker: No such file or directory. tls_ca, tls_cert and "
        "tls_key must be paths of PEM files there."
    )


# The size of a reply ----------------------------------------------------------------------------------------------


class Streamed(asyncio.Protocol):
    """The protocol of a driver, of the kind that asyncpg has."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.heard: list[str] = []
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> bool:
        self.heard.append("end")
        return True  # this end stays open

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class Buffered(Streamed, asyncio.BufferedProtocol):
    """The kind that asyncmy has, with a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = bytearray(1000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.buffer[:nbytes]


async def until(done: Callable[[], bool]) -> None:
    while not done():
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [Streamed, Buffered])
def test_a_reply_is_read_up_to_its_limit_and_no_further(kind: type[Streamed]) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with there:
            transport, driver = await asyncio.get_running_loop().create_connection(kind, sock=here)
            meter = Meter(transport)
            for reply in range(1, 4):  # each has the whole limit
                meter.start(3000)
                there.sendall(b"x" * 3000)
                await until(lambda size=3000 * reply: len(driver.got) == size)  # type: ignore[misc]
            assert not meter.exceeded
            meter.start(3000)
            there.sendall(b"y" * 3001)
            await driver.lost.wait()
            assert meter.exceeded
            assert transport.is_closing()
            assert len(driver.got) < 3000 * 3 + 3001
            assert there.recv(1) == b""

    asyncio.run(run())


def read(sock: socket.socket, size: int) -> None:
    while size:
        size -= len(sock.recv(size))


@pytest.mark.parametrize("kind", [Streamed, Buffered])
def test_the_driver_hears_all_that_happens_on_a_metered_connection(kind: type[Streamed]) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with there:
            transport, driver = await asyncio.get_running_loop().create_connection(kind, sock=here)
            Meter(transport)
            there.sendall(b"x" * 100_000)  # there is no limit
            await until(lambda: len(driver.got) == 100_000)
            size = 10_000_000  # more than the kernel takes at once
            transport.write(b"x" * size)
            assert driver.heard == ["pause"]
            await asyncio.to_thread(read, there, size)
            await until(lambda: driver.heard == ["pause", "resume"])
            there.shutdown(socket.SHUT_WR)
            await until(lambda: driver.heard == ["pause", "resume", "end"])
            assert not driver.lost.is_set()
            transport.abort()
            await driver.lost.wait()

    asyncio.run(run())


# The base class ---------------------------------------------------------------------------------------------------


@dataclass
class Statement:
    ddl: str = "int"


class AcmeConnector(SqlConnector[AcmeConfig, AcmePool, Statement]):
    name = "acme"
    fails = False

    def make_pool(self) -> AcmePool:
        return AcmePool(self.config, self.capacity)

    async def prepare(self, pool: AcmePool) -> Statement:
        await pool.run(failing(ValueError()) if self.fails else hold, self.open_timeout)
        return Statement()


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
