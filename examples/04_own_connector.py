"""
A connector of your own: country names from a SQLite file, whose driver blocks and knows nothing of asyncio.

    +----+-------+
    |code|country|
    +----+-------+
    |  NO| Norway|
    |  DE|Germany|
    |  XX|unknown|
    |NULL|   NULL|
    +----+-------+
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from enrichkit import Call, Connector, ConnectorConfig, FatalError, TransientError, default, enrich, local


@dataclass(frozen=True, kw_only=True)
class SqliteConfig(ConnectorConfig):  # what travels to the workers: plain data that can be hashed
    path: str


class SqliteConnector(Connector[SqliteConfig]):  # what lives on a worker
    name, config_class = "sqlite", SqliteConfig
    capacity, batch_size, max_batch_size = 1, 500, 500  # one connection: one call at a time

    async def open(self) -> None:  # once per worker process, not once per task
        self.db = sqlite3.connect(self.config.path, check_same_thread=False)

    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, str]:
        try:
            return await asyncio.to_thread(self._select, keys)  # a blocking driver must not block the event loop
        except sqlite3.OperationalError as error:  # a busy file is worth a retry, an absent table is not
            kind = TransientError if error.sqlite_errorcode == sqlite3.SQLITE_BUSY else FatalError
            raise kind(str(error)) from error

    def _select(self, keys: Sequence[str]) -> dict[str, str]:  # answers under their keys; an absent key is a miss
        query = "SELECT code, name FROM countries WHERE code IN (?" + ", ?" * (len(keys) - 1) + ")"
        return dict(self.db.execute(query, keys))  # keys are parameters, never text of the query

    async def close(self) -> None:  # after the worker was idle for a while, and after an open that failed
        if hasattr(self, "db"):
            self.db.close()


with local.spark() as spark, tempfile.NamedTemporaryFile(suffix=".db") as file:
    with closing(sqlite3.connect(file.name)) as db:
        rows = "INSERT INTO countries VALUES ('NO', 'Norway'), ('DE', 'Germany')"
        db.executescript(f"CREATE TABLE countries (code TEXT PRIMARY KEY, name TEXT); {rows}")
    countries = SqliteConfig(path=file.name, returns="string")
    places = spark.createDataFrame([("NO",), ("DE",), ("XX",), (None,)], "code string")
    places.withColumn("country", enrich(countries, "code", on_missing=default("unknown"))).show()
