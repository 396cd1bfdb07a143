"""Where the config of a source comes from, and what is said when it comes from nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import ConnectorConfig, Secret, register
from enrichkit.errors import ConfigError, UnknownConnectorError
from enrichkit.sources.config import find_source

from .installed import listed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("fresh_registry")


@pytest.fixture(autouse=True)
def nothing_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and no variable of a source that the tests use."""
    monkeypatch.delenv("ENRICHKIT_CONFIG", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def refusal(source: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        find_source(source)
    return str(caught.value)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- the order of the places


def test_a_config_stands_for_itself(fake: Any) -> None:
    config = fake.config_class(url="x")
    assert ("fake", fake, config) == find_source(config)


def test_a_registered_source_comes_before_the_file(fake: Any, tmp_path: Path) -> None:
    write(tmp_path / "work/enrichkit.toml", "[sources.users]\ntype = 'fake'\nurl = 'file'")
    config = fake.config_class(url="registered")
    register("users", config)
    assert ("users", fake, config) == find_source("users")


def test_the_file_that_the_variable_names_comes_before_the_one_in_the_working_directory(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "work/enrichkit.toml", "[sources.users]\ntype = 'fake'\nurl = 'here'")
    assert find_source("users")[2].url == "here"
    named = write(tmp_path / "named.toml", "[sources.users]\ntype = 'fake'\nurl = 'named'")
    monkeypatch.setenv("ENRICHKIT_CONFIG", str(named))
    assert find_source("users")[2].url == "named"


def test_the_file_comes_before_the_environment_and_is_not_mixed_with_it(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "work/enrichkit.toml", "[sources.fake]\ntype = 'fake'\nurl = 'file'")
    monkeypatch.setenv("ENRICHKIT_FAKE_URL", "environment")
    monkeypatch.setenv("ENRICHKIT_FAKE_SIZE", "9")
    assert fake.config_class(url="file", size=8) == find_source("fake")[2]


def test_the_environment_comes_before_the_defaults(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_FAKE_URL", "environment")
    assert ("fake", fake, fake.config_class(url="environment")) == find_source("fake")


def test_a_plugin_with_defaults_needs_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRICHKIT_REDIS_URL", raising=False)
    name, connector, config = find_source("redis")
    assert (name, connector.name, config) == ("redis", "redis", connector.config_class())


def test_the_environment_configures_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_REDIS_URL", "redis://127.0.0.1:7777/3")
    monkeypatch.setenv("ENRICHKIT_REDIS_KIND", "hash")
    monkeypatch.setenv("ENRICHKIT_REDIS_FIELDS", "name, tier")
    _, connector, config = find_source("redis")
    assert connector.config_class(url="redis://127.0.0.1:7777/3", kind="hash", fields=("name", "tier")) == config


# --- TOML


def test_a_table_of_the_file_becomes_a_config(fake: Any, tmp_path: Path) -> None:
    text = """
        [sources.users]
        type = "fake"
        url = "x"
        size = 3
        ratio = 0.25
        safe = false
        tags = ["a", "b"]
        codes = [404]
        secret = {env = "PASSWORD"}
        returns = "int"

        [sources.other]
        type = "absent"
    """
    write(tmp_path / "work/enrichkit.toml", text)
    name, connector, config = find_source("users")
    assert (name, connector) == ("users", fake)
    assert config == fake.config_class(
        url="x",
        size=3,
        ratio=0.25,
        safe=False,
        tags=("a", "b"),
        codes=(404,),
        secret=Secret.env("PASSWORD"),
        returns="int",
    )
    hash(config)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('{env = "X"}', Secret.env("X")),
        ('{file = "/run/x"}', Secret.file("/run/x")),
        ('[{env = "X"}, "a"]', (Secret.env("X"), "a")),
        ('{X-Api-Key = {env = "X"}}', {"X-Api-Key": Secret.env("X")}),
        ("{env = 7}", {"env": 7}),
        ('{env = "X", file = "y"}', {"env": "X", "file": "y"}),
    ],
)
def test_references_to_secrets_are_found_at_any_depth(fake: Any, tmp_path: Path, text: str, secret: Any) -> None:
    write(tmp_path / "work/enrichkit.toml", f'[sources.s]\ntype = "fake"\nurl = "x"\nsecret = {text}')
    assert secret == find_source("s")[2].secret


def test_a_secret_of_the_file_is_not_resolved_on_the_driver(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    write(tmp_path / "work/enrichkit.toml", '[sources.s]\ntype = "fake"\nurl = "x"\nsecret = {env = "PASSWORD"}')
    assert "hunter2" not in repr(find_source("s")[2])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[sources.users]\nurl = 'x'",
            "[sources.users] in enrichkit.toml has no type; it must name a connector, for example type = 'redis'.",
        ),
        (
            "[sources.users]\ntype = 7",
            "[sources.users] in enrichkit.toml has no type; it must name a connector, for example type = 'redis'.",
        ),
        (
            "[sources.users]\ntype = 'fake'",
            "[sources.users] in enrichkit.toml has no 'url', which the connector 'fake' requires. Add it there.",
        ),
        (
            "[sources.users]\ntype = 'fake'\nurll = 'x'",
            (
                "[sources.users] in enrichkit.toml has an unknown setting 'urll'. Did you mean 'url'? The connector "
                "'fake' takes: returns, url, size, ratio, safe, port, tags, codes, key, secret."
            ),
        ),
        (
            "[sources.users]\ntype = 'redis'\nurl = 'http://x'",
            (
                "[sources.users] in enrichkit.toml: RedisConfig.url starts with 'http'; it must start with 'redis://' "
                "or 'rediss://', for example 'redis://localhost:6379/0'."
            ),
        ),
        (
            "[sources.users]\ntype = 'fakke'",
            (
                "[sources.users] in enrichkit.toml: No connector is named 'fakke'. Did you mean 'fake'? Installed or "
                f"registered: {listed('fake')}. Install a plugin, or call enrichkit.register('fakke', config)."
            ),
        ),
        (
            "sources = 7",
            "'sources' in enrichkit.toml must hold tables only, such as [sources.users] with type = 'redis'.",
        ),
        (
            "[sources]\nusers = 'redis://localhost'",
            "'sources' in enrichkit.toml must hold tables only, such as [sources.users] with type = 'redis'.",
        ),
        (
            "[sources.users\n",
            (
                "enrichkit.toml is not TOML: Expected ']' at the end of a table declaration (at line 1, column 15). "
                "Write tables such as [sources.users] with type = 'redis'."
            ),
        ),
    ],
)
def test_a_wrong_file_says_where_and_what(fake: Any, tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path / "work/enrichkit.toml", text)
    assert said == refusal("users")


def test_a_file_that_is_no_utf8_is_no_toml(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "work/enrichkit.toml").write_bytes(b"\xff\xfe")
    assert refusal("users").startswith("enrichkit.toml is not TOML: 'utf-8' codec can't decode byte 0xff")


def test_the_variable_must_name_a_file(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        monkeypatch.setenv("ENRICHKIT_CONFIG", str(path))
        assert refusal("fake") == (
            f"ENRICHKIT_CONFIG is {str(path)!r}, which is no file; it must name a TOML file. Create it or unset it."
        )


def test_a_misspelt_source_of_the_file_is_told_the_closest_one(fake: Any, tmp_path: Path) -> None:
    write(tmp_path / "work/enrichkit.toml", "[sources.customers]\ntype = 'fake'")
    assert refusal("custmers") == (
        "No connector is named 'custmers'. Did you mean 'customers'? Installed or registered: "
        f"{listed('customers', 'fake')}. Install a plugin, or call enrichkit.register('custmers', config)."
    )


# --- the environment


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("SIZE", "12", "size", 12),
        ("SIZE", "-1", "size", -1),
        ("RATIO", "0.75", "ratio", 0.75),
        ("RATIO", "2", "ratio", 2.0),
        ("SAFE", "false", "safe", False),
        ("SAFE", "0", "safe", False),
        ("SAFE", "TRUE", "safe", True),
        ("SAFE", "1", "safe", True),
        ("PORT", "80", "port", 80),
        ("TAGS", "a", "tags", ("a",)),
        ("TAGS", " a , b,", "tags", ("a", "b")),
        ("TAGS", "", "tags", ()),
        ("CODES", "404, 410", "codes", (404, 410)),
        ("KEY", "tenant", "key", "tenant"),
        ("KEY", "tenant,id", "key", ("tenant", "id")),
        ("RETURNS", "name string, tier int", "returns", "name string, tier int"),
    ],
)
def test_a_variable_becomes_a_value_of_the_fields_type(
    fake: Any, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: Any
) -> None:
    monkeypatch.setenv("ENRICHKIT_FAKE_URL", "x")
    monkeypatch.setenv(f"ENRICHKIT_FAKE_{variable}", text)
    found = getattr(find_source("fake")[2], field)
    assert (value, type(value)) == (found, type(found))


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("SIZE", "many", "it must be a whole number, for example ENRICHKIT_FAKE_SIZE=8."),
        ("SIZE", "1.5", "it must be a whole number, for example ENRICHKIT_FAKE_SIZE=8."),
        ("SIZE", "", "it must be a whole number, for example ENRICHKIT_FAKE_SIZE=8."),
        ("PORT", "http", "it must be a whole number, for example ENRICHKIT_FAKE_PORT=8."),
        ("RATIO", "half", "it must be a number, for example ENRICHKIT_FAKE_RATIO=0.5."),
        ("SAFE", "yes", "it must be true, false, 1 or 0. For example ENRICHKIT_FAKE_SAFE=true."),
    ],
)
def test_a_wrong_variable_is_named(
    fake: Any, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, said: str
) -> None:
    monkeypatch.setenv("ENRICHKIT_FAKE_URL", "x")
    monkeypatch.setenv(f"ENRICHKIT_FAKE_{variable}", text)
    assert refusal("fake") == f"ENRICHKIT_FAKE_{variable} is {text!r}; {said}"


def test_one_wrong_number_of_several_is_named(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_FAKE_URL", "x")
    monkeypatch.setenv("ENRICHKIT_FAKE_CODES", "404,gone")
    assert refusal("fake") == (
        "ENRICHKIT_FAKE_CODES is 'gone'; it must be a whole number, for example ENRICHKIT_FAKE_CODES=8."
    )


def test_a_name_with_a_hyphen_is_found_under_an_underscore(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install("my-fake.source", package="acme")
    monkeypatch.setenv("ENRICHKIT_MY_FAKE_SOURCE_URL", "x")
    assert find_source("my-fake.source")[2].url == "x"


# --- nowhere


def test_a_missing_setting_lists_the_places_that_were_searched(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal("fake") == (
        "The source 'fake' has no 'url'. Searched: enrichkit.register('fake', ...); [sources.fake] in enrichkit.toml "
        "(no such file; ENRICHKIT_CONFIG is not set); the environment variable ENRICHKIT_FAKE_URL. Set it in one of "
        "them."
    )
    write(tmp_path / "work/enrichkit.toml", "")
    assert refusal("fake") == (
        "The source 'fake' has no 'url'. Searched: enrichkit.register('fake', ...); [sources.fake] in enrichkit.toml; "
        "the environment variable ENRICHKIT_FAKE_URL. Set it in one of them."
    )
    monkeypatch.setenv("ENRICHKIT_CONFIG", str(write(tmp_path / "named.toml", "")))
    assert refusal("fake") == (
        f"The source 'fake' has no 'url'. Searched: enrichkit.register('fake', ...); [sources.fake] in "
        f"{tmp_path}/named.toml; the environment variable ENRICHKIT_FAKE_URL. Set it in one of them."
    )


def test_settings_of_which_one_is_needed_list_the_places_too() -> None:
    """No field of PostgresConfig is required by itself, but a table or a query is."""
    assert refusal("postgres") == (
        "PostgresConfig has neither a table nor a query; it must have one of them. Write PostgresConfig(table='users', "
        "key='id') or PostgresConfig(query='SELECT id, name FROM users WHERE id = ANY($1)', key='id'). Searched: "
        "enrichkit.register('postgres', ...); [sources.postgres] in enrichkit.toml (no such file; ENRICHKIT_CONFIG is "
        "not set); the environment variable ENRICHKIT_POSTGRES_<FIELD>."
    )


def test_a_variable_that_the_config_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_REDIS_URL", "http://x")
    assert refusal("redis") == (
        "RedisConfig.url starts with 'http'; it must start with 'redis://' or 'rediss://', for example "
        "'redis://localhost:6379/0'. Searched: enrichkit.register('redis', ...); [sources.redis] in enrichkit.toml (no "
        "such file; ENRICHKIT_CONFIG is not set); the environment variable ENRICHKIT_REDIS_URL."
    )


@pytest.mark.parametrize("source", [None, 7, b"redis", ["redis"], ConnectorConfig])
def test_a_source_is_a_name_or_a_config(source: Any) -> None:
    assert refusal(source) == (
        f"source is a {type(source).__name__}; it must be the name of a source or a config, for example "
        "enrich('redis', 'user_id') or enrich(RedisConfig(...), 'user_id')."
    )


def test_a_config_that_no_connector_takes_says_so() -> None:
    class Orphan(ConnectorConfig):
        pass

    assert refusal(Orphan()) == (
        "No connector takes a Orphan; a Connector subclass must name it: config_class = Orphan."
    )


def test_an_unknown_source_is_an_unknown_connector() -> None:
    with pytest.raises(UnknownConnectorError):
        find_source("reddis")
