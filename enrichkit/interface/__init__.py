"""
What a plugin extends: a config that travels to the workers, and a connector that stays on its worker.

    call.py         a call, and the answers that are not values
    config.py       the config of a source
    connector.py    the connector
    batch_form.py   the batch form of a connector, for a service that answers files of requests later
    descriptors.py  why no more files can be opened
    time_limit.py   a time limit for an operation of several round trips
"""

from __future__ import annotations

from ..columnar import Answers, Key, Keys, Value
from .batch_form import BatchForm, BatchStatus
from .call import Absent, Call, Failure, Meter, TaskInfo
from .config import ConnectorConfig, Returns, check_key_parts
from .connector import Connector, connector_of
from .descriptors import files_exhausted
from .time_limit import time_limit

__all__ = [
    "Absent",
    "Answers",
    "BatchForm",
    "BatchStatus",
    "Call",
    "Connector",
    "ConnectorConfig",
    "Failure",
    "Key",
    "Keys",
    "Meter",
    "Returns",
    "TaskInfo",
    "Value",
    "check_key_parts",
    "connector_of",
    "files_exhausted",
    "time_limit",
]
