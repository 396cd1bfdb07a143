"""The log that replaces Kafka in tests: its offsets and the records that its reader yields, without Spark."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from enrichkit.local import LocalServerError
from enrichkit.local.log_source import LogReader, LogSource, append

if TYPE_CHECKING:
    from pathlib import Path

    from enrichkit.local.log_source import Offsets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log with 10 and 30 records in two partitions of the topic orders, and 5 records in one of returns."""
    for topic, partition, length in (("orders", 0, 10), ("orders", 1, 30), ("returns", 0, 5)):
        append(tmp_path, topic, records(length, f"{topic}{partition}"), partition=partition)
    return tmp_path


def records(length: int, prefix: str = "v") -> list[tuple[bytes, bytes]]:
    return [(b"%d" % n, f"{prefix} {n}".encode()) for n in range(length)]


def reader(folder: Path, **options: str) -> LogReader:
    return LogReader({"path": str(folder), **options})


def read(source: LogReader, start: Offsets, end: Offsets) -> list[tuple[Any, ...]]:
    return [row for part in source.partitions(start, end) for row in source.read(part)]


ENDS = {"orders": {"0": 10, "1": 30}, "returns": {"0": 5}}


def test_a_record_comes_back_as_it_was_appended(tmp_path: Path) -> None:
    instant = dt.datetime(2024, 3, 31, 1, 30, 0, 123457, tzinfo=dt.UTC)
    pairs = [(b"\x00\xff\n", b"line\nbreak"), (None, b""), (b"", None)]
    assert 3 == append(tmp_path, "orders", pairs, partition=7, timestamp=instant)
    source = reader(tmp_path)
    expected = [(key, value, "orders", 7, offset, instant) for offset, (key, value) in enumerate(pairs)]
    assert expected == read(source, {}, source.latestOffset({}, ReadAllAvailable()))


def test_offsets_go_on_where_the_last_append_ended(tmp_path: Path) -> None:
    assert [2, 5, 5] == [append(tmp_path, "orders", records(length)) for length in (2, 3, 0)]
    assert [2, 3, 4] == [row[4] for row in read(reader(tmp_path), {"orders": {"0": 2}}, {"orders": {"0": 5}})]


def test_the_same_offsets_give_the_same_records_however_often(folder: Path) -> None:
    start, end = {"orders": {"0": 3}}, {"orders": {"0": 6, "1": 2}}
    first = read(reader(folder), start, end)
    assert [("orders", 0, n) for n in (3, 4, 5)] + [("orders", 1, n) for n in (0, 1)] == [row[2:5] for row in first]
    append(folder, "orders", records(4))
    assert first == read(reader(folder), start, end)


def test_a_line_that_is_not_complete_yet_is_not_counted(folder: Path) -> None:
    with (folder / "returns" / "0.log").open("ab") as log:
        log.write(b'[17, "aGFs')
    assert reader(folder).latestOffset({}, ReadAllAvailable()) == ENDS


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        (None, ENDS),
        ("latest", ENDS),
        ("earliest", {}),
        (
            '{"orders": {"0": 4, "1": -1}, "returns": {"0": -2}}',
            {"orders": {"0": 4, "1": 30}, "returns": {"0": 0}},
        ),
        ('{"orders": {"1": 9}}', {"orders": {"0": 0, "1": 9}, "returns": {"0": 0}}),
    ],
)
def test_a_query_starts_at_its_starting_offsets(folder: Path, starting: str | None, expected: Offsets) -> None:
    options = {} if starting is None else {"startingOffsets": starting}
    assert expected == reader(folder, **options).initialOffset()


def test_only_the_subscribed_topics_are_read(folder: Path) -> None:
    assert {"returns": {"0": 5}} == reader(folder, subscribe="returns").initialOffset()
    assert {"returns": {"0": 5}, "later": {}} == reader(folder, subscribe="returns, later").initialOffset()


def test_a_partition_that_is_created_later_is_read_from_its_start(folder: Path) -> None:
    source = reader(folder)
    start = source.initialOffset()
    append(folder, "orders", records(2), partition=2)
    rows = read(source, start, source.latestOffset(start, ReadAllAvailable()))
    assert [("orders", 2, 0), ("orders", 2, 1)] == [row[2:5] for row in rows]


def test_a_limit_is_divided_in_proportion_to_the_unread_records_and_starves_no_partition(folder: Path) -> None:
    source = reader(folder, maxOffsetsPerTrigger="9")
    assert ReadMaxRows(9) == source.getDefaultReadLimit()
    assert ReadAllAvailable() == reader(folder).getDefaultReadLimit()
    end = source.latestOffset({}, ReadMaxRows(9))
    assert {"orders": {"0": 2, "1": 6}, "returns": {"0": 1}} == end
    batches = 1
    while end != ENDS:
        end, batches = source.latestOffset(end, ReadMaxRows(9)), batches + 1
    assert 5 <= batches <= 8
    assert end == source.latestOffset(end, ReadMaxRows(9))


def test_available_now_reads_only_the_records_that_existed_when_the_query_began(folder: Path) -> None:
    source = reader(folder)
    source.prepareForTriggerAvailableNow()
    append(folder, "orders", records(3))
    assert ENDS == source.latestOffset({}, ReadAllAvailable())
    assert {"orders": {"0": 13, "1": 30}, "returns": {"0": 5}} == source.reportLatestOffset()


def test_a_log_that_lost_records_fails_the_task(folder: Path) -> None:
    source = reader(folder)
    parts = source.partitions({"returns": {"0": 3}}, {"returns": {"0": 5}})
    file = folder / "returns" / "0.log"
    file.write_bytes(file.read_bytes().split(b"\n")[0] + b"\n")
    with pytest.raises(LocalServerError) as caught:
        list(source.read(parts[0]))
    assert str(caught.value) == (
        f"The log {file} ends before the offset 5, up to which the query has to read: records were removed. A log only "
        "grows; start the query with a new checkpoint."
    )


def refusal(folder: Path, **options: str) -> str:
    with pytest.raises(LocalServerError) as caught:
        reader(folder, **options)
    return str(caught.value)


def test_a_log_without_a_folder_is_refused() -> None:
    with pytest.raises(LocalServerError) as caught:
        LogReader({})
    assert str(caught.value) == "The format log was given no folder to read. Write .load('/the/folder')."


@pytest.mark.parametrize("wrong", ["many", "0", "-1"])
def test_a_wrong_limit_is_refused(tmp_path: Path, wrong: str) -> None:
    assert refusal(tmp_path, maxOffsetsPerTrigger=wrong) == (
        f"maxOffsetsPerTrigger is {wrong!r}; it must be a whole number from 1 on, for example 1000. Leave it out to "
        "read all there is."
    )


@pytest.mark.parametrize("wrong", ["ealiest", "7", '{"orders": 3}', '{"orders": {"0": -3}}'])
def test_a_wrong_start_is_refused(tmp_path: Path, wrong: str) -> None:
    assert refusal(tmp_path, startingOffsets=wrong) == (
        f"startingOffsets is {wrong!r}; it must be 'earliest', 'latest', or JSON with an offset for each partition of "
        """a topic, -2 for the earliest and -1 for the latest, for example '{"orders": {"0": 23, "1": -2}}'."""
    )


def test_the_source_has_the_columns_of_kafka() -> None:
    assert "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp" == (
        LogSource({"path": "/nowhere"}).schema()
    )
