"""The connectors of language models: a prompt for each key, and an answer of the declared type."""

from __future__ import annotations

import re
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from enrichkit.errors import ConfigError, ContractError, PermanentError, TransientError
from enrichkit.plugin import Call, Failure, Key, Value

from .config import ChatConfig, ResponsesConfig
from .model import ModelConnector
from .price import Spent, priced
from .prompt import KEY_TYPES, Prompt
from .schema import mismatch, schema_of
from .service import object_of, tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ChatConnector", "ResponsesConnector"]

OUTPUT_TOKENS = 50
"""Estimated tokens of an answer, if the config has no `max_tokens`."""
REPEAT = "Your answer does not fit the schema: {} Answer again, with the JSON document and nothing else."
REPEAT_TOKENS = 500
"""An upper bound for the tokens that a repeat sends besides the first request and the first answer."""
_FENCED = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL).fullmatch


class ChatConnector(ModelConnector[ChatConfig]):
    """A language model behind `/chat/completions`: one request for each key."""

    name = "llm"
    config_class = ChatConfig
    capacity = 32
    key_types: ClassVar[tuple[type, ...]] = KEY_TYPES
    path: ClassVar[str] = "/chat/completions"

    def __init__(self, config: ChatConfig) -> None:
        super().__init__(config)
        self._prompt = Prompt(config.prompt, config.images, type(config).__name__)
        ddl = str(config.returns or "string")
        choices = dict(config.choices)
        self._schema: dict[str, Any] | None = None
        if ddl.strip().lower() != "string" or "" in choices:
            self._schema = schema_of(ddl, choices, config.optional)
        # The top of a strict schema must be an object, so any other value is wrapped in an object with one field.
        self._wrapped = self._schema is not None and "properties" not in self._schema
        if self._schema is not None and self._wrapped:
            inner = {"type": "object", "properties": {"value": self._schema}, "required": ["value"]}
            self._schema = {**inner, "additionalProperties": False}
        self.encoding = "text" if ddl.strip().lower() == "string" else "json"
        self._constant_tokens = tokens_of(f"{config.system or ''}{self._schema or ''}")

    def cost(self, keys: Sequence[Key]) -> Mapping[str, float]:
        """Return the number of requests, and an estimate of the tokens of the prompts and of the answers."""
        read = 0
        for key in keys:
            parts = key if isinstance(key, tuple) else (key,)
            read += self._constant_tokens + sum(tokens_of(part) if isinstance(part, str) else 8 for part in parts)
        written = len(keys) * (self.config.max_tokens or OUTPUT_TOKENS)
        return {"requests": float(len(keys)), **priced(read, written, self.config.price)}

    def most(self, keys: Sequence[Key]) -> Mapping[str, float]:
        """Return the most tokens (and cost) that requests for *keys* may take, with repeats; see `Connector.most`."""
        config = self.config
        if config.max_tokens is None or config.images:
            wrong = "images is set" if config.images else "max_tokens is None"
            raise ConfigError(
                f"{type(config).__name__}.{wrong}, so that nobody knows what a call may take of a budget. Set "
                "max_tokens=500 and no images, or leave budget out."
            )
        read = written = 0
        for key in keys:
            try:
                once = self._service.most_tokens(self.request_of(key))
            except PermanentError:
                continue  # such a key is refused without a request
            # For a repeat, the model reads the request again, the first answer, and what was wrong with the answer.
            read += once + config.repeats * (once + config.max_tokens + REPEAT_TOKENS)
            written += (1 + config.repeats) * config.max_tokens
        return priced(read, written, config.price)

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Ask the model about one key; see `Connector.fetch_many`."""
        if len(keys) != 1:
            raise ContractError(
                f"The llm connector was given {len(keys):,} keys for one request; it takes 1, as its max_batch_size "
                "says. Call it once for each key."
            )
        key, spent = keys[0], Spent(call, self.config.price)
        try:
            document = self.request_of(key)
        except PermanentError as error:
            spent.report(0)
            return {key: Failure(error, rejected=True)}
        answer = await self._answer(document, call, spent)
        return {} if answer is None else {key: [answer] if call.many else answer}

    async def _answer(self, document: dict[str, Any], call: Call, spent: Spent) -> Any:
        """
        Return the model's answer, or None if it gave none. If the first answer does not fit the declared type and
        `repeats` is 1, ask again.
        """
        end = monotonic() + call.timeout
        body = await self._service.ask(document, call, call.timeout, spent)
        for _ in range(self.config.repeats):
            value, problem = self._read(body, spent)
            if problem is None:
                return value
            self._add_repeat(document, str(value), REPEAT.format(problem))
            body = await self._service.ask(document, call, max(end - monotonic(), 0.001), spent)
        return self.answer_of(body, spent)

    def request_of(self, key: Key) -> dict[str, Any]:
        """Return the request for *key*; raises `PermanentError` for a key that cannot be sent."""
        parts = key if isinstance(key, tuple) else (key,)
        return self._document(self._prompt.text(parts), self._prompt.images(parts))

    def answer_of(self, body: bytes, spent: Spent) -> Any:
        """Return the value in an answer, or None if it has none; raises `PermanentError` for an unusable answer."""
        value, problem = self._read(body, spent)
        if problem is None:
            return value
        wrong = PermanentError(f"The model's answer does not fit the declared type: {problem}")
        wrong.said = value[:300]
        raise wrong

    def _read(self, body: bytes, spent: Spent) -> tuple[Any, str | None]:
        """
        Return `(value, None)` for an answer that fits the declared type; the value is None if the model gave no text.
        Return `(text, reason)` for another answer: the model's text, and why it does not fit.
        """
        content, cut_off = self._content(body, spent)
        value, problem = (content, None) if content is None or self._schema is None else self._checked(content)
        if problem is None and (self._schema is not None or not cut_off):
            return value, None
        if cut_off:  # a whole JSON document was returned above, even if blanks after it were cut off
            raise PermanentError("The answer was cut off: it has as many tokens as are allowed. Raise max_tokens.")
        return content, problem

    def _checked(self, content: str) -> tuple[Any, str | None]:
        """
        Return `(value, None)` with the encoded value in *content*, or `(None, reason)` if *content* does not fit the
        schema.
        """
        assert self._schema is not None
        fenced = _FENCED(content)
        try:
            document = msgspec.json.decode(content if fenced is None else fenced[1])
        except (msgspec.DecodeError, RecursionError):
            return None, "It is no JSON document."
        problem = mismatch(document, self._schema)
        if problem is not None:
            return None, problem
        value = document["value"] if self._wrapped else document
        return value if self.encoding == "text" or value is None else msgspec.json.encode(value), None

    def _content(self, body: bytes, spent: Spent) -> tuple[str | None, bool]:
        """Return the model's text in an answer (None if there is no text), and whether the text was cut off."""
        try:
            document = object_of(body)
        except TransientError:
            spent.report(known=False)
            raise
        spent.add(document.get("usage"))
        content: Any = ...
        refused = reason = None
        # If the answer has another form, `content` stays `...`, and the first check below raises an error.
        with suppress(LookupError, TypeError, AttributeError):
            content, refused, reason = self._said(document)
        if not isinstance(content, str | None):
            raise PermanentError("The answer has not the form of the API: it holds no text of a model. Check base_url.")
        if refused:
            raise PermanentError("The model refused to answer.")
        if reason == "content_filter":
            raise PermanentError("The service withheld the answer: its content filter says no.")
        return content, reason in ("length", "max_output_tokens")

    def _said(self, document: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Return the model's text, its refusal, and why it stopped; raises an error if *document* has another form."""
        choice = document["choices"][0]
        return choice["message"].get("content"), choice["message"].get("refusal"), choice.get("finish_reason")

    def _document(self, text: str, images: Sequence[str]) -> dict[str, Any]:
        """Return the request for a prompt of *text* and *images*."""
        content: Any = text
        if images:
            parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
            content = [*parts, *({"type": "image_url", "image_url": {"url": url}} for url in images)]
        config = self.config
        system = [] if config.system is None else [{"role": "system", "content": config.system}]
        document: dict[str, Any] = {"model": config.model, "messages": [*system, {"role": "user", "content": content}]}
        if self._schema is not None:
            form = {"name": "answer", "strict": True, "schema": self._schema}
            document["response_format"] = {"type": "json_schema", "json_schema": form}
        return document | _given(temperature=config.temperature, max_tokens=config.max_tokens)

    def _add_repeat(self, document: dict[str, Any], content: str, wrong: str) -> None:
        """
        Prepare the request *document* for a repeat: add the answer *content*, and the message *wrong*, which says what
        is wrong with this answer.
        """
        said = [{"role": "assistant", "content": content}, {"role": "user", "content": wrong}]
        document["messages"] = [*document["messages"], *said]


class ResponsesConnector(ChatConnector):
    """A language model behind `/responses`: one request for each key."""

    name = "llm-responses"
    config_class = ResponsesConfig
    path = "/responses"

    def _said(self, document: dict[str, Any]) -> tuple[Any, Any, Any]:
        messages = [each for each in document["output"] if each.get("type") == "message"]
        parts = [part for message in messages for part in message["content"]]
        texts = [part["text"] for part in parts if part.get("type") == "output_text"]
        refused = any(part.get("type") == "refusal" for part in parts)
        reason = (document.get("incomplete_details") or {}).get("reason")
        return "".join(map(str, texts)) if texts else None, refused, reason

    def _document(self, text: str, images: Sequence[str]) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "input_text", "text": text}] if text or not images else []
        content += [{"type": "input_image", "image_url": url} for url in images]
        config = self.config
        document: dict[str, Any] = {"model": config.model, "input": [{"role": "user", "content": content}]}
        if self._schema is not None:
            form = {"type": "json_schema", "name": "answer", "strict": True, "schema": self._schema}
            document["text"] = {"format": form}
        return document | _given(
            instructions=config.system, temperature=config.temperature, max_output_tokens=config.max_tokens
        )

    def _add_repeat(self, document: dict[str, Any], content: str, wrong: str) -> None:
        said = {"role": "assistant", "content": [{"type": "output_text", "text": content}]}
        again = {"role": "user", "content": [{"type": "input_text", "text": wrong}]}
        document["input"] = [*document["input"], said, again]


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
