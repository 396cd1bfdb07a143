"""
The options of a journal, and the scope, i.e. the part of a journal that a run writes.

This module imports neither pyarrow nor numpy, because the driver imports it, too, to create and pickle its objects.
"""

from __future__ import annotations

import hashlib
import math
import os
import urllib.parse
from dataclasses import KW_ONLY, dataclass

from ..errors import ConfigError

__all__ = ["Journal", "Scope"]

_LONGEST_RUN_ID = 200
_LONGEST_NAME = 150  # bytes of the quoted part of a folder's name; most file systems allow 255 for the name


@dataclass(frozen=True, slots=True)
class Scope:
    """
    The part of a journal that a run writes, and whether the run also reads other parts.

    Attributes:
        name: Name of the run, for example `run=nightly`.
        shared: Whether the run also reads what other runs with a shared journal have written.
    """

    name: str
    shared: bool = False

    @property
    def folder(self) -> str:
        """Name of the folder that holds the files of the scope."""
        if self.shared:
            return "shared"
        quoted = urllib.parse.quote(self.name, safe="=,")
        return quoted if len(quoted) <= _LONGEST_NAME else f"long={self.mark}"

    @property
    def mark(self) -> str:
        """The prefix of the names of this scope's files; no other scope has the same prefix."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class Journal:
    """
    An append-only store of answers, in which a job looks before it asks a source.

    A replay, i.e. a job that is started again, finds the answers that were written before, and asks the source only for
    keys without an answer. Keys and values are stored as they are, neither encrypted nor hashed.

    Attributes:
        path: A folder that the driver and all workers see, or a URI of an object store: `s3://`, `gs://`, `abfss://`,
            `hdfs://`. A relative path is resolved in the working directory of the driver.
        run_id: Name of this run. A job that is started again with the same name finds the answers of its first start. A
            batch job needs a name, unless *shared* is true; a streaming query uses its own id and the number of the
            micro-batch instead.
        shared: Whether all jobs that use this journal and ask the same source for the same type find each other's
            answers.
        max_age: Seconds after which an answer is not used any more; None: it is used as long as its file exists.
        on_error: What happens when the journal cannot be used: `"warn"` goes on without the journal and logs one
            warning, `"fail"` fails the task.
        sync: Whether each write waits until the data are on the disk. If False, a written answer survives the death of
            any process; if True, also a crash of the machine.

    >>> Journal("/data/answers", run_id="2026-07-30").scope().name
    'run=2026-07-30'
    """

    path: str
    _: KW_ONLY
    run_id: str | None = None
    shared: bool = False
    max_age: float | None = None
    on_error: str = "warn"
    sync: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _checked_path(self.path))
        run_id: object = self.run_id
        if run_id is not None and not (isinstance(run_id, str) and 0 < len(run_id) <= _LONGEST_RUN_ID):
            raise ConfigError(
                f"Journal.run_id is {_shown(run_id)}; it must be a text of 1 to {_LONGEST_RUN_ID} characters, for "
                "example '2026-07-30'."
            )
        for name in ("shared", "sync"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"Journal.{name} is {_shown(getattr(self, name))}; it must be True or False.")
        age: object = self.max_age
        is_number = isinstance(age, int | float) and not isinstance(age, bool)
        if age is not None and not (is_number and 0 < age < math.inf):  # type: ignore[operator]  # it is a number
            raise ConfigError(
                f"Journal.max_age is {_shown(age)}; it must be a number of seconds above 0, or None for no limit, for "
                "example 86400.0 for a day."
            )
        if self.on_error not in ("warn", "fail"):
            raise ConfigError(
                f"Journal.on_error is {_shown(self.on_error)}; it must be 'warn', to go on without the journal, or "
                "'fail', to fail the task."
            )

    def scope(self, query_id: str | None = None, batch_id: int | None = None) -> Scope:
        """
        Return the scope of a run.

        Args:
            query_id: Id of the streaming query; None for a batch job.
            batch_id: Number of the micro-batch.

        Raises:
            ConfigError: The journal of a batch job has no `run_id` and is not `shared`.
        """
        if query_id is not None:
            return Scope(f"query={query_id},batch={batch_id}", self.shared)
        if self.run_id is not None:
            return Scope(f"run={self.run_id}", self.shared)
        if self.shared:
            return Scope("any", shared=True)
        raise ConfigError(
            "Journal.run_id is None; a batch job needs a name under which a second start finds the answers of the "
            "first. Give one, for example run_id='2026-07-30', or share the answers between all runs: shared=True."
        )


def _checked_path(path: object) -> str:
    try:
        path = os.fspath(path)  # type: ignore[call-overload]  # `fspath` raises a TypeError if it is no path
    except TypeError:
        path = None
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ConfigError(
            "Journal.path is no path; it must be the name of a folder or a URI, for example '/data/answers' or "
            "'s3://bucket/answers'."
        )
    if "://" not in path:
        return os.path.abspath(path)
    if urllib.parse.urlsplit(path).password is not None:
        raise ConfigError(
            "Journal.path holds a password, which messages and plans would show; pyarrow finds credentials in the "
            "environment of the workers, for example AWS_SECRET_ACCESS_KEY or an instance role."
        )
    return path


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
