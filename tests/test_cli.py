"""The command `enrichkit`: what it prints, where, and with which exit code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import enrichkit
from enrichkit import ConfigError, Connector, ConnectorConfig, FatalError, PermanentError, cli, explain, local, register
from enrichkit.cli import bench, probe
from enrichkit.cli.commands import enrichkit as commands
from enrichkit.journal import Scope
from enrichkit.journal.table import Table
from enrichkit.options import MOST_CAPACITY

from .journal.support import TEXTS, read, write
from .test_imports import HEAVY, PLUGINS, loaded_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("fresh_registry", "folder")

DRIVERLESS = """
    from enrichkit import Connector, ConnectorConfig, hookimpl

    class Config(ConnectorConfig): ...

    class DriverlessConnector(Connector[Config]):
        name, config_class = "driverless", Config
        requires, pip = ("no_such_driver",), "pip install acme-driver"
        async def store_many(self, values, ttl): ...

    @hookimpl
    def enrichkit_connector():
        return DriverlessConnector
"""
TELLING = """
    from dataclasses import dataclass, field
    from enrichkit import Connector, ConnectorConfig, Failure, PermanentError, Secret, hookimpl

    @dataclass(frozen=True, kw_only=True)
    class Config(ConnectorConfig):
        at: str = "open"
        token: str | Secret = field(default=Secret.env("ACME_TOKEN"), repr=False)
        literal: str = field(default="lit3ral", repr=False)

    class TellingConnector(Connector[Config]):
        name, config_class = "telling", Config

        async def open(self):
            if self.config.at == "open":
                raise RuntimeError(self.say())

        def say(self):
            return f"refused for {self.config.token.resolve()} and {self.config.literal}"

        async def fetch_many(self, keys, call):
            return {key: Failure(PermanentError(self.say())) for key in keys}

    @hookimpl
    def enrichkit_connector():
        return TellingConnector
"""
"""A plugin that breaks its contract: its error messages hold its secrets."""


def names_of(group: click.Group, before: str = "") -> Iterator[str]:
    """Yield the names of all commands of *group*, those of its groups after the name of the group."""
    for name, command in group.commands.items():
        yield before + name
        if isinstance(command, click.Group):
            yield from names_of(command, f"{name} ")


COMMANDS = [*names_of(commands)]


def run(*arguments: str, code: int = 0, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(commands, arguments, prog_name="enrichkit", input=stdin)
    assert code == result.exit_code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refusal(*arguments: str, code: int = 1) -> str:
    """Return the error message of `enrichkit` with *arguments*, in one line; assert that it prints no result."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert_readable(result.stderr)
    return unfolded(result.stderr.partition("Error: ")[2])


def document(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def unfolded(text: str) -> str:
    return " ".join(text.split())


def assert_readable(text: str) -> None:
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if len(line) > 80]


# --- the command itself


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_fits_eighty_columns_and_tells_the_exit_codes(command: str) -> None:
    helped = run(*command.split(), "--help").stdout
    assert_readable(helped)
    for repeated in ("]...", ",TYPE...", "KEY..."):
        helped = helped.replace(repeated, "")
    assert "..." not in helped  # nothing is cut off
    assert command or "Exit codes: 0 success, 1 the command failed, 2 the command line is wrong." in helped


NOT_FOR_HELP = (*HEAVY, *PLUGINS, "rich")


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = f"""
        import sys
        from enrichkit.cli import main
        sys.argv = ["enrichkit", *{arguments!r}]
        sys.stdout = sys.stderr
        try:
            main()
        except SystemExit as ended:
            assert ended.code == 0
        sys.stdout = sys.__stdout__
    """
    assert loaded_by(program, NOT_FOR_HELP) == []


def test_sources_complete_without_anything_heavy(folder: Path) -> None:
    (folder / "enrichkit.toml").write_text("[sources.users]\ntype = 'redis'")
    program = f"""
import atexit, sys
atexit.register(lambda: print(*[name for name in {NOT_FOR_HELP!r} if name in sys.modules]))
from enrichkit.cli import main
main()
"""
    asked = {"_ENRICHKIT_COMPLETE": "bash_complete", "COMP_WORDS": "enrichkit check us", "COMP_CWORD": "2"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert done.stdout == "plain,users\n\n", done.stderr


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_packages_it_says_the_line_for_pip(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == package else name)
    assert cli.main() == 1
    assert capsys.readouterr() == (
        "",
        (
            f"The command enrichkit needs the package {package}, which is not installed. Run: pip install "
            "'enrichkit[cli]'\n"
        ),
    )


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "enrichkit", "--version"], capture_output=True, text=True)
    assert (0, f"enrichkit, version {enrichkit.__version__}\n") == (done.returncode, done.stdout)


def test_a_bug_gives_a_short_message_and_a_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("password=hunter2")

    monkeypatch.setattr("enrichkit.cli.inventory.inventory", broken)
    assert refusal("connectors") == (
        "ZeroDivisionError: password=***. This is a bug in enrichkit or in a plugin. To see where, run enrichkit "
        "--traceback with the same command."
    )
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(commands, ["--traceback", "connectors"], catch_exceptions=False)


def test_an_interrupt_ends_with_one_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("enrichkit.cli.inventory.inventory", interrupted)
    assert run("connectors", code=1).stderr == "\nAborted!\n"


def test_without_a_command_it_helps_and_ends_with_two() -> None:
    assert run(code=2).stderr == run("--help").stdout


NO_UTF_8 = (
    "is not UTF-8; a key must be UTF-8. Choose a UTF-8 locale for the terminal, or convert the file, for example "
    "with iconv -f latin1 -t utf-8."
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chekc"], "No such command 'chekc'"),
        (["check"], "Missing argument 'NAME'."),
        (["explain", "redis", "--keys", "0"], "0 is not in the range x>=1."),
        (
            ["check", "redis", "-o", "timeout"],
            "The option is 'timeout'; it must be NAME=VALUE, for example timeout=0.5.",
        ),
        (["check", "redis", "-o", "timeuot=1"], "enrich() has no option 'timeuot'. Did you mean 'timeout'?"),
        (["check", "redis", "-o", "timeout=0"], "timeout is 0; it must be a number of seconds from 0.001 to 86,400"),
        (
            ["check", "redis", "-o", "retry.attemps=5"],
            (
                "Retry has no 'attemps'. Did you mean 'attempts'? It has: attempts, wait, factor, wait_max, jitter, "
                "on_missing. For example retry.attempts=3."
            ),
        ),
        (["check", "redis", "-o", "cache.max_bytes=5000"], "Cache needs 'ttl'. Add, for example, cache.ttl=60."),
        (
            ["check", "redis", "-o", "retry=none", "-o", "retry.wait=1"],
            "The option retry is given whole and in parts. Give it once, for example retry.wait=1.",
        ),
        (
            ["check", "redis", "u1", "-t", "strin"],
            (
                "The key type is 'strin'; it must be one of string, binary, boolean, tinyint, smallint, int, bigint, "
                "float, double, date, timestamp, timestamp_ntz or decimal(p,s), s <= p <= 38. Did you mean 'string'? "
                "For example --type bigint."
            ),
        ),
        (["check", "redis", "1", "-t", "decimal(50,2)"], "The key type is 'decimal(50,2)'; it must be one of string,"),
        (
            ["check", "redis", "u1", "-t", "bigint"],
            (
                "A key does not fit the type bigint: Failed to parse string: 'u1' as a scalar of type int64. Give keys "
                "of this type, or name the type of the keys with --type, for example --type bigint."
            ),
        ),
        (
            ["check", "pairs", "u1"],
            (
                "The key 'u1' has 1 part; it must have 2, separated by commas. For example \"a,b\". Put a part that "
                "has a comma in double quotes."
            ),
        ),
        (
            ["check", "pairs", "u1", "-t", "string"],
            "1 key type given; RedisConfig needs 2, one for each key column. For example --type string,bigint.",
        ),
        (["check", "redis", "u1", "caf\udce9"], f"The key 'caf\\udce9' {NO_UTF_8}"),
        (["check", "pairs", "caf\udce9,7"], f"The key 'caf\\udce9,7' {NO_UTF_8}"),
        (
            ["check", "pairs", "u1,a\nb"],
            (
                "The key 'u1,a\\nb' is not a line of CSV; a line break must be inside double quotes, and a part must "
                "have at most 131,072 characters. Put quotes around the part, for example $'\"a\\nb\",c', or leave the "
                "key out."
            ),
        ),
        (["lint"], "There is no enrichkit.toml here, and ENRICHKIT_CONFIG is not set. Name a file."),
    ],
)
def test_a_wrong_command_line_ends_with_two(
    arguments: list[str], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "lint" not in arguments:
        (folder / "enrichkit.toml").write_text("[sources.pairs]\ntype = 'redis'\nkey = '{0}:{1}'")
    assert said in refusal(*arguments, code=2)


def test_a_source_that_does_not_exist_ends_with_one() -> None:
    assert "No connector is named 'reddis'. Did you mean 'redis'?" in refusal("check", "reddis")
    assert "No connector is named 'reddis'. Did you mean 'redis'?" in refusal("explain", "reddis")


# --- connectors


def test_the_connectors_are_listed_with_what_they_can_do(install: Callable[..., None]) -> None:
    install("driverless", DRIVERLESS, package="acme-driverless", version="2.0")
    printed = run("connectors").stdout
    assert_readable(printed)
    head, *lines = (re.split("  +", line.strip()) for line in printed.splitlines())
    assert ["connector", "package and config", "keys per call", "in flight", "can also"] == head
    redis_at = lines.index(["redis", "enrichkit-redis", "1,000", "4", "describe, store,"])
    assert [enrichkit.__version__, "up to 5,000", "scan"] == lines[redis_at + 1]
    assert ["RedisConfig"] == lines[redis_at + 2]
    assert (
        "\n\nCannot be used\n"
        "  driverless  The connector 'driverless' needs the package no_such_driver, which\n"
        "              is not installed. Run: pip install acme-driver\n"
    ) in printed
    listed = {each["name"]: each for each in document("connectors")["connectors"]}
    redis = listed["redis"]
    assert ("enrichkit-redis", enrichkit.__version__, 1000, 5000, 4) == tuple(
        redis[name] for name in ("package", "version", "batch_size", "max_batch_size", "capacity")
    )
    assert (True, True, None) == (redis["describe"], redis["store"], redis["problem"])
    assert (False, True) == (listed["driverless"]["describe"], listed["driverless"]["store"])


def test_a_connector_that_is_not_installed_or_broken_is_listed_with_the_reason(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("broken", "raise ValueError('half done')", package="acme-broken")
    monkeypatch.setattr("enrichkit.cli.inventory.FIRST_PARTY", ("redis", "oracle"))
    printed = run("connectors").stdout
    assert "  oracle  Not installed. Run: pip install 'enrichkit[oracle]'\n" in printed
    (broken,) = (each for each in document("connectors")["connectors"] if each["name"] == "broken")
    assert "cannot be loaded: ValueError: half done." in broken["problem"]
    assert broken["capacity"] is None


# --- explain


def test_explain_prints_what_the_function_returns() -> None:
    options = ["-o", "timeout=0.5", "-o", "retry.attempts=5", "-o", "cache.ttl=60"]
    printed = run("explain", "redis", "--keys", "1000", "--task-slots", "4", "--latency", "0.01", *options).stdout
    function = explain(
        "redis",
        keys=1000,
        task_slots=4,
        latency=0.01,
        timeout=0.5,
        retry=enrichkit.Retry(attempts=5),
        cache=enrichkit.Cache(ttl=60),
    )
    assert str(function) + "\n" == printed
    assert_readable(printed)
    told = document("explain", "redis", "--keys", "1000", *options)
    assert (4, 1000, 0.5) == (told["capacity"], told["batch_size"], told["options"]["timeout"])
    assert [1, 2, 3, 4, 5] == [attempt["number"] for attempt in told["attempts"]]


# --- check


@pytest.fixture
def redis_source(folder: Path, redis_url: str) -> str:
    """The URL of a Redis with some values; it is the server of the sources `users` and `hashes`."""
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.mset({"u1": "Ann", "ü,2": 'Bob "B"'})
        client.hset("h1", mapping={"name": "Eve", "photo": b"\x00\xff"})
    (folder / "enrichkit.toml").write_text(
        f"[sources.users]\ntype = 'redis'\nurl = '{redis_url}'\n"
        f"[sources.hashes]\ntype = 'redis'\nurl = '{redis_url}'\nkind = 'hash'\n"
    )
    return redis_url


@pytest.mark.service
def test_check_prints_each_key_with_its_value(redis_source: str) -> None:
    printed = run("check", "users", "u1", "ü,2", "nobody").stdout
    assert_readable(printed)
    assert printed.startswith("The source 'users'\n  connector  redis\n  config     RedisConfig(")
    head, *rows = printed.partition("\n\n")[2].splitlines()
    assert ["key", "status", "attempts", "time", "answer"] == head.split()
    assert [
        ["'u1'", "ok", "1", "Ann"],
        ["'ü,2'", "ok", "1", 'Bob "B"'],
        ["'nobody'", "missing", "1"],
    ] == [[cell for cell in re.split("  +", row.strip()) if not cell.endswith(" s")] for row in rows]
    assert redis_source not in printed, "the address may hold a password"


@pytest.mark.service
def test_check_ends_with_one_when_a_key_has_no_answer(redis_source: str) -> None:
    found = document("check", "users", "h1", "u1", code=1)
    assert ["error", "ok"] == [answer["status"] for answer in found["answers"]]
    assert found["answers"][0]["error"] == (
        "PermanentError: The key holds another type of value in Redis than RedisConfig.kind says (WRONGTYPE)."
    )
    assert ("h1", None, 1) == tuple(found["answers"][0][name] for name in ("key", "value", "attempts"))
    assert re.search(r"^  'h1'  error +1 +\S+ s  PermanentError: ", run("check", "users", "h1", code=1).stdout, re.M)


@pytest.mark.service
@pytest.mark.parametrize("status", [400, 403, 429, 500, 502, 503, 504])
def test_check_shows_what_the_service_said(http_service: local.HttpService, folder: Path, status: int) -> None:
    http_service.script(local.Fault(status=status, body=b'{"error": "quota of tenant 7 is used up"}'))
    (folder / "enrichkit.toml").write_text(
        f"[sources.web]\ntype = 'http'\nurl = '{http_service.url}/{{}}'\nreturns = 'string'\n"
    )
    text = unfolded(run("check", "web", "k", "-o", "retry=none", code=1).output)
    said = re.escape('(the source said: {"error": "quota of tenant 7 is used up"})')
    assert re.search(rf"Error: The service answered {status}([:;] .*)? {said}\s*$", text), text


@pytest.mark.service
def test_check_shows_a_hash_as_text(redis_source: str) -> None:
    found = document("check", "hashes", "h1")
    assert {"name": "Eve", "photo": "AP8="} == found["answers"][0]["value"], (
        "bytes that are not text are base64 in JSON"
    )
    assert "{'name': 'Eve', 'photo': b'\\x00\\xff'}" in unfolded(run("check", "hashes", "h1").stdout)
    assert ("map<string,string>", "the source, which was asked") == (found["value_type"], found["value_from"])


@pytest.mark.service
def test_check_takes_keys_of_several_columns_and_types(folder: Path, postgres_dsn: str) -> None:
    import asyncio

    import asyncpg

    async def fill() -> None:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute(
            "CREATE TABLE users (id bigint, region text, name text, born date, PRIMARY KEY (id, region));"
            "INSERT INTO users VALUES (1, 'eu', 'Ann', '2000-02-29'), (2, 'a,b', 'Bob', NULL)"
        )
        await connection.close()

    asyncio.run(fill())
    (folder / "enrichkit.toml").write_text(
        f"[sources.users]\ntype = 'postgres'\ndsn = '{postgres_dsn}'\ntable = 'users'\nkey = ['id', 'region']\n"
        f"[sources.absent]\ntype = 'postgres'\ndsn = '{postgres_dsn}'\ntable = 'userz'\n"
    )
    found = document("check", "users", "1,eu", '2,"a,b"', "1,us", "--type", "bigint,string")
    assert [
        ([1, "eu"], "ok", {"name": "Ann", "born": "2000-02-29"}),
        ([2, "a,b"], "ok", {"name": "Bob", "born": None}),
        ([1, "us"], "missing", None),
    ] == [(answer["key"], answer["status"], answer["value"]) for answer in found["answers"]]
    rejected = document("check", "users", "1,eu", code=1)["answers"][0]
    assert rejected["status"] == "rejected"
    assert "was given a value of the type str" in rejected["error"]
    assert refusal("check", "absent") == (
        "FatalError: PostgresConfig.table names 'userz', which the schema 'public' does not have. Did you mean "
        "'users'? Its tables and views: 'users'."
    )


@pytest.mark.spark
@pytest.mark.service
def test_check_through_spark_reports_a_value_that_does_not_fit_the_declared_type(
    redis_source: str, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    import redis

    with redis.Redis.from_url(redis_source) as client:
        client.mset({"7,eu": '{"tier": 3}', "8,eu": '{"tier": "high"}'})
    (folder / "enrichkit.toml").write_text(
        f"[sources.tiers]\ntype = 'redis'\nurl = '{redis_source}'\n"
        "key = '{},{}'\nkind = 'json'\nreturns = 'tier int'\n"
    )
    monkeypatch.setattr(local, "spark", lambda: contextlib.nullcontext(spark))
    keys = ("7,eu", "8,eu", "9,eu", "--type", "int,string")
    assert ["ok", "ok", "missing"] == [answer["status"] for answer in document("check", "tiers", *keys)["answers"]]
    fits, other, absent = document("check", "tiers", *keys, "--spark", code=1)["answers"]
    assert ([7, "eu"], "ok", {"tier": 3}) == (fits["key"], fits["status"], fits["value"])
    assert ("error", "missing") == (other["status"], absent["status"])
    assert "The part 'tier' of the value does not fit the declared type int: it is a string" in other["error"]


class Fatal(ConnectorConfig):
    """The config of a source that cannot work."""


class FatalConnector(Connector[Fatal]):
    name, config_class = "fatal", Fatal

    async def fetch_many(self, keys: Any, call: Any) -> Any:
        raise FatalError("no such table")


@pytest.mark.spark
def test_check_says_in_one_line_why_it_failed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    register("late", Fatal(returns="int"))
    monkeypatch.setattr(local, "spark", lambda: contextlib.nullcontext(spark))
    assert refusal("check", "late", "k", "--spark") == "enrichkit.errors.FatalError: no such table"
    assert refusal("check", "late", "k") == "FatalError: no such table"


def test_a_server_that_does_not_start_is_not_reported_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: list[str]) -> int:
        raise local.LocalServerError("No Java was found.")

    monkeypatch.setattr("enrichkit.local.demo.main", start)
    assert refusal("demo") == "No Java was found."


NO_KEY = "Name a KEY to see its value. Some connectors connect only when they look up the first key."


@pytest.mark.service
def test_check_without_a_key_opens_the_source_and_says_that_this_may_not_connect(redis_source: str) -> None:
    printed = run("check", "users").stdout
    assert unfolded(printed).endswith(NO_KEY)
    assert_readable(printed)


def test_check_says_that_the_type_of_a_value_is_not_known() -> None:
    class Quiet(ConnectorConfig): ...

    class QuietConnector(Connector[Quiet]):
        name, config_class = "quiet", Quiet

        async def fetch_many(self, keys: Any, call: Any) -> Any:
            return {}

    register("quiet", Quiet())
    facts, _, rest = run("check", "quiet").stdout.partition("\n\n")
    assert unfolded(facts).endswith(" value not known: the config has no returns, and the source cannot tell the type")
    assert unfolded(rest) == NO_KEY
    assert document("check", "quiet")["value_type"] is None


def test_check_says_why_a_source_cannot_be_reached_and_shows_no_secret(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "t0ken")
    (folder / "enrichkit.toml").write_text(
        "[sources.one]\ntype = 'redis'\nurl = 'redis://u:hunter2@127.0.0.1:1'\n"
        "[sources.two]\ntype = 'redis'\nurl = 'redis://127.0.0.1:1'\npassword = {env = 'ACME_TOKEN'}\n"
    )
    for source in ("one", "two"):
        result = run("check", source, "u1", "-o", "retry=none", code=1)
        assert "Redis at 127.0.0.1:1 cannot be reached" in " ".join(result.stdout.split())
        assert not [secret for secret in ("hunter2", "t0ken") if secret in result.output]


def test_check_removes_secrets_from_the_messages_of_a_careless_plugin(
    install: Callable[..., None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("telling", TELLING)
    monkeypatch.setenv("ACME_TOKEN", "t0ken")
    (folder / "enrichkit.toml").write_text("[sources.late]\ntype = 'telling'\nat = 'fetch'\nreturns = 'int'")
    assert refusal("check", "telling") == "RuntimeError: refused for *** and ***"
    for printed in (
        run("check", "late", "k", code=1).stdout,
        run("bench", "late", "k", "--seconds", "0.1", code=1).stdout,
    ):
        assert "PermanentError: refused for *** and ***" in unfolded(printed)
    monkeypatch.delenv("ACME_TOKEN")
    assert refusal("check", "telling") == (
        f"The environment variable ACME_TOKEN is not set on this machine ({platform.node()}); a Secret names it."
    )


def test_check_does_not_wait_for_ever(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("silent", TELLING.replace("raise RuntimeError(self.say())", "import asyncio; await asyncio.Event().wait()"))
    monkeypatch.setattr(probe, "OPEN_TIMEOUT", 0.01)
    assert refusal("check", "silent") == (
        "The source did not open within 0.01 s. Check that its server runs and can be reached."
    )


def test_check_names_the_line_for_pip_of_an_absent_driver(install: Callable[..., None]) -> None:
    install("driverless", DRIVERLESS)
    assert refusal("check", "driverless") == (
        "The connector 'driverless' needs the package no_such_driver, which is not installed. "
        "Run: pip install acme-driver"
    )


# --- bench


@pytest.mark.service
def test_bench_measures_each_capacity_and_suggests_one(redis_source: str, folder: Path) -> None:
    (folder / "keys").write_text("\n".join(["u1", *(f"k{n}" for n in range(99))]))
    settings = ["--seconds", "0.1", "--capacity", "1", "--capacity", "3", "-o", "batch_size=10"]
    found = document("bench", "users", "--keys-from", "keys", *settings)
    assert (10, 100) == (found["batch_size"], found["distinct_keys"])
    assert [1, 3] == [measure["capacity"] for measure in found["measures"]]
    for measure in found["measures"]:
        outcomes = measure["outcomes"]
        assert measure["keys"] == outcomes["ok"] + outcomes["missing"]
        assert measure["keys"] <= 10 * measure["calls"]
        assert 0 < measure["p50"] <= measure["p95"] <= measure["p99"]
        assert 0 < measure["in_flight"] <= measure["capacity"]
        assert measure["seconds"] >= 0.1
    assert found["suggested"] in (1, 3)
    printed = run("bench", "users", "u1", *settings).stdout
    assert_readable(printed)
    assert "  capacity  keys/s  calls/s  p50 ms  p95 ms  p99 ms  in flight  not ok\n" in printed
    assert "1 distinct key given. Fewer than 60 distinct keys cannot fill the larger capacities" in unfolded(printed)
    assert re.search(
        r"capacity=[13] is the smallest capacity whose throughput is within 10% of the best\.", unfolded(printed)
    )
    only_one = run("bench", "users", "u1", *settings[:4]).stdout
    assert "is the smallest" not in only_one, "one measured capacity is no choice"


@pytest.mark.service
def test_bench_reads_keys_from_stdin(redis_source: str) -> None:
    settings = ["--seconds", "0.1", "--capacity", "1", "--json"]
    found = json.loads(run("bench", "users", "--keys-from", "-", *settings, stdin="a\nb\n\n").stdout)
    assert found["distinct_keys"] == 2


def test_bench_refuses_a_file_of_keys_that_is_not_utf_8(folder: Path) -> None:
    (folder / "keys").write_bytes("u1\ncafé\n".encode("latin-1"))
    for name in ("keys", "-"):
        result = run("bench", "redis", "--keys-from", name, code=2, stdin=(folder / "keys").read_bytes())
        assert f"The key 'caf\\udce9' {NO_UTF_8}" in unfolded(result.stderr)


def test_bench_measures_no_capacity_that_enrich_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fast(ConnectorConfig): ...

    class FastConnector(Connector[Fast]):
        name, config_class = "fast", Fast

        async def fetch_many(self, keys: Any, call: Any) -> Any:
            return dict.fromkeys(keys, 1)

    register("fast", Fast(returns="int"))
    monkeypatch.setattr(bench, "_groups_until", lambda end, keys, size: iter([keys]))
    measures = document("bench", "fast", "a", "-o", f"capacity={MOST_CAPACITY}")["measures"]
    assert [*(2**power for power in range(14)), MOST_CAPACITY] == [measure["capacity"] for measure in measures]
    with pytest.raises(ConfigError, match="capacity"):
        enrichkit.Options(capacity=MOST_CAPACITY + 1)


def test_bench_of_one_key_asks_for_it_again_instead_of_waiting_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may hold 500 keys here, and there is only one distinct key."""

    class Slow(ConnectorConfig): ...

    class SlowConnector(Connector[Slow]):
        name, config_class = "slow", Slow
        batch_size, max_batch_size = 500, 500

        async def fetch_many(self, keys: Any, call: Any) -> Any:
            await asyncio.sleep(0.002)
            return dict.fromkeys(keys, 1)

    register("slow", Slow(returns="int"))
    monkeypatch.setattr(bench, "_groups_until", lambda end, keys, size: itertools.repeat(keys, 200))
    [measure] = document("bench", "slow", "a", "--seconds", "0.1", "--capacity", "1")["measures"]
    assert measure["calls"] >= 50, "at most four of the 200 groups wait for one call"


def test_bench_of_a_source_that_is_away_ends_with_one(folder: Path) -> None:
    (folder / "enrichkit.toml").write_text("[sources.users]\ntype = 'redis'\nurl = 'redis://127.0.0.1:1'")
    found = document("bench", "users", "a", "--seconds", "0.1", "--capacity", "1", code=1)
    assert found["suggested"] is None
    assert {"error"} == found["measures"][0]["outcomes"].keys()
    assert "127.0.0.1:1 cannot be reached" in found["measures"][0]["error"]


def test_bench_suggests_no_capacity_at_which_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(ConnectorConfig): ...

    class BusyConnector(Connector[Busy]):
        name, config_class = "busy", Busy

        async def fetch_many(self, keys: Any, call: Any) -> Any:
            """Refuse all keys but one immediately, when more than two calls are in flight."""
            if self.capacity > 2 and keys[0] != 1:
                raise PermanentError("too many")
            await asyncio.sleep(0.005 if self.capacity <= 2 else 0.1)
            return dict.fromkeys(keys, 1)

    register("busy", Busy(returns="int"))
    keys = [str(number) for number in range(1, 401)]
    found = document("bench", "busy", *keys, "--type", "int", "--seconds", "0.2", "--capacity", "2", "--capacity", "64")
    few, many = found["measures"]
    assert many["keys_per_second"] > few["keys_per_second"], "refusals are fast"
    assert many["outcomes"]["error"] > 10 * many["outcomes"]["ok"]
    assert found["suggested"] == 2


def test_nan_is_no_key() -> None:
    class Doubles(ConnectorConfig): ...

    class DoublesConnector(Connector[Doubles]):
        name, config_class = "doubles", Doubles

        async def fetch_many(self, keys: Any, call: Any) -> Any:
            return dict.fromkeys(keys, 1)

    register("doubles", Doubles(returns="int"))
    assert refusal("check", "doubles", "1.5", "nan", "--type", "double", code=2) == (
        "A key is NaN. A row with this key gets a null without a lookup, so there is nothing to look up. Leave this "
        "key out."
    )


def test_bench_needs_keys() -> None:
    assert refusal("bench", "redis") == (
        "No key is given, and bench needs keys to look up. Name keys, or a file of keys with --keys-from."
    )


# --- journal


def test_journal_list_shows_the_answers_by_source_and_scope(folder: Path) -> None:
    write(folder, {"a": "1", "b": None}, now=1_785_369_600.0)
    write(folder, {"c": "3" * 1000}, now=1_785_369_660.0, scope=Scope("run=monday", shared=True))
    sizes = {file.parent.name: file.stat().st_size for file in folder.rglob("*.journal")}
    listed = run("journal", "list", str(folder))
    assert listed.stdout == (
        "  source and types  scope        answers  files  bytes  last write (UTC)\n"
        f"  users             run=monday         1      1  {sizes['shared']:,}  2026-07-30 00:01:00\n"
        "  string -> string  shared\n"
        f"  users             run=nightly        2      1    {sizes['run=nightly']}  2026-07-30 00:00:00\n"
        "  string -> string\n"
    )
    found = document("journal", "list", str(folder))
    assert {"path": str(folder), "refused": {}} == {name: found[name] for name in ("path", "refused")}
    assert found["parts"][1] == {
        "source": "users",
        "table": TEXTS.digest,
        "scope": "run=nightly",
        "shared": False,
        "key_types": ["string"],
        "value_type": "string",
        "files": 1,
        "entries": 2,
        "bytes": sizes["run=nightly"],
        "oldest": 1_785_369_600.0,
        "newest": 1_785_369_600.0,
        "damaged": 0,
        "torn": 0,
    }


def test_journal_list_names_what_is_damaged_torn_or_foreign(folder: Path) -> None:
    write(folder, {"a": "1", "b": "2", "c": "3", "d": "4"}, block=1)
    [file] = folder.rglob("*.journal")
    content = bytearray(file.read_bytes())
    block = b"EKB\x01"
    second = content.index(block, content.index(block) + 1)
    content[second + 4] ^= 1
    file.write_bytes(content[:-9])
    torn = len(content) - 9 - content.rindex(block)
    (folder / TEXTS.digest / "run=nightly" / "x.journal").write_text("notes")
    listed = unfolded(run("journal", "list", str(folder)).stdout)
    assert " Damage users, run=nightly damaged in 1 place; jobs ask for these keys again " in listed
    assert f" users, run=nightly {torn} bytes of a write that was cut off, or goes on Not read " in listed
    assert "it is no file of a journal" in listed


def test_journal_list_of_an_empty_folder(folder: Path) -> None:
    assert run("journal", "list", str(folder)).stdout == "  No answers.\n"


def test_journal_show_shows_all_answers_to_keys(folder: Path) -> None:
    write(folder, {"a": "new", "1,x": "of one column"}, now=1_785_369_660.0)
    write(folder, {"a": None}, now=1_785_369_600.0, scope=Scope("run=monday", shared=True))
    pairs = Table("orders", "f", (pa.int32(), pa.string()), pa.float64())
    write(folder, {(1, "x"): 1.5}, table=pairs, now=1_785_369_600.0)
    assert run("journal", "show", str(folder), "a", "1,x", '1,"y', "b").stdout == (
        "  key     source  scope        written (UTC)        answer\n"
        "  'a'     users   run=monday   2026-07-30 00:00:00  the source does not hold the\n"
        "                                                    key\n"
        "  'a'     users   run=nightly  2026-07-30 00:01:00  new\n"
        "  '1,x'   orders  run=nightly  2026-07-30 00:00:00  1.5\n"
        "  '1,x'   users   run=nightly  2026-07-30 00:01:00  of one column\n"
        "  '1,\"y'                                            not in the journal\n"
        "  'b'                                               not in the journal\n"
    )
    found = document("journal", "show", str(folder), "a", "b")
    assert found["path"] == str(folder)
    first, second = found["keys"]
    assert {"key": "b", "entries": []} == second
    assert [entry.pop("file").rpartition("/")[0] for entry in first["entries"]] == [
        f"{TEXTS.digest}/shared",
        f"{TEXTS.digest}/run=nightly",
    ]
    users = {"source": "users"}
    assert first["entries"] == [
        {**users, "scope": "run=monday", "value": None, "found": False, "written_at": 1_785_369_600.0},
        {**users, "scope": "run=nightly", "value": "new", "found": True, "written_at": 1_785_369_660.0},
    ]


def test_journal_show_takes_a_key_that_is_no_line_of_csv(folder: Path) -> None:
    key = "line\rbreak"
    write(folder, {key: "found"})
    assert [entry["value"] for entry in document("journal", "show", str(folder), key)["keys"][0]["entries"]] == [
        "found"
    ]


def test_journal_expire_deletes_old_files(folder: Path) -> None:
    write(folder, {"a": "1"})
    write(folder, {"b": "2"}, scope=Scope("run=b"))
    sizes = {file.parent.name: file.stat().st_size for file in folder.rglob("*.journal")}
    for file in folder.rglob("*.journal"):
        os.utime(file, (1000, 1000))
    write(folder, {"c": "3"}, scope=Scope("run=b"))
    assert run("journal", "expire", str(folder), "--older-than", "30000d").stdout == "Deleted 0 files with 0 bytes.\n"
    one = run("journal", "expire", str(folder), "--older-than", "1h", "--scope", "run=nightly")
    assert one.stdout == f"Deleted 1 file with {sizes['run=nightly']} bytes.\n"
    other = run("journal", "expire", str(folder), "--older-than", "1.5 H")
    assert other.stdout == f"Deleted 1 file with {sizes['run=b']} bytes.\n"
    assert {"c": "3"} == read(folder, ["a", "b", "c"], scope=Scope("run=b"))


@pytest.mark.parametrize("duration", ["", "1w", "-1d", "one", "1" + "0" * 9, "nan", "1 d d"])
def test_journal_expire_refuses_what_is_no_duration(folder: Path, duration: str) -> None:
    assert refusal("journal", "expire", str(folder), f"--older-than={duration}", code=2) == unfolded(
        f"The duration is {duration!r}; it must be a number with the unit s, m, h or d, for example 90m, 12h or 30d."
    )


@pytest.mark.parametrize("command", [["list"], ["show", "a"], ["expire", "--older-than", "1d"]])
def test_journal_refuses_a_folder_that_is_not_there(folder: Path, command: list[str]) -> None:
    name, *more = command
    assert refusal("journal", name, "absent", *more) == (
        "There is no folder 'absent'. Name the path of a Journal, for example /data/answers."
    )


def test_journal_says_what_the_storage_refuses(folder: Path) -> None:
    assert refusal("journal", "list", "ftp://host/answers").startswith(
        "Journal.path 'ftp://host/answers' is no URI that pyarrow knows ("
    )


# --- demo


def test_the_demo_names_the_extras_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(_: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'redis'", name="redis")

    monkeypatch.setattr("enrichkit.local.demo.main", lacking)
    assert refusal("demo") == (
        "The demo needs the package redis, which is not installed. Run: pip install 'enrichkit[all,local]'"
    )


def test_the_demo_gets_the_rows_option_and_returns_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("enrichkit.local.demo.main", lambda arguments: given.append(arguments) or 1)
    run("demo", "--rows", "50", code=1)
    assert given == [["--rows", "50"]]


def test_every_command_is_on_the_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text()
    for name in COMMANDS:
        command: click.Command = commands
        for part in name.split():
            assert isinstance(command, click.Group)
            command = command.commands[part]
        assert isinstance(command, click.Group) or f"| `enrichkit {name}" in page
        options = [option for each in command.params if isinstance(each, click.Option) for option in each.opts]
        assert not [option for option in options if option.startswith("--") and option not in page]
