"""What goes wrong: slow, frozen and dead servers, cancelled calls, logins, rights, TLS, and what errors give away."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import asyncmy.errors
import pytest
from enrichkit_mariadb import MariadbConfig, MariadbConnector
from enrichkit_mariadb.faults import translate

from enrichkit import local
from enrichkit.connector import Call, Failure
from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.secrets import Secret
from enrichkit.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import Ask

    Sql = Callable[[str], str]

# The first test starts the server, which takes its time on a busy machine.
pytestmark = [pytest.mark.service, pytest.mark.apt]

SLOW = "CREATE VIEW slow AS SELECT id, if(id < 10, sleep(60), 0) AS slept, name FROM users"


def running(sql: Sql) -> int:
    return int(sql("SELECT count(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SET STATEMENT%JSON_TABLE%'"))


# Time -------------------------------------------------------------------------------------------------------------


def test_the_server_stops_a_slow_statement_and_the_connection_survives(users: str, sql: Sql, ask: Ask) -> None:
    sql(SLOW)

    async def run() -> tuple[str, list[Any], dict[Any, Any]]:
        async with ask.opened(users, table="slow") as connector:
            used = [connector._pool._idle[0]]
            with pytest.raises(TransientError) as caught:
                await connector.fetch_many([1], Call(timeout=0.5))
            used += connector._pool._idle
            answers = await connector.fetch_many([20], Call(timeout=20))
            return str(caught.value), [*used, *connector._pool._idle], dict(answers)

    message, used, answers = asyncio.run(run())
    assert message.endswith(
        "says: Query execution was interrupted (max_statement_time exceeded), error 1969. The statement ran longer "
        "than the lookup may take: give the key an index, or raise the option timeout."
    )
    assert 3 == len(used)
    assert 1 == len(set(used))
    assert answers == {20: {"slept": 0, "name": "name20"}}
    assert running(sql) == 0


def test_a_statement_that_is_stopped_between_rows_leaves_none_of_them_behind(users: str, sql: Sql, ask: Ask) -> None:
    """Rows of 100 kB leave the server while it still works on the next ones."""
    sql("CREATE VIEW big AS SELECT id, if(id < 10, sleep(60), 0) AS slept, repeat(name, 20000) AS name FROM users")

    async def run() -> None:
        async with ask.opened(users, table="big") as connector:
            for _ in range(3):
                with pytest.raises(TransientError, match="error 1969"):
                    await connector.fetch_many([*range(100, 140), 1], Call(timeout=1))
                keys = [50, 51, -1]
                expected = {key: {"slept": 0, "name": f"name{key}" * 20000} for key in (50, 51)}
                assert expected == await connector.fetch_many(keys, Call(timeout=20))

    asyncio.run(run())


def test_a_frozen_server_is_left_at_the_deadline_and_the_next_call_gets_its_own_answer(
    users: str, mariadb_server: local.MariadbServer, ask: Ask
) -> None:
    with fault_proxy(mariadb_server.host, mariadb_server.port) as proxy:

        async def run() -> None:
            async with ask.opened(proxy.url(users), capacity=1, table="users", columns=("name",)) as connector:
                frozen = connector._pool._idle[0]
                proxy.freeze()
                with pytest.raises(TransientError, match=r"did not answer in time. Raise the option timeout"):
                    await connector.fetch_many([1], Call(timeout=0.2))
                assert frozen.transport.is_closing()
                with pytest.raises(TransientError, match="did not answer in time"):  # no greeting, either
                    await connector.fetch_many([1], Call(timeout=0.2))
                with pytest.raises(TransientError, match="could not be reached a moment ago") as caught:
                    await connector.fetch_many([1], Call(timeout=5))
                proxy.thaw()
                await asyncio.sleep(caught.value.retry_after or 0)
                assert await connector.fetch_many([2], Call(timeout=20)) == {2: "name2"}

        asyncio.run(run())


def test_close_does_not_wait_for_a_frozen_server(users: str, mariadb_server: local.MariadbServer, ask: Ask) -> None:
    with fault_proxy(mariadb_server.host, mariadb_server.port) as proxy:

        async def run() -> None:
            connector = MariadbConnector(MariadbConfig(url=proxy.url(users), table="users"))
            await connector.open()
            proxy.freeze()
            keys = list(range(10_000))
            call = asyncio.create_task(connector.fetch_many(keys, Call(timeout=600)))
            while not connector._pool._busy:
                await asyncio.sleep(0)
            async with asyncio.timeout(15):
                await connector.close()
                await connector.close()
                with pytest.raises(TransientError, match=r"^MariaDB at 127.0.0.1:\d+ says: .*error 2013"):
                    await call

        asyncio.run(run())


def test_random_cancels_leave_no_wrong_answer(users: str, ask: Ask) -> None:
    """Where a reply of a cancelled call could reach the next one, this finds it."""
    dice = random.Random(7)

    async def run() -> tuple[int, int]:
        right = cancelled = 0
        async with ask.opened(users, table="users", columns=("name",)) as connector:

            async def worker() -> None:
                nonlocal right, cancelled
                for _ in range(100):
                    keys = dice.sample(range(2000), 20)
                    task = asyncio.create_task(connector.fetch_many(keys, Call(timeout=20)))
                    if dice.random() < 0.5:
                        for _ in range(dice.randrange(60)):
                            await asyncio.sleep(0)
                        task.cancel()
                    try:
                        assert {key: f"name{key}" for key in keys if key < 1000} == await task
                        right += 1
                    except asyncio.CancelledError:
                        cancelled += 1

            await asyncio.gather(*(worker() for _ in range(4)))
            assert connector._pool._free._value == 4
            assert len(connector._pool._idle) <= 4
            assert not connector._pool._busy
        return right, cancelled

    right, cancelled = asyncio.run(run())
    assert right + cancelled == 400
    assert min(right, cancelled) > 10


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_ends_anywhere_in_a_reply_gives_no_answer(
    users: str, mariadb_server: local.MariadbServer, ask: Ask, reset: bool
) -> None:
    keys = list(range(500, 520))
    expected = {key: {"name": f"name{key}", "tier": key % 5} for key in keys}
    with fault_proxy(mariadb_server.host, mariadb_server.port) as proxy:

        async def run() -> int:
            failed = 0
            async with ask.opened(proxy.url(users), table="users") as connector:
                before = proxy.bytes_to_client
                assert expected == await connector.fetch_many(keys, Call(timeout=20))
                size = proxy.bytes_to_client - before
                for cut in range(0, size, 13):
                    (proxy.reset_after if reset else proxy.close_after)(cut)
                    with pytest.raises(TransientError):
                        await connector.fetch_many(keys, Call(timeout=20))
                    failed += 1
                    proxy.heal()
                    assert expected == await connector.fetch_many(keys, Call(timeout=20))
            return failed

        assert asyncio.run(run()) > 20


def test_a_reply_that_belongs_to_another_statement_is_noticed(users: str, ask: Ask) -> None:
    """As a proxy or a driver with a mistake would hand it over: rows of other keys, and rows that are too few."""

    async def run() -> list[str]:
        said = []
        async with ask.opened(users, table="users", columns=("name",)) as connector:
            lookup = connector._lookup
            session = connector._pool._idle[0]
            earlier = lookup.ask([1, 2, 3])
            rows = await session.ask(lookup.sql, 5.0, earlier.offset, earlier.document)
            before, after = lookup.ask([0]), lookup.ask([1, 2, 3])
            before.offset = earlier.offset - 1  # as if it had been asked before
            for asked, wrong in ((after, rows), (after, rows[:0]), (before, rows)):
                with pytest.raises(TransientError) as caught:
                    lookup.read(wrong, asked, False)
                said.append(str(caught.value))
            assert lookup.read(rows, earlier, False) == {1: "name1", 2: "name2", 3: "name3"}
            with pytest.raises(TransientError) as caught:
                lookup.read(rows[:2], earlier, False)
            return [*said, str(caught.value)]

    database = users.rpartition("/")[2]
    expected = (
        f"A reply came back that is not the one to the keys of the table {database}.users that were asked for; the "
        "connection was closed."
    )
    assert [expected] * 4 == asyncio.run(run())


# Connections ------------------------------------------------------------------------------------------------------


def test_connections_that_an_administrator_ends_are_replaced(users: str, sql: Sql, ask: Ask) -> None:
    async def run() -> dict[Any, Any]:
        async with ask.opened(users, table="users", columns=("name",)) as connector:
            await asyncio.gather(*(connector.fetch_many([i], Call(timeout=20)) for i in range(4)))
            ids = [session.connection.server_thread_id[0] for session in connector._pool._idle]
            assert 4 == len(set(ids))
            idle = list(connector._pool._idle)
            await asyncio.to_thread(sql, ";".join(f"KILL {i}" for i in ids))
            while not all(session.transport.is_closing() for session in idle):
                await asyncio.sleep(0)
            return dict(await connector.fetch_many([7], Call(timeout=20)))

    assert asyncio.run(run()) == {7: "name7"}


def test_an_outage_is_survived_and_the_end_of_the_server_is_transient() -> None:
    with local.mariadb() as server, fault_proxy(server.host, server.port) as proxy:
        url = server.create_database()
        server.execute("CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1, 2)", url.rpartition("/")[2])

        async def run() -> None:
            connector = MariadbConnector(MariadbConfig(url=proxy.url(url), table="t"))
            await connector.open()
            proxy.refuse()
            proxy.cut()
            with pytest.raises(TransientError):  # the connection is found dead
                await connector.fetch_many([1], Call(timeout=20))
            with pytest.raises(TransientError, match=r"cannot be reached|a moment ago") as caught:
                await connector.fetch_many([1], Call(timeout=20))
            proxy.accept()
            await asyncio.sleep(caught.value.retry_after or 0)
            assert await connector.fetch_many([1], Call(timeout=20)) == {1: 2}
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(TransientError):
                await until_it_fails(connector)
            await connector.close()

        async def until_it_fails(connector: MariadbConnector) -> None:
            while True:
                await connector.fetch_many([1], Call(timeout=20))

        asyncio.run(run())


def test_a_connection_whose_call_failed_is_closed(users: str, ask: Ask) -> None:
    """Whatever the reason, and whatever the driver does about it: what is left unread would be the next answer."""

    async def run() -> None:
        async with ask.opened(users, table="users") as connector:
            used = []

            async def fail(session: Any, timeout: float) -> None:
                used.append(session)
                raise ValueError

            with pytest.raises(PermanentError, match=r"cannot be read: ValueError\.$"):
                await connector._pool.run(fail, 20)
            assert used[0].transport.is_closing()
            assert connector._pool._idle == []
            assert await connector.fetch_many([-1], Call(timeout=20)) == {}

    asyncio.run(run())


def test_the_server_never_has_more_connections_than_capacity(users: str, sql: Sql, ask: Ask) -> None:
    """The server itself refuses a fourth one."""
    sql("CREATE USER three WITH MAX_USER_CONNECTIONS 3; GRANT SELECT ON *.* TO three")

    async def run() -> None:
        url = users.replace("root@", "three@")
        async with ask.opened(url, capacity=3, table="users", columns=("name",)) as connector:
            calls = [connector.fetch_many([i], Call(timeout=60)) for i in range(100)]
            assert [{i: f"name{i}"} for i in range(100)] == await asyncio.gather(*calls)
            assert 3 == len(connector._pool._idle)

    try:
        asyncio.run(run())
    finally:
        sql("DROP USER three")


def test_too_many_connections_are_transient_and_named(
    users: str, sql: Sql, mariadb_server: local.MariadbServer, ask: Ask
) -> None:
    sql("CREATE USER few WITH MAX_USER_CONNECTIONS 1; GRANT SELECT ON *.* TO few")
    url = users.replace("root@", "few@")

    async def run() -> str:
        async with ask.opened(url, table="users"):
            with pytest.raises(TransientError) as caught:
                async with ask.opened(url, table="users"):
                    pass
            return str(caught.value)

    try:
        assert asyncio.run(run()) == (
            f"MariaDB at 127.0.0.1:{mariadb_server.port} says: User 'few' has exceeded the 'max_user_connections' "
            "resource (current value: 1), error 1226. Lower capacity, which counts per worker process, or raise this "
            "limit of the user."
        )
    finally:
        sql("DROP USER few")


def test_a_connector_can_be_opened_again_on_another_loop(users: str) -> None:
    connector = MariadbConnector(MariadbConfig(url=users, table="users", columns=("name",)))

    async def run() -> dict[Any, Any]:
        await connector.open()
        answers = await connector.fetch_many([1], Call(timeout=20))
        await connector.close()
        return dict(answers)

    assert asyncio.run(run()) == {1: "name1"}
    assert asyncio.run(run()) == {1: "name1"}
    with pytest.raises(FatalError) as caught:
        asyncio.run(connector.fetch_many([1], Call(timeout=20)))
    assert str(caught.value) == "The connector 'mariadb' is not open; call open() before it is asked."


def test_a_connection_that_is_made_while_the_connector_closes_is_not_left_open(
    users: str, mariadb_server: local.MariadbServer
) -> None:
    with fault_proxy(mariadb_server.host, mariadb_server.port) as proxy:

        async def run() -> str:
            connector = MariadbConnector(MariadbConfig(url=proxy.url(users), table="users"))
            await connector.open()
            pool = connector._pool
            pool._idle.pop().end()
            proxy.freeze()
            opened = proxy.opened
            call = asyncio.create_task(connector.fetch_many([1], Call(timeout=20)))
            while proxy.opened == opened:
                await asyncio.sleep(0)
            await connector.close()
            proxy.thaw()
            with pytest.raises(TransientError) as caught:
                await call
            return str(caught.value)

        assert asyncio.run(run()) == f"The connections to MariaDB at 127.0.0.1:{proxy.port} were closed."


def test_keepalive_is_set_on_the_socket(users: str, ask: Ask) -> None:
    async def run() -> list[int]:
        async with ask.opened(users, table="users") as connector:
            sock = connector._pool._idle[0].transport.get_extra_info("socket")
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            return [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options]

    assert asyncio.run(run()) == [30, 5, 3, 30_000]


# What the server refuses ------------------------------------------------------------------------------------------


def test_a_session_is_read_only_and_nothing_of_the_server_changes_what_it_means(users: str, sql: Sql, ask: Ask) -> None:
    sql(
        "SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH';"
        "SET GLOBAL time_zone = '+05:00'; SET GLOBAL sql_select_limit = 1"
    )
    sql("CREATE TABLE t (k varchar(20) PRIMARY KEY, c char(5), at timestamp)")
    try:
        sql(
            "SET sql_mode = '', time_zone = '+00:00';"
            "INSERT INTO t VALUES ('\\\\', 'a', '2024-01-01'), ('\\'', 'b', NULL)"
        )

        async def run() -> tuple[Any, str]:
            async with ask.opened(users, table="t", key="k", columns=("c",)) as connector:
                answers = await connector.fetch_many(["\\", "'", '"'], Call(timeout=20))
                with pytest.raises(Exception) as caught:
                    await connector._pool._idle[0].ask(f"DELETE FROM {users.rpartition('/')[2]}.t")
                return answers, str(caught.value)

        answers, message = asyncio.run(run())
        assert answers == {"\\": "a", "'": "b"}
        assert "Cannot execute statement in a READ ONLY transaction" in message
        (found,) = ask.lookup(users, ["\\"], table="t", key="k", columns=("at",)).values()
        assert found.isoformat() == "2024-01-01T00:00:00+00:00"
    finally:
        sql("SET GLOBAL sql_mode = DEFAULT; SET GLOBAL time_zone = DEFAULT; SET GLOBAL sql_select_limit = DEFAULT")


def test_a_view_that_writes_fails_the_task(users: str, sql: Sql, ask: Ask) -> None:
    sql(
        "CREATE FUNCTION drop_user(i int) RETURNS int BEGIN DELETE FROM users WHERE id = i; RETURN i; END".join(
            ("DELIMITER //\n", "//")
        )
    )
    sql("CREATE TABLE ids (id int PRIMARY KEY); INSERT INTO ids VALUES (1)")
    sql("CREATE VIEW writing AS SELECT id, drop_user(id) AS v FROM ids")
    error = ask.failure(users, table="writing")
    assert isinstance(error, FatalError)
    assert str(error).endswith(
        "says: Cannot execute statement in a READ ONLY transaction, error 1792. The session is read-only; a view must "
        "not call a function that writes."
    )
    assert sql("SELECT count(*) FROM users WHERE id = 1") == "1"


def test_an_error_in_one_row_is_permanent_and_quotes_no_key(users: str, sql: Sql, ask: Ask) -> None:
    sql("CREATE VIEW failing AS SELECT id, if(id = 7, (SELECT id FROM users u WHERE u.tier = 1), 0) AS v FROM users")
    error = ask.failure(users, [1, 7], table="failing")
    assert isinstance(error, PermanentError)
    assert str(error).endswith("says: error 1242.")
    assert ask.lookup(users, [1], table="failing") == {1: 0}


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (asyncmy.errors.ProgrammingError(1064, "syntax to use near '[[S3cret]]'"), FatalError, "1064. MariaDB 10.6 or"),
        (asyncmy.errors.DataError(1292, "Incorrect datetime value: 'S3cret'"), PermanentError, "says: error 1292."),
        (asyncmy.errors.OperationalError(1213, "Deadlock found"), TransientError, "says: Deadlock found, error 1213."),
        (asyncmy.errors.OperationalError(1040, "Too many"), TransientError, "error 1040. Lower capacity, which counts"),
        (asyncmy.errors.InternalError("Packet sequence number wrong"), TransientError, "broke: InternalError."),
        (asyncmy.errors.InterfaceError(0, "Not connected"), TransientError, "broke: InterfaceError."),
        (UnicodeDecodeError("utf-8", b"S3cret", 0, 1, "?"), PermanentError, "be read: UnicodeDecodeError."),
        (socket.gaierror(-2, "Name or service not known"), TransientError, "reached: Name or service not known."),
        (TimeoutError(), TransientError, "did not answer in time"),
    ],
)
def test_an_error_says_what_to_do_and_quotes_no_key(error: Exception, kind: type[Exception], text: str) -> None:
    ours = translate(error, asyncmy.errors, "db:3306", "hidden")
    assert type(ours) is kind
    assert text in str(ours)
    assert "S3cret" not in str(ours)


def test_keys_that_are_too_long_for_one_statement_are_told_before_the_server_hangs_up(
    users: str, sql: Sql, ask: Ask
) -> None:
    sql("CREATE TABLE t (k text, v int); INSERT INTO t VALUES (repeat('x', 2000), 1)")
    before = sql("SELECT @@max_allowed_packet")
    sql("SET GLOBAL max_allowed_packet = 1048576")
    keys = ["x" * 2000 + suffix for suffix in ("", *map(str, range(299)))]
    try:
        error = ask.failure(users, keys, table="t", key="k")
        answers = [ask.lookup(users, half, table="t", key="k") for half in (keys[:150], keys[150:])]
    finally:
        sql("SET GLOBAL max_allowed_packet = " + before)
    assert isinstance(error, PermanentError)
    assert str(error) == (
        "The keys of a call are 602288 bytes long; the server takes 1048576 bytes at once, and each may become two. "
        "Lower batch_size, or raise max_allowed_packet of the server."
    )
    assert [{"x" * 2000: 1}, {}] == answers


def test_logins_and_rights_that_are_missing_fail_the_task_with_advice(users: str, sql: Sql, ask: Ask) -> None:
    sql("CREATE USER app IDENTIFIED BY 'pä$ß'; CREATE USER nothing")
    database = users.rpartition("/")[2]
    app, nothing = (users.replace("root@", f"{user}@") for user in ("app", "nothing"))
    try:
        sql(f"GRANT SELECT (id, tier) ON {database}.users TO app")
        assert ask.lookup(app, [1], table="users", password="pä$ß") == {1: 1}  # sees only what it may see
        assert ask.lookup(users.replace("root@", "app:p%C3%A4%24%C3%9F@"), [1], table="users") == {1: 1}
        wrong = ask.failure(app, table="users", password="S3cret")
        assert isinstance(wrong, FatalError)
        assert "says: Access denied for user 'app'@'127.0.0.1' (using password: ***, error 1045. Check the" in str(
            wrong
        )
        assert str(wrong).endswith("set the password, for example password=Secret.env('SHOP_PASSWORD').")
        hidden = ask.failure(nothing, table="users")
        assert isinstance(hidden, FatalError)
        assert str(hidden) == (
            f"MariadbConfig.table names 'users', which the database '{database}' does not have. It has no table that "
            "this user can see."
        )
        sql(
            f"CREATE VIEW hollow AS SELECT * FROM users; DROP TABLE users; GRANT SELECT ON {database}.hollow TO nothing"
        )
        broken = ask.failure(users, table="hollow")
        assert isinstance(broken, FatalError)
        assert f"says: View '{database}.hollow' references invalid table(s) or column(s)" in str(broken)
    finally:
        sql("DROP USER app, nothing")


def test_a_secret_is_resolved_on_the_worker_and_named_when_it_is_absent(
    users: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIADB_SECRET", "")
    assert ask.lookup(users, [1], table="users", columns=("tier",), password=Secret.env("MARIADB_SECRET")) == {1: 1}
    monkeypatch.delenv("MARIADB_SECRET")
    error = ask.failure(users, table="users", password=Secret.env("MARIADB_SECRET"))
    assert isinstance(error, FatalError)
    assert str(error) == "The environment variable MARIADB_SECRET is not set on this worker; a Secret names it."


def test_no_warning_of_the_server_reaches_a_log(
    users: str, sql: Sql, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver asks for them and logs them, and they quote values: Truncated incorrect INTEGER value: 'name7'."""
    sql("CREATE VIEW lax AS SELECT id, CAST(name AS int) AS v FROM users")
    with caplog.at_level(logging.DEBUG):
        assert ask.lookup(users, [7], table="lax") == {7: 0}
    assert "name7" not in caplog.text


def test_what_the_server_says_to_every_client_does_not_change_the_character_set(users: str, sql: Sql, ask: Ask) -> None:
    """`init_connect` runs for users that are not administrators, after what the driver has asked for."""
    sql("CREATE USER app; SET GLOBAL init_connect = 'SET NAMES latin1, time_zone = \\'+05:00\\''")
    try:
        sql(f"GRANT SELECT ON {users.rpartition('/')[2]}.* TO app")
        sql("CREATE TABLE t (k varchar(20) PRIMARY KEY, v varchar(20)); INSERT INTO t VALUES ('日本', 'é')")
        assert ask.lookup(users.replace("root@", "app@"), ["日本"], table="t", key="k") == {"日本": "é"}
    finally:
        sql("SET GLOBAL init_connect = ''; DROP USER app")


def test_nobody_listens_and_nobody_answers_as_mariadb_does(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused = ask.failure(f"mariadb://app:S3cret@127.0.0.1:{port}/shop", table="users")
    assert isinstance(refused, TransientError)
    assert str(refused) == f"MariaDB at 127.0.0.1:{port} cannot be reached: Connection refused."
    assert refused.retry_after is not None
    with local.redis() as server:
        strange = ask.failure(f"mariadb://app:S3cret@127.0.0.1:{server.port}/shop", table="users")
    assert isinstance(strange, ConnectorError)
    assert "S3cret" not in str(strange)


# TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ca.pem`, and `server.pem` for 127.0.0.1 signed by it; readable by the user of the server."""
    folder = tmp_path_factory.mktemp("tls")
    curve = "ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    for arguments in (
        f"req -x509 -newkey {curve} -subj /CN=ours -keyout ca.key -out ca.pem -addext keyUsage=critical,keyCertSign",
        f"req -newkey {curve} -subj /CN=server -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.pem",
    ):
        subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def tls_server(certificates: Path) -> Iterator[local.MariadbServer]:
    with local.mariadb((certificates / "server.pem", certificates / "server.key")) as server:
        server.execute("CREATE DATABASE shop; CREATE TABLE shop.t (id int PRIMARY KEY, v int)")
        server.execute("INSERT INTO shop.t VALUES (1, 2); CREATE USER app REQUIRE SSL; GRANT SELECT ON shop.* TO app")
        yield server


def test_tls_is_verified(tls_server: local.MariadbServer, certificates: Path, ask: Ask) -> None:
    url = f"mariadb://app@127.0.0.1:{tls_server.port}/shop"
    ca = str(certificates / "ca.pem")
    assert ask.lookup(url, [1, 2], table="t", tls_ca=ca) == {1: 2}
    assert ask.lookup(url, [1, 2], table="t", tls=True, insecure=True) == {1: 2}
    plain = ask.failure(url, table="t")
    assert isinstance(plain, FatalError)
    assert "error 1045" in str(plain)
    told = "It must show a valid certificate for this host name. Name the certificates to trust with"
    untrusted = ask.failure(url, table="t", tls=True)
    assert isinstance(untrusted, FatalError)
    assert f"refused by us: unable to get local issuer certificate. {told}" in str(untrusted)
    misnamed = ask.failure(url.replace("127.0.0.1", "localhost"), table="t", tls_ca=ca)
    assert isinstance(misnamed, FatalError)
    assert f"Hostname mismatch, certificate is not valid for 'localhost'. {told}" in str(misnamed)
    absent = ask.failure(url, table="t", tls_ca="/nowhere/ca.pem")
    assert isinstance(absent, FatalError)
    assert str(absent) == (
        "A certificate of MariadbConfig cannot be used on this worker: No such file or directory. tls_ca, tls_cert "
        "and tls_key must be paths of PEM files there."
    )


def test_a_server_without_tls_gets_no_login(mariadb_server: local.MariadbServer, certificates: Path, ask: Ask) -> None:
    sent: list[bytes] = []
    with fault_proxy(mariadb_server.host, mariadb_server.port) as proxy:
        proxy.delay(lambda chunk: sent.append(chunk.data) or 0.0, direction="to server")
        url = f"mariadb://S3cretUser:S3cret@127.0.0.1:{proxy.port}/shop"
        error = ask.failure(url, table="t", tls_ca=str(certificates / "ca.pem"))
    assert isinstance(error, FatalError)
    assert str(error).endswith("a server without TLS needs tls=False.")
    assert "S3cret" not in str(error)
    assert sent
    assert b"S3cretUser" not in b"".join(sent)


def test_the_connector_shows_counts_and_no_secret(users: str, ask: Ask) -> None:
    async def run() -> str:
        async with ask.opened(users, table="users") as connector:
            return repr(connector)

    port = users.rpartition(":")[2].partition("/")[0]
    assert f"<MariadbConnector users: <Pool 127.0.0.1:{port}: 0 busy, 1 idle, 4 at most>>" == asyncio.run(run())


def test_failures_of_a_call_are_never_answers(users: str, ask: Ask) -> None:
    answers = ask.lookup(users, [1, "x"], table="users", columns=("name",))
    assert [str, Failure] == [type(answers[key]) for key in (1, "x")]
