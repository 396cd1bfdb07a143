"""The code on the pages runs, page by page, and prints, asks and raises what stands beside it."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

import enrichkit
from enrichkit import local
from enrichkit.cli.commands import enrichkit as cli
from enrichkit.observe.hooks import GROUP
from enrichkit.sources.config import find_source

from .pages import PAGES, ROOT, Block, Info, blocks
from .spark.streams import started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

# Blocks that cannot run, by page and first line. Each needs a reason, and there are at most eight.
NOT_RUN = {
    ("docs/recipes.md", "orders = ("): "needs Kafka and Delta",
    ("docs/recipes.md", "def write(batch, batch_id):"): "needs Delta",
    ("docs/recipes.md", "import enrichkit"): "needs Databricks",
    ("docs/cluster.md", "./run wheels && cp -r dist examples/kubernetes && cd examples/kubernetes"): "needs Kubernetes",
    ("docs/recipes.md", "charge = HttpConfig("): "needs a service that takes money",
    ("docs/options.md", "from enrichkit import Secret"): "needs a package of the user, and Vault",
    ("docs/monitor.md", "from opentelemetry import metrics, trace"): "sets the providers of this process for good",
    ("docs/monitor.md", "import logging"): "sets the level of a logger that other tests read",
}

BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
# On Spark Connect too; the others use nothing in which it differs, and a page is many jobs.
ON_BOTH = ("docs/streaming.md", "docs/troubleshooting.md")
# `test_newcomer.py` runs all blocks of these pages, and the start page of the site has the same example.
PASTED = {block.code for block in PYTHON if block.page in ("README.md", "docs/quickstart.md")}
RUN = [
    pytest.param(page, marks=pytest.mark.spark if page in ON_BOTH else ())
    for page in sorted({block.page for block in PYTHON if block.info != Info.NOT_RUN and block.code not in PASTED})
]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_the_block_compiles(block: Block) -> None:
    block.compiled()
    assert block.info in ("", Info.RAISES, Info.NOT_RUN) or re.fullmatch(rf"{Info.ASKS}=\d+", block.info)


def test_blocks_that_are_not_run_are_listed_with_a_reason() -> None:
    assert set(NOT_RUN) == {block.name for block in BLOCKS if block.info == Info.NOT_RUN}
    assert len(NOT_RUN) <= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_block_of_the_page_is_of_a_language_that_is_checked(page: Path) -> None:
    assert not re.search(r"^[ >]+```", page.read_text(), re.MULTILINE), "a block inside a list is not seen"
    assert {block.language for block in blocks(page)} <= {"", "python", "sh", "text", "toml"}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "sh"], ids=str)
def test_the_commands_are_those_of_a_shell_and_of_enrichkit(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["sh", "-n"], input=block.code, text=True, check=True)
    monkeypatch.chdir(tmp_path)
    for line in re.findall(r"^enrichkit (.*)", block.code.replace("\\\n", ""), re.MULTILINE):
        name, *words = shlex.split(line, comments=True)
        for file in (tmp_path / word for word in words if word.endswith((".toml", ".txt"))):
            file.parent.mkdir(exist_ok=True)
            file.touch()
        with cli.commands[name].make_context(name, words) as understood:  # test_cli.py has what it does
            assert understood.command is cli.commands[name]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_the_toml_is_what_it_is_said_to_be(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_registry: None
) -> None:
    (tmp_path / "enrichkit.toml").write_text(block.code)
    monkeypatch.setenv("ENRICHKIT_CONFIG", str(tmp_path / "enrichkit.toml"))
    tables = tomllib.loads(block.code)
    groups = set(tables.get("project", {}).get("entry-points", ()))
    assert {"sources"} == set(tables) or groups in ({"enrichkit"}, {GROUP})
    for name in tables.get("sources", ()):
        assert name == find_source(name)[0]


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_the_page_run_one_after_the_other(
    page: str,
    spark: SparkSession,
    http_service: local.HttpService,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    fresh_registry: None,
) -> None:
    if request.config.getoption("--connect"):
        # `builder.getOrCreate()` takes the session there is, but not without an address.
        monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1")
    monkeypatch.chdir(tmp_path)
    # There can be one session, and the service is there already.
    monkeypatch.setattr(local, "spark", lambda: contextlib.nullcontext(spark))
    monkeypatch.setattr(local, "http", lambda: contextlib.nullcontext(http_service))
    writer: Any = type(spark.readStream.format("rate").load().writeStream)
    start = writer.start
    # Spark's ten seconds for the process that reads a log are too short on a busy machine.
    monkeypatch.setattr(writer, "start", lambda *args, **options: started(lambda: start(*args, **options)))
    here = blocks(ROOT / page)
    namespace = {"__name__": "__main__", **surroundings(here, spark, http_service, tmp_path, request.getfixturevalue)}
    for block in here:
        if block.language != "python" or block.info == Info.NOT_RUN:
            continue
        http_service.reset_stats()
        printed = io.StringIO()
        if block.info == Info.RAISES:
            # The heading names the error.
            with pytest.raises(Exception, match=re.escape(f"[{block.heading}]")):
                exec(block.compiled(), namespace)
            continue
        with contextlib.redirect_stdout(printed):
            exec(block.compiled(), namespace)
        if block.info:
            assert (str(block), block.info) == (str(block), f"{Info.ASKS}={http_service.stats().keys}")
        if block.output is not None:
            assert block.output.split() == printed.getvalue().split()
    spark.catalog.clearCache()


PROFILE_CONTRACT = """
import pytest
import redis

from enrichkit.testing import ConnectorContract


class TestProfileContract(ConnectorContract):
    @pytest.fixture
    def connector(self, redis_url):
        return ProfileConnector(ProfileConfig(url=redis_url))

    @pytest.fixture
    def known(self, redis_url):
        values = {"u1": "Ann", "o'clock": "Bob", "\N{SNOWMAN}": "Eve"}
        with redis.Redis.from_url(redis_url) as client:
            client.mset({f"profile:{key}": value for key, value in values.items()})
        return values

    @pytest.fixture
    def missing_key(self):
        return "nobody"

    @pytest.fixture
    def address(self, redis_server):
        return redis_server.host, redis_server.port

    @pytest.fixture
    def unreadable(self, known, redis_url):
        with redis.Redis.from_url(redis_url) as client:
            client.set("profile:bytes", b"\\xff")
        return ["bytes"]
"""
"""The contract test of the connector whose client package has a pool, which the page does not show."""


@pytest.mark.slow  # half a minute, for Spark has to start once more
@pytest.mark.parametrize(
    ("wanted", "more", "marked"),
    [
        pytest.param(("class AcmeConnector", "class TestAcmeContract"), "", "", id="AcmeConnector"),
        # One Spark tells enough: what it adds is the same for each connector.
        pytest.param(
            ("class AcmeConnector", "class ProfileConnector"), PROFILE_CONTRACT, "not spark", id="ProfileConnector"
        ),
    ],
)
def test_the_connectors_on_the_page_pass_the_contract(
    wanted: tuple[str, ...], more: str, marked: str, tmp_path: Path
) -> None:
    code = [block.code for block in PYTHON if block.page == "docs/writing-a-connector.md"]
    shown = [block for block in code if any(word in block for word in wanted)]
    assert len(wanted) == len(shown)
    (tmp_path / "test_connector.py").write_text("".join([*shown, more]))
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.pytest.ini_options]\naddopts = "-p enrichkit.testing.fixtures"\n')
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:valkey", "-c", str(settings), "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, "-m", marked, str(tmp_path)], capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout
    assert re.fullmatch(r"\d\d passed.*", done.stdout.splitlines()[-1])


def surroundings(
    here: list[Block],
    spark: SparkSession,
    service: local.HttpService,
    folder: Path,
    fixture: Callable[[str], Any],
) -> dict[str, Any]:
    """What the code of a page uses and its top describes; the stores are only started where it names them."""
    from enrichkit_http import HttpConfig
    from pyspark.sql import functions as F

    code = "".join(block.code for block in here)
    users = HttpConfig(url=service.url + "/users", bulk=True, returns="name string, score int")
    df = spark.range(0, 100, 1, 2).select("id", F.concat(F.lit("u"), "id").alias("user_id"))
    df.createOrReplaceTempView("events")
    for name in ("users", "replica", "archive"):
        enrichkit.register(name, users)
    found = {
        "F": F,
        "enrich": enrichkit.enrich,
        "spark": spark,
        "folder": str(folder),
        "service": service.url,
        "df": df,
        "users": users,
        "labels": spark.createDataFrame([(206, "a"), (300, "b")], "score int, label string"),
    }
    if re.search(r"\bshop\b", code):
        found["shop"] = fixture("shop")
    if re.search(r"\bcache_url\b", code):
        found["cache_url"] = fixture("cache_url")
    return found


@pytest.fixture
def shop(postgres_dsn: str) -> str:
    """The DSN of a database with users, and with two orders of every third user."""
    import asyncio

    import asyncpg

    async def fill() -> None:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("""
            CREATE TABLE users (id text PRIMARY KEY, name text, tier int);
            INSERT INTO users SELECT 'u' || n, 'name of u' || n, n % 3 FROM generate_series(0, 99) AS n;
            CREATE TABLE orders (user_id text, item text, price numeric(10,2));
            CREATE INDEX ON orders (user_id);
            INSERT INTO orders SELECT 'u' || n, item, price
            FROM generate_series(0, 99, 3) AS n, (VALUES ('pen', 2.5), ('lamp', 40)) AS things (item, price);
        """)
        await connection.close()

    asyncio.run(fill())
    return postgres_dsn


@pytest.fixture
def cache_url(redis_url: str) -> str:
    """The URL of a Redis that holds half of the users' profiles, as JSON."""
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.mset({f"profile:u{n}": f'{{"name": "name of u{n}", "score": {n}}}' for n in range(0, 100, 2)})
    return redis_url
