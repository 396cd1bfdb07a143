"""MariadbConfig: the fields that it accepts, the messages about the others, and a pickle and a repr without secrets."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import pytest
from enrichkit_mariadb import MariadbConfig
from enrichkit_mariadb.address import parse_url
from enrichkit_mariadb.columns import quote

from enrichkit.errors import ConfigError
from enrichkit.plugin import Secret
from enrichkit.sources.config import find_source

UNREADABLE = (
    "MariadbConfig.url cannot be read as a URL; user, password and database must be percent-encoded ('@' is %40, "
    "'/' is %2F, ':' is %3A, '#' is %23, '%' is %25). Or leave the password out and give password=Secret.env('NAME')."
)


def message(**config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        MariadbConfig(**{"table": "shop.users", **config})
    return str(caught.value)


def test_a_config_is_hashable_picklable_and_equal_to_its_copy() -> None:
    config = MariadbConfig(url="mariadb://a:b@h/d", table="users", key=("a", "b"), columns=("c",))
    assert config == pickle.loads(pickle.dumps(config))
    assert hash(config) == hash(dataclasses.replace(config))
    assert config != dataclasses.replace(config, table="others")


@pytest.mark.parametrize(
    "secrets",
    [
        {"url": "mariadb://app:S3cret@db.example/shop"},
        {"url": "mariadb://app@db.example/shop", "password": "S3cret"},
        {"url": "mariadb://app@db.example/shop", "password": Secret.env("S3cret_NAME")},
    ],
)
def test_no_secret_is_in_the_repr(secrets: dict[str, Any]) -> None:
    config = MariadbConfig(table="users", **secrets)
    assert "S3cret" not in f"{config!r} {config.address!r} {config.address}"


def test_the_config_is_built_without_the_client_package() -> None:
    code = "import sys, enrichkit_mariadb as m; m.MariadbConfig(table='a.b'); "
    code += "assert not {'asyncmy', 'pyspark'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_environment_configures_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_MARIADB_URL", "mysql://app@db.example/shop")
    monkeypatch.setenv("ENRICHKIT_MARIADB_TABLE", "users")
    monkeypatch.setenv("ENRICHKIT_MARIADB_KEY", "tenant, id")
    monkeypatch.setenv("ENRICHKIT_MARIADB_TLS", "true")
    expected = MariadbConfig(url="mysql://app@db.example/shop", table="users", key=("tenant", "id"), tls=True)
    assert expected == find_source("mariadb")[2]


# Table, key, columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("users", ("shop", "users")),
        ("app.users", ("app", "users")),
        (("my.app", "my.users"), ("my.app", "my.users")),
        ("users; DROP TABLE users--", ("shop", "users; DROP TABLE users--")),
        ("users` WHERE true--", ("shop", "users` WHERE true--")),
        ("x" * 64, ("shop", "x" * 64)),
    ],
)
def test_a_table_is_a_name_or_a_database_and_a_name(table: Any, expected: tuple[str, str]) -> None:
    assert expected == MariadbConfig(url="mariadb://h/shop", table=table, insecure=True).database_and_table()


def test_no_character_of_a_name_ends_the_quotes_or_is_taken_for_a_parameter() -> None:
    assert ["`a`", "```; --`", "`100%%`"] == [quote("a"), quote("`; --"), quote("100%")]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"table": "users"},
            (
                "MariadbConfig.table is 'users' and the url names no database; one of them must name it. Write "
                "table='database.table', or end the url with the database."
            ),
        ),
        (
            {"table": ["users"]},
            (
                "MariadbConfig.table is ('users',) and the url names no database; one of them must name it. Write "
                "table='database.table', or end the url with the database."
            ),
        ),
        (
            {"table": "x" * 65 + ".users"},
            (
                "MariadbConfig.table holds 'xxxxxxxxxxxxxxxxxxxx...', 65 characters long; it must be the name of a "
                "database, 1 to 64 characters long. Write the name as the server has it."
            ),
        ),
        (
            {"table": "a.b.c"},
            (
                "MariadbConfig.table is 'a.b.c'; it must be 'table', 'database.table', or a tuple (database, table) "
                "when a name itself holds a dot."
            ),
        ),
        (
            {"table": "MySQL.user"},
            (
                "MariadbConfig.table is in the system database 'MySQL'; it must be a table of your own. To read a "
                "system table, make a view of that table in a database of your own."
            ),
        ),
        (
            {"columns": ("name ",)},
            (
                "MariadbConfig.columns holds 'name '; the name of a column cannot hold a character above U+FFFF, nor "
                "end with a space. Remove that character."
            ),
        ),
    ],
)
def test_a_name_that_mariadb_cannot_have_is_refused(config: dict[str, Any], expected: str) -> None:
    assert expected == message(**config)


# The URL ----------------------------------------------------------------------------------------------------------


def test_a_url_is_parsed_into_its_parts() -> None:
    address = parse_url("mariadb://an%40app:p%2Fa%3Fs%23s%3A@db.example:3307/my%20shop")
    assert ("db.example", 3307) == (address.host, address.port)
    assert ("an@app", "p/a?s#s:", "my shop") == (address.user, address.password, address.database)
    address = parse_url("mysql://[::1]")
    assert ("::1", 3306, None, None, None) == (
        address.host,
        address.port,
        address.user,
        address.password,
        address.database,
    )
    assert "[::1]:3306" == str(address)
    assert [True, True, True, False, False] == [
        parse_url(f"mariadb://{host}/d").local
        for host in ("localhost", "127.0.0.9", "[::1]", "10.0.0.1", "localhost.example")
    ]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (None, "MariadbConfig.url has the type NoneType; it must be a str, for example 'mariadb://app@localhost:3306/shop'."),
        (
            "db.example/S3cret",
            ("MariadbConfig.url must start with 'mariadb://' or 'mysql://', for example "
            "'mariadb://app@localhost:3306/shop'."),
        ),
        (
            "mariadb:///S3cret",
            ("MariadbConfig.url names no host; it must name one, so that it means the same server on every worker, for "
            "example 'mariadb://app@localhost:3306/shop'."),
        ),
        (
            "mariadb://app@db/shop?password=S3cret",
            ("MariadbConfig.url holds settings after a '?'; the URL must end with the database. Give the settings as "
            "fields of MariadbConfig, for example tls_ca='/etc/ssl/ca.pem'; write a '?' of the password as %3F."),
        ),
        *(
            (url, UNREADABLE)
            for url in (
                "mariadb://app:S3#cret@db/shop",
                "mariadb://app:S3/cret@db/shop",
                "mariadb://app:S3@cret@db/shop",
                "mariadb://app:S3cret@db:http/shop",
                "mariadb://app:S3cret@db:0/shop",
                "mariadb://app:S3cret@db:99999/shop",
                "mariadb://app:S3 cret@db/shop",
                "mariadb://app:S3\\cret@db/shop",
                "mariadb://app:S3cret@d_$b/shop",
                "mariadb://app:S3cret@[::/shop",
            )
        ),
    ],
)  # fmt: skip
def test_a_url_that_can_be_read_in_two_ways_is_refused_and_not_shown(url: Any, expected: str) -> None:
    assert expected == message(url=url)


# Password and TLS -------------------------------------------------------------------------------------------------


def test_tls_is_on_and_verified_unless_the_server_is_on_this_machine() -> None:
    def encrypted(**config: Any) -> bool:
        return MariadbConfig(table="a.b", **config).encrypted

    assert encrypted(url="mariadb://db.example")
    assert not encrypted(url="mariadb://localhost")
    assert encrypted(url="mariadb://localhost", tls=True)
    assert encrypted(url="mariadb://localhost", tls_ca="/ca.pem")
    assert encrypted(url="mariadb://db.example", insecure=True)
    assert not encrypted(url="mariadb://db.example", insecure=True, tls=False)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"url": "mariadb://db.example", "tls": False},
            (
                "MariadbConfig.tls is False, so that anybody on the network path can read the traffic and answer in "
                "place of the server; for a server on another machine tls must be True. Leave tls out and name the "
                "certificates to trust with tls_ca=..., or accept the risk with insecure=True."
            ),
        ),
        (
            {"tls": False, "tls_ca": "/ca.pem"},
            (
                "MariadbConfig names certificates, but tls is False; remove tls=False, or remove tls_ca, tls_cert and "
                "tls_key."
            ),
        ),
        (
            {"tls_ca": "/ca.pem", "insecure": True},
            (
                "MariadbConfig.tls_ca names certificates to trust, which insecure=True ignores; remove tls_ca or "
                "insecure=True."
            ),
        ),
        ({"tls": "yes"}, "MariadbConfig.tls is 'yes'; it must be True, False or None."),
        ({"tls": 1}, "MariadbConfig.tls is 1; it must be True, False or None."),
        (
            {"url": "mariadb://app:S3cret@localhost", "password": "S3cret"},
            "MariadbConfig has a password and another one in its url; remove the one in the url.",
        ),
    ],
)
def test_fields_that_are_unsafe_or_have_no_effect_are_refused(config: dict[str, Any], expected: str) -> None:
    assert expected == message(**config)
