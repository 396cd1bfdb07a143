"""The requests to a service of models, sent by enrichkit-http, and the handling of the service's rate limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from enrichkit_http import Exchange, LimitedError

from enrichkit.errors import ConnectorError, PermanentError, TransientError, UnavailableError

if TYPE_CHECKING:
    from enrichkit.plugin import Call

    from .config import ModelConfig
    from .price import Spent

__all__ = ["Service", "object_of", "tokens_of"]

_ADVICE = re.compile(r"; a value comes with .*|\. [^.]*HttpConfig.*", re.DOTALL)
BYTES_PER_TOKEN = 4
"""Estimated bytes of English text per token. The engine corrects estimates by the token counts in the answers."""


def tokens_of(text: str) -> int:
    """Return an estimate of the number of tokens in *text*."""
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 1


def object_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object in *body*; raises `TransientError` for anything else."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise TransientError(f"The answer of {len(body):,} bytes is no JSON object, as those of the API are.") from None


class Service:
    """
    A sender of a connector's requests to one path of the API.

    Args:
        config: Config of the source.
        path: Path that is appended to `base_url`, for example `/embeddings`.
    """

    def __init__(self, config: ModelConfig, path: str) -> None:
        http = config.http(path)
        self._url = http.url
        self._exchange = Exchange(http)
        self._extra: dict[str, Any] = msgspec.json.decode(config.extra)
        self.open, self.close = self._exchange.open, self._exchange.close

    def most_tokens(self, document: dict[str, Any]) -> int:
        """Return an upper bound for the tokens of *document*: its bytes, because each token has at least one byte."""
        return len(self.encoded(document))

    async def ask(self, document: dict[str, Any], call: Call, timeout: float, spent: Spent) -> bytes:
        """
        Send *document* and return the body of the answer.

        *spent* counts what the requests cost; a request without an answer is reported to it, too. Raises the same
        errors as `send`.
        """
        return await self.send("", self.encoded(document), call, timeout, spent)

    def encoded(self, document: dict[str, Any]) -> bytes:
        """Return *document*, with the further fields of the config, as JSON."""
        return msgspec.json.encode(document | self._extra)

    async def send(self, path: str, body: bytes | None, call: Call, timeout: float, spent: Spent, **more: Any) -> bytes:
        """
        Send *body* in a POST, or a GET if it is None, to the service's address with *path* appended; return the
        answer's body.

        Args:
            path: Path and query.
            body: Body of the request; None: a GET.
            call: The engine's `Call`, which takes reports of rate limits.
            timeout: Seconds after which the request is aborted.
            spent: The counter to which a request without an answer is reported.
            more: The arguments `headers` and `limit` of `Exchange.body`.

        Raises:
            UnavailableError: The service refused the request because of a rate limit. The refusal does not use up any
                of the keys' attempts. If the service asks for a wait, the engine sends no call until the wait is over.
            ConnectorError: Any other error that `fetch_many` may raise.
        """
        limited: LimitedError | None = None
        try:
            answer = await self._exchange.body(self._url + path, body, call, timeout, **more)
        except LimitedError as error:
            limited = error
            spent.report()
        except ConnectorError as error:
            # A request costs nothing if the service has answered it with an error, or has never received it. Otherwise
            # the cost of the request is unknown.
            spent.report(known=bool(error.said) or not getattr(error, "sent", True))
            if not isinstance(error, PermanentError):
                raise
            # The error advises the user to change HttpConfig. This advice is cut off, because the user has written no
            # HttpConfig.
            refused = PermanentError(_ADVICE.sub(". Its own words are shown with show_keys=True.", str(error)))
            refused.said = error.said
            raise refused from None
        if limited is not None:
            if limited.retry_after is not None:
                call.allows(0, limited.retry_after)
            # Because the error has a `node`, it delays only these keys, and no attempt is counted. Without a `node`,
            # the engine would take the error for an outage of the whole service.
            raise UnavailableError(str(limited), retry_after=limited.retry_after, node="the limit of the service")
        # None is an error and not a miss, because the `HttpConfig` from `config.http` names no status of a miss.
        if answer is None:
            spent.report(known=False)
            raise PermanentError("The service answered without a body.")
        return answer
