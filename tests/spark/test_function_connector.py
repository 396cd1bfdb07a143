"""Functions as connectors on Spark: from a cell, from a module that workers do not have, on reused workers."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any, TypedDict

import pytest
from pyspark.sql import functions as F

from enrichkit import connector, enrich, enrich_frame, register_function

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("fresh_registry")]


class Place(TypedDict):
    city: str
    size: int


@pytest.fixture
def users(spark: SparkSession) -> DataFrame:
    """200 rows of 100 distinct keys and ten null ones, in four partitions."""
    key = F.when(F.col("id") % 20 != 0, F.concat(F.lit("u"), F.col("id") % 100))
    return spark.range(0, 200, 1, 4).select("id", key.alias("user_id"))


def keyed(n: int) -> str | None:
    return f"u{n % 100}" if n % 20 else None


def run_cell(code: str) -> dict[str, Any]:
    """Run *code* as a notebook runs a cell, and return its names."""
    cell = {"__name__": "__main__"}
    exec(compile(textwrap.dedent(code), "<cell>", "exec"), cell)
    return cell


@pytest.mark.parametrize("returns", ["city string, size bigint", Place], ids=["ddl", "typed-dict"])
def test_a_function_enriches_rows(users: DataFrame, carrier: str, returns: Any) -> None:
    @connector("geo", returns=returns)
    async def geo(key: str) -> Place | None:
        return None if key == "u7" else {"city": f"in {key}", "size": len(key)}

    rows = users.select("id", enrich("geo", "user_id", carrier=carrier)).collect()
    expected = {
        n: None if key in (None, "u7") else {"city": f"in {key}", "size": len(key)}
        for n in range(200)
        for key in [keyed(n)]
    }
    assert expected == {row.id: row.geo and row.geo.asDict() for row in rows}


def test_a_cell_of_a_notebook_may_be_run_again_with_other_code(users: DataFrame, carrier: str) -> None:
    """The workers are the same, and hold an engine with the old code."""
    cell = """
        import enrichkit
        GREETING = "%s"

        def greet(key):
            return f"{GREETING} {key}"

        @enrichkit.connector("greeting", returns="string", batch_size=10)
        async def greeting(keys):
            return {key: greet(key) for key in keys}
    """
    for word in ("hello", "good evening", "hello"):
        here = run_cell(cell % word)
        assert "__main__" == here["greeting"].__module__
        rows = users.select("id", enrich("greeting", "user_id", carrier=carrier)).collect()
        assert {n: (key := keyed(n)) and f"{word} {key}" for n in range(200)} == {row.id: row.greeting for row in rows}


MODULE = """
    import enrichkit

    PLACES = {"u1": "Bergen", "u2": "Ålesund"}

    def here() -> str:
        try:
            import geo_of_a_driver
        except ModuleNotFoundError:
            return "absent"
        return "present"

    @enrichkit.connector("geo", returns="place string, module string")
    class Geo:
        def open(self) -> None:
            self.places = PLACES

        async def fetch(self, key: str) -> dict:
            return {"place": self.places.get(key), "module": here()}
"""


def test_workers_need_not_have_its_module(users: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it uses of that module travels with it."""
    (tmp_path / "geo_of_a_driver.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "geo_of_a_driver", raising=False)
    module = importlib.import_module("geo_of_a_driver")
    monkeypatch.setitem(sys.modules, "geo_of_a_driver", module)  # forgotten after the test
    assert "present" == module.here()
    rows = users.where("user_id in ('u1', 'u2', 'u3')").select("user_id", enrich("geo", "user_id")).collect()
    places = {"u1": "Bergen", "u2": "Ålesund", "u3": None}
    assert {(key, (place, "absent")) for key, place in places.items()} == {
        (row.user_id, tuple(row.geo)) for row in rows
    }
    assert 6 == len(rows)


def test_tasks_and_jobs_share_the_object_of_a_worker_process(users: DataFrame) -> None:
    """Spark starts the globals of a shipped function afresh with each task; the engine is kept."""

    @connector("process", returns="process int, made string")
    class Process:
        def __init__(self) -> None:
            import uuid

            self.made = str(uuid.uuid4())

        async def fetch(self, key: str) -> dict[str, Any]:
            import os

            return {"process": os.getpid(), "made": self.made}

    jobs = [users.select(enrich("process", "user_id").alias("p")).select("p.*").dropna().collect() for _ in range(3)]
    assert [190] * 3 == [len(rows) for rows in jobs]
    made = {tuple(row) for rows in jobs for row in rows}
    assert len(made) == len({process for process, _ in made})


def test_a_function_that_blocks_runs_in_threads_of_the_worker(users: DataFrame) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it blocks; another test reads it

        @connector("blocking", returns="string", capacity=3)
        def blocking(key: str) -> str:
            import threading

            return threading.current_thread().name.rpartition("_")[0]

    rows = users.where("user_id is not null").select(enrich("blocking", "user_id")).distinct().collect()
    assert ["enrichkit-function"] == [row.blocking for row in rows]


def test_it_answers_sql_frames_and_several_key_columns(spark: SparkSession, users: DataFrame) -> None:
    @connector("pair", returns="string", batch_size=7)
    async def pair(keys: list[tuple[str, int]]) -> dict[tuple[str, int], str]:
        return {(user, number): f"{user}:{number}" for user, number in keys}

    expected = {n: (key := keyed(n)) and f"{key}:{n}" for n in range(200)}
    rows = users.select("id", enrich("pair", "user_id", "id")).collect()
    assert expected == {row.id: row.pair for row in rows}
    if hasattr(F, "arrow_udf"):
        register_function(spark, "pair_of", "pair")
        users.createOrReplaceTempView("users_of_a_function")
        rows = spark.sql("SELECT id, pair_of(user_id, id) AS pair FROM users_of_a_function").collect()
        assert expected == {row.id: row.pair for row in rows}

    @connector("letters", returns="string")
    async def letters(key: str) -> list[str]:
        return list(key)

    found = enrich_frame(users.where("id in (1, 12)"), "letters", on="user_id", into="letter", many=True).collect()
    assert [("u1", "1"), ("u1", "u"), ("u12", "1"), ("u12", "2"), ("u12", "u")] == sorted(
        (row.user_id, row.letter) for row in found
    )


SCRIPT = """
    import sys

    import enrichkit
    from enrichkit import enrich, local
    from geo_of_a_driver import here

    @enrichkit.connector("script", returns="string")
    async def script(key):
        return f"{__name__} {key}"

    if __name__ == "__main__":
        with local.spark(connect=sys.argv[1] == "connect", master=sys.argv[2]) as spark:
            users = spark.createDataFrame([("u1",), ("u2",), (None,)], "user_id string").coalesce(1)
            found = users.select("user_id", enrich("script", "user_id"), enrich("geo", "user_id")).collect()
            print(here(), *((row.user_id, row.script, row.geo and tuple(row.geo)) for row in found), sep="\\n")
"""


@pytest.mark.slow
def test_a_script_and_a_module_beside_it_need_not_be_on_the_cluster(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In a process of its own, because `__main__` is pytest here; executors of a cluster are processes of their own."""
    beside = tmp_path / "program"
    beside.mkdir()
    (beside / "geo_of_a_driver.py").write_text(textwrap.dedent(MODULE))
    (beside / "script.py").write_text(textwrap.dedent(SCRIPT))
    kind = "connect" if request.config.getoption("--connect") else "classic"
    # Python looks for modules in the current folder, too, and so would the workers.
    done = subprocess.run(
        [sys.executable, beside / "script.py", kind, "local-cluster[1,1,1024]"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert 0 == done.returncode, done.stderr
    expected = [
        "present",
        "('u1', '__main__ u1', ('Bergen', 'absent'))",
        "('u2', '__main__ u2', ('Ålesund', 'absent'))",
        "(None, None, None)",
    ]
    assert expected == done.stdout.splitlines()
