"""Whatever is in the file of the sources, a source has a config that can travel, or an error that names the file."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from enrichkit.cli.lint import lint
from enrichkit.errors import ConfigError
from enrichkit.sources.config import find_source, settings_of, source_names
from enrichkit.sources.registry import FIRST_PARTY, load

from .fuzzing import effort, explore, kept, mutants

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("fresh_registry")

SEEDS = [
    b"""[sources.users]
type = "redis"
url = "rediss://cache.example:6379/2"
key = "user:{}"
kind = "hash"
fields = ["name", "tier"]
password = {env = "REDIS_PASSWORD"}
tls_ca = "/etc/ca.pem"
max_bytes = 67_108_864
returns = "name string, tier int"
""",
    b"""[sources.users]
type = "http"
url = "https://api.example/users/{0}?v=2"
method = "POST"
headers = {X-Api-Key = {file = "/run/key"}, Accept = "application/json"}
body = {id = "{0}", deep = [true, 1.5, {}]}
missing = [404, 410]
idempotent = true
value = "data.profile"
""",
    b"""[sources.users]
type = "postgres"
dsn = "postgresql://app@db.example:5432,[::1]:5433/shop?sslmode=verify-full"
table = "public.users"
key = ["tenant", "id"]
columns = ["name", "tier"]
pgbouncer = false
[sources.users.password]
env = "PGPASS"
""",
    b"""[sources]
users = {type = "mariadb", url = "mariadb://app@localhost/shop", table = "users", tls = true, insecure = true}
""",
    b"""[sources.users]
type = "sqlite"
path = '/data/shop.db'
query = '''
SELECT name FROM users WHERE id = ?1'''
returns = 'string'
[[other]]
x = 1979-05-27T07:32:00Z
""",
]
TOKENS = [
    b"[sources.users]\n",
    b"[[sources.users]]\n",
    b"[sources]\n",
    b"type = 'redis'\n",
    b"type = 'sqlite'\n",
    b"type = 7\n",
]
TOKENS += [
    b"=",
    b"{",
    b"}",
    b"[",
    b"]",
    b"[[",
    b"]]",
    b'"',
    b'"""',
    b"'''",
    b".",
    b",",
    b"\n",
    b"#",
    b"\r",
    b"\0",
    b"\xff",
    b"\\",
]
TOKENS += [
    b"inf",
    b"nan",
    b"-1",
    b"0x1F",
    b"1e5",
    b"9" * 5000,
    b"true",
    b"1979-05-27",
    b"2024-13-45",
    b"07:32:00",
    b"\\uD800",
]
TOKENS += [
    b"returns = 1\n",
    b"{env = 'X'}",
    b"{env = ''}",
    b"{file = 7}",
    b"[1, [2, {a = 3}]]",
    b"[" * 400,
    b"{a=" * 400,
]
TOKENS += [b"\xef\xbb\xbf", b"@", b"%", b":", b"//", b"{}", b"{0}", "é名🙂".encode(), b"''", b" "]


def toml(value: Any) -> str:
    """Return *value* in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


texts = st.sampled_from(
    ["", "a", "a.b", "{}", "{0}", "hash", "GET", "SELECT 1 WHERE $1", "/x", "string", "id", "\0", "😀", "*"]
)
texts |= st.sampled_from(
    ["redis://h:99999999", "postgresql://h:" + "1" * 5000, "http://h/{0}", "mariadb://h/d", "unix:///s"]
)
plain = (
    st.booleans() | st.integers() | st.floats() | texts | st.text(max_size=6) | st.dates() | st.times() | st.datetimes()
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["env", "file", "a", "é"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A table of a source, with settings that its connector has and values that it need not take."""
    kind = draw(st.sampled_from(FIRST_PARTY))
    names = [setting.name for setting in settings_of(load(kind).config_class)]
    right = {"http": {"url": "http://h/{0}"}, "mariadb": {"table": "d.t"}, "sqlite": {"path": "/x", "table": "t"}}
    right["postgres"] = {"table": "t"}
    right["llm"] = {"base_url": "http://localhost/v1", "model": "m"}
    settings: dict[str, Any] = right.get(kind, {}) | draw(st.dictionaries(st.sampled_from(names), values, max_size=3))
    lines = [f"{name} = {toml(value)}" for name, value in ({"type": kind} | settings).items()]
    return "\n".join(["[sources.users]", *lines]).encode()


files = (
    tables() | tables() | mutants(st.sampled_from(SEEDS), TOKENS) | mutants(tables(), TOKENS) | st.binary(max_size=30)
)


def sources_in(raw: bytes) -> list[str] | None:
    """Return the names of the sources in a file, as Python's own parser reads it; None when it holds no sources."""
    try:
        text = raw.decode().replace("\r\n", "\n").replace("\r", "\n")  # as Python reads a file of text
        tables = tomllib.loads(text).get("sources", {})
    except (ValueError, RecursionError):
        return None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        return None
    return list(tables)


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """Return the result of *call*, and the text of the documented error; any other exception fails the test."""
    try:
        return call(*arguments), None
    except ConfigError as error:
        return None, str(error)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """The property: a function of the content of the file."""
    path = tmp_path / "enrichkit.toml"
    monkeypatch.setenv("ENRICHKIT_CONFIG", str(path))

    def check_file(raw: bytes) -> None:
        path.write_bytes(raw)
        names, (_, findings) = sources_in(raw), lint(path, secrets=False)
        assert [] == [each.message for each in findings if "Report this" in each.message]
        known, refusal = outcome(source_names)
        if refusal is not None:
            assert (names, str(path) in refusal, bool(findings)) == (None, True, True)
            names = known = ["users"]  # whoever asks for it gets the same error
        assert names is not None
        assert set(names) <= set(known)
        for name in names:
            found, refusal = outcome(find_source, name)
            if refusal is not None:
                assert (str(path) in refusal, bool(findings)) == (True, True)
                continue
            name_found, connector, config = found
            assert (name, connector.config_class) == (name_found, type(config))
            shipped = pickle.loads(pickle.dumps(config))
            if isinstance(config.returns, str | None):  # what else stands there, the driver refuses later
                assert (config, hash(config)) == (shipped, hash(shipped))

    return check_file


@pytest.mark.parametrize("raw", kept("sources"))
def test_a_kept_file_has_a_config_or_an_error_that_names_it(check: Callable[[bytes], None], raw: bytes) -> None:
    check(raw)


@pytest.mark.slow
@effort
def test_any_file_has_configs_or_an_error_that_names_it(check: Callable[[bytes], None], effort: int) -> None:
    explore(check, files, 100 * effort)


@pytest.mark.parametrize("raw", SEEDS)
def test_the_files_that_are_changed_are_right_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    """The checks above would also hold if every file were refused."""
    (tmp_path / "enrichkit.toml").write_bytes(raw)
    monkeypatch.setenv("ENRICHKIT_CONFIG", str(tmp_path / "enrichkit.toml"))
    name, connector, config = find_source("users")
    assert (name, connector.config_class) == ("users", type(config))
