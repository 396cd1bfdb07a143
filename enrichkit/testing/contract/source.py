"""What a check works with: the connector under test, what its source is known to hold, and keys that it does not."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ...connector import Connector, Failure, Key, Keys
from ...keys import encode
from ..bench import Bench, decoded

if TYPE_CHECKING:
    from ..proxy import FaultProxy

__all__ = ["Network", "Source", "moved", "on_a_network", "parts_of", "unlike"]

Check = TypeVar("Check", bound=Callable[..., None])

# Each stands for a way in which a key may leave its place: SQL and its patterns, templates, paths and queries, the
# protocols of Redis and HTTP, and text that cannot be encoded or that ends a C string.
_HOSTILE_TEXTS = (
    "",
    " ",
    "' OR 1=1--",
    '"; DROP TABLE users; --',
    "%",
    "_%",
    "*",
    "[a-z]?",
    "$1",
    "%s%n",
    "{0}{k.__class__}",
    "..",
    "../../admin",
    "%2e%2e/admin",
    "a/b?c=d&e#f",
    "a\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    'x", "admin": true, "y": "',
    "nul\x00nul",
    "half a pair \ud800",
    "\N{RIGHT-TO-LEFT OVERRIDE}drowssap",
    "null",
    "\\",
    "long" * 1250,
)
_HOSTILE_BYTES = (b"", b"\x00", b"\xff\xfe", b"' OR 1=1--", b"a\r\n*1\r\n$8\r\nFLUSHALL\r\n", b"%", b"*")
_HOSTILE_INTS = (0, -1, 2**15, -(2**31) - 1, 2**63 - 1, -(2**63))
_HOSTILE_FLOATS = (0.5, 1e308, 5e-324, float("inf"), float("-inf"))


class Source(Bench):
    """
    An open connector, and what is known of its source.

    Attributes:
        known: What the source holds, by key.
        missing: A key that it does not hold.
    """

    def __init__(self, connector: Connector[Any], known: Mapping[Key, Any], missing: Key, **settings: Any) -> None:
        super().__init__(connector, **settings)
        self.known = dict(known)
        self.keys = list(known)
        self.missing = missing

    @property
    def group(self) -> list[Key]:
        """Known keys, as many as one call takes."""
        return self.keys[: self.connector.max_batch_size]

    def expected(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Return what the answers to *keys* must be."""
        return {key: self.known[key] for key in keys if key in self.known}

    def values(self, answers: Mapping[Key, Any]) -> dict[Key, Any]:
        """Return *answers* as Python objects, see `decoded`."""
        encoding = self.connector.encoding
        return {key: decoded(answer, self.known.get(key), encoding) for key, answer in answers.items()}

    def look_up_values(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Return the answers to *keys*, in groups as large as the connector takes, as Python objects."""
        return self.values(self.look_up(keys))

    def wrong(self, answers: Mapping[Key, Any]) -> dict[Key, Any]:
        """Return those *answers* that are another value than the key's own: for a stranger, one that is known."""
        mine = self.values({key: answer for key, answer in answers.items() if not isinstance(answer, Failure)})
        others = list(self.known.values())
        return {
            key: value
            for key, value in mine.items()
            if (value != self.known[key] if key in self.known else any(value == other for other in others))
        }

    def strangers(self, count: int) -> list[Key]:
        """Return *count* keys that are not known, made after the missing one; fewer where its type has no others."""
        made = dict.fromkeys(
            (self.missing, *(_next_to(self.missing, n) for n in range(1, count + len(self.known) + 1)))
        )
        return [key for key in made if key not in self.known][:count]

    def hostile(self) -> list[Key]:
        """Return keys of the shape of the missing one with a part that is meant to do harm."""
        parts = parts_of(self.missing)
        made = [
            (*parts[:n], bad, *parts[n + 1 :]) if isinstance(self.missing, tuple) else bad
            for n, part in enumerate(parts)
            for bad in _HOSTILE_OF.get(type(part), ())
        ]
        return [key for key in made if key not in self.known]

    def as_the_engine_gives(self, keys: Sequence[Key]) -> Sequence[Key]:
        """
        Return *keys* as the engine gives them: a tuple, or with `key_columns` a part of more of them in columns.

        Half a pair, which no UTF-8 has, becomes three halves in columns: there it can only be the bytes of them.
        """
        if not self.connector.key_columns:
            return tuple(keys)
        others = [key for key in self.strangers(3) if key not in keys][:2]
        return _in_columns([*others[:1], *keys, *others[1:]])[len(others[:1]) :][: len(keys)]


class Network(Source):
    """
    A source whose connector reaches it through a fault proxy.

    Attributes:
        proxy: Between the connector and its server.
    """

    def __init__(self, connector: Connector[Any], proxy: FaultProxy, *source: Any, **settings: Any) -> None:
        super().__init__(connector, *source, **settings)
        self.proxy = proxy

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let nothing pass for the block."""
        self.proxy.freeze()
        try:
            yield
        finally:
            self.proxy.thaw()

    def asked(self, *groups: Sequence[Key], timeout: float) -> list[Any]:
        """Begin a call for each of *groups* while nothing passes, and return their tasks once all are under way."""
        before = self.proxy.heard
        tasks = [self.start(keys, timeout=timeout) for keys in groups]
        assert self.heard(before), (
            "A call was made and the server, which answers nothing at the moment, did not get any bytes."
        )
        return tasks

    def heard(self, before: int) -> bool:
        """Wait until the server was sent more than before; False when it was not."""
        from ..bench import wait_until

        return wait_until(lambda: self.proxy.heard > before, self.patience)


def on_a_network(check: Check) -> Check:
    """
    Mark a check that needs a `network`.

    A source that is no server has none, and for it the check comes down to what the fixture `network` has asserted
    then: that the connector opens no connection that could fail.
    """

    @functools.wraps(check)
    def run(self: Any, network: Network | None, **fixtures: Any) -> None:
        if network is not None:
            check(self, network, **fixtures)

    return run  # type: ignore[return-value]  # the same arguments, by name


def moved(connector: Connector[Any], address: tuple[str, int], to: tuple[str, int]) -> Connector[Any]:
    """
    Return a connector like *connector* that asks at another address: every mention of it in the config is replaced.

    Raises:
        AssertionError: The config does not mention the address.
    """
    host, port = address
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(connector.config):
        value = getattr(connector.config, field.name)
        new = value
        if isinstance(value, str):
            for name in dict.fromkeys((host, "127.0.0.1", "localhost")):
                new = new.replace(f"{name}:{port}", f"{to[0]}:{to[1]}")
            new = to[0] if value == host else new
        elif type(value) is int and value == port:
            new = to[1]
        if new != value:
            changes[field.name] = new
    assert changes, (
        f"No field of {type(connector.config).__name__} mentions {host}:{port}, which the fixture `address` returns, "
        "so the kit cannot put its proxy in between. Correct `address`, or override `connector_at`."
    )
    return type(connector)(dataclasses.replace(connector.config, **changes))


def parts_of(key: Key) -> tuple[Any, ...]:
    """Return the parts of *key*, one for each key column."""
    return key if isinstance(key, tuple) else (key,)


def unlike(key: Key) -> list[Key]:
    """Return keys of the shape of *key* whose last part is of another type, as a wrong key column has."""
    *rest, last = parts_of(key)
    others = [
        other for other in ("twelve", 12, 1.5, b"\x00twelve", dt.date(2020, 2, 2)) if type(other) is not type(last)
    ]
    return [(*rest, other) if isinstance(key, tuple) else other for other in others]


_HOSTILE_OF: Mapping[type, Sequence[Any]] = {
    str: _HOSTILE_TEXTS,
    bytes: _HOSTILE_BYTES,
    int: _HOSTILE_INTS,
    float: _HOSTILE_FLOATS,
}


def _in_columns(keys: Sequence[Key]) -> Keys:
    columns = []
    for parts in zip(*map(parts_of, keys), strict=True):
        if isinstance(parts[0], str):
            raw = [part.encode("utf-8", "surrogatepass") for part in parts]
            columns.append(pa.array(raw, pa.binary()).view(pa.string()))
        else:
            columns.append(pa.array(parts))
    return encode(columns)[0]


def _next_to(key: Key, n: int) -> Key:
    """Return the *n*-th key after *key*; the first part that can be counted on is changed."""
    if isinstance(key, tuple):
        at = next((i for i, part in enumerate(key) if not isinstance(part, bool)), 0)
        return (*key[:at], _next_to(key[at], n), *key[at + 1 :])
    if isinstance(key, bool):
        return key
    if isinstance(key, str):
        return f"{key}{n}"
    if isinstance(key, bytes):
        return key + str(n).encode()
    if isinstance(key, int | float | Decimal):
        return key - n if key < 0 else key + n
    return key + dt.timedelta(days=n) if isinstance(key, dt.date) else key
