"""
All that the package of a connector may import from enrichkit, besides `enrichkit`, `enrichkit.errors` and
`enrichkit.sql`.

Everything else may change in any release. Importing this module takes little time, because it loads neither pyarrow nor
pyspark nor msgspec, and no plugin.

| name | use |
|---|---|
| `hookimpl` | marks the function `enrichkit_connector`, which returns the connector class of the package |
| `ConnectorConfig`, `Connector` | base classes of the config and of the connector |
| `Call`, `TaskInfo` | facts about one call of `fetch_many`, and about the Spark task that the call is made for |
| `Key`, `Value` | types of a key and of an answer, for annotations |
| `Keys`, `Answers` | keys in columns, answers in columns |
| `Failure`, `Absent` | the answers for a key that failed, and for a key whose answer has no value at a path |
| `BatchForm`, `BatchStatus` | the batch form of a connector, for a service that answers files of requests later |
| `objects_of` | the Python objects of a column |
| `Secret`, `reveal`, `redact` | a reference to a secret, the secret itself, and a text without secrets |
| `secrets_of` | the references to secrets in a config, or in some of its fields |
| `revealed`, `fresh`, `refuse` | `reveal` on a thread; whether a secret is in memory; the report that it was refused |
| `RefusedLogin` | the pause after a refused login, because more attempts could lock the account |
| `tls_context` | a TLS context from the certificate files that a config names |
| `RenewedContext` | a TLS context that is made again for the next connection when a file has changed |
| `file_stamp` | a value that changes when a file is changed or replaced |
| `files_exhausted` | the text that explains the error "Too many open files" |
| `time_limit` | a time limit for an operation of several round trips, such as a login |
| `LeaseStore`, `Ask`, `Grant`, `grant` | a store of job-wide limits; a question, an answer, and the rules of answers |
| `Draw`, `Drawn`, `draw`, `ALIVE` | the same for a budget; the seconds after which silent workers are taken for dead |
| `did_you_mean` | a hint for the message about a misspelt name |
| `fields_of` | names and types of the fields in the DDL of a struct |
"""

from __future__ import annotations

from .columnar import Answers, Key, Keys, Value, objects_of
from .errors import did_you_mean
from .hookspecs import hookimpl
from .interface import (
    Absent,
    BatchForm,
    BatchStatus,
    Call,
    Connector,
    ConnectorConfig,
    Failure,
    TaskInfo,
    files_exhausted,
    time_limit,
)
from .leases import ALIVE, Ask, Draw, Drawn, Grant, LeaseStore, draw, grant
from .secrets import RefusedLogin, Secret, fresh, redact, refuse, reveal, revealed, secrets_of
from .tls import RenewedContext, file_stamp, tls_context
from .values.ddl import fields_of

__all__ = [
    "ALIVE",
    "Absent",
    "Answers",
    "Ask",
    "BatchForm",
    "BatchStatus",
    "Call",
    "Connector",
    "ConnectorConfig",
    "Draw",
    "Drawn",
    "Failure",
    "Grant",
    "Key",
    "Keys",
    "LeaseStore",
    "RefusedLogin",
    "RenewedContext",
    "Secret",
    "TaskInfo",
    "Value",
    "did_you_mean",
    "draw",
    "fields_of",
    "file_stamp",
    "files_exhausted",
    "fresh",
    "grant",
    "hookimpl",
    "objects_of",
    "redact",
    "refuse",
    "reveal",
    "revealed",
    "secrets_of",
    "time_limit",
    "tls_context",
]
