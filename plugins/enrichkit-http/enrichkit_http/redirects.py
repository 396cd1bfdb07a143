"""The redirects of a GET, which are followed only if the config says so, and only inside the origin of the source."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from enrichkit.errors import ConfigError, PermanentError

if TYPE_CHECKING:
    from .asking import Asking, Send
    from .client import Reply

__all__ = ["REDIRECTS", "RedirectError", "Redirects", "check_redirects"]

# RFC 9110, section 15.4. 300 and 304 are no redirects here, because they name no address to which the request could be
# sent instead.
REDIRECTS = (301, 302, 303, 307, 308)


class RedirectError(Exception):
    """
    The service answered with a redirect inside its origin.

    Attributes:
        address: The address to send the request to instead.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address


def check_redirects(redirects: Any, method: str) -> None:
    """Raise `ConfigError` for a wrong number of redirects, and for redirects of a request that is not a GET."""
    if type(redirects) is not int or not 0 <= redirects <= 10:
        raise ConfigError(
            f"HttpConfig.redirects is {redirects!r}; it must be a whole number from 0 to 10. Write 3, or leave it out."
        )
    if redirects and method != "GET":
        raise ConfigError(
            f"HttpConfig.redirects is {redirects} with method {method!r}; only a GET is sent on to another address. "
            "Leave redirects out, and write the final address into url."
        )


class Redirects:
    """
    A sender of requests that follows redirects.

    Args:
        send: Function that sends one request, and raises `RedirectError` for a redirect.
        limit: Most redirects of one request.
    """

    def __init__(self, send: Send, limit: int) -> None:
        self._send = send
        self._limit = limit

    async def send(self, asking: Asking) -> Reply | None:
        """Send a request and follow its redirects; see `Sender.request`. All requests share one timeout."""
        deadline = monotonic() + asking.timeout
        asked = {asking.url}
        while True:
            try:
                return await self._send(asking)
            except RedirectError as redirect:
                asking = asking.within(deadline - monotonic())._replace(url=redirect.address)
            if asking.url in asked:
                raise PermanentError(
                    "The service answered with a redirect to an address that this lookup has asked already, so it "
                    "would never end. Write the final address into HttpConfig.url."
                )
            if len(asked) > self._limit:
                raise PermanentError(
                    f"The service answered with more than {self._limit} redirects, as many as HttpConfig.redirects "
                    "allows. Write the final address into HttpConfig.url, or raise redirects, at most to 10."
                )
            asked.add(asking.url)
