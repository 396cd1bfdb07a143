"""Headers that a function of the user computes from each request, for example a signature such as AWS SigV4."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enrichkit.errors import ConfigError, ConnectorError, FatalError, PermanentError, TransientError

from .headers import FRAMING, holds_credential, is_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyreqwest.request import StreamRequest

    from .asking import Headers
    from .config import HttpConfig

__all__ = ["Signer", "UnsignedRequest", "check_sign"]

NO_TEXT = "its text is not shown, it may hold a secret."
EXAMPLE = "Write 'shop.signing:sign', for example."


@dataclass(frozen=True, slots=True)
class UnsignedRequest:
    """
    A request, as it is passed to the function that `HttpConfig.sign` names.

    Attributes:
        method: `"GET"`, `"POST"` or `"PUT"`.
        url: The address as it is sent, percent-encoded, with its query.
        headers: The headers, with names in lower case, without credentials, and without the headers that the client
            adds later, such as `host` and `content-length`.
        body: The body; empty if the request has none.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


def check_sign(config: HttpConfig) -> None:
    """
    Raise `ConfigError` if `sign` is not `module:function`, or if `params` or `form` holds a `Secret`, which a signature
    would not cover.
    """
    name = config.sign
    if name is None:
        return
    module, colon, function = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ConfigError(
            f"HttpConfig.sign is {name!r}; it must name a module and a function of it, which the workers import. "
            f"{EXAMPLE}"
        )
    for field, pairs in (("params", config.param_pairs), ("form", config.form_pairs)):
        hidden = next((each for each, value in pairs if not isinstance(value, str)), None)
        if hidden is not None:
            raise ConfigError(
                f"HttpConfig.{field} gives {hidden!r} a Secret, and sign is given; a function that signs sees no "
                "secret, so its signature would leave that out. Send the secret in a header."
            )


class Signer:
    """
    The function that signs the requests of a source.

    Args:
        config: Config of the source.
        common: Headers that all requests of the source have, without secrets.
    """

    def __init__(self, config: HttpConfig, common: Mapping[str, str]) -> None:
        assert config.sign is not None
        self._name = config.sign
        shown = [(name.lower(), value) for name, value in config.pairs if not holds_credential((name, value))]
        self._shown = frozenset(name for name, _ in shown) | {"idempotency-key"}
        self._common = {
            **common,
            **{name: value for name, value in shown if isinstance(value, str) and "{" not in value},
        }
        self._taken = {*common, *(name.lower() for name, _ in config.pairs), *FRAMING, "host"}
        if config.oauth is not None:
            self._taken.add("authorization")
        self._sign: Callable[[UnsignedRequest], Any] | None = None

    def load(self) -> None:
        """Import the function. Raises `FatalError` if the import fails, or if the imported object is not callable."""
        module, _, function = self._name.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except Exception as error:  # noqa: BLE001  # the user's module may raise anything; its text may hold a secret
            said = type(error).__name__
        else:
            said = "" if callable(found) else f"a {type(found).__name__}"
        if said:
            raise FatalError(
                f"HttpConfig.sign {self._name!r} cannot be used on this worker ({said}); it must be a function of a "
                "module there. Ship the package with the job."
            )
        self._sign = found

    async def sign(self, request: StreamRequest, headers: Headers, body: bytes | None, timeout: float) -> None:
        """
        Add to *request* the headers that the function returns.

        Args:
            request: The request that will be sent.
            headers: The headers of this request alone, without the headers that all requests have.
            body: Body of the request; None: no body.
            timeout: Seconds within which an asynchronous function must return.

        Raises:
            PermanentError: The function raised an error other than `ConnectorError`, or returned a header that cannot
                be sent, or a header that the config or the connector sets, too.
            ConnectorError: The function raised a `ConnectorError`, whose text is left out, or exceeded *timeout*.
        """
        own = {name: value for name, value in headers if name in self._shown}
        unsigned = UnsignedRequest(request.method, str(request.url), self._common | own, body or b"")
        signature = await self._signature(unsigned, timeout)
        if isinstance(signature, ConnectorError):
            raise signature
        for name, value in signature:
            request.headers[name] = value

    async def _signature(self, unsigned: UnsignedRequest, timeout: float) -> list[tuple[str, str]] | ConnectorError:
        """
        Return the headers that the function gives, or an error.

        The error is not raised, so that no traceback shows the variables of this frame, which may hold a secret.
        """
        assert self._sign is not None
        try:
            signature = self._sign(unsigned)
            if inspect.isawaitable(signature):
                async with asyncio.timeout(timeout):
                    signature = await signature
        except TimeoutError:
            return TransientError(f"HttpConfig.sign {self._name!r} gave no headers within {timeout:.3g} s.")
        except Exception as caught:  # noqa: BLE001  # the user's code may raise anything
            text = f"HttpConfig.sign {self._name!r} raised {type(caught).__name__}; {NO_TEXT}"
            if isinstance(caught, TransientError):
                return TransientError(text, retry_after=caught.retry_after)
            return FatalError(text) if isinstance(caught, FatalError) else PermanentError(text)
        return self._checked(signature)

    def _checked(self, signature: Any) -> list[tuple[str, str]] | ConnectorError:
        """Return the function's headers, or an error if they cannot be sent or would replace other headers."""
        pairs = list(signature.items()) if isinstance(signature, Mapping) else None
        if pairs is None or not all(is_header(name, value) for name, value in pairs):
            found = "a header that cannot be sent" if pairs is not None else f"a {type(signature).__name__}"
            return PermanentError(
                f"HttpConfig.sign {self._name!r} returned {found}; it must return a mapping of names to values, each "
                "of visible ASCII. The value is not shown, it may be a secret."
            )
        lowered = [(name.lower(), value) for name, value in pairs]
        taken = next((name for name, _ in lowered if name in self._taken), None)
        if taken is not None:
            return PermanentError(
                f"HttpConfig.sign {self._name!r} returned the header {taken!r}, which the request has from "
                "elsewhere; each header is given once. Leave it out in one place."
            )
        return lowered
