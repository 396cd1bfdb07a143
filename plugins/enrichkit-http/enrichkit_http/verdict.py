"""The check whether a response with a success status reports an error in its JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from enrichkit.errors import PermanentError

from .document import ABSENT, Path
from .excerpt import shown

if TYPE_CHECKING:
    from .config import HttpConfig

__all__ = ["Verdict"]


class Verdict:
    """
    The check of responses by the fields `errors` and `success` of a config.

    Attributes:
        asked: Whether the config has one of these fields, so that each document must be checked.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._errors = Path(config.errors) if config.errors else None
        self._success = Path(config.success) if config.success else None
        self.asked = self._errors is not None or self._success is not None

    def check(self, document: bytes) -> None:
        """
        Check a JSON *document*: a response, a page, or an element of a bulk response. A null is no error.

        Raises:
            PermanentError: The document reports an error. The exception's attribute `said` holds the beginning of what
                the service reports. With `oauth`, `said` is empty.
        """
        if document == b"null":
            return
        is_object = document[:1] == b"{"
        if self._errors is not None and is_object:
            found = self._errors.find(document)
            if found is not ABSENT and msgspec.json.decode(found):
                raise self._failed(f"something at {self._config.errors!r}", found)
        if self._success is not None:
            found = self._success.find(document) if is_object else ABSENT
            if found != b"true":
                raise self._failed(f"no true at {self._config.success!r}", document)

    def _failed(self, why: str, said: bytes) -> PermanentError:
        error = PermanentError(f"The answer says that it is an error: it has {why}.")
        # With oauth the service may repeat the fetched token, which is not known here and so could not be redacted.
        if self._config.oauth is None:
            error.said = shown(said, self._config, None)
        return error
