"""
A replayable log of records in a folder, and the Spark source that streams it: a substitute for Kafka without a server.

Records have Kafka's columns and the source has Kafka's options, so tests and examples look like a real job. A query
that is started again after a crash reads the same records again. The log only grows: it has one file for each partition
of a topic, `<folder>/<topic>/<partition>.log`, with one line for each record. The offset of a record is the number of
its line, from 0. Each read starts at the beginning of the file, so keep logs small. This module needs PySpark 4.2.
"""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from .process import LocalServerError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["LogSource", "append"]

Offsets: TypeAlias = dict[str, dict[str, int]]
"""
The next offset to read, by topic and by partition.

The numbers of partitions are text, because Spark stores the offsets as JSON, in which all keys of an object are text.
"""

EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
EARLIEST, LATEST = -2, -1  # as in Kafka's startingOffsets


def append(
    folder: str | Path,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    partition: int = 0,
    timestamp: dt.datetime | None = None,
) -> int:
    """
    Append *records*, pairs of key and value, to a partition.

    Args:
        folder: Folder of the log. The folder and its subfolders are created if they do not exist.
        topic: Name of the topic.
        records: The pairs of key and value. They are written at once: a reader sees all of them or none.
        partition: Number of the partition, from 0.
        timestamp: Timestamp of all records, with a time zone; the present time when absent.

    Returns:
        The offset after the last record of the partition.

    >>> append(folder, "orders", [(b"u1", b'{"amount": 3}')])
    1
    """
    instant = ((timestamp or dt.datetime.now(dt.UTC)) - EPOCH) // dt.timedelta(microseconds=1)
    lines = [json.dumps([instant, _text(key), _text(value)]) + "\n" for key, value in records]
    file = _file(Path(folder), topic, partition)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab", buffering=0) as log:
        log.write("".join(lines).encode())
    return _length(file)


@dataclass
class LogRange(InputPartition):
    """The range of offsets that one task reads."""

    topic: str
    partition: int
    start: int
    end: int


class LogSource(DataSource):
    """
    The format `log`; a stream has the columns key, value (both binary), topic, partition, offset and timestamp.

    Options:
        path: Folder of the log; required.
        subscribe: Topics to read, separated by commas; all topics when absent.
        startingOffsets: `latest`, `earliest`, or JSON `{"topic": {"0": 23, "1": -2}}`, where -2 means the earliest and
            -1 the latest offset. Partitions that the JSON does not name are read from the earliest offset. Only a query
            without a checkpoint uses this option. The default is `latest`.
        maxOffsetsPerTrigger: Approximate maximum of records in a micro-batch, divided among the partitions in
            proportion to their unread records; no limit when absent.

    >>> spark.dataSource.register(LogSource)
    >>> spark.readStream.format("log").option("startingOffsets", "earliest").load(folder).isStreaming
    True
    """

    @classmethod
    def name(cls) -> str:
        return "log"

    def schema(self) -> str:
        return "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"

    def streamReader(self, schema: StructType) -> LogReader:
        return LogReader(self.options)


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    The reader of a log.

    Spark calls the methods about offsets in a Python process beside the driver, and `read` in tasks.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        if not options.get("path"):
            raise LocalServerError("The format log was given no folder to read. Write .load('/the/folder').")
        self.folder = Path(options["path"])
        self.topics = [topic.strip() for topic in options.get("subscribe", "").split(",") if topic.strip()]
        self.starting = _starting(options.get("startingOffsets", "latest"))
        self.limit = _limit(options.get("maxOffsetsPerTrigger"))
        self.target: Offsets | None = None

    def initialOffset(self) -> Offsets:
        ends = self._ends()
        if not isinstance(self.starting, dict):
            return {} if self.starting == "earliest" else ends
        return {
            topic: {
                partition: end
                if (offset := self.starting.get(topic, {}).get(partition, EARLIEST)) == LATEST
                else max(0, offset)
                for partition, end in partitions.items()
            }
            for topic, partitions in ends.items()
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.limit is None else ReadMaxRows(self.limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._ends()

    def reportLatestOffset(self) -> Offsets:
        return self._ends()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        ends = self._ends() if self.target is None else self.target
        if not isinstance(limit, ReadMaxRows):
            return ends
        unread = {
            (topic, partition): end - start.get(topic, {}).get(partition, 0)
            for topic, partitions in ends.items()
            for partition, end in partitions.items()
        }
        share = limit.max_rows / max(1, sum(unread.values()))
        latest: Offsets = {}
        for (topic, partition), lag in unread.items():
            # As in Kafka's source, each partition gets a share of the records in proportion to its lag, i.e. its unread
            # records. A partition with unread records gets at least one, so that it does not starve.
            count = min(lag, max(math.floor(lag * share), 1))
            latest.setdefault(topic, {})[partition] = ends[topic][partition] - lag + count
        return latest

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        return [
            LogRange(topic, int(partition), first, stop)
            for topic, partitions in end.items()
            for partition, stop in partitions.items()
            if (first := start.get(topic, {}).get(partition, 0)) < stop
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, LogRange)
        offsets = partition
        file = _file(self.folder, offsets.topic, offsets.partition)
        with file.open("rb") as log:
            count = 0
            for count, line in enumerate(itertools.islice(log, offsets.start, offsets.end), 1):
                instant, key, value = json.loads(line)
                timestamp = EPOCH + dt.timedelta(microseconds=instant)
                offset = offsets.start + count - 1
                yield _bytes(key), _bytes(value), offsets.topic, offsets.partition, offset, timestamp
        if offsets.start + count < offsets.end:
            raise LocalServerError(
                f"The log {file} ends before the offset {offsets.end}, up to which the query has to read: records were "
                "removed. A log only grows; start the query with a new checkpoint."
            )

    def _ends(self) -> Offsets:
        topics = self.topics or sorted(folder.name for folder in self.folder.glob("*") if folder.is_dir())
        return {
            topic: {file.stem: _length(file) for file in sorted((self.folder / topic).glob("*.log"))}
            for topic in topics
        }


def _starting(text: str) -> str | Offsets:
    if text in ("earliest", "latest"):
        return text
    try:
        offsets: Offsets = json.loads(text)
        if all(isinstance(n, int) and n >= EARLIEST for partitions in offsets.values() for n in partitions.values()):
            return offsets
    except (ValueError, AttributeError):
        pass
    raise LocalServerError(
        f"startingOffsets is {text!r}; it must be 'earliest', 'latest', or JSON with an offset for each partition of a "
        """topic, -2 for the earliest and -1 for the latest, for example '{"orders": {"0": 23, "1": -2}}'."""
    )


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not int(text):
        raise LocalServerError(
            f"maxOffsetsPerTrigger is {text!r}; it must be a whole number from 1 on, for example 1000. Leave it out to "
            "read all there is."
        )
    return int(text)


def _file(folder: Path, topic: str, partition: int) -> Path:
    return folder / topic / f"{partition}.log"


def _length(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
