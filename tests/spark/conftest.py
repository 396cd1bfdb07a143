"""A source in memory that travels with the expression, and what the Spark tests ask of Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import Call, Connector, ConnectorConfig, local
from enrichkit.shipping import pack, ship

from ..environments import environment, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The only session of this process; with `--cluster` its executors have PySpark, and enrichkit by an archive."""
    connect, kind = request.config.getoption("--connect"), request.config.getoption("--cluster")
    if kind is None:
        yield request.getfixturevalue("spark")  # that of the other tests, which this one stands before
        return
    python = environment("executor", *map(version_of, ("pyspark", "pandas", "pyarrow")))
    archive = tmp_path_factory.mktemp("packed") / "enrichkit-env.tar.gz"
    pack(["redis", "http", "postgres"], output=archive, bare=True)
    conf = {"spark.executorEnv.ENRICHKIT_PYTHON": python}
    with local.cluster() if kind == "standalone" else nullcontext() as cluster:
        master = cluster.master if cluster is not None else "local-cluster[2,1,1024]"
        with local.spark(connect=connect, master=master, python=python, **conf) as session:
            ship(session, archive)
            yield session


@dataclass(frozen=True, kw_only=True)
class TableConfig(ConnectorConfig):
    """What the source holds: pairs of key and value."""

    rows: tuple[tuple[Any, Any], ...] = ()


class TableConnector(Connector[TableConfig]):
    """Answers from its config, which no server has to be started for."""

    name = "table"
    config_class = TableConfig
    capacity = 2
    batch_size = 100
    max_batch_size = 1000

    async def open(self) -> None:
        self.held = dict(self.config.rows)

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return {key: self.held[key] for key in keys if key in self.held}


@pytest.fixture
def table() -> Callable[[Mapping[Any, Any]], TableConfig]:
    """A function that makes the config of a source which holds a mapping."""
    return lambda held: TableConfig(rows=tuple(held.items()))


@pytest.fixture(params=["arrow", "pandas"])
def carrier(request: pytest.FixtureRequest) -> str:
    """Both ways in which Spark hands rows over."""
    return str(request.param)


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """A function that sets a Spark setting for this test."""
    before: dict[str, str | None] = {}

    def set_for_this_test(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield set_for_this_test
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
