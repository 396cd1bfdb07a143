"""The acme connector of enrichkit. As it was made, it reads a JSON file: put your store in its place."""

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
class AcmeConfig(ConnectorConfig):  # what users write and what travels to the workers: plain values that hash
    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ConfigError(f"AcmeConfig.path is {self.path!r}; it must name a file, for example 'acme.json'.")


class AcmeConnector(Connector[AcmeConfig]):  # what lives on a worker
    name = "acme"
    config_class = AcmeConfig
    capacity = 8  # calls in flight per worker process, unless the user says otherwise
    batch_size = 100  # keys per call, likewise
    max_batch_size = 1000

    async def open(self) -> None:  # once per worker process; clients and pools are made here
        try:
            text = await asyncio.to_thread(Path(self.config.path).read_text, "utf-8")  # a blocking call in a thread
            self._values: dict[str, Any] = json.loads(text)
        except (OSError, ValueError) as error:
            raise FatalError(f"acme cannot read its file: {type(error).__name__}.") from error

    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, Any]:
        found = {key: self._values[key] for key in keys if key in self._values}  # an absent key is a miss
        return {key: [value] for key, value in found.items()} if call.many else found  # many: a list of all matches

    async def close(self) -> None:  # after the worker was idle for a while; may come twice
        self._values = {}


@hookimpl
def enrichkit_connector() -> type[AcmeConnector]:
    return AcmeConnector
