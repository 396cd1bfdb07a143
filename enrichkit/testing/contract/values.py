"""Checks of what a connector says of its values, and of those that it can store and list."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from ...connector import Connector
from ...errors import FatalError
from ..bench import wait_until
from .base import Fixtures

if TYPE_CHECKING:
    from .source import Source

__all__ = ["ValueChecks"]


class ValueChecks(Fixtures):
    """What is optional is checked where the connector's class has it, and must be absent cleanly where it has not."""

    def test_the_type_of_a_value_is_known(self, source: Source) -> None:
        """Look at `describe`, or give the config of the fixture `connector` its `returns`: DDL of one value."""
        described = source.run(source.connector.describe())
        assert described is None or isinstance(described, str)
        assert described or source.connector.config.returns

    def test_a_declared_type_comes_first(self, source: Source) -> None:
        """Look at `describe`: `config.returns`, when the user has declared it, is what it returns."""
        config = dataclasses.replace(source.connector.config, returns="bigint")
        with type(source)(type(source.connector)(config), source.known, None, patience=self.patience) as declared:
            declared.open()
            assert declared.run(declared.connector.describe()) == "bigint"

    def test_the_values_are_in_the_declared_encoding(self, source: Source) -> None:
        """Look at `encoding`: `"json"` is bytes of a document, `"text"` bytes or str, or a mapping of such."""
        plain: tuple[type, ...] = {"json": (bytes,), "text": (bytes, str)}.get(source.connector.encoding, (object,))
        for answer in source.look_up(source.keys).values():
            parts = answer.values() if isinstance(answer, Mapping) and source.connector.encoding == "text" else [answer]
            assert all(part is None or isinstance(part, plain) for part in parts), type(answer)

    def test_what_is_stored_is_found(self, source: Source) -> None:
        """Look at `store_many`: it takes what `fetch_many` returns, under the same keys, and replaces what is there."""
        if not self._stores(source):
            return
        first, second = (source.fetch([key])[key] for key in source.keys[:2])
        for value in (first, second):
            source.run(source.connector.store_many({source.missing: value}, 60.0))
            assert source.fetch([source.missing]) == {source.missing: value}
        assert source.expected(source.keys) == source.look_up_values(source.keys)

    def test_what_is_stored_ends_with_its_time(self, source: Source) -> None:
        """Look at the unit of *ttl*, seconds and fractions of them, and at None, which is for ever."""
        if not self._stores(source):
            return
        value = source.fetch(source.keys[:1])[source.keys[0]]
        source.run(source.connector.store_many({source.missing: value}, None))
        assert source.fetch([source.missing]) == {source.missing: value}
        source.run(source.connector.store_many({source.missing: value}, 0.05))
        ended = wait_until(lambda: source.fetch([source.missing]) != {source.missing: value}, self.patience)
        assert ended, "It did not end."

    def test_storing_nothing_is_nothing(self, source: Source) -> None:
        """Look for statements and pipelines that have no empty form."""
        if self._stores(source):
            source.run(source.connector.store_many({}, 60.0))
        assert source.expected(source.keys) == source.look_up_values(source.keys)

    def test_everything_is_listed(self, source: Source) -> None:
        """Look at `scan`: each key once, with the value that `fetch_many` has."""
        if type(source.connector).scan is Connector.scan:
            with pytest.raises(NotImplementedError):
                source.connector.scan()
            return

        async def everything() -> list[tuple[Any, Any]]:
            return [pair async for pair in source.connector.scan()]

        pairs = source.run(everything())
        assert len(pairs) == len(dict(pairs))
        listed = source.values(dict(pairs))
        assert source.known == {key: listed.get(key) for key in source.known}

    def _stores(self, source: Source) -> bool:
        """Whether the source can be written to; if not, `store_many` is not there, or this source refuses it."""
        if type(source.connector).store_many is Connector.store_many:
            with pytest.raises(NotImplementedError):
                source.run(source.connector.store_many({}, None))
            return False
        try:
            source.run(source.connector.store_many(source.fetch(source.keys[:1]), None))
        except FatalError:
            return False
        return True
