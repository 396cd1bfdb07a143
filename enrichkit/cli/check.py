"""`check`: opens one source and looks up some keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ..outcome import STATUSES, Outcomes
from ..reports.text import seconds
from ..sources.config import find_source
from .arguments import keys_of, types_of
from .output import Part, colour, columns, heading, indented
from .probe import OUTCOMES_AS_DATA, Probe, SourceError, describe, without_secrets

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..interface import ConnectorConfig

__all__ = ["Answer", "Check", "check"]

FAILED = ("timeout", "error", "rejected")


@dataclass(frozen=True)
class Answer:
    """
    The outcome of one key.

    Attributes:
        key: The key, as the connector gets it.
        status: One of `enrichkit.outcome.STATUSES`.
        value: The value; None unless *status* is `ok`.
        error: Message of the error; None when the lookup did not fail.
        attempts: Number of calls made for the key.
        latency: Seconds from the first call to the outcome.
    """

    key: Any
    status: str
    value: Any
    error: str | None
    attempts: int
    latency: float


@dataclass(frozen=True)
class Check:
    """
    The result of `check`.

    Attributes:
        source: Name of the source.
        connector: Name of the source's connector.
        config: The config as text, without its secrets.
        opened: Seconds that the connector took to open.
        value_type: DDL of one value; None when the config declares no type and the source cannot tell it.
        value_from: Where *value_type* comes from: the config or the source.
        answers: The outcome of each distinct key.
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
        """Number of keys without an answer. A miss is an answer."""
        return sum(answer.status in FAILED for answer in self.answers)

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        declared = self.value_type or "not known: the config has no returns, and the source cannot tell the type"
        yield heading(f"The source {self.source!r}")
        facts = {
            "connector": self.connector,
            "config": self.config,
            "opened": f"in {_took(self.opened)}",
            "value": re.sub(r",\s*", ", ", declared),
            **({"type from": self.value_from} if self.value_type is not None else {}),
        }
        yield columns(list(facts.items()))
        yield ""
        if self.answers:
            heads = ("key", "status", "attempts", "time", "answer")
            yield columns([_row(answer) for answer in self.answers], heads, numbers=("attempts", "time"))
        else:
            yield indented("Name a KEY to see its value. Some connectors connect only when they look up the first key.")


def check(name: str, texts: Sequence[str], types: str | None, options: dict[str, Any], *, spark: bool = False) -> Check:
    """
    Open the source *name* and look up the keys that *texts* describe.

    Args:
        name: Name of the source.
        texts: Texts of the keys, see `keys_of`.
        types: Spark types of the key columns, see `keys_of`.
        options: Options of `enrich`.
        spark: Whether to look the keys up in a Spark job on this machine; the job decodes values as the declared type.

    Raises:
        ConfigError: No source has this name, its config is wrong, or a text is not a key.
        SourceError: The source cannot be opened, or the Spark job failed.
        LocalServerError: Spark is not installed or cannot start.
    """
    name, connector, config = find_source(name)
    keys = keys_of(texts, types, config)
    value_type, opened = describe(connector, config)
    answers: list[Answer] = []
    if keys and spark:
        answers += _answers_of_spark(name, keys, types_of(types, config), {**options, **OUTCOMES_AS_DATA}, config)
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
    details = part.details
    assert details is not None
    for index, key in enumerate(part.keys):
        status, value = STATUSES[part.statuses[index]], _plain(part.values[index], encoding)
        error = part.errors.get(index)
        message = None if error is None else without_secrets(error, config)
        yield Answer(key, status, value, message, details.attempts[index], details.latencies[index])


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
            rows = frame.select(enrich(name, *columns, **options).alias("outcome")).collect()
        except PySparkException as error:
            # The text also has stack traces of Python and Java, but users need only the line with enrichkit's error.
            lines = [line for line in str(error).splitlines() if line.startswith("enrichkit.")] or [str(error)]
            raise SourceError(without_secrets(lines[-1], config)) from error
    for key, (outcome,) in zip(keys, rows, strict=True):
        value = outcome.asDict(recursive=True)["value"]
        message = None if outcome.error is None else without_secrets(outcome.error, config)
        yield Answer(key, outcome.status, value, message, outcome.attempts, outcome.latency)


def _plain(value: Any, encoding: str) -> Any:
    """Return the answer of a connector in readable form: UTF-8 bytes as text, and JSON as the value it describes."""
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
    # With uvloop the engine's clock has a resolution of a millisecond, so a latency may be 0.
    latency = _took(answer.latency)
    style = colour(answer.status)
    result: Part = (answer.error or "", style)
    if answer.status == "ok":
        result = answer.value if isinstance(answer.value, str) else repr(answer.value)
    return repr(answer.key), (answer.status, style), f"{answer.attempts:,}", latency, result


def _took(passed: float) -> str:
    """Return a duration as text; if it is below a millisecond, the resolution of the clock, return "<0.001 s"."""
    return seconds(passed) if passed >= 0.001 else "<0.001 s"
