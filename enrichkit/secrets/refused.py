"""The pause before a refused login is tried again, because many attempts could lock the account."""

from __future__ import annotations

__all__ = ["RefusedLogin"]

PAUSE = 10.0  # seconds
RENEWED = 1.0  # seconds; the pause if the TLS files have changed, as the server may have refused the old certificate


class RefusedLogin:
    """
    The last login that a server has refused.

    This login may be tried again after ten seconds, or after one second if the TLS files have changed. Any other login,
    for example with a new password, may be tried at once.

    >>> last = RefusedLogin()
    >>> last.refused("old password", (), now=100.0)
    >>> last.wait("old password", (), now=104.0), last.wait("new password", (), now=104.0)
    (6.0, 0.0)
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: tuple[object, tuple[object, ...], float] | None = None

    def refused(self, login: object, files: tuple[object, ...], now: float) -> None:
        """
        Record that the server has refused *login* at the loop time *now*.

        Args:
            login: The password, or a tuple of the user's name and the password.
            files: The state of the TLS files, see `RenewedContext.stamp`.
            now: Loop time in seconds.
        """
        self._refused = login, files, now

    def accepted(self) -> None:
        """Forget the refused login, because the server has accepted a login."""
        self._refused = None

    def wait(self, login: object, files: tuple[object, ...], now: float) -> float:
        """Return the seconds to wait before *login* may be tried with *files*; 0 if it may be tried at once."""
        if self._refused is None:
            return 0.0
        refused, stamp, since = self._refused
        pause = PAUSE if files == stamp else RENEWED
        return max(0.0, since + pause - now) if login == refused else 0.0
