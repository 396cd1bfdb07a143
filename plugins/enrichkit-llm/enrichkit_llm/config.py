"""The configs of a model: the address of its service, the prompt, and the form of the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from enrichkit_http import HttpConfig

from enrichkit.errors import ConfigError
from enrichkit.plugin import ConnectorConfig, Secret

from .price import price_of
from .prompt import Prompt, numbered
from .schema import named_parts

__all__ = ["ChatConfig", "EmbeddingConfig", "ModelConfig", "ResponsesConfig"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ConnectorConfig):
    """
    The fields that the configs of all kinds of models have in common. A source has one of the subclasses as its config.

    Attributes:
        base_url: Address of the service up to the version, for example `https://api.openai.com/v1`.
        model: Name of the model.
        api_key: `Secret` that is sent as a Bearer token. None: no token is sent. Over `http://` the token is sent only
            to this machine, unless `insecure` is True.
        headers: Further headers, as a mapping or pairs, as in `HttpConfig`; for Azure
            `{"api-key": Secret.env("NAME")}`.
        extra: Further fields of each request, as a mapping, for example `{"seed": 7}`. They must not be fields that the
            connector sets itself.
        proxy: Proxy, as in `HttpConfig`.
        tls_ca: PEM file on the workers with authorities to trust, as in `HttpConfig`.
        insecure: True to accept any certificate, and to allow sending credentials unencrypted, as in `HttpConfig`.
        max_bytes: Most bytes of one response; 1 to 1 GiB.
        price: `Price` of the model, or a mapping of its fields, so that statistics, details of rows and estimates show
            the cost. None: they show only the tokens. When the price changes, the answers in a journal (the store of
            answers of earlier runs) stay valid.

    Raises:
        ConfigError: A field is wrong. Raised on the driver.
    """

    base_url: str
    model: str
    api_key: Secret | None = None
    headers: Any = field(default=(), repr=False)
    extra: Any = field(default=(), repr=False)
    proxy: str | None = None
    tls_ca: str | None = None
    insecure: bool = False
    max_bytes: int = 2**25
    price: Any = field(default=None, metadata={"changes_answers": False})

    _own: ClassVar[tuple[str, ...]] = ("model", "messages", "input", "stream", "response_format")
    _own += ("encoding_format", "dimensions")

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.model, str) or not self.model.strip():
            raise ConfigError(f"{name}.model must be the name of a model, as in 'gpt-5-mini'; it is empty or no text.")
        if not isinstance(self.base_url, str) or not self.base_url or {*"{}?"} & {*self.base_url}:
            raise ConfigError(
                f"{name}.base_url must be the address of the service without query and braces, for example "
                "'https://api.openai.com/v1'."
            )
        if self.api_key is not None and not isinstance(self.api_key, Secret):
            raise ConfigError(
                f"{name}.api_key is a {type(self.api_key).__name__}; it must be a Secret, which no plan shows. Write "
                "Secret.env('OPENAI_API_KEY')."
            )
        object.__setattr__(self, "price", price_of(self.price, name))
        object.__setattr__(self, "base_url", self.base_url.rstrip("/"))
        object.__setattr__(self, "extra", self._checked_extra())
        object.__setattr__(self, "headers", self.http("").headers)

    def _checked_extra(self) -> str:
        """Return the fields in `extra` as JSON text, which is hashable, unlike a mapping."""
        try:
            given = json.loads(self.extra) if isinstance(self.extra, str) else dict(self.extra)
            text = json.dumps(given, allow_nan=False)
        except (TypeError, ValueError):
            given, text = None, ""
        if not isinstance(given, dict):
            raise ConfigError(
                f"{type(self).__name__}.extra is no mapping that JSON can hold; it has further fields of each request. "
                "Write extra={'seed': 7}."
            )
        twice = [each for each in given if each in self._own]
        if twice:
            raise ConfigError(
                f"{type(self).__name__}.extra has {twice[0]!r}, which the connector sets itself. Leave it out, or use "
                "the field of the config."
            )
        return text

    def http(self, path: str) -> HttpConfig:
        """Return the `HttpConfig` for requests to *path*; raises `ConfigError` with the field names of this config."""
        problem = ""
        try:
            return HttpConfig(
                url=self.base_url + path,
                method="POST",
                body='"{0}"',  # never sent: the connector makes each body itself
                idempotent=True,  # a repeated request costs money, but changes nothing at the service
                bearer=self.api_key,
                headers=self.headers,
                missing=(),
                max_bytes=self.max_bytes,
                follow_rate_headers=True,
                proxy=self.proxy,
                tls_ca=self.tls_ca,
                insecure=self.insecure,
            )
        except ConfigError as error:
            problem = str(error)
        name = type(self).__name__
        for theirs, ours in (("HttpConfig.url", f"{name}.base_url"), ("token of bearer", "token of api_key")):
            problem = problem.replace(theirs, ours)
        raise ConfigError(problem.replace("HttpConfig.", f"{name}."))


@dataclass(frozen=True, kw_only=True)
class ChatConfig(ModelConfig):
    """
    A language model behind the endpoint `/chat/completions`.

    Attributes:
        prompt: Text of the user message, in which `{0}`, `{1}` stand for the key columns. Names may be used instead, as
            in `{title} {body}`: each name stands for the key column of this name. Key columns without a name (arguments
            of SQL functions, expressions without an alias) get the remaining names, in the order in which the prompt
            first uses the names. `{{` stands for a brace.
        system: Text of the system message before the prompt, without placeholders. None: no system message.
        images: Numbers or names of the key columns that hold images, each as the bytes of a PNG, JPEG, GIF or WebP
            file, or as the address of such a file. The images follow the text, and need no placeholder in it.
        temperature: Temperature of the model, 0 to 2. None: no temperature is sent, for models that refuse this field.
        max_tokens: Most tokens of an answer, 1 or more. None: as many as the service allows. A cut-off answer is an
            error of its row.
        choices: A mapping of the name of a field of the answer to the values that the field may have, for example
            `{"sentiment": ("good", "bad")}`. A field inside another field is named `outer.inner`; a field inside the
            elements of a list, `list[].inner`. A `Literal` in a class that is given as `returns` has the same effect.
        optional: Names of fields that may be null, written as in `choices`. `T | None` in a class that is given as
            `returns` has the same effect.
        repeats: How often a model is asked again, and told what was wrong, when its answer does not fit `returns`;
            0 or 1.
        returns: Type of one value. `"string"`, the default, is the answer as it is. For any other type, its JSON schema
            is sent with the request, and the answer is checked against the schema.

    >>> from enrichkit import Secret
    >>> ChatConfig(base_url="https://api.openai.com/v1", model="gpt-5-mini", prompt="Is this good? {0}",
    ...     api_key=Secret.env("OPENAI_API_KEY"), returns="string").model
    'gpt-5-mini'
    """

    prompt: str = field(default="{0}", repr=False)
    system: str | None = field(default=None, repr=False)
    images: tuple[int | str, ...] = ()
    temperature: float | None = 0.0
    max_tokens: int | None = None
    choices: Any = ()
    optional: tuple[str, ...] = ()
    repeats: int = 1
    returns: Any = "string"

    _own = (*ModelConfig._own, "instructions", "temperature", "max_tokens", "max_output_tokens", "text")

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        object.__setattr__(self, "images", self._several("images", (int, str), "images=(1,)"))
        object.__setattr__(self, "optional", self._several("optional", (str,), "optional=('phone',)"))
        Prompt(self.prompt, self.images, name)
        if not isinstance(self.system, str | None):
            raise ConfigError(f"{name}.system is a {type(self.system).__name__}; it must be text, or None.")
        if self.temperature is not None and not (_is_number(self.temperature) and 0 <= self.temperature <= 2):
            raise ConfigError(f"{name}.temperature must be a number from 0 to 2, or None. Write temperature=0.0.")
        if self.max_tokens is not None and (type(self.max_tokens) is not int or self.max_tokens < 1):
            raise ConfigError(f"{name}.max_tokens must be a whole number from 1 on, or None. Write max_tokens=500.")
        if self.repeats not in (0, 1):
            raise ConfigError(f"{name}.repeats must be 0 or 1. Write repeats=1.")
        choices, optional = self._parts()
        object.__setattr__(self, "choices", choices)
        object.__setattr__(self, "optional", optional)

    def _several(self, name: str, kinds: tuple[type, ...], example: str) -> tuple[Any, ...]:
        """Return the field *name* as a tuple, even if the user wrote a single value or a list."""
        given = getattr(self, name)
        several = (given,) if isinstance(given, kinds) else given
        if isinstance(several, list | tuple) and all(isinstance(each, kinds) for each in several):
            return tuple(several)
        raise ConfigError(
            f"{type(self).__name__}.{name} is a {type(given).__name__}; it must hold "
            f"{' or '.join('numbers' if kind is int else 'names' for kind in kinds)}. Write {example}."
        )

    def _parts(self) -> tuple[Any, tuple[str, ...]]:
        """Return the choices and optional fields, from the class in `returns` or else from `choices` and `optional`."""
        if not isinstance(self.returns, str | None):
            choices, optional = named_parts(self.returns)
            if choices or optional:
                return tuple(choices.items()), tuple(optional)
        pairs = self.choices.items() if isinstance(self.choices, Mapping) else self.choices
        try:
            found = tuple((str(path), tuple(values)) for path, values in pairs)
            if all(values and not isinstance(values, str) for _, values in found) and {*map(len, found)} <= {2}:
                return found, self.optional
        except (TypeError, ValueError):
            pass  # the error below is raised
        raise ConfigError(
            f"{type(self).__name__}.choices must be a mapping of names of fields to their values, for example "
            "choices={'sentiment': ('good', 'bad')}."
        )

    @property
    def key_parts(self) -> int:
        """Number of key columns that the prompt needs."""
        return Prompt(self.prompt, self.images, type(self).__name__).parts

    def for_columns(self, names: Sequence[str | None]) -> ChatConfig:
        """Return the config with each name in the prompt and the images replaced by the number of its key column."""
        return replace(self, **numbered(self.prompt, self.images, names, type(self).__name__))


@dataclass(frozen=True, kw_only=True)
class ResponsesConfig(ChatConfig):
    """A language model behind the endpoint `/responses`; the fields are those of `ChatConfig`."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(ModelConfig):
    """
    A model that turns texts into vectors by `/embeddings`, many texts in a call.

    Attributes:
        dimensions: Length of a vector, 1 or more. None: the model's default length.
        returns: Type of one value, `"array<float>"`.

    >>> EmbeddingConfig(base_url="http://localhost:8080/v1", model="bge-small").returns
    'array<float>'
    """

    dimensions: int | None = None
    returns: Any = "array<float>"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimensions is not None and (type(self.dimensions) is not int or self.dimensions < 1):
            raise ConfigError(
                "EmbeddingConfig.dimensions must be a whole number from 1 on, or None. Write dimensions=256."
            )

    @property
    def key_parts(self) -> int:
        """Number of key columns: one, which holds the texts."""
        return 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
