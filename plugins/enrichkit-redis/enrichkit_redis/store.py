"""Reading and writing each kind of value: which commands Redis gets, and the answer for each key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.plugin import Answers, Failure, Key

from .cluster import Cluster, slot_of, source_of
from .commands import pack, pack_each, pack_keys
from .replies import translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from .config import RedisConfig
    from .template import Name

__all__ = ["Store"]

_MULTI, _EXEC = pack(("MULTI",)), pack(("EXEC",))


class Store:
    """
    The reader and writer of the values of one source. In the mappings that its methods return, a key without an entry
    is a miss, and a key whose value is a `Failure` could not be read.

    The reply of Redis to `MGET` is nil both for an absent key and for a key that holds another type of value. The reply
    to `HMGET` is the same for a hash without the requested fields and for an absent hash. Without a check, all these
    keys would silently become nulls. So for the keys with an empty reply, the store sends a second command that shows
    which of them are absent. For these keys, the store uses only the reply to the second command, so that a write
    between the two commands cannot mix two states of a key. A call without an empty reply needs no second command.
    """

    def __init__(self, config: RedisConfig, capacity: int) -> None:
        self._fields = config.fields
        self._source = source_of(config, capacity)

    async def strings(self, keys: Sequence[Key], names: Sequence[Name]) -> Mapping[Key, Any]:
        """Return a mapping from *keys* to the strings that Redis holds under their *names*, as bytes."""
        if isinstance(self._source, Cluster):
            return await self._strings_of_slots(keys, names)
        (reply,) = await self._source.ask(pack_keys("MGET", names), 1)
        if isinstance(reply, ReplyError):
            raise translate(reply, "Redis")
        if type(reply) is not list or len(reply) != len(names):
            raise _unknown_form("MGET")
        if set(map(type, reply)) == {bytes}:
            return Answers(keys, reply)
        # A proxy in front of several servers may put an error for one key into the list.
        answers: dict[Key, Any] = {
            key: value if type(value) is bytes else self._failure(value, "MGET")
            for key, value in zip(keys, reply, strict=True)
            if value is not None
        }
        empty = [n for n, value in enumerate(reply) if value is None]
        if empty:
            empty_names = [names[n] for n in empty]
            (existing,) = await self._source.ask(pack(("EXISTS", *empty_names)), 1)
            # If none of these keys exists now, each of them is a miss, even if one of them existed at the time of the
            # `MGET`.
            if existing != 0:
                answers |= await self._strings_one_by_one([keys[n] for n in empty], empty_names)
        return answers

    async def _strings_of_slots(self, keys: Sequence[Key], names: Sequence[Name]) -> Mapping[Key, Any]:
        """
        Return a mapping from *keys* to the strings that a cluster holds under their *names*.

        Keys with the same hash tag share a slot. If there are two or more keys per slot on average, the keys of each
        slot are read by one `MGET`; otherwise each key is read by a `GET`.
        """
        slots: dict[int, list[int]] = {}
        for n, name in enumerate(names):
            slots.setdefault(slot_of(name), []).append(n)
        if 2 * len(slots) > len(names):
            return await self._strings_one_by_one(keys, names)
        replies = await self._source.ask_each(
            [names[numbers[0]] for numbers in slots.values()],
            [pack(("MGET", *(names[n] for n in numbers))) for numbers in slots.values()],
        )
        answers: dict[Key, Any] = {}
        # Indices of the keys to read one by one: those with the reply nil, which may mean a value of another type, and
        # those of a refused `MGET`. A node refuses an `MGET` while its slot moves, because its keys may be on two
        # nodes.
        rest: list[int] = []
        for numbers, reply in zip(slots.values(), replies, strict=True):
            if isinstance(reply, ConnectorError):
                answers |= {keys[n]: self._failure(reply, "MGET") for n in numbers}
            elif type(reply) is not list or len(reply) != len(numbers):
                rest += numbers
            else:
                for n, value in zip(numbers, reply, strict=True):
                    if type(value) is bytes:
                        answers[keys[n]] = value
                    else:
                        rest.append(n)
        if rest:
            answers |= await self._strings_one_by_one([keys[n] for n in rest], [names[n] for n in rest])
        values = list(answers.values())
        return Answers(list(answers), values) if set(map(type, values)) == {bytes} else answers

    async def _strings_one_by_one(self, keys: Sequence[Key], names: Sequence[Name]) -> Mapping[Key, Any]:
        replies = await self._source.ask_each(names, pack_each(("GET",), names))
        if set(map(type, replies)) == {bytes}:
            return Answers(keys, replies)
        return {
            key: reply if type(reply) is bytes else self._failure(reply, "GET")
            for key, reply in zip(keys, replies, strict=True)
            if reply is not None
        }

    async def hashes(self, keys: Sequence[Key], names: Sequence[Name]) -> Mapping[Key, Any]:
        """
        Return a mapping from *keys* to their hashes: dicts from field name to bytes, with None for an absent field.
        """
        fields = self._fields
        if not fields:
            return await self._whole_hashes(keys, names)
        nothing = [None] * len(fields)
        replies = await self._source.ask_each(names, pack_each(("HMGET",), names, fields))
        if set(map(type, replies)) == {list} and set(map(len, replies)) == {len(fields)} and nothing not in replies:
            return Answers(keys, dict(zip(fields, zip(*replies, strict=True), strict=True)))
        answers: dict[Key, Any] = {}
        empty: list[int] = []
        for n, (key, reply) in enumerate(zip(keys, replies, strict=True)):
            if type(reply) is not list or len(reply) != len(fields):
                answers[key] = self._failure(reply, "HMGET")
            elif reply == nothing:
                empty.append(n)
            else:
                answers[key] = dict(zip(fields, reply, strict=True))
        if empty:
            answers |= await self._empty_hashes([keys[n] for n in empty], [names[n] for n in empty])
        return answers

    async def _empty_hashes(self, keys: Sequence[Key], names: Sequence[Name]) -> dict[Key, Any]:
        """
        Read the hashes of *keys* once more, because none of the fields was found in them. Return the hashes that exist,
        with None for each absent field, and a `Failure` for each key that cannot be read.
        """
        # Both commands are in one transaction, so that the fields and the existence of a hash are read at the same
        # moment.
        frames = [_MULTI + pack(("HMGET", name, *self._fields)) + pack(("EXISTS", name)) + _EXEC for name in names]
        answers: dict[Key, Any] = {}
        for key, reply in zip(keys, await self._source.ask_each(names, frames, 4), strict=True):
            if type(reply) is not list or len(reply) != 2:
                answers[key] = self._failure(reply, "EXEC")
                continue
            values, exists = reply
            if type(values) is not list or len(values) != len(self._fields):
                answers[key] = self._failure(values, "HMGET")
            elif type(exists) is not int:
                answers[key] = self._failure(exists, "EXISTS")
            elif exists:
                answers[key] = dict(zip(self._fields, values, strict=True))
        return answers

    async def _whole_hashes(self, keys: Sequence[Key], names: Sequence[Name]) -> dict[Key, Any]:
        replies = await self._source.ask_each(names, pack_each(("HGETALL",), names))
        answers: dict[Key, Any] = {}
        for key, reply in zip(keys, replies, strict=True):
            if type(reply) is not list or len(reply) % 2:
                answers[key] = self._failure(reply, "HGETALL")
            elif reply:  # an empty reply is a miss, because Redis keeps no empty hashes
                try:
                    answers[key] = dict(zip(map(bytes.decode, reply[::2]), reply[1::2], strict=True))
                except TypeError:  # the name of a field is not bytes
                    raise _unknown_form("HGETALL") from None
                except UnicodeDecodeError:
                    answers[key] = Failure(
                        PermanentError(
                            "The hash has a field whose name is not UTF-8; names become text. "
                            "Name the fields to read in RedisConfig.fields."
                        )
                    )
        return answers

    async def write(self, names: Sequence[Name], values: Sequence[str | bytes], ttl: float | None) -> None:
        """Store *values* as strings under *names*; they expire after *ttl* seconds, or never if *ttl* is None."""
        expiry = () if ttl is None else ("PX", max(1, round(ttl * 1000)))
        frames = [pack(("SET", name, value, *expiry)) for name, value in zip(names, values, strict=True)]
        for reply in await self._source.ask_each(names, frames):
            if isinstance(reply, ConnectorError):
                raise reply
            if isinstance(reply, ReplyError):
                if str(reply).startswith("READONLY"):
                    # Another server is the master now, and a new connection may reach this master.
                    self._source.forget()
                raise translate(reply, "Redis")

    async def names(self, pattern: bytes, count: int) -> AsyncIterator[list[bytes]]:
        """
        Yield lists of the names that match the glob *pattern*. For each list, the server looks at about *count* keys of
        the database. A name can be listed twice.
        """
        pools = await self._source.masters() if isinstance(self._source, Cluster) else [self._source]
        for pool in pools:
            cursor: Any = b"0"
            while True:
                (reply,) = await pool.ask(pack(("SCAN", cursor, "MATCH", pattern, "COUNT", count)), 1)
                if isinstance(reply, ReplyError):
                    raise translate(reply, "Redis")
                if type(reply) is not list or len(reply) != 2 or type(reply[1]) is not list:
                    raise _unknown_form("SCAN")
                cursor, names = reply
                if names:
                    yield names
                if cursor == b"0":
                    break

    async def max_clients(self) -> int | None:
        """Return how many clients one server accepts at most; None if no command tells this number."""
        pool = (await self._source.masters())[0] if isinstance(self._source, Cluster) else self._source
        for command in (("INFO", "clients"), ("CONFIG", "GET", "maxclients")):  # INFO has the number since Redis 7
            (reply,) = await pool.ask(pack(command), 1)
            found = re.search(r"maxclients\D{1,8}(\d+)", str(reply))
            if found is not None and not isinstance(reply, ReplyError):
                return int(found[1])
        return None

    def close(self) -> None:
        """Close all connections."""
        self._source.close()

    def _failure(self, reply: Any, command: str) -> Failure:
        """
        Return the `Failure` of the key that got *reply* to *command*; raises the error instead if the error concerns
        all keys.
        """
        error = translate(reply, "Redis") if isinstance(reply, ReplyError) else reply
        if isinstance(error, FatalError):
            raise error
        if isinstance(error, ConnectorError):
            return Failure(error)
        raise _unknown_form(command)


def _unknown_form(command: str) -> TransientError:
    return TransientError(f"Redis answered {command} in an unknown form; the answer was not used.")
