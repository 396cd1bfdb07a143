"""Faults: slow, frozen and dead servers, cancelled calls, logins, rights, TLS, and messages without secrets."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import platform
import random
import signal
import socket
import ssl
import subprocess
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import asyncmy.errors
import pytest
from enrichkit_mariadb import MariadbConfig, MariadbConnector
from enrichkit_mariadb.faults import translate

from enrichkit import local
from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.plugin import Call, Failure, Secret
from enrichkit.testing.proxy import fault_proxy
from tests.pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from enrichkit.testing.proxy import FaultProxy

    from .conftest import Ask

    Sql = Callable[[str], str]

# The first test starts the server, which takes long on a busy machine.
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
                await connector.fetch_many([1], Call(timeout=at_pace(2.0)))  # the server's limit is a tenth less
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


def test_a_statement_that_is_stopped_between_rows_leaves_no_row_in_the_connection(
    users: str, sql: Sql, ask: Ask
) -> None:
    """The server sends the first rows, of 100 kB each, while it still computes the next rows."""
    sql("CREATE VIEW big AS SELECT id, if(id < 10, sleep(60), 0) AS slept, repeat(name, 20000) AS name FROM users")

    async def run() -> None:
        async with ask.opened(users, table="big") as connector:
            for _ in range(3):
                with pytest.raises(TransientError, match="error 1969"):
                    await connector.fetch_many([*range(100, 140), 1], Call(timeout=at_pace(1.0)))
                keys = [50, 51, -1]
                expected = {key: {"slept": 0, "name": f"name{key}" * 20000} for key in (50, 51)}
                assert expected == await connector.fetch_many(keys, Call(timeout=20))

    asyncio.run(run())


def test_a_call_to_a_frozen_server_ends_at_its_timeout_and_the_next_call_gets_its_own_answer(
    users: str, mariadb_server: local.MariadbServer, ask: Ask
) -> None:
    with fault_proxy(mariadb_server.host, mariadb_server.port) as proxy:
        where = f"127.0.0.1:{proxy.port}"
        expected = f"MariaDB at {where} did not answer in time. Raise the option timeout, or look at the server."

        async def run() -> None:
            async with ask.opened(proxy.url(users), capacity=1, table="users", columns=("name",)) as connector:
                frozen = connector._pool._idle[0]
                proxy.freeze()
                with pytest.raises(TransientError) as caught:
                    await connector.fetch_many([1], Call(timeout=0.2))
                assert (type(caught.value), str(caught.value)) == (TransientError, expected)
                assert frozen.transport.is_closing()
                for _ in range(2):  # these calls have to connect, and the frozen server sends no greeting
                    with pytest.raises(UnavailableError) as away:
                        await connector.fetch_many([1], Call(timeout=0.2))
                    assert (str(away.value), away.value.sent, away.value.retry_after) == (expected, False, None)
                proxy.thaw()
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
                with pytest.raises(UnavailableError, match=r"^MariaDB at 127.0.0.1:\d+ says: .*error 2013") as caught:
                    await call
                assert caught.value.sent

        asyncio.run(run())


def test_random_cancels_leave_no_wrong_answer(users: str, ask: Ask) -> None:
    """If the reply to a cancelled call could reach the next call, this test would find a wrong answer."""
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
            assert connector._pool._permits._value == 4
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
                    with pytest.raises(UnavailableError) as caught:
                        await connector.fetch_many(keys, Call(timeout=20))
                    assert caught.value.sent
                    failed += 1
                    proxy.heal()
                    assert expected == await connector.fetch_many(keys, Call(timeout=20))
            return failed

        assert asyncio.run(run()) > 20


def test_a_reply_that_belongs_to_another_statement_is_noticed(users: str, ask: Ask) -> None:
    """A faulty proxy or client package could return rows of other keys, or too few rows."""

    async def run() -> list[str]:
        messages = []
        async with ask.opened(users, table="users", columns=("name",)) as connector:
            statement = connector._statement
            session = connector._pool._idle[0]
            request = statement.request([1, 2, 3])
            rows = await session.fetch(statement.sql, 5.0, request.offset, request.document)
            before, after = statement.request([0]), statement.request([1, 2, 3])
            before.offset = request.offset - 1  # as if this request had been made before
            for other, wrong in ((after, rows), (after, rows[:0]), (before, rows)):
                with pytest.raises(TransientError) as caught:
                    statement.read(wrong, other, False)
                messages.append(str(caught.value))
            assert statement.read(rows, request, False) == {1: "name1", 2: "name2", 3: "name3"}
            with pytest.raises(TransientError) as caught:
                statement.read(rows[:2], request, False)
            return [*messages, str(caught.value)]

    database = users.rpartition("/")[2]
    expected = (
        f"The reply from the table {database}.users does not hold exactly the keys of the call; the connection was "
        "closed."
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


def test_a_connection_whose_server_has_ended_its_side_is_not_lent(users: str, ask: Ask) -> None:
    """The driver keeps the transport open then."""

    async def run() -> dict[Any, Any]:
        async with ask.opened(users, table="users", columns=("name",), capacity=1) as connector:
            await connector.fetch_many([1], Call(timeout=20))
            [idle] = connector._pool._idle
            idle.transport.get_protocol().eof_received()
            assert not idle.transport.is_closing()
            answers = dict(await connector.fetch_many([7], Call(timeout=20)))
            assert idle not in connector._pool._idle
            return answers

    assert asyncio.run(run()) == {7: "name7"}


def test_an_outage_is_survived_and_a_server_that_has_ended_is_unavailable() -> None:
    with local.mariadb() as server, fault_proxy(server.host, server.port) as proxy:
        url = server.create_database()
        server.execute("CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1, 2)", url.rpartition("/")[2])

        async def run() -> None:
            connector = MariadbConnector(MariadbConfig(url=proxy.url(url), table="t"))
            await connector.open()
            proxy.refuse()
            proxy.cut()
            with pytest.raises(UnavailableError):  # on the connection that has ended
                await connector.fetch_many([1], Call(timeout=20))
            with pytest.raises(UnavailableError) as caught:
                await connector.fetch_many([1], Call(timeout=20))
            assert str(caught.value) == f"MariaDB at 127.0.0.1:{proxy.port} cannot be reached: Connection refused."
            assert (caught.value.sent, caught.value.retry_after) == (False, None)
            proxy.accept()
            assert await connector.fetch_many([1], Call(timeout=20)) == {1: 2}
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(UnavailableError):
                await until_it_fails(connector)
            await connector.close()

        async def until_it_fails(connector: MariadbConnector) -> None:
            while True:
                await connector.fetch_many([1], Call(timeout=20))

        asyncio.run(run())


def test_a_connection_whose_call_failed_is_closed(users: str, ask: Ask) -> None:
    """This holds for any error, because a later call could otherwise read a reply that is left in the connection."""

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
    """The server itself would refuse a fourth connection."""
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


def test_too_many_connections_make_the_server_unavailable_and_are_named(
    users: str, sql: Sql, mariadb_server: local.MariadbServer, ask: Ask
) -> None:
    sql("CREATE USER few WITH MAX_USER_CONNECTIONS 1; GRANT SELECT ON *.* TO few")
    url = users.replace("root@", "few@")

    async def run() -> str:
        async with ask.opened(url, table="users"):
            with pytest.raises(UnavailableError) as caught:
                async with ask.opened(url, table="users"):
                    pass
            assert (caught.value.sent, caught.value.retry_after) == (False, None)
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


# Refusals of the server -------------------------------------------------------------------------------------------


def test_a_session_is_read_only_and_no_setting_of_the_server_changes_its_meaning(
    users: str, sql: Sql, ask: Ask
) -> None:
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
                    await connector._pool._idle[0].fetch(f"DELETE FROM {users.rpartition('/')[2]}.t")
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
        (asyncmy.errors.OperationalError(1040, "Too many"), UnavailableError, "1040. Lower capacity, which counts"),
        (asyncmy.errors.InternalError("Packet sequence number wrong"), UnavailableError, "broke: InternalError."),
        (asyncmy.errors.InterfaceError(0, "Not connected"), UnavailableError, "broke: InterfaceError."),
        (UnicodeDecodeError("utf-8", b"S3cret", 0, 1, "?"), PermanentError, "be read: UnicodeDecodeError."),
        (socket.gaierror(socket.EAI_NONAME, "Not known"), TransientError, "db:3306 cannot be reached: Not known."),
        (socket.gaierror(socket.EAI_AGAIN, "Not now"), UnavailableError, "db:3306 cannot be reached: Not now."),
        (ConnectionResetError(errno.ECONNRESET, "S3cret"), UnavailableError, "be reached: Connection reset by peer."),
        (TimeoutError(errno.ETIMEDOUT, "S3cret"), UnavailableError, "cannot be reached: Connection timed out."),
        (TimeoutError(), TransientError, "did not answer in time"),
    ],
)
def test_an_error_says_what_to_do_and_quotes_no_key(error: Exception, kind: type[Exception], text: str) -> None:
    translated = translate(error, asyncmy.errors, "db:3306", "hidden")
    assert type(translated) is kind
    assert text in str(translated)
    assert "S3cret" not in str(translated)


OF_THE_SERVER = (1040, 1047, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1927, 2000, 2006, 2013, 2099)
PASSING = (1020, 1021, 1037, 1038, 1041, 1129, 1205, 1206, 1213, 1317, 1412, 1615, 1836, 1969, 4166)


@pytest.mark.parametrize(
    ("number", "kind"),
    [*((number, UnavailableError) for number in OF_THE_SERVER), *((number, TransientError) for number in PASSING)],
)
def test_a_server_that_answers_no_key_is_unavailable_and_one_that_is_busy_is_not(
    number: int, kind: type[Exception]
) -> None:
    translated = translate(asyncmy.errors.OperationalError(number, "words"), asyncmy.errors, "db:3306")
    assert type(translated) is kind
    assert str(translated).startswith(f"MariaDB at db:3306 says: words, error {number}.")
    assert getattr(translated, "busy", False) is (number in (1040, 1203, 1226))


def test_keys_that_are_too_long_for_one_statement_are_an_error_before_they_are_sent(
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
        "The keys of a call are 602288 bytes long, which escaping may double; the server takes 1048576 bytes at once. "
        "Lower batch_size, or raise max_allowed_packet of the server."
    )
    assert [{"x" * 2000: 1}, {}] == answers


def test_a_reply_over_the_limit_is_refused_and_the_next_is_read(
    users: str, sql: Sql, mariadb_server: local.MariadbServer, ask: Ask
) -> None:
    """Nor does it fill the memory: the connection ends as soon as the limit is exceeded."""
    sql("CREATE TABLE wide (id int PRIMARY KEY, v longtext)")
    sql("INSERT INTO wide VALUES (1, 'a'), (2, repeat('x', 30000000)), (3, repeat('y', 60000))")

    async def run() -> str:
        async with ask.opened(users, capacity=1, table="wide", max_bytes=2**16) as connector:
            tracemalloc.start()
            try:
                with pytest.raises(PermanentError) as caught:
                    await connector.fetch_many([1, 2, 3], Call(timeout=20))
                assert tracemalloc.get_traced_memory()[1] < 5_000_000
            finally:
                tracemalloc.stop()
            # Each call has the whole limit, and so does each connection.
            for _ in range(3):
                assert await connector.fetch_many([1, 3], Call(timeout=20)) == {1: "a", 3: "y" * 60000}
            return str(caught.value)

    assert asyncio.run(run()) == (
        f"MariaDB at 127.0.0.1:{mariadb_server.port} sent a reply of more than MariadbConfig.max_bytes, 65536 bytes. "
        "Lower batch_size, or raise max_bytes."
    )
    assert ask.lookup(users, [2], table="wide") == {2: "x" * 30_000_000}


def test_logins_and_rights_that_are_missing_fail_the_task_with_advice(users: str, sql: Sql, ask: Ask) -> None:
    sql("CREATE USER app IDENTIFIED BY 'pä$ß'; CREATE USER nothing")
    database = users.rpartition("/")[2]
    app, nothing = (users.replace("root@", f"{user}@") for user in ("app", "nothing"))
    try:
        sql(f"GRANT SELECT (id, tier) ON {database}.users TO app")
        # The default for `columns` is only the columns that this user may read.
        assert ask.lookup(app, [1], table="users", password="pä$ß") == {1: 1}
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


def test_a_refused_login_is_that_of_all_calls_until_the_password_changes(
    users: str, sql: Sql, mariadb_server: local.MariadbServer, ask: Ask, tmp_path: Path
) -> None:
    """The password is rotated while connections are open, and then these end: more attempts could lock the account."""
    sql("CREATE USER rotating IDENTIFIED BY 'S3cret'; GRANT SELECT ON *.* TO rotating")
    secret = tmp_path / "password"
    secret.write_text("S3cret")

    async def run(proxy: FaultProxy) -> None:
        url = proxy.url(users).replace("root@", "rotating@")
        config = {"table": "users", "columns": ("name",), "password": Secret.file(str(secret))}
        async with ask.opened(url, capacity=8, **config) as connector:

            async def look_up() -> list[Any]:
                calls = (connector.fetch_many([i], Call(timeout=20)) for i in range(8))
                return await asyncio.gather(*calls, return_exceptions=True)

            assert await look_up() == [{i: f"name{i}"} for i in range(8)]
            idle = list(connector._pool._idle)
            sql("ALTER USER rotating IDENTIFIED BY 'rotated'; KILL USER rotating")
            while not all(session.closed for session in idle):
                await asyncio.sleep(0)
            before = proxy.opened
            for _ in range(3):
                for error in await look_up():
                    assert isinstance(error, UnavailableError)
                    assert "says: Access denied for user 'rotating'@'127.0.0.1'" in str(error)
                assert proxy.opened - before == 1
            secret.write_text("rotated")
            assert await look_up() == [{i: f"name{i}"} for i in range(8)]

    try:
        with fault_proxy(mariadb_server.host, mariadb_server.port) as proxy:
            asyncio.run(run(proxy))
    finally:
        sql("DROP USER rotating")


def test_a_secret_is_resolved_on_the_worker_and_named_when_it_is_absent(
    users: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIADB_SECRET", "")
    assert ask.lookup(users, [1], table="users", columns=("tier",), password=Secret.env("MARIADB_SECRET")) == {1: 1}
    monkeypatch.delenv("MARIADB_SECRET")
    error = ask.failure(users, table="users", password=Secret.env("MARIADB_SECRET"))
    assert isinstance(error, FatalError)
    assert (
        str(error)
        == f"The environment variable MARIADB_SECRET is not set on this machine ({platform.node()}); a Secret names it."
    )


def test_no_warning_of_the_server_reaches_a_log(
    users: str, sql: Sql, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncmy fetches and logs warnings, which quote values: Truncated incorrect INTEGER value: 'name7'."""
    sql("CREATE VIEW lax AS SELECT id, CAST(name AS int) AS v FROM users")
    with caplog.at_level(logging.DEBUG):
        assert ask.lookup(users, [7], table="lax") == {7: 0}
    assert "name7" not in caplog.text


def test_init_connect_of_the_server_does_not_change_the_character_set(users: str, sql: Sql, ask: Ask) -> None:
    """The server runs `init_connect` for users that are not administrators, after the settings of asyncmy."""
    sql("CREATE USER app; SET GLOBAL init_connect = 'SET NAMES latin1, time_zone = \\'+05:00\\''")
    try:
        sql(f"GRANT SELECT ON {users.rpartition('/')[2]}.* TO app")
        sql("CREATE TABLE t (k varchar(20) PRIMARY KEY, v varchar(20)); INSERT INTO t VALUES ('日本', 'é')")
        assert ask.lookup(users.replace("root@", "app@"), ["日本"], table="t", key="k") == {"日本": "é"}
    finally:
        sql("SET GLOBAL init_connect = ''; DROP USER app")


def test_a_port_without_a_server_or_with_another_server_is_a_connector_error(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused = ask.failure(f"mariadb://app:S3cret@127.0.0.1:{port}/shop", table="users")
    assert type(refused) is UnavailableError
    assert str(refused) == f"MariaDB at 127.0.0.1:{port} cannot be reached: Connection refused."
    assert (refused.sent, refused.retry_after) == (False, None)
    with local.redis() as server:
        other = ask.failure(f"mariadb://app:S3cret@127.0.0.1:{server.port}/shop", table="users")
    assert isinstance(other, ConnectorError)
    assert "S3cret" not in str(other)


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
    advice = (
        "The server must show a valid certificate for this host name. Name the certificates to trust with "
        "MariadbConfig.tls_ca; a server without TLS needs tls=False."
    )
    refused = "The connector refused the TLS connection to MariaDB at"
    untrusted = ask.failure(url, table="t", tls=True)
    assert isinstance(untrusted, FatalError)
    assert str(untrusted) == (
        f"{refused} 127.0.0.1:{tls_server.port}: unable to get local issuer certificate. {advice}"
    )
    misnamed = ask.failure(url.replace("127.0.0.1", "localhost"), table="t", tls_ca=ca)
    assert isinstance(misnamed, FatalError)
    assert str(misnamed) == (
        f"{refused} localhost:{tls_server.port}: Hostname mismatch, certificate is not valid for 'localhost'. {advice}"
    )
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


def refused_in_tls(server: local.MariadbServer, context: ssl.SSLContext, ca: str, ask: Ask) -> tuple[Any, bytes]:
    """
    Connect to a relay that shows the greeting of *server* and then begins TLS with *context*.

    Return the error of the connector, and what it sent inside TLS, which the relay does not answer.
    """

    def serve(listener: socket.socket) -> bytes:
        with listener.accept()[0] as here:
            with socket.create_connection((server.host, server.port)) as there:
                head = there.recv(4, socket.MSG_WAITALL)
                here.sendall(head + there.recv(int.from_bytes(head[:3], "little"), socket.MSG_WAITALL))
            here.recv(36, socket.MSG_WAITALL)  # the request for TLS, the only bytes in clear
            try:
                with context.wrap_socket(here, server_side=True) as inside:
                    return inside.recv(65536)
            except OSError:  # the connector refuses
                return b""

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        served = thread.submit(serve, listener)
        url = f"mariadb://app:S3cret@127.0.0.1:{listener.getsockname()[1]}/shop"
        return ask.failure(url, table="t", tls_ca=ca), served.result()


def test_a_server_with_an_expired_certificate_gets_no_login(
    tls_server: local.MariadbServer, authority: Any, ask: Ask
) -> None:
    trusted = authority("expired-mariadb")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*trusted.issue("expired", days=-1))
    error, arrived = refused_in_tls(tls_server, context, trusted.file, ask)
    assert isinstance(error, FatalError)
    assert ": certificate has expired. The server must show a valid certificate for this host name." in str(error)
    assert arrived == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")  # a deprecated version is the point
def test_a_server_with_an_old_version_of_tls_gets_no_login(
    tls_server: local.MariadbServer, authority: Any, ask: Ask
) -> None:
    trusted = authority("old-mariadb")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*trusted.issue("old"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    assert refused_in_tls(tls_server, context, trusted.file, ask)[1] == b""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert b"app\0" in refused_in_tls(tls_server, context, trusted.file, ask)[1]


def test_the_connector_shows_counts_and_no_secret(users: str, ask: Ask) -> None:
    async def run() -> str:
        async with ask.opened(users, table="users") as connector:
            return repr(connector)

    port = users.rpartition(":")[2].partition("/")[0]
    assert f"<MariadbConnector users: <Pool 127.0.0.1:{port}: 0 busy, 1 idle, 4 at most>>" == asyncio.run(run())


def test_failures_of_a_call_are_never_answers(users: str, ask: Ask) -> None:
    answers = ask.lookup(users, [1, "x"], table="users", columns=("name",))
    assert [str, Failure] == [type(answers[key]) for key in (1, "x")]
