"""What is shipped to the workers, and rows that come in batches of any size."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import subprocess
import sys
import textwrap
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from enrichkit_redis import RedisConfig
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from enrichkit import Call, Connector, ConnectorConfig, Secret, enrich
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.driver.udf import _closure
from enrichkit.local import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService

    Table = Callable[[dict[Any, Any]], Any]

pytestmark = pytest.mark.spark


# --- batches


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_batch", [1, 7, 10_000])
@pytest.mark.parametrize("window", [1, 10, 20_000])
def test_rows_come_back_in_order_whatever_the_size_of_batches_and_window(
    spark: SparkSession, table: Table, carrier: str, conf: Callable[[str, str], None], rows_per_batch: int, window: int
) -> None:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows_per_batch))
    source = table({n: f"v{n}" for n in range(100)})
    column = enrich(source, F.col("id") % 120, returns="string", window=window, batch_size=3, carrier=carrier)
    rows = spark.range(0, 300, 1, 2).select("id", column).collect()
    assert [(n, f"v{n % 120}" if n % 120 < 100 else None) for n in range(300)] == [tuple(row) for row in rows]


def test_answers_that_overtake_each_other_reach_their_own_rows(
    spark: SparkSession, http_service: HttpService, carrier: str
) -> None:
    http_service.script(latency=0.001, tail=0.1, tail_latency=0.05)
    config = HttpConfig(url=f"{http_service.url}/{{}}", returns="key string, name string, score int")
    column = enrich(config, F.concat(F.lit("k"), "id"), carrier=carrier, capacity=50)
    rows = spark.range(0, 1000, 1, 2).select("id", column).collect()
    assert [(n, value_of(f"k{n}")) for n in range(1000)] == [(row.id, row.http.asDict()) for row in rows]


def test_a_parquet_scan_hands_over_batches_of_its_own_size(
    spark: SparkSession, table: Table, carrier: str, tmp_path: Path
) -> None:
    spark.range(0, 10_000, 1, 1).write.parquet(str(tmp_path / "ids"))
    source = table({n: -n for n in range(0, 10_000, 3)})
    frame = spark.read.parquet(str(tmp_path / "ids")).select("id", enrich(source, "id", returns="int", carrier=carrier))
    assert {n: -n if n % 3 == 0 else None for n in range(10_000)} == {row.id: row.table for row in frame.collect()}


# --- what is shipped


@dataclass(frozen=True, kw_only=True)
class VaultConfig(ConnectorConfig):
    """The source tells a digest of its password."""

    password: Secret
    returns: str | None = "string"


class VaultConnector(Connector[VaultConfig]):
    """Lives in this module, which the workers do not have: it travels by value."""

    name = "vault"
    config_class = VaultConfig

    async def open(self) -> None:
        self.digest = hashlib.sha256(self.config.password.resolve().encode()).hexdigest()

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return dict.fromkeys(keys, self.digest)


def test_a_secret_is_read_on_the_worker_and_a_new_one_makes_a_new_engine(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "password"
    frame = spark.range(0, 2, 1, 1).select(enrich(VaultConfig(password=Secret.file(str(file))), "id"))
    for password in ("hunter2", "hunter3", "hunter2"):
        file.write_text(password)
        assert [hashlib.sha256(password.encode()).hexdigest()] * 2 == [row.vault for row in frame.collect()]


def test_no_secret_is_shipped(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENRICHKIT_TEST_SECRET", "hunter2")
    plan, _ = make_plan(RedisConfig(password=Secret.env("ENRICHKIT_TEST_SECRET")), 1, "string", {})
    assert b"hunter2" not in pack(plan)
    column = enrich(RedisConfig(url="redis://user:hunter2@localhost"), "id", returns="string")
    assert "hunter2" not in str(column)
    spark.range(1).select(column).explain(True)
    shown = capsys.readouterr().out
    assert "redis(id" in shown
    assert "hunter2" not in shown


def test_a_connector_of_an_installed_package_is_shipped_by_reference() -> None:
    plan, _ = make_plan(RedisConfig(), 1, None, {})
    assert len(pack(plan)) < 3000
    assert pickle.loads(pack(plan)) == plan


def test_a_connector_of_this_module_is_shipped_by_value(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "a password")
    plan, _ = make_plan(VaultConfig(password=Secret.env("X")), 1, None, {})
    program = """
        import pickle, sys
        plan = pickle.loads(sys.stdin.buffer.read())
        print(plan.connector.__name__, plan.config.password, len(plan.config.__dataclass_fields__))
        from enrichkit.secrets import secrets_of
        print(secrets_of(plan.config))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], input=pack(plan), capture_output=True, check=True, cwd="/"
    )
    assert done.stdout.decode() == "VaultConnector Secret.env('X') 2\n[Secret.env('X')]\n"


def run_shipped(version: str, prelude: str) -> str:
    """Unpickle the function that Spark ships in a process where *prelude* ran, call it, and return what it raises."""
    program = f"""
        import pickle, sys
        {prelude}
        function = pickle.loads(sys.stdin.buffer.read())
        print(function.__name__)
        try:
            list(function(iter([])))
        except Exception as error:
            print(type(error).__name__, error)
    """
    payload = cloudpickle.dumps(_closure("arrow_batches", b"", "users", version))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], input=payload, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_a_worker_without_enrichkit_is_told_what_to_install() -> None:
    assert run_shipped("9.9", "sys.modules['enrichkit'] = None") == (
        "users\nImportError enrichkit cannot be imported on this Spark worker (import of enrichkit halted; None in "
        "sys.modules). Ship it with its plugins: enrichkit pack prints the lines that do. Or install it on the workers "
        "as on the driver: pip install enrichkit==9.9, and the plugin of the source 'users'.\n"
    )


def test_a_worker_with_another_version_is_told_so() -> None:
    import enrichkit

    assert run_shipped("9.9", "") == (
        f"users\nImportError This Spark worker has enrichkit {enrichkit.__version__}, but the driver has 9.9. Ship "
        "that of the driver: enrichkit pack prints the lines that do. Or install one on both: pip install "
        "enrichkit==9.9\n"
    )


def test_a_connector_in_the_program_itself_travels(tmp_path: Path) -> None:
    """As in a notebook; in a process of its own, because `__main__` is pytest here."""
    program = """
        import sys
        from enrichkit import Connector, ConnectorConfig
        from enrichkit.driver.pickling import pack
        from enrichkit.driver.planner import make_plan
        from pyspark.sql.types import LongType

        class MineConfig(ConnectorConfig):
            pass

        class Mine(Connector[MineConfig]):
            name = "mine"
            config_class = MineConfig

            async def fetch_many(self, keys, call):
                return {key: key * 2 for key in keys}

        sys.stdout.buffer.write(pack(make_plan(MineConfig(), 1, LongType(), {})[0]))
    """
    packed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=True).stdout
    plan = pickle.loads(packed)
    assert (plan.source, plan.connector.__module__) == ("mine", "__main__")
    assert asyncio.run(plan.connector(plan.config).fetch_many([1, 2], Call(timeout=1.0))) == {1: 2, 2: 4}


def test_the_second_use_of_a_source_of_this_module_finds_the_engine_of_the_first() -> None:
    """The first pickling of a config leaves a mark on its class."""

    class FreshConfig(ConnectorConfig):
        pass

    class Fresh(Connector[FreshConfig]):
        name = "fresh"
        config_class = FreshConfig

        async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
            return {}

    first, _ = make_plan(FreshConfig(), 1, LongType(), {})
    pack(first)
    assert first.engine_key == make_plan(FreshConfig(), 1, LongType(), {})[0].engine_key


def test_sources_with_different_settings_do_not_share_an_engine(table: Table, spark: SparkSession) -> None:
    plans = [
        make_plan(table({"a": 1}), 1, "int", {}),
        make_plan(table({"a": 2}), 1, "int", {}),
        make_plan(table({"a": 1}), 1, "int", {"capacity": 3}),
        make_plan(table({"a": 1}), 1, "int", {"rate": 5.0}),
    ]
    assert 4 == len({plan.engine_key for plan, _ in plans})
    for options in ({"timeout": 3}, {"batch_size": 7}):
        assert make_plan(table({"a": 1}), 1, "int", options)[0].engine_key == plans[0][0].engine_key
    tuned = [make_plan(table({"a": 1}), 1, "int", {"capacity": "auto", "batch_size": size})[0] for size in (7, 8)]
    assert tuned[0].engine_key != tuned[1].engine_key, "the tuner compares the latencies of calls of one size"
    assert make_plan(RedisConfig(url=f"redis://{uuid.uuid4()}"), 1, "string", {})[0].engine_key != (
        make_plan(RedisConfig(url=f"redis://{uuid.uuid4()}"), 1, "string", {})[0].engine_key
    ), "what repr hides tells engines apart, too"
