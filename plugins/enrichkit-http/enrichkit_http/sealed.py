"""
The secrets in the query parameters and in the form fields of a request.

A traceback may show the variables of all its frames, so secrets must not be in variables. On a worker, a `Sealed`
object resolves the secrets, keeps them, and writes them into the requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from enrichkit.errors import ConfigError, FatalError
from enrichkit.plugin import Secret

from .checks import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyreqwest.request import RequestBuilder

    from .config import HttpConfig
    from .fields import Named

__all__ = ["Sealed", "sealed"]


class Sealed:
    """
    The resolved secrets in `params` and `form` of a config. The client itself holds the secrets in the headers.

    Raises:
        FatalError: A secret is absent on this worker.
    """

    __slots__ = ("_form", "_query")

    def __init__(self, config: HttpConfig) -> None:
        try:
            self._query = _resolved(config.param_pairs)
            self._form = urlencode(_resolved(config.form_pairs)).encode()
        except ConfigError as error:
            raise FatalError(str(error)) from None

    def __repr__(self) -> str:
        return "<Sealed: ***>"

    def add_query(self, builder: RequestBuilder, url: str) -> RequestBuilder:
        """Return *builder* with the secret parameters added, except parameters that *url* has already."""
        if not self._query:
            return builder
        present = names_in(url.partition("?")[2])
        return builder.query([pair for pair in self._query if pair[0] not in present])

    def add_body(self, builder: RequestBuilder, body: bytes) -> RequestBuilder:
        """Return *builder* with *body*, to which the secret fields of the form are added."""
        return builder.body_bytes(body + b"&" * bool(body and self._form) + self._form)


def _resolved(pairs: Iterable[Named]) -> list[tuple[str, str]]:
    return [(name, value.resolve()) for name, value in pairs if isinstance(value, Secret)]


def sealed(config: HttpConfig) -> Sealed | None:
    """Return the secrets in `params` and `form` of *config*, or None if there are none."""
    pairs = (*config.param_pairs, *config.form_pairs)
    return Sealed(config) if any(isinstance(value, Secret) for _, value in pairs) else None
