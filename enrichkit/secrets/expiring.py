"""
The value of a secret that expires.

A worker process holds one value of each expiring secret. It renews the value shortly before the value expires, and once
more if the source refuses the value.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..errors import ConfigError

__all__ = ["Held"]

EARLY = 60.0
"""A value is renewed this number of seconds before it expires, or a fifth of its `ttl` before, if that is less."""
AGAIN = 5.0
"""
Seconds after which a failed renewal is tried again while the old value may still be used. If the source refuses a
value, and within these seconds also the value that replaced it, the second value is not renewed, because it cannot be
outdated.
"""

_log = logging.getLogger("enrichkit")


@dataclass(slots=True, repr=False)
class Held:
    """
    The value of an expiring secret in this process; no `repr` shows it.

    Attributes:
        ask: Function that gets a new value from the user's function or command; raises `ConfigError` if that fails.
        ttl: Seconds for which a value may be used.
    """

    ask: Callable[[], str]
    ttl: float
    _text: str | None = None
    _born: float = 0.0  # when the value was asked for
    _again: float = 0.0  # after a failed renewal: when the next one may be tried
    _refused: bool = False  # whether the source has refused the last value, so that there is no value now
    _after_refusal: bool = False  # whether the value replaced a value that the source had refused
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def good(self) -> bool:
        """Return whether this process holds a value that need not be renewed yet."""
        now = time.monotonic()
        renews = self._born + self.ttl - min(EARLY, self.ttl / 5)
        return self._text is not None and (now < renews or self._again > now < self._born + self.ttl)

    def value(self) -> str:
        """Return the value. If it must be renewed, one thread asks for the new value, and other threads wait for it."""
        with self._lock:
            if not self.good():
                self._renew()
            assert self._text is not None
            return self._text

    def refuse(self, text: str | None) -> bool:
        """Record that the source refused *text*; return whether `value` may now return another text."""
        with self._lock:
            if self._text == text:
                if self._after_refusal and time.monotonic() - self._born < AGAIN:
                    return False
                self._text, self._refused = None, True
            return True

    def _renew(self) -> None:
        began = time.monotonic()
        try:
            text = self.ask()
        except ConfigError as error:
            if self._text is None or began >= self._born + self.ttl:
                raise
            self._again = began + AGAIN
            _log.warning("%s Its last value is good for %.0f s more.", error, self._born + self.ttl - began)
            return
        self._text, self._born = text, began
        self._after_refusal, self._refused = self._refused, False
