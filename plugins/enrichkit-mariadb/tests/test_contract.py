"""The contract kit: integers and texts as keys, one value and several, keys of two columns, and what Spark lacks."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_mariadb import MariadbConfig, MariadbConnector

from enrichkit.testing import ConnectorContract

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from enrichkit import local

    Sql = Callable[[str], str]

pytestmark = [pytest.mark.service, pytest.mark.apt]


class Contract(ConnectorContract):
    @pytest.fixture
    def address(self, mariadb_server: local.MariadbServer) -> tuple[str, int]:
        return mariadb_server.host, mariadb_server.port


class TestTexts(Contract):
    @pytest.fixture
    def connector(self, url: str) -> MariadbConnector:
        return MariadbConnector(MariadbConfig(url=url, table="users", key="login", columns=("name",)))

    @pytest.fixture
    def known(self, sql: Sql) -> dict[Any, Any]:
        sql("CREATE TABLE users (login varchar(99) PRIMARY KEY, name text)")
        sql("INSERT INTO users VALUES ('plain', '1'), ('o''clock', 'two'), ('\N{SNOWMAN} man', 'drei'), ('%s', '')")
        return {"plain": "1", "o'clock": "two", "\N{SNOWMAN} man": "drei", "%s": ""}

    @pytest.fixture
    def missing_key(self) -> str:
        return "nobody"


class TestStructs(Contract):
    @pytest.fixture
    def connector(self, users: str) -> MariadbConnector:
        return MariadbConnector(MariadbConfig(url=users, table="users"))

    @pytest.fixture
    def known(self, users: str) -> dict[Any, Any]:
        return {i: {"name": f"name{i}", "tier": i % 5} for i in range(10)}

    @pytest.fixture
    def missing_key(self) -> int:
        return 1000


class TestTwoColumns(Contract):
    @pytest.fixture
    def connector(self, url: str) -> MariadbConnector:
        return MariadbConnector(MariadbConfig(url=url, table="stays", key=("tenant", "number")))

    @pytest.fixture
    def known(self, sql: Sql) -> dict[Any, Any]:
        sql("CREATE TABLE stays (tenant varchar(20), number int, city text, PRIMARY KEY (tenant, number))")
        sql("INSERT INTO stays VALUES ('it''s', 1, 'Rome'), ('it''s', 2, 'Bari'), ('é', 1, 'Oslo'), ('é:1', 1, 'Bern')")
        return {("it's", 1): "Rome", ("it's", 2): "Bari", ("é", 1): "Oslo", ("é:1", 1): "Bern"}

    @pytest.fixture
    def missing_key(self) -> tuple[str, int]:
        return "nobody", 7


class TestBadRows(Contract):
    """A byte that cp1251 does not map, which MariaDB would send as `?`, and dates that are no days."""

    @pytest.fixture
    def connector(self, url: str) -> MariadbConnector:
        return MariadbConnector(MariadbConfig(url=url, table="people", key="login", columns=("name", "born")))

    @pytest.fixture
    def known(self, sql: Sql) -> dict[Any, Any]:
        sql("CREATE TABLE people (login varchar(20) PRIMARY KEY, name varchar(20) CHARACTER SET cp1251, born date)")
        sql("INSERT INTO people VALUES ('o''clock', 'two?', NULL), ('\u0444', '\u0444', '2020-02-29'), ('x', '', NULL)")
        born = {"o'clock": ("two?", None), "\u0444": ("\u0444", date(2020, 2, 29)), "x": ("", None)}
        return {key: {"name": name, "born": day} for key, (name, day) in born.items()}

    @pytest.fixture
    def unreadable(self, sql: Sql, known: dict[Any, Any]) -> Sequence[Any]:
        sql("INSERT INTO people VALUES ('no character', _cp1251 X'619862', NULL), ('another', _cp1251 X'98', NULL)")
        sql("SET sql_mode = 'ALLOW_INVALID_DATES'; INSERT INTO people VALUES ('0', '', 0), ('day', '', '2021-02-31')")
        return ["no character", "another", "0", "day"]

    @pytest.fixture
    def missing_key(self) -> str:
        return "nobody"


class TestWritable(Contract):
    @pytest.fixture
    def connector(self, url: str) -> MariadbConnector:
        config = MariadbConfig(url=url, table="kept", key=("tenant", "number"), expires="until", writable=True)
        return MariadbConnector(config)

    @pytest.fixture
    def known(self, sql: Sql) -> dict[Any, Any]:
        sql(
            "CREATE TABLE kept (tenant varchar(20), number int, city text, size double, `until` datetime(6), "
            "PRIMARY KEY (number, tenant))"
        )
        sql(
            "INSERT INTO kept (tenant, number, city, size) VALUES ('it''s', 1, 'Rome', 0.1), ('it''s', 2, 'Bari', 2), "
            "('é', 1, 'Oslo', 3)"
        )
        rows = {("it's", 1): ("Rome", 0.1), ("it's", 2): ("Bari", 2.0), ("é", 1): ("Oslo", 3.0)}
        return {key: {"city": city, "size": size} for key, (city, size) in rows.items()}

    @pytest.fixture
    def missing_key(self) -> tuple[str, int]:
        return "nobody", 7


class TestWritableTexts(TestTexts):
    @pytest.fixture
    def connector(self, url: str) -> MariadbConnector:
        return MariadbConnector(MariadbConfig(url=url, table="users", key="login", columns=("name",), writable=True))
