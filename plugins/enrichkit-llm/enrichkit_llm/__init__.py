"""The llm connector of enrichkit: services with OpenAI's API turn texts into typed columns and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.plugin import hookimpl

from .chat import ChatConnector, ResponsesConnector
from .config import ChatConfig, EmbeddingConfig, ModelConfig, ResponsesConfig
from .embedding import EmbeddingConnector
from .price import Price

if TYPE_CHECKING:
    from enrichkit.plugin import Connector

__all__ = [
    "ChatConfig",
    "ChatConnector",
    "EmbeddingConfig",
    "EmbeddingConnector",
    "ModelConfig",
    "Price",
    "ResponsesConfig",
    "ResponsesConnector",
]


@hookimpl
def enrichkit_connector() -> type[Connector[Any]]:
    """Return the connector class of `enrich("llm", ...)`."""
    return ChatConnector
