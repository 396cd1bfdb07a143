"""Whether a response with the status of a success says in its document that it is an error."""

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
    The fields `errors` and `success` of a source.

    Attributes:
        asked: True when the source has one of the fields, so that each document has to be looked at.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._errors = Path(config.errors) if config.errors else None
        self._success = Path(config.success) if config.success else None
        self.asked = self._errors is not None or self._success is not None

    def check(self, document: bytes) -> None:
        """
        Look at a JSON *document*, which may be that of a page or an element of a bulk response; null says nothing.

        Raises:
            PermanentError: The document says that it is an error; its `said` holds the beginning of what it says.
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
        if (
            self._config.oauth is None
        ):  # a token that was fetched, and that the service repeats, is known elsewhere only
            error.said = shown(said, self._config, None)
        return error
