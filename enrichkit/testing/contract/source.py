"""The connector under test, together with the known contents of its source and with keys that the source lacks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...interface import Connector, Failure, Key, Keys
from ...worker.keys import encode
from ..bench import Bench, decoded, wait_until

if TYPE_CHECKING:
    from ..proxy import FaultProxy

__all__ = ["Network", "Source", "keys_of_other_types", "parts_of", "with_address"]

# Most of these texts have a meaning in another language: SQL and its patterns, templates, JSON, paths, queries, or the
# protocols of Redis and HTTP. Others are empty or long, cannot be encoded as UTF-8, or would end a C string early.
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
    A connector in a `Bench`, with the known contents of its source.

    Attributes:
        known: The values of the source, by key.
        keys: The keys of *known*.
        missing: A key that the source does not hold.
        is_server: Whether the source is a server; False if that is not known.
    """

    is_server = False

    def __init__(self, connector: Connector[Any], known: Mapping[Key, Any], missing: Key, **settings: Any) -> None:
        super().__init__(connector, **settings)
        self.known = dict(known)
        self.keys = list(known)
        self.missing = missing

    @property
    def group(self) -> list[Key]:
        """The known keys, or the first `max_batch_size` of them if there are more."""
        return self.keys[: self.connector.max_batch_size]

    def expected(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Return the right values of *keys*; keys that the source does not hold are absent."""
        return {key: self.known[key] for key in keys if key in self.known}

    def values(self, answers: Mapping[Key, Any]) -> dict[Key, Any]:
        """Return *answers* with each value decoded to Python objects, see `decoded`."""
        encoding = self.connector.encoding
        return {key: decoded(answer, self.known.get(key), encoding) for key, answer in answers.items()}

    def look_up_values(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Look up *keys* in groups, as `look_up` does, and return the values as Python objects."""
        return self.values(self.look_up(keys))

    def wrong(self, answers: Mapping[Key, Any]) -> dict[Key, Any]:
        """
        Return the *answers* with a wrong value.

        The value of a known key is wrong if it is not the key's own. The value of an unknown key is wrong if it belongs
        to a known key.
        """
        values = self.values({key: answer for key, answer in answers.items() if not isinstance(answer, Failure)})
        known_values = list(self.known.values())
        return {
            key: value
            for key, value in values.items()
            if (value != self.known[key] if key in self.known else any(value == other for other in known_values))
        }

    def unknown_keys(self, count: int) -> list[Key]:
        """
        Return *count* keys that the source lacks: the missing key and variants of it.

        If the type of the key has too few values, return fewer keys.
        """
        keys = dict.fromkeys(
            (self.missing, *(_next_to(self.missing, n) for n in range(1, count + len(self.known) + 1)))
        )
        return [key for key in keys if key not in self.known][:count]

    def hostile_keys(self) -> list[Key]:
        """
        Return keys that test for injection.

        Each is a copy of the key that the source does not hold, with one part replaced by a value of the same type that
        a careless statement would misread, such as a quotation mark or a wildcard.
        """
        parts = parts_of(self.missing)
        keys = [
            (*parts[:n], bad, *parts[n + 1 :]) if isinstance(self.missing, tuple) else bad
            for n, part in enumerate(parts)
            for bad in _HOSTILE_OF.get(type(part), ())
        ]
        return [key for key in keys if key not in self.known]

    def as_the_engine_passes(self, keys: Sequence[Key]) -> Sequence[Key]:
        """
        Return *keys* in the form in which the engine passes them to `fetch_many`.

        If the connector sets `key_columns`, the form is `Keys` whose Arrow columns are slices of longer arrays;
        otherwise it is a tuple. In columns, one lone surrogate of a text becomes three. UTF-8 cannot encode a
        surrogate, so the column holds three invalid bytes in its place, and each byte is read back as one lone
        surrogate.
        """
        if not self.connector.key_columns:
            return tuple(keys)
        others = [key for key in self.unknown_keys(3) if key not in keys][:2]
        return _in_columns([*others[:1], *keys, *others[1:]])[len(others[:1]) :][: len(keys)]


class Network(Source):
    """
    A source whose connector reaches its server through a fault proxy.

    Attributes:
        proxy: The fault proxy between the connector and its server.
    """

    def __init__(self, connector: Connector[Any], proxy: FaultProxy, *source: Any, **settings: Any) -> None:
        super().__init__(connector, *source, **settings)
        self.proxy = proxy

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the proxy pass no bytes while the body of the `with` statement runs."""
        self.proxy.freeze()
        try:
            yield
        finally:
            self.proxy.thaw()

    def start_all(self, *groups: Sequence[Key], timeout: float) -> list[Any]:
        """
        Begin a call for each of *groups* on a frozen proxy.

        Return the tasks of all calls as soon as one of the calls has reached the proxy.
        """
        before = self.proxy.heard
        tasks = [self.start(keys, timeout=timeout) for keys in groups]
        assert wait_until(lambda: self.proxy.heard > before, self.patience), (
            f"`fetch_many` was called while the server does not answer. Within {self.patience:g} s it must connect to "
            f"the server or send bytes to it; none of {len(tasks)} calls did. Look for what a call waits for before "
            "that: a lock or a connection that another call holds."
        )
        self.run(asyncio.sleep(0))  # waits until the loop has ended the callback that sent the bytes
        return tasks


def with_address(connector: Connector[Any], address: tuple[str, int], to: tuple[str, int]) -> Connector[Any]:
    """
    Return a connector like *connector*, but with the address *to* instead of *address* in its config.

    Raises:
        AssertionError: The config does not hold *address*.
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
        f"No field of {type(connector.config).__name__} holds {host}:{port}, which the fixture `address` returns, so "
        "the kit cannot put its proxy before the server. Correct `address`, or override `connector_at`."
    )
    return type(connector)(dataclasses.replace(connector.config, **changes))


def parts_of(key: Key) -> tuple[Any, ...]:
    """Return the parts of *key*, one for each key column."""
    return key if isinstance(key, tuple) else (key,)


def keys_of_other_types(key: Key) -> list[Key]:
    """Return variants of *key* whose last part has another type, as if a user had named a wrong key column."""
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
    """Return the *n*-th variant of *key*; in a tuple, only the first part that is not a bool is varied."""
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
