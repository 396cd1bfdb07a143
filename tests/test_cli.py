"""The command `enrichkit`: what it prints, where, and with which exit code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result

import enrichkit
from enrichkit import ConfigError, Connector, ConnectorConfig, FatalError, PermanentError, cli, explain, local, register
from enrichkit.cli import bench, probe
from enrichkit.cli.commands import enrichkit as commands
from enrichkit.options import MOST_CAPACITY

from .test_imports import HEAVY, PLUGINS, loaded_by

if TYPE_CHECKING:
    from collections.abc import Callable

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
"""A plugin that breaks its contract: it says its secrets."""


def run(*arguments: str, code: int = 0, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(commands, arguments, prog_name="enrichkit", input=stdin)
    assert code == result.exit_code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refusal(*arguments: str, code: int = 1) -> str:
    """What `enrichkit` with *arguments* says when it fails, in one line; it prints no result then."""
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


@pytest.mark.parametrize("command", ["", *commands.commands])
def test_the_help_fits_eighty_columns_and_tells_the_exit_codes(command: str) -> None:
    helped = run(*command.split(), "--help").stdout
    assert_readable(helped)
    assert "..." not in helped.replace("]...", "").replace(",TYPE...", "")  # nothing is cut off
    assert command or "Exit codes: 0 ok, 1 what was asked for failed, 2 the command line is wrong." in helped


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


def test_a_defect_is_told_in_a_few_words_and_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("password=hunter2")

    monkeypatch.setattr("enrichkit.cli.inventory.inventory", broken)
    said = refusal("connectors")
    assert said == "ZeroDivisionError: password=***. This is a defect; --traceback shows where it is."
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
    "is no UTF-8, which a key must be. Choose a locale of UTF-8 for the terminal, or convert the file, for example "
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
                "A key is no bigint: Failed to parse string: 'u1' as a scalar of type int64. Give keys of that type, "
                "or their type with --type, for example --type bigint."
            ),
        ),
        (
            ["check", "pairs", "u1"],
            (
                "The key 'u1' has 1 part; it must have 2, separated by commas. For example \"a,b\"; a part with a "
                "comma stands in double quotes."
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
                "The key 'u1,a\\nb' is no line of CSV; a line break must stand in double quotes, and a part must have "
                "at most 131,072 characters. Put quotes around the part, for example $'\"a\\nb\",c', or leave the key "
                "out."
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
    redis_at = lines.index(["redis", f"enrichkit-redis {enrichkit.__version__}", "1,000", "4", "describe, store"])
    assert ["RedisConfig", "up to 5,000"] == lines[redis_at + 1]
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
    """The URL of a Redis, which is the source `users`, with some values."""
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
def test_check_shows_a_hash_as_text(redis_source: str) -> None:
    found = document("check", "hashes", "h1")
    assert {"name": "Eve", "photo": "AP8="} == found["answers"][0]["value"], "what is no text is base64 in JSON"
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
def test_check_through_spark_tells_what_does_not_fit_the_declared_type(
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
    """Of a source that cannot work."""


class FatalConnector(Connector[Fatal]):
    name, config_class = "fatal", Fatal

    async def fetch_many(self, keys: Any, call: Any) -> Any:
        raise FatalError("no such table")


@pytest.mark.spark
def test_check_tells_in_one_line_why_it_failed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    register("late", Fatal(returns="int"))
    monkeypatch.setattr(local, "spark", lambda: contextlib.nullcontext(spark))
    assert refusal("check", "late", "k", "--spark") == "enrichkit.errors.FatalError: no such table"
    assert refusal("check", "late", "k") == "FatalError: no such table"


def test_a_server_that_does_not_start_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: list[str]) -> int:
        raise local.LocalServerError("No Java was found.")

    monkeypatch.setattr("enrichkit.local.demo.main", start)
    assert refusal("demo") == "No Java was found."


@pytest.mark.service
def test_check_without_a_key_opens_the_source_and_says_what_that_is_worth(redis_source: str) -> None:
    printed = run("check", "users").stdout
    assert unfolded(printed).endswith("Name a KEY to see an answer; some connectors connect with the first one only.")
    assert_readable(printed)


def test_check_says_that_nobody_told_the_type_of_a_value() -> None:
    class Quiet(ConnectorConfig): ...

    class QuietConnector(Connector[Quiet]):
        name, config_class = "quiet", Quiet

        async def fetch_many(self, keys: Any, call: Any) -> Any:
            return {}

    register("quiet", Quiet())
    facts, _, rest = run("check", "quiet").stdout.partition("\n\n")
    assert facts.endswith("\n  value      not known: neither declared with returns nor told by the source")
    assert unfolded(rest) == "Name a KEY to see an answer; some connectors connect with the first one only."
    assert document("check", "quiet")["value_type"] is None


def test_check_tells_why_a_source_cannot_be_reached_and_no_secret(
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


def test_check_takes_secrets_out_of_what_a_careless_plugin_says(
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
        "The environment variable ACME_TOKEN is not set on this worker; a Secret names it."
    )


def test_check_does_not_wait_for_ever(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("silent", TELLING.replace("raise RuntimeError(self.say())", "import asyncio; await asyncio.Event().wait()"))
    monkeypatch.setattr(probe, "OPEN_TIMEOUT", 0.01)
    assert refusal("check", "silent") == (
        "The source did not open within 0.01 s. Look whether its server runs and can be reached."
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
    assert "1 distinct key given; with fewer than 60 the larger capacities cannot be" in unfolded(printed)
    assert re.search(r"capacity=[13] is the least that comes within 10% of the best\.", unfolded(printed))
    assert "is the least" not in run("bench", "users", "u1", *settings[:4]).stdout, "of one there is none better"


@pytest.mark.service
def test_bench_reads_keys_from_stdin(redis_source: str) -> None:
    settings = ["--seconds", "0.1", "--capacity", "1", "--json"]
    found = json.loads(run("bench", "users", "--keys-from", "-", *settings, stdin="a\nb\n\n").stdout)
    assert found["distinct_keys"] == 2


def test_bench_refuses_a_file_of_keys_that_is_no_utf_8(folder: Path) -> None:
    (folder / "keys").write_bytes("u1\ncafé\n".encode("latin-1"))
    for name in ("keys", "-"):
        result = run("bench", "redis", "--keys-from", name, code=2, stdin=(folder / "keys").read_bytes())
        assert f"The key 'caf\\udce9' {NO_UTF_8}" in unfolded(result.stderr)


def test_bench_measures_no_capacity_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fast(ConnectorConfig): ...

    class FastConnector(Connector[Fast]):
        name, config_class = "fast", Fast

        async def fetch_many(self, keys: Any, call: Any) -> Any:
            return dict.fromkeys(keys, 1)

    register("fast", Fast(returns="int"))
    monkeypatch.setattr(bench, "_until", lambda end, keys, size: iter([keys]))
    measures = document("bench", "fast", "a", "-o", f"capacity={MOST_CAPACITY}")["measures"]
    assert [*(2**power for power in range(14)), MOST_CAPACITY] == [measure["capacity"] for measure in measures]
    with pytest.raises(ConfigError, match="capacity"):
        enrichkit.Options(capacity=MOST_CAPACITY + 1)


def test_bench_of_one_key_asks_for_it_again_instead_of_waiting_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many keys a call may hold: here 500, of 200 that are one."""

    class Slow(ConnectorConfig): ...

    class SlowConnector(Connector[Slow]):
        name, config_class = "slow", Slow
        batch_size, max_batch_size = 500, 500

        async def fetch_many(self, keys: Any, call: Any) -> Any:
            await asyncio.sleep(0.002)
            return dict.fromkeys(keys, 1)

    register("slow", Slow(returns="int"))
    monkeypatch.setattr(bench, "_until", lambda end, keys, size: itertools.repeat(keys, 200))
    [measure] = document("bench", "slow", "a", "--seconds", "0.1", "--capacity", "1")["measures"]
    assert measure["calls"] >= 50, "no more than four of them wait for one call"


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
            """Refuses all keys but one at once, where it is asked by more than two calls at a time."""
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
        "A key is NaN, which is no key: a row with it asks nobody and gets a null. Leave it out."
    )


def test_bench_needs_keys() -> None:
    assert refusal("bench", "redis") == (
        "No key is given; bench needs some to ask for. Name them, or a file with --keys-from."
    )


# --- demo


def test_the_demo_names_the_extras_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(_: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'redis'", name="redis")

    monkeypatch.setattr("enrichkit.local.demo.main", lacking)
    assert refusal("demo") == (
        "The demo needs the package redis, which is not installed. Run: pip install 'enrichkit[all,local]'"
    )


def test_the_demo_gets_its_rows_and_gives_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("enrichkit.local.demo.main", lambda arguments: given.append(arguments) or 1)
    run("demo", "--rows", "50", code=1)
    assert given == [["--rows", "50"]]


def test_every_command_is_on_the_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text()
    for name, command in commands.commands.items():
        assert f"| `enrichkit {name}" in page
        options = [option for each in command.params if isinstance(each, click.Option) for option in each.opts]
        assert not [option for option in options if option.startswith("--") and option not in page]
