"""Checks of the declared type of values, and of the optional methods `store_many` and `scan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...interface import Connector
from ..bench import wait_until
from .base import Fixtures
from .messages import raised, short, told
from .source import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .source import Source

__all__ = ["ValueChecks"]


class ValueChecks(Fixtures):
    """
    An optional method is checked if the connector's class has it. If the class lacks the method, a call of the method
    must raise `NotImplementedError`.
    """

    def test_the_type_of_a_value_is_known(self, source: Source) -> None:
        """Look at `describe`, or set `returns` in the config of the fixture `connector` to the DDL of one value."""
        described = source.run(source.connector.describe())
        assert described is None or isinstance(described, str), (
            f"`describe` must return the DDL of one value, or None; it returned {short(described)}. Return a text such "
            "as 'name string, tier int'."
        )
        assert described or source.connector.config.returns, (
            f"`describe` must return the DDL of one value, or the config must have `returns`; `describe` returned "
            f"{described!r}, and `returns` is {source.connector.config.returns!r}. Ask the source for the type in "
            "`describe`, or set `returns` in the config of the fixture `connector`."
        )

    def test_a_declared_type_comes_first(self, source: Source) -> None:
        """Look at `describe`: it must return `config.returns` if the user has set `returns` in the config."""
        config = dataclasses.replace(source.connector.config, returns="bigint")
        with type(source)(type(source.connector)(config), source.known, None, patience=self.patience) as declared:
            declared.open()
            described = declared.run(declared.connector.describe())
            assert described == "bigint", (
                f"`describe` must return `config.returns` if the config has one; it returned {short(described)}, and "
                "`returns` is 'bigint'. Begin it with `if self.config.returns: return self.config.returns`."
            )

    def test_the_values_are_in_the_declared_encoding(self, source: Source) -> None:
        """Look at `encoding`: a value must be bytes for `"json"`, and bytes, str or a mapping to these for `"text"`."""
        plain: tuple[type, ...] = {"json": (bytes,), "text": (bytes, str)}.get(source.connector.encoding, (object,))
        for answer in source.look_up(source.keys).values():
            parts = answer.values() if isinstance(answer, Mapping) and source.connector.encoding == "text" else [answer]
            other = [part for part in parts if part is not None and not isinstance(part, plain)]
            assert not other, (
                f"With the encoding {source.connector.encoding!r} a value must be of one of the types "
                f"{', '.join(each.__name__ for each in plain)}; {short(other[0])} is of the type "
                f"{type(other[0]).__name__}. Return what the source sends without decoding it, or change `encoding`."
            )

    def test_what_is_stored_is_found(self, source: Source) -> None:
        """Look at `store_many`: it must take the mapping that `fetch_many` returns, and replace stored values."""
        if not self._stores(source):
            return
        first, second = (source.fetch([key])[key] for key in source.keys[:2])
        for value in (first, second):
            ttl = 60.0 if source.connector.stores_ttl else None
            source.run(source.connector.store_many({source.missing: value}, ttl))
            self._assert_stored(source, value, ttl)
        right, got = source.expected(source.keys), source.look_up_values(source.keys)
        assert right == got, (
            "After `store_many` of one key, the other keys must still have their values; `fetch_many` returned "
            f"{told(right, got)}. Look at which keys `store_many` writes."
        )

    def test_what_is_stored_ends_with_its_time(self, source: Source) -> None:
        """Look at the unit of *ttl*: it is seconds, whole or fractional; None means that the value never expires."""
        if not self._stores(source) or not source.connector.stores_ttl:
            return
        value = source.fetch(source.keys[:1])[source.keys[0]]
        source.run(source.connector.store_many({source.missing: value}, None))
        self._assert_stored(source, value, None)
        source.run(source.connector.store_many({source.missing: value}, 0.05))
        expired = wait_until(lambda: source.fetch([source.missing]) != {source.missing: value}, self.patience)
        assert expired, (
            f"A value stored for 0.05 s must expire; `fetch_many` still returns it after {self.patience:g} s. Look at "
            "the unit of `ttl`: it is seconds, also fractions of one."
        )

    def test_storing_nothing_is_nothing(self, source: Source) -> None:
        """Look for statements and pipelines that cannot be empty: without values, `store_many` must do nothing."""
        if self._stores(source):
            source.run(source.connector.store_many({}, None))
        right, got = source.expected(source.keys), source.look_up_values(source.keys)
        assert right == got, (
            "After `store_many` of an empty mapping, all known keys must still have their values; `fetch_many` "
            f"returned {told(right, got)}. Return from `store_many` at once if there is nothing to store."
        )

    def test_everything_is_listed(self, source: Source) -> None:
        """Look at `scan`: it must yield each key that the source holds, in the form that `fetch_many` takes."""
        keys = self._listed(source)
        absent = [] if keys is None else [key for key in source.known if key not in keys]
        assert not absent, (
            f"`scan` must yield all known keys, in the form that `fetch_many` takes; it yielded {short(keys)}, without "
            f"{short(absent)}. Look for the end of the scan, for keys that are equal to others, and at the types of "
            "the keys."
        )

    def test_nothing_is_listed_twice(self, source: Source) -> None:
        """Look at `scan`: it must yield each key only once, even if the source lists the key in two pages."""
        keys = self._listed(source) or []
        twins = [key for key in dict.fromkeys(keys) if keys.count(key) > 1]
        assert not twins, (
            f"`scan` must yield each key only once; it yielded {len(keys)} keys, {len(set(keys))} of them different, "
            f"and these keys more than once: {short(twins)}. Skip keys that were there, as a scan by pages may repeat "
            "them."
        )

    def test_nothing_else_is_listed(self, source: Source) -> None:
        """Look at `scan`: it must yield no key that the source does not hold."""
        assert source.missing not in (self._listed(source) or ()), (
            f"`scan` must yield only keys that the source holds; it yielded {short(source.missing)}. Look at what it "
            "yields at the end."
        )

    def _listed(self, source: Source) -> list[Any] | None:
        """Return the keys that `scan` yields in pages of two keys; None if the connector cannot list the keys."""
        if type(source.connector).scan is Connector.scan:
            self._assert_not_implemented("scan", lambda: source.connector.scan((str,), 1))
            return None
        if source.connector.cannot_scan:
            return None
        kinds = tuple(map(type, parts_of(source.missing)))

        async def everything() -> list[Any]:
            return [key async for page in source.connector.scan(kinds, 2) for key in page]

        return source.run(everything())

    def _stores(self, source: Source) -> bool:
        """Return whether values can be stored: the class has `store_many`, and the config lets it write."""
        if type(source.connector).store_many is Connector.store_many:
            self._assert_not_implemented("store_many", lambda: source.run(source.connector.store_many({}, None)))
            return False
        return not source.connector.cannot_store

    def _assert_stored(self, source: Source, value: Any, ttl: float | None) -> None:
        right, got = {source.missing: value}, source.fetch([source.missing])
        assert right == got, (
            f"After `store_many` of a key with the `ttl` {ttl}, `fetch_many` must return the stored value; it returned "
            f"{told(right, got)}. Write to the place where `fetch_many` reads, and replace a value that is there."
        )

    def _assert_not_implemented(self, name: str, call: Callable[[], Any]) -> None:
        """Assert that *call* raises `NotImplementedError`, because the connector's class lacks the method *name*."""
        cause = None
        try:
            did = f"returned {short(call())}"
        except NotImplementedError:
            return
        except Exception as error:  # noqa: BLE001  # the assertion below shows the exception
            did, cause = f"raised {raised(error)}", error
        raise AssertionError(
            f"A connector whose class has no `{name}` must raise a NotImplementedError when it is called; it {did}. "
            f"Define `{name}` as a method of the class, not on the instance, or leave it out."
        ) from cause
