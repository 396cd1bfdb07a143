"""Public names have docstrings, and the examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import enrichkit
from enrichkit import errors, testing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService

PACKAGE = Path(enrichkit.__file__).parent

# What some modules need. `spark`: the names `spark`, `df` and `folder`, and the sources `users` and `redis`.
NEED = {
    "enrichkit": "spark",
    "enrichkit.driver.column": "spark",
    "enrichkit.driver.frame": "spark",
    "enrichkit.driver.sql_function": "spark",
    "enrichkit.local": "servers",
    "enrichkit.local.log_source": "spark",
    "enrichkit.local.mariadb": "apt",
    "enrichkit.local.postgres": "servers",
    "enrichkit.local.redis": "servers",
    "enrichkit.observe.monitor": "spark",
    "enrichkit.observe.totals": "spark",
    "enrichkit.reports.cost": "spark",
    "enrichkit.reports.describe": "spark",
    "enrichkit.reports.explanation": "spark",
    "enrichkit.testing.proxy": "servers",
}
MARKS = {"servers": pytest.mark.service, "apt": [pytest.mark.service, pytest.mark.apt]}
# A session of its own beside the one that there is, which a process cannot have.
SKIPPED = ["enrichkit.local.spark"]

MODULES = sorted(
    ".".join(("enrichkit", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for file in PACKAGE.rglob("*.py")
    if ">>> " in file.read_text() and "template" not in file.parts
)


def run_examples(module: str, names: dict[str, Any] | None = None) -> None:
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module), extraglobs=names)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report = io.StringIO()
    for test in tests:
        skips = [example for example in test.examples if doctest.SKIP in example.options]
        assert not skips or module in SKIPPED
        runner.run(test, out=report.write)
    assert 0 == runner.summarize(verbose=False).failed, report.getvalue()


@pytest.mark.parametrize(
    "module",
    [pytest.param(name, marks=MARKS.get(NEED.get(name, ""), ())) for name in MODULES if NEED.get(name) != "spark"],
)
def test_the_examples_in_docstrings_run(module: str, fresh_registry: None) -> None:
    run_examples(module)


@pytest.mark.service
@pytest.mark.slow
@pytest.mark.parametrize("module", [name for name in MODULES if NEED.get(name) == "spark"])
def test_the_examples_that_need_spark_run(
    module: str, spark: SparkSession, http_service: HttpService, tmp_path: Path, fresh_registry: None
) -> None:
    from enrichkit_http import HttpConfig

    df = spark.range(0, 100, 1, 2).selectExpr("id", "'u' || id AS user_id")
    df.createOrReplaceTempView("events")
    users = HttpConfig(url=http_service.url + "/users", bulk=True, returns="name string, score int")
    for name in ("users", "redis"):
        enrichkit.register(name, users)
    run_examples(module, {"spark": spark, "df": df, "folder": str(tmp_path)})


@pytest.mark.parametrize("module", [enrichkit, errors, testing], ids=lambda module: module.__name__)
def test_the_public_names_have_docstrings(module: Any) -> None:
    bare = [name for name in module.__all__ if not inspect.getdoc(getattr(module, name))]
    assert [name for name in bare if name != "hookimpl"] == []  # made by pluggy, without one
