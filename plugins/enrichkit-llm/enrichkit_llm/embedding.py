"""The connector of embedding models: many texts in a call, and their vectors as one Arrow column."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from enrichkit.errors import PermanentError, TransientError
from enrichkit.plugin import Answers, Call, Failure, Key, Value

from .config import EmbeddingConfig
from .model import ModelConnector
from .price import Spent, priced
from .prompt import is_sendable
from .service import tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

__all__ = ["EmbeddingConnector"]


class _Item(msgspec.Struct):
    index: int
    embedding: str | list[float]


class _Answer(msgspec.Struct):
    data: list[_Item]
    usage: Any = None


_answer = msgspec.json.Decoder(_Answer)


class EmbeddingConnector(ModelConnector[EmbeddingConfig]):
    """
    A model behind `/embeddings`.

    Requests ask for vectors in base64. The bytes of the 32-bit floats become an Arrow column without a conversion, so
    no number is ever a Python object. Lists of numbers, which some services send nevertheless, are read, too.
    """

    name = "llm-embedding"
    config_class = EmbeddingConfig
    capacity = 8
    batch_size = 64
    max_batch_size = 2048
    key_types: ClassVar[tuple[type, ...]] = (str,)
    path: ClassVar[str] = "/embeddings"

    def cost(self, keys: Sequence[Key]) -> Mapping[str, float]:
        """Return the estimated cost of a call for *keys*: one request, and the tokens of the texts."""
        return {"requests": 1.0, **priced(sum(tokens_of(str(key)) for key in keys), 0, self.config.price)}

    def most(self, keys: Sequence[Key]) -> Mapping[str, float]:
        """Return the most tokens (and cost) that the texts may take: each token has at least one byte."""
        return priced(self._service.most_tokens({"input": [str(key) for key in keys]}), 0, self.config.price)

    def request_of(self, key: Key) -> dict[str, Any]:
        """Return the request for one text; raises `PermanentError` for a text that is never sent."""
        if not isinstance(key, str) or not key.strip() or not is_sendable(key):
            raise PermanentError("The text is blank, or holds half of a surrogate pair.")
        return self._document([key])

    def answer_of(self, body: bytes, spent: Spent) -> Any:
        """Return the vector in the answer to one text."""
        return self._vectors_of(body, 1, spent).to_pylist()[0]

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """
        Ask for the vectors of *keys*; see `Connector.fetch_many`.

        A blank text is a miss and is not sent, because services refuse a whole call if one of its texts is blank.
        """
        refused = [key for key in keys if not isinstance(key, str) or not is_sendable(key)]
        texts = [key for key in keys if isinstance(key, str) and key.strip() and is_sendable(key)]
        halves = PermanentError("The key is no text, or holds half of a surrogate pair, which no UTF-8 can carry.")
        others: dict[Key, Any] = {key: Failure(halves, rejected=True) for key in refused}
        spent = Spent(call, self.config.price)
        if not texts:
            spent.report(0)
            return others
        vectors = await self._vectors(texts, call, spent)
        if not others and not call.many:
            return Answers(texts, vectors)
        found = zip(texts, vectors.to_pylist(), strict=True)
        return others | {key: [vector] if call.many else vector for key, vector in found}

    async def _vectors(self, keys: Sequence[str], call: Call, spent: Spent) -> pa.Array[Any]:
        """Return the vectors of *keys*, in the order of the keys."""
        body = await self._service.ask(self._document(keys), call, call.timeout, spent)
        return self._vectors_of(body, len(keys), spent)

    def _document(self, keys: Sequence[str]) -> dict[str, Any]:
        document: dict[str, Any] = {"model": self.config.model, "input": list(keys), "encoding_format": "base64"}
        return document if self.config.dimensions is None else document | {"dimensions": self.config.dimensions}

    def _vectors_of(self, body: bytes, count: int, spent: Spent) -> pa.Array[Any]:
        """Return the vectors in the answer to *count* texts, in the order of the texts."""
        try:
            answer = _answer.decode(body)
        except (msgspec.DecodeError, RecursionError):
            spent.report(known=False)
            raise TransientError(f"The answer of {len(body):,} bytes has not the form of embeddings.") from None
        spent.add(answer.usage)
        if sorted(item.index for item in answer.data) != list(range(count)):
            raise PermanentError(
                f"The answer holds {len(answer.data):,} embeddings for {count:,} texts, or their numbers are "
                "wrong, so it is not known whose they are."
            )
        return _column(sorted(answer.data, key=lambda item: item.index), self.config.dimensions)


def _column(items: Sequence[_Item], dimensions: int | None) -> pa.Array[Any]:
    """Return the vectors of *items* as an Arrow list of floats; raises `PermanentError` for wrong vectors."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if any(isinstance(item.embedding, list) for item in items):
        vectors = pa.array([item.embedding for item in items], pa.list_(pa.float32()))
        if pc.any(pc.is_inf(vectors.flatten())).as_py():  # pyarrow turns a number that is too large into infinity
            raise PermanentError("An embedding has a number that a float of 32 bits cannot hold.")
        lengths = {len(item.embedding) for item in items}
    else:
        try:
            # No `embedding` is a list here, which the type checker does not know.
            parts = [base64.b64decode(item.embedding, validate=True) for item in items]  # type: ignore[arg-type]
        except binascii.Error:
            raise PermanentError("An embedding is neither a list of numbers nor base64.") from None
        if any(len(part) % 4 for part in parts):
            raise PermanentError("An embedding in base64 is not made of floats of 32 bits.")
        lengths = {len(part) // 4 for part in parts}
        offsets = [0]
        for part in parts:
            offsets.append(offsets[-1] + len(part) // 4)
        numbers = pa.Array.from_buffers(pa.float32(), offsets[-1], [None, pa.py_buffer(b"".join(parts))])
        vectors = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), numbers)
    if dimensions is not None and lengths != {dimensions}:
        raise PermanentError(
            f"The embeddings have {', '.join(map(str, sorted(lengths)))} dimensions, and EmbeddingConfig.dimensions is "
            f"{dimensions}. Check whether the model can shorten its vectors."
        )
    return vectors
