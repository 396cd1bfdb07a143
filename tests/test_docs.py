"""The documentation says what is there, and its code does what it says."""

from __future__ import annotations

import contextlib
import doctest
import enum
import importlib
import inspect
import io
import itertools
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import enrichkit
from enrichkit import Cache, Options, Retry, enrich, errors, hookspecs

from .spark.streams import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    if page.is_file()
)
DOCUMENTED = "".join(page.read_text() for page in PAGES if page.name == "README.md" or "docs" in page.parts)

# Blocks that cannot run, by page and first line. Each needs a reason, and there are at most eight.
NOT_RUN: dict[tuple[str, str], str] = {}
# The pages whose blocks are run; those of the others are compiled.
RUN = ("README.md", "docs/streaming.md", "docs/troubleshooting.md")
# Modules whose doctests need no Spark session and no server.
DOCTESTED = (
    "enrichkit",
    "enrichkit.assemble",
    "enrichkit.column",
    "enrichkit.config",
    "enrichkit.connector",
    "enrichkit.decode",
    "enrichkit.description",
    "enrichkit.errors",
    "enrichkit.estimate",
    "enrichkit.explanation",
    "enrichkit.frame",
    "enrichkit.functions",
    "enrichkit.hookspecs",
    "enrichkit.keys",
    "enrichkit.matches",
    "enrichkit.options",
    "enrichkit.outcome",
    "enrichkit.plan",
    "enrichkit.registry",
    "enrichkit.report",
    "enrichkit.rules",
    "enrichkit.scalars",
    "enrichkit.secrets",
    "enrichkit.types",
    "enrichkit.variant",
    "enrichkit.testing.clock",
)


class Info(enum.StrEnum):
    """What may stand behind the language of a block."""

    RAISES = "raises"
    NOT_RUN = "not-run"
    ASKS = "asks"


@dataclass(frozen=True)
class Block:
    """
    A block of code on a page.

    Attributes:
        page: Path from the root of the repository.
        line: Line of its first line of code.
        info: What stands behind the language: `raises`, `not-run`, or `asks=` and a number of keys.
        code: The text.
        heading: The last heading above it.
        output: The text of a block of the language `text` that follows; None when there is none.
    """

    page: str
    line: int
    info: str
    code: str
    heading: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def name(self) -> tuple[str, str]:
        return self.page, self.code.partition("\n")[0]

    def compiled(self) -> Any:
        # Padded, so that a traceback names the line of the page.
        return compile("\n" * (self.line - 1) + self.code, str(ROOT / self.page), "exec", dont_inherit=True)


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = list(re.finditer(r"^```(\w*)[ ]?([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    result = []
    for match, following in itertools.zip_longest(found, found[1:]):
        if match[1] == "python":
            headings = re.findall(r"^#+ (.*)$", text[: match.start()], re.MULTILINE)
            adjoining = following is not None and not text[match.end() : following.start()].strip()
            output = following[3] if following is not None and adjoining and following[1] == "text" else None
            result.append(
                Block(
                    str(page.relative_to(ROOT)),
                    text.count("\n", 0, match.start(3)) + 1,
                    match[2],
                    match[3],
                    headings[-1],
                    output,
                )
            )
    return result


BLOCKS = [block for page in PAGES for block in blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_block_compiles(block: Block) -> None:
    block.compiled()
    assert block.info in ("", Info.RAISES, Info.NOT_RUN) or re.fullmatch(rf"{Info.ASKS}=\d+", block.info)


def test_blocks_that_are_not_run_are_listed_with_a_reason() -> None:
    assert set(NOT_RUN) == {block.name for block in BLOCKS if block.info == Info.NOT_RUN}
    assert len(NOT_RUN) <= 8


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.timeout(300)  # a page is many jobs
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_the_page_run_one_after_the_other(
    page: str,
    spark: SparkSession,
    http_service: HttpService,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    if request.config.getoption("--connect"):
        # `builder.getOrCreate()` takes the session there is, but not without an address.
        monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1")
    writer: Any = type(spark.readStream.format("rate").load().writeStream)
    start = writer.start
    # Spark's ten seconds for the process that reads a log are too short on a busy machine.
    monkeypatch.setattr(writer, "start", lambda *args, **options: started(lambda: start(*args, **options)))
    namespace = {"__name__": "__main__", "enrich": enrich, **prelude(spark, http_service, tmp_path)}
    for block in blocks(ROOT / page):
        if block.info == Info.NOT_RUN:
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


def prelude(spark: SparkSession, service: HttpService, folder: Path) -> dict[str, Any]:
    """What the code on the pages on troubleshooting and streaming uses: it is described at their top."""
    from enrichkit_http import HttpConfig
    from pyspark.sql import functions as F

    return {
        "F": F,
        "spark": spark,
        "folder": str(folder),
        "df": spark.range(0, 100, 1, 2).select("id", F.concat(F.lit("u"), "id").alias("user_id")),
        "users": HttpConfig(url=service.url + "/users", bulk=True, returns="name string, score int"),
        "labels": spark.createDataFrame([(206, "a"), (300, "b")], "score int, label string"),
    }


@pytest.mark.parametrize("name", [*enrichkit.__all__, *errors.__all__])
def test_the_public_name_is_documented(name: str) -> None:
    assert re.search(rf"\b{name}\b", DOCUMENTED)


def test_every_hook_is_documented() -> None:
    hooks = [name for name, value in vars(hookspecs).items() if hasattr(value, "enrichkit_spec")]
    assert ["enrichkit_connector", "enrichkit_task_finished"] == sorted(hooks)
    for hook in hooks:
        assert hook in DOCUMENTED


@pytest.mark.parametrize("cls", [Options, Retry, Cache])
def test_the_table_has_the_fields_of_the_class_and_their_defaults(cls: type) -> None:
    text = (ROOT / "docs" / "options.md").read_text()
    first = "option" if cls is Options else f"field of `{cls.__name__}`"
    rows = re.search(rf"^\| {re.escape(first)} \| default \| meaning \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert rows is not None
    table = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", rows[1], re.MULTILINE))
    assert [field.name for field in fields(cls)] == list(table)
    for field in fields(cls):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if default is MISSING:
            assert "required" == table[field.name]
        else:
            assert default == eval(table[field.name].strip("`"), {"Retry": Retry})


@pytest.mark.parametrize(
    ("plugin", "config"), [("http", "HttpConfig"), ("postgres", "PostgresConfig"), ("redis", "RedisConfig")]
)
def test_the_readme_of_the_plugin_has_each_field_of_its_config(plugin: str, config: str) -> None:
    text = (ROOT / "plugins" / f"enrichkit-{plugin}" / "README.md").read_text()
    cls = getattr(importlib.import_module(f"enrichkit_{plugin}"), config)
    assert [] == [field.name for field in fields(cls) if not re.search(rf"\b{field.name}\b", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        destination = (page.parent / path).resolve() if path else page
        assert destination.exists(), target
        if anchor:
            assert anchor in anchors(destination.read_text()), target


def anchors(text: str) -> list[str]:
    """The anchors that GitHub makes of the headings in *text*."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_connector_in_the_readme_is_that_of_the_example() -> None:
    example = (ROOT / "examples" / "04_own_connector.py").read_text()
    shown = next(block.code for block in blocks(ROOT / "README.md") if "class SqliteConnector" in block.code)
    assert shown[shown.index("@dataclass") :] in example


def test_every_error_is_in_the_table_of_the_troubleshooting_page() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    for name in errors.__all__:
        assert f"`{name}`" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_names_no_package_index(page: Path) -> None:
    assert not re.search(r"pypi|pythonhosted", page.read_text(), re.IGNORECASE)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.stem)
def test_the_decision_has_its_four_parts(page: Path) -> None:
    text = page.read_text()
    number = int(page.name[:4])
    assert re.match(rf"# {number}\. \S", text)
    assert re.search(r"^Status: \w+", text, re.MULTILINE)
    assert ["Context", "Decision", "Consequences"] == re.findall(r"^## (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("module", DOCTESTED)
def test_the_examples_in_docstrings_run(module: str) -> None:
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report = io.StringIO()
    for test in tests:
        runner.run(test, out=report.write)
    assert 0 == runner.summarize(verbose=False).failed, report.getvalue()


@pytest.mark.parametrize("name", enrichkit.__all__)
def test_the_public_name_has_a_docstring(name: str) -> None:
    value = getattr(enrichkit, name)
    assert inspect.getdoc(value) or name == "hookimpl"  # made by pluggy, without one
