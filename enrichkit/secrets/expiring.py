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
Seconds after which a failed renewal is tried again while the old value is good. If a value that replaced a refused one
is itself refused within these seconds, it is not renewed, because the reason cannot be that it is outdated.
"""

_log = logging.getLogger("enrichkit")


@dataclass(slots=True, repr=False)
class Held:
    """
    The value of an expiring secret in this process; no `repr` shows it.

    Attributes:
        ask: Asks the user's function or command for a new value; raises `ConfigError`.
        ttl: Seconds for which a value may be used.
    """

    ask: Callable[[], str]
    ttl: float
    _text: str | None = None
    _born: float = 0.0  # when the value was asked for
    _again: float = 0.0  # when a failed renewal may be repeated
    _refused: bool = False  # whether the last value was refused
    _after_refusal: bool = False  # whether the value replaced a refused one
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def good(self) -> bool:
        """Return whether there is a value that need not be renewed yet."""
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
        """Record that the source refused *text*; return whether another value is held, or may be asked for."""
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
