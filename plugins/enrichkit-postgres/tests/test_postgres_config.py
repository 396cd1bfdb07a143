"""PostgresConfig: what it takes, what it refuses and in which words, and that it travels without showing a secret."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import pytest
from enrichkit_postgres import PostgresConfig
from enrichkit_postgres.address import parse_dsn

from enrichkit.errors import ConfigError
from enrichkit.plugin import Secret

EXAMPLES = (
    "Write PostgresConfig(table='users', key='id') or "
    "PostgresConfig(query='SELECT id, name FROM users WHERE id = ANY($1)', key='id')."
)
UNREADABLE = (
    "PostgresConfig.dsn cannot be read as a URL; user, password and database must be percent-encoded ('@' is %40, "
    "'/' is %2F, ':' is %3A, '#' is %23, '%' is %25). Or leave the password out and give password=Secret.env('NAME')."
)


def message(**config: object) -> str:
    with pytest.raises(ConfigError) as caught:
        PostgresConfig(**config)
    return str(caught.value)


def test_a_config_is_hashable_picklable_and_equal_to_its_copy():
    config = PostgresConfig(dsn="postgresql://a:b@h/d", table="users", key=("a", "b"), columns=("c",), password=None)
    assert config == pickle.loads(pickle.dumps(config))
    assert hash(config) == hash(dataclasses.replace(config))
    assert config != dataclasses.replace(config, table="others")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.table = "others"


@pytest.mark.parametrize(
    "secrets",
    [
        {"dsn": "postgresql://app:S3cret@db.example/shop"},
        {"dsn": "postgresql://app@db.example/shop?password=S3cret"},
        {"dsn": "postgresql://app@db.example/shop", "password": "S3cret"},
        {"dsn": "postgresql://app@db.example/shop", "password": Secret.env("S3cret_NAME")},
    ],
)
def test_no_secret_is_in_the_repr(secrets):
    config = PostgresConfig(table="users", **secrets)
    assert "S3cret" not in repr(config)
    assert "S3cret" not in repr(config.address)
    assert "S3cret" not in str(config.address)


def test_the_config_is_built_without_the_driver():
    code = "import sys, enrichkit_postgres as p; p.PostgresConfig(table='t'); "
    code += "assert not {'asyncpg', 'pyspark'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Table, key, columns, query ---------------------------------------------------------------------------------------


def test_it_has_a_table_or_a_query():
    assert message() == f"PostgresConfig has neither a table nor a query; it must have one of them. {EXAMPLES}"
    assert message(table="t", query="SELECT $1") == (
        f"PostgresConfig has both a table and a query; it must have one of them. {EXAMPLES}"
    )


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("users", ("public", "users")),
        ("app.users", ("app", "users")),
        (("my.app", "my.users"), ("my.app", "my.users")),
        ("users; DROP TABLE users--", ("public", "users; DROP TABLE users--")),
        ('users" WHERE true--', ("public", 'users" WHERE true--')),
        ("public.users, pg_sleep(10)", ("public", "users, pg_sleep(10)")),
        ('we"ird', ("public", 'we"ird')),
        ("x" * 63, ("public", "x" * 63)),
    ],
)
def test_a_table_is_a_name_or_a_schema_and_a_name(table, expected):
    assert expected == PostgresConfig(table=table).schema_and_table()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"table": "t", "settings": "app.tenant=acme"},
            (
                "PostgresConfig.settings is 'app.tenant=acme'; it must be a mapping. Write settings={'app.tenant': "
                "'acme'}."
            ),
        ),
        (
            {"table": "t", "settings": {"app.tenant; RESET ALL": "x"}},
            (
                "PostgresConfig.settings has the name 'app.tenant; RESET ALL'; it must be the name of a setting of "
                "PostgreSQL. Write settings={'app.tenant': 'acme'}."
            ),
        ),
        (
            {"table": "t", "settings": {"datestyle": "German"}},
            (
                "PostgresConfig.settings names 'datestyle', which enrichkit sets itself: another value would change "
                "what is read, or how a session ends. Leave it out."
            ),
        ),
        (
            {"table": "t", "settings": {"app.tenant": 7}},
            (
                "PostgresConfig.settings gives 'app.tenant' a value of the type int; it must be text without NUL, or a "
                "Secret. Write settings={'app.tenant': 'acme'}."
            ),
        ),
        (
            {"table": "t", "settings": (("app.tenant", "a"), ("APP.tenant", "b"))},
            "PostgresConfig.settings names 'app.tenant' twice. Leave one out.",
        ),
        (
            {"table": ".users"},
            (
                "PostgresConfig.table holds an empty name; it must be the name of a schema. Write the name as the "
                "database has it."
            ),
        ),
        (
            {"table": "a.b.c"},
            (
                "PostgresConfig.table is 'a.b.c'; it must be 'table', 'schema.table', or a tuple "
                "(schema, table) when a name itself holds a dot."
            ),
        ),
        (
            {"table": "pg_catalog.pg_authid"},
            (
                "PostgresConfig.table is in the system schema 'pg_catalog'; it must be a "
                "table of your own. To read the catalog, say so in query=."
            ),
        ),
        (
            {"table": "ä" * 32},
            (
                f"PostgresConfig.table holds '{'ä' * 20}...', 64 bytes long; PostgreSQL cuts names "
                "after 63 bytes, so it could mean another table. Write the name as the catalog has it."
            ),
        ),
        (
            {"table": "t", "columns": ["a", "a"]},
            ("PostgresConfig.columns is ('a', 'a'); it must hold each name once. Remove the second."),
        ),
        (
            {"query": "SELECT 1"},
            (
                "PostgresConfig.query does not mention $1; it takes one array of keys for each of the "
                "1 key columns, for example WHERE id = ANY($1)."
            ),
        ),
        (
            {"query": "SELECT $1", "key": ("a", "b")},
            (
                "PostgresConfig.query does not mention $2; it takes one array of keys for each of the 2 key columns, "
                "for example WHERE b = ANY($2)."
            ),
        ),
        *(
            (
                {"query": f"SELECT id, {call} FROM t WHERE id = ANY($1)"},
                (
                    f"PostgresConfig.query calls {name}(), whose effect would stay in the connection, for later calls "
                    "too. Leave it out: name a setting in PostgresConfig.settings, and take a lock with "
                    "pg_advisory_xact_lock()."
                ),
            )
            for name, call in (
                ("set_config", "set_config('TimeZone', 'Asia/Tokyo', false)"),
                ("SET_CONFIG", "pg_catalog.\"SET_CONFIG\" ('a.b', 'c', false)"),
                ("pg_advisory_lock", "pg_advisory_lock(id)"),
                ("pg_try_advisory_lock", "pg_try_advisory_lock(1, id)"),
                ("pg_advisory_lock_shared", "pg_advisory_lock_shared(id)"),
                ("pg_try_advisory_lock_shared", "pg_try_advisory_lock_shared(id)"),
            )
        ),
        ({"table": "t", "pgbouncer": 1}, "PostgresConfig.pgbouncer is 1; it must be True or False."),
    ],
)
def test_a_wrong_field_is_refused_in_these_words(config, expected):
    assert expected == message(**config)


# DSN and TLS ------------------------------------------------------------------------------------------------------


def test_a_dsn_is_read_part_by_part():
    address = parse_dsn(
        "postgresql://al%40ice:p%40ss%2Fw%3Ard%25%23@db1.example:6000,[::1],10.0.0.1/my%20shop?application_name=etl"
    )
    assert address.hosts == ("db1.example", "::1", "10.0.0.1")
    assert address.ports == (6000, 5432, 5432)
    assert (address.user, address.password, address.database) == ("al@ice", "p@ss/w:rd%#", "my shop")
    assert address.application_name == "etl"
    assert not address.local
    assert parse_dsn("postgres:///shop?host=/var/run/postgresql&port=6000&user=u&target_session_attrs=any").local
    assert parse_dsn("postgresql://%2Fvar%2Frun/shop").hosts == ("/var/run",)
    assert [
        parse_dsn(f"postgresql://{host}/d").local
        for host in ("localhost", "127.9.9.9", "[::1]", "127.0.0.1.example", "localhost,db")
    ] == [True, True, True, False, False]


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:S3cret@S3cret@h/d",
        "postgresql://u:S3cret/S3cret@h/d",
        "postgresql://u:12/S3cret@h/d",
        "postgresql://u:S3cret#S3cret@h/d",
        "postgresql://u:S3cret?S3cret@h/d",
        "postgresql://u:S3cret?a=S3cret@h/d",
        "postgresql://u:S3cret S3cret@h/d",
        "postgresql://u:S3cret\n@h/d",
        "postgresql://u:[S3cret@h/d",
        "postgresql://u:[S3cret]@h/d",
        "postgresql://u:S3cret@[::1]5432/d",
        "postgresql://u:S3cret@h,[::1/d",
        "postgresql://u:S3cret@[h]/d",
        "postgresql://u:S3cret@h:99999/d",
        "postgresql://u:S3cret@h:S3cret/d",
        f"postgresql://u:S3cret@h:{'1' * 5000}/d",  # of more digits than `int` takes
        "postgresql://u:S3cret@h:\u0665\u0664/d",
        "postgresql://u:S3cret@,h/d",
        "postgresql://u:S3cret@h\\S3cret/d",
        "postgresql://u:S3cret@-h/d",
        "postgresql://h/d?S3cret",
    ],
)
def test_a_dsn_with_two_readings_is_refused_and_not_shown(dsn):
    assert message(dsn=dsn, table="t") == UNREADABLE


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        (
            5,
            (
                "PostgresConfig.dsn has the type int; it must be a str, for example "
                "'postgresql://app@localhost:5432/shop'."
            ),
        ),
        (
            "S3cret",
            (
                "PostgresConfig.dsn must start with 'postgresql://' or 'postgres://', for example "
                "'postgresql://app@localhost:5432/shop'."
            ),
        ),
        (
            "host=h password=S3cret",
            (
                "PostgresConfig.dsn must start with 'postgresql://' or 'postgres://', for example "
                "'postgresql://app@localhost:5432/shop'."
            ),
        ),
        (
            "postgresql:///shop",
            (
                "PostgresConfig.dsn names no host; it must name one, so that it means the same server "
                "on every worker. Write 'postgresql://localhost:5432/shop', or "
                "'postgresql:///shop?host=/var/run/postgresql' for a Unix socket."
            ),
        ),
        (
            "postgresql://h/d?sslrootcert=ca.pem",
            ("PostgresConfig.dsn holds 'sslrootcert'; give it as PostgresConfig(tls_ca=...) instead."),
        ),
        (
            "postgresql://h/d?sslmod=require",
            (
                "PostgresConfig.dsn holds the unknown setting 'sslmod'. Did you mean "
                "'sslmode'? Allowed: 'host', 'port', 'user', 'password', 'dbname', "
                "'database', 'sslmode', 'target_session_attrs', 'application_name'."
            ),
        ),
        (
            "postgresql://h/d?sslmode=verify",
            (
                "PostgresConfig.dsn says sslmode=verify; it must be one of 'disable', 'allow', 'prefer', 'require', "
                "'verify-ca', 'verify-full'. Correct it or leave it out."
            ),
        ),
        (
            "postgresql://u:p@h/d?target_session_attrs=master",
            (
                "PostgresConfig.dsn says target_session_attrs=master; it must be one of 'any', 'primary', 'standby', "
                "'prefer-standby', 'read-write', 'read-only'. Correct it or leave it out."
            ),
        ),
    ],
)
def test_a_wrong_dsn_is_refused_in_these_words(dsn, expected):
    assert expected == message(dsn=dsn, table="t")


def test_two_passwords_are_one_too_many():
    assert message(dsn="postgresql://u:S3cret@h/d", table="t", password="S3cret") == (
        "PostgresConfig has a password and another one in its dsn; remove the one in the dsn."
    )


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca"])
def test_off_the_local_host_nothing_less_than_verify_full_will_do(mode):
    for host in ("db.example", "10.0.0.1", "localhost,db.example", "127.0.0.1.example"):
        dsn = f"postgresql://u@{host}/d?sslmode={mode}"
        assert message(dsn=dsn, table="t") == (
            f"PostgresConfig.dsn says sslmode={mode}, which does not check who answers; off the local host it must be "
            "verify-full. Leave sslmode out (verify-full is the default) and name the certificates to trust with "
            "tls_ca=..., or accept the risk with insecure=True."
        )
        assert PostgresConfig(dsn=dsn, table="t", insecure=True).sslmode == mode
    assert PostgresConfig(dsn=f"postgresql://u@localhost/d?sslmode={mode}", table="t").sslmode == mode


def test_the_default_of_sslmode_depends_on_where_the_server_is():
    def mode(host: str, **config: object) -> str:
        return PostgresConfig(dsn=f"postgresql://u@{host}/d", table="t", **config).sslmode

    assert mode("localhost") == "disable"
    assert mode("localhost", tls_ca="ca.pem") == "verify-full"
    assert mode("db.example") == "verify-full"
    assert mode("db.example", insecure=True) == "prefer"


def test_certificates_that_would_not_be_used_are_refused():
    assert message(dsn="postgresql://u@localhost/d?sslmode=prefer", table="t", tls_ca="ca.pem") == (
        "PostgresConfig names certificates, but the connection may be made without them: its sslmode is prefer. "
        "Say sslmode=verify-full in the dsn, or remove tls_ca, tls_cert and tls_key."
    )
    assert message(dsn="postgresql://u@localhost/d?sslmode=require", table="t", tls_ca="ca.pem") == (
        "PostgresConfig.tls_ca names the certificates to trust, but sslmode=require in the dsn does not look at the "
        "server's. Say sslmode=verify-full, or verify-ca, which leaves out the host name; or remove tls_ca."
    )


@pytest.mark.parametrize(
    "value", ["pg_advisory_xact_lock(id)", "my_set_config(id)", "set_config", "pg_try_advisory_xact_lock(1)"]
)
def test_a_query_may_call_what_ends_with_its_statement(value):
    query = f"SELECT id, {value} FROM t WHERE id = ANY($1)"
    assert query == PostgresConfig(query=query).query
