"""The base class of the connectors of all models."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from enrichkit.plugin import BatchForm, Connector, Key

from .batches import ModelBatches
from .config import ModelConfig
from .price import units_of
from .service import Service

if TYPE_CHECKING:
    from .price import Spent

__all__ = ["ModelConnector"]

ConfigT = TypeVar("ConfigT", bound=ModelConfig)


class ModelConnector(Connector[ConfigT]):
    """A model behind one path of the API; a subclass makes the requests and reads the answers."""

    requires: ClassVar[tuple[str, ...]] = ("pyreqwest",)
    pip = "pip install 'enrichkit[llm]'"
    reports = True
    path: ClassVar[str]

    def __init__(self, config: ConfigT) -> None:
        super().__init__(config)
        self._service = Service(config, self.path)
        self.units = units_of(config.price)

    async def open(self) -> None:
        """Make the client without connecting it. Raises `FatalError` for a secret or file that cannot be read."""
        await self._service.open(self.capacity)

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    def batches(self) -> BatchForm:
        """Return the batch form, which uses `/files` and `/batches` of the API, with one key in each request."""
        return ModelBatches(self)

    @abstractmethod
    def request_of(self, key: Key) -> dict[str, Any]:
        """Return the request for *key* alone; raises `PermanentError` for a key that cannot be sent."""

    @abstractmethod
    def answer_of(self, body: bytes, spent: Spent) -> Any:
        """
        Return the value in the answer to one key, or None if it has none; raises `PermanentError` for a wrong answer.
        """
