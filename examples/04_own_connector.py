"""
A connector of your own: documents of a ZIP archive, by a driver that blocks and knows nothing of asyncio.

    +-------------+---------------+
    |         file|           text|
    +-------------+---------------+
    |notes/ann.txt|calls on Monday|
    |notes/bob.txt|   wants a café|
    |   ../bob.txt|        unknown|
    |         NULL|           NULL|
    +-------------+---------------+
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zipfile import BadZipFile, ZipFile

from enrichkit import Call, Connector, ConnectorConfig, FatalError, TransientError, default, enrich, local


@dataclass(frozen=True, kw_only=True)
class ZipConfig(ConnectorConfig):  # what travels to the workers: plain data that can be hashed
    path: str


class ZipConnector(Connector[ZipConfig]):  # what lives on a worker
    name, config_class, encoding = "zip", ZipConfig, "text"  # values are bytes of UTF-8, for the engine to decode
    capacity, batch_size, max_batch_size = 1, 100, 100  # one open file: one call at a time

    async def open(self) -> None:  # once per worker process, not once per task
        try:
            self.archive = await asyncio.to_thread(ZipFile, self.config.path)
        except (OSError, BadZipFile) as error:  # nothing can be looked up: the task ends
            raise FatalError(f"{self.config.path} cannot be opened: {error}") from error
        self.names = set(self.archive.namelist())

    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, bytes]:
        try:
            return await asyncio.to_thread(self._read, keys)  # a blocking driver must not block the event loop
        except OSError as error:  # of a network drive, say: worth a retry, which a damaged document is not
            raise TransientError(str(error)) from error

    def _read(self, keys: Sequence[str]) -> dict[str, bytes]:  # answers under their keys; an absent key is a miss
        return {key: self.archive.read(key) for key in keys if key in self.names}

    async def close(self) -> None:  # after the worker was idle for a while, and after an open that failed
        if hasattr(self, "archive"):
            self.archive.close()


with local.spark() as spark, tempfile.NamedTemporaryFile(suffix=".zip") as file:
    with ZipFile(file.name, "w") as archive:
        archive.writestr("notes/ann.txt", "calls on Monday")
        archive.writestr("notes/bob.txt", "wants a café")
    files = spark.createDataFrame([("notes/ann.txt",), ("notes/bob.txt",), ("../bob.txt",), (None,)], "file string")
    text = enrich(ZipConfig(path=file.name, returns="string"), "file", on_missing=default("unknown"))
    files.withColumn("text", text).show()
