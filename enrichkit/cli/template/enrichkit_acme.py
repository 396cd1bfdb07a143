"""The acme connector of enrichkit. At first it reads a JSON file: replace the file with your store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enrichkit import Call, ConfigError, Connector, ConnectorConfig, FatalError, hookimpl

__all__ = ["AcmeConfig", "AcmeConnector"]


@dataclass(frozen=True, kw_only=True)
class AcmeConfig(ConnectorConfig):  # users create it, and Spark sends it to the workers: use plain, hashable values
    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ConfigError(f"AcmeConfig.path is {self.path!r}; it must name a file, for example 'acme.json'.")


class AcmeConnector(Connector[AcmeConfig]):  # the workers create it
    name = "acme"
    config_class = AcmeConfig
    capacity = 8  # calls in flight per worker process; users can change it with an option
    batch_size = 100  # keys per call; users can change it with an option
    max_batch_size = 1000  # the most keys that fetch_many accepts

    async def open(self) -> None:  # called once per worker process; create clients and pools here
        try:
            text = await asyncio.to_thread(Path(self.config.path).read_text, "utf-8")  # blocking calls need a thread
            self._values: dict[str, Any] = json.loads(text)
        except (OSError, ValueError) as error:
            raise FatalError(f"acme cannot read its file: {type(error).__name__}.") from error

    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, Any]:
        values = {key: self._values[key] for key in keys if key in self._values}  # leave out keys without a value
        # If call.many is true, the value of a key must be a list of all its matches.
        return {key: [value] for key, value in values.items()} if call.many else values

    async def close(self) -> None:  # called, perhaps twice, when the worker has been idle for a while
        self._values = {}


@hookimpl
def enrichkit_connector() -> type[AcmeConnector]:
    return AcmeConnector
