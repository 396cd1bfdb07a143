"""
A connector of your own: documents of a ZIP archive, read by a blocking library that does not use asyncio.

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
class ZipConfig(ConnectorConfig):  # Spark sends it to the workers: plain data with a hash
    path: str


class ZipConnector(Connector[ZipConfig]):  # each worker creates its own
    name, config_class, encoding = "zip", ZipConfig, "text"  # the values are UTF-8 bytes, which the engine decodes
    capacity, batch_size, max_batch_size = 1, 100, 100  # one call at a time, because all calls share one open file

    async def open(self) -> None:  # called once per worker process, not once per task
        try:
            self.archive = await asyncio.to_thread(ZipFile, self.config.path)
        except (OSError, BadZipFile) as error:  # no key can be looked up, so the task must fail
            raise FatalError(f"{self.config.path} cannot be opened: {error}") from error
        self.names = set(self.archive.namelist())

    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, bytes]:
        try:
            return await asyncio.to_thread(self._read, keys)  # a blocking call must not block the event loop
        except OSError as error:  # for example of a network drive; a retry may help, unlike for a damaged document
            raise TransientError(str(error)) from error

    def _read(self, keys: Sequence[str]) -> dict[str, bytes]:  # values by key; keys without a value are left out
        return {key: self.archive.read(key) for key in keys if key in self.names}

    async def close(self) -> None:  # called when the worker has been idle for a while, and after a failed open
        if hasattr(self, "archive"):
            self.archive.close()


with local.spark() as spark, tempfile.NamedTemporaryFile(suffix=".zip") as file:
    with ZipFile(file.name, "w") as archive:
        archive.writestr("notes/ann.txt", "calls on Monday")
        archive.writestr("notes/bob.txt", "wants a café")
    files = spark.createDataFrame([("notes/ann.txt",), ("notes/bob.txt",), ("../bob.txt",), (None,)], "file string")
    text = enrich(ZipConfig(path=file.name, returns="string"), "file", on_missing=default("unknown"))
    files.withColumn("text", text).show()
