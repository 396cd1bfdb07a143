"""`check`: one source, and what it answers for some keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import find_source
from ..outcome import STATUSES, Outcomes
from ..report import seconds
from .arguments import keys_of, types_of
from .output import Part, colour, columns, heading, indented
from .probe import TOLD, Probe, SourceError, describe, without_secrets

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..connector import ConnectorConfig

__all__ = ["Answer", "Check", "check"]

FAILED = ("timeout", "error", "rejected")


@dataclass(frozen=True)
class Answer:
    """What became of one key; `latency` in seconds, from its first call on."""

    key: Any
    status: str
    value: Any
    error: str | None
    attempts: int
    latency: float


@dataclass(frozen=True)
class Check:
    """
    What `check` found.

    Attributes:
        source: Name of the source.
        connector: Name of its connector.
        config: The config as text, without its secrets.
        opened: Seconds that opening took.
        value_type: DDL of one value; None: not known without asking for it with `returns`.
        value_from: Where that type came from.
        answers: One for each distinct key.
    """

    source: str
    connector: str
    config: str
    opened: float
    value_type: str | None
    value_from: str
    answers: tuple[Answer, ...]

    @property
    def failed(self) -> int:
        """How many keys have no answer. One that the source does not hold has one."""
        return sum(answer.status in FAILED for answer in self.answers)

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        declared = self.value_type or "not known: neither declared with returns nor told by the source"
        yield heading(f"The source {self.source!r}")
        facts = {
            "connector": self.connector,
            "config": self.config,
            "opened": f"in {seconds(self.opened)}",
            "value": re.sub(r",\s*", ", ", declared),
            **({"type from": self.value_from} if self.value_type is not None else {}),
        }
        yield columns(list(facts.items()))
        yield ""
        if self.answers:
            heads = ("key", "status", "attempts", "time", "answer")
            yield columns([_row(answer) for answer in self.answers], heads, numbers=("attempts", "time"))
        else:
            yield indented("Name a KEY to see an answer; some connectors connect with the first one only.")


def check(name: str, texts: Sequence[str], types: str | None, options: dict[str, Any], *, spark: bool = False) -> Check:
    """
    Open the source *name* and look up the keys that *texts* stand for.

    Args:
        name: Of the source.
        texts: Of the keys, see `keys_of`.
        types: Of the key columns, likewise.
        options: Of `enrich`.
        spark: Look them up in a Spark job on this machine, which decodes the values as the declared type.

    Raises:
        ConfigError: There is no such source, its config is wrong, or a text is no key.
        SourceError: It cannot be opened, or the job failed.
        LocalServerError: There is no Spark.
    """
    name, connector, config = find_source(name)
    keys = keys_of(texts, types, config)
    value_type, opened = describe(connector, config)
    answers: list[Answer] = []
    if keys and spark:
        answers += _answers_of_spark(name, keys, types_of(types, config), {**options, **TOLD}, config)
    elif keys:
        encoding = connector(config).encoding
        with Probe(name, connector, config, options) as probe:
            for part in probe.outcomes([keys]):
                answers += _answers(part, encoding, config)
    return Check(
        source=name,
        connector=connector.name,
        config=without_secrets(repr(config), config),
        opened=opened,
        value_type=value_type,
        value_from=f"{type(config).__name__}.returns" if config.returns is not None else "the source, which was asked",
        answers=tuple(answers),
    )


def _answers(part: Outcomes, encoding: str, config: ConnectorConfig) -> Iterator[Answer]:
    assert part.attempts is not None
    assert part.latencies is not None
    for index, key in enumerate(part.keys):
        status, value = STATUSES[part.statuses[index]], _plain(part.values[index], encoding)
        error = part.errors.get(index)
        said = None if error is None else without_secrets(error, config)
        yield Answer(key, status, value, said, part.attempts[index], part.latencies[index])


def _answers_of_spark(
    name: str, keys: Sequence[Any], types: Sequence[str], options: dict[str, Any], config: ConnectorConfig
) -> Iterator[Answer]:
    from .. import enrich, local

    columns = [f"key{number}" for number in range(len(types))]
    schema = ", ".join(f"{column} {name}" for column, name in zip(columns, types, strict=True))
    with local.spark() as session:
        from pyspark.errors import PySparkException

        frame = session.createDataFrame([key if isinstance(key, tuple) else (key,) for key in keys], schema)
        try:
            rows = frame.select(enrich(name, *columns, **options).alias("found")).collect()
        except PySparkException as error:
            # Python's and Java's traces stand around the line with our error.
            lines = [line for line in str(error).splitlines() if line.startswith("enrichkit.")] or [str(error)]
            raise SourceError(without_secrets(lines[-1], config)) from error
    for key, (found,) in zip(keys, rows, strict=True):
        answer = found.asDict(recursive=True)
        said = None if found.error is None else without_secrets(found.error, config)
        yield Answer(key, found.status, answer["value"], said, found.attempts, found.latency)


def _plain(value: Any, encoding: str) -> Any:
    """Return the answer of a connector as people read it: text for bytes that are text, the content of a document."""
    if encoding == "json" and isinstance(value, bytes | str):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return _plain(value, "text")
    if isinstance(value, bytes) and encoding != "python":
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {_plain(key, encoding): _plain(part, encoding) for key, part in value.items()}
    return value


def _row(answer: Answer) -> Sequence[Part]:
    # The engine's clock ticks in milliseconds where uvloop is installed.
    spent = seconds(answer.latency) if answer.latency else "<0.001 s"
    style = colour(answer.status)
    said: Part = (answer.error or "", style)
    if answer.status == "ok":
        said = answer.value if isinstance(answer.value, str) else repr(answer.value)
    return repr(answer.key), (answer.status, style), f"{answer.attempts:,}", spent, said
