"""How each kind of value is read and written: commands out, an answer per key in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from enrichkit.connector import Answers, Failure, Key
from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError

from .cluster import Cluster, slot_of
from .commands import pack, pack_each, pack_keys
from .pool import Dialler, Pool
from .replies import translate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .config import RedisConfig
    from .template import Name

__all__ = ["Store"]

_MULTI, _EXEC = pack(("MULTI",)), pack(("EXEC",))


class Store:
    """
    The values behind a config. In what it returns an absent key is a miss, and a `Failure` stands for one key alone.

    Redis answers nil both for a key that is absent and, in `MGET`, for one that holds another type; a field that is
    absent and a hash that is absent look alike too. Both would be silent nulls. What came back empty is therefore asked
    a second time in a way that tells them apart, by one command whose answer stands for itself, so that a write in
    between cannot mix two states of the key. A call without misses pays nothing for it.
    """

    def __init__(self, config: RedisConfig, capacity: int) -> None:
        dialler = Dialler(config)
        self._fields = config.fields
        self._source: Pool | Cluster = (Cluster if config.cluster else Pool)(
            dialler, dialler.endpoint.address, capacity
        )

    async def strings(self, keys: Sequence[Key], names: Sequence[Name]) -> Mapping[Key, Any]:
        """Return the strings under *names*, as bytes under *keys*."""
        if isinstance(self._source, Cluster):
            return await self._strings_of_slots(keys, names)
        (reply,) = await self._source.ask(pack_keys("MGET", names), 1)
        if isinstance(reply, ReplyError):
            raise translate(reply, "Redis")
        if type(reply) is not list or len(reply) != len(names):
            raise _odd("MGET")
        if set(map(type, reply)) == {bytes}:
            return Answers(keys, reply)
        # A proxy in front of several servers may put an error for one key into the list.
        found: dict[Key, Any] = {
            key: value if type(value) is bytes else self._failure(value, "MGET")
            for key, value in zip(keys, reply, strict=True)
            if value is not None
        }
        empty = [n for n, value in enumerate(reply) if value is None]
        if empty:
            asked = [names[n] for n in empty]
            (existing,) = await self._source.ask(pack(("EXISTS", *asked)), 1)
            # None of them exists: no matter what happened in between, each was absent now.
            if existing != 0:
                found |= await self._strings_apart([keys[n] for n in empty], asked)
        return found

    async def _strings_of_slots(self, keys: Sequence[Key], names: Sequence[Name]) -> Mapping[Key, Any]:
        """Do as `strings` in a cluster: with one `MGET` for a slot where keys share theirs, as those with a tag do."""
        slots: dict[int, list[int]] = {}
        for n, name in enumerate(names):
            slots.setdefault(slot_of(name), []).append(n)
        if 2 * len(slots) > len(names):
            return await self._strings_apart(keys, names)
        replies = await self._source.each(
            [names[numbers[0]] for numbers in slots.values()],
            [pack(("MGET", *(names[n] for n in numbers))) for numbers in slots.values()],
        )
        found: dict[Key, Any] = {}
        rest: list[int] = []  # nil may be another type, and while a slot moves, its keys may be on two nodes
        for numbers, reply in zip(slots.values(), replies, strict=True):
            if isinstance(reply, ConnectorError):
                found |= {keys[n]: self._failure(reply, "MGET") for n in numbers}
            elif type(reply) is not list or len(reply) != len(numbers):
                rest += numbers
            else:
                for n, value in zip(numbers, reply, strict=True):
                    if type(value) is bytes:
                        found[keys[n]] = value
                    else:
                        rest.append(n)
        if rest:
            found |= await self._strings_apart([keys[n] for n in rest], [names[n] for n in rest])
        return Answers(list(found), list(found.values())) if set(map(type, found.values())) == {bytes} else found

    async def _strings_apart(self, keys: Sequence[Key], names: Sequence[Name]) -> Mapping[Key, Any]:
        replies = await self._source.each(names, pack_each(("GET",), names))
        if set(map(type, replies)) == {bytes}:
            return Answers(keys, replies)
        return {
            key: reply if type(reply) is bytes else self._failure(reply, "GET")
            for key, reply in zip(keys, replies, strict=True)
            if reply is not None
        }

    async def hashes(self, keys: Sequence[Key], names: Sequence[Name]) -> Mapping[Key, Any]:
        """Return the hashes under *names*: a dict from field name to bytes, with None for a field that is absent."""
        fields = self._fields
        if not fields:
            return await self._whole_hashes(keys, names)
        nothing = [None] * len(fields)
        replies = await self._source.each(names, pack_each(("HMGET",), names, fields))
        if set(map(type, replies)) == {list} and set(map(len, replies)) == {len(fields)} and nothing not in replies:
            return Answers(keys, dict(zip(fields, zip(*replies, strict=True), strict=True)))
        found: dict[Key, Any] = {}
        empty: list[int] = []
        for n, (key, reply) in enumerate(zip(keys, replies, strict=True)):
            if type(reply) is not list or len(reply) != len(fields):
                found[key] = self._failure(reply, "HMGET")
            elif reply == nothing:
                empty.append(n)
            else:
                found[key] = dict(zip(fields, reply, strict=True))
        if empty:
            # In a transaction: fields and existence must be of one moment.
            asked = [names[n] for n in empty]
            frames = [_MULTI + pack(("HMGET", name, *fields)) + pack(("EXISTS", name)) + _EXEC for name in asked]
            for n, reply in zip(empty, await self._source.each(asked, frames, 4), strict=True):
                if type(reply) is not list or len(reply) != 2:
                    found[keys[n]] = self._failure(reply, "EXEC")
                elif type(reply[0]) is not list or len(reply[0]) != len(fields):
                    found[keys[n]] = self._failure(reply[0], "HMGET")
                elif reply[1]:
                    found[keys[n]] = dict(zip(fields, reply[0], strict=True))
        return found

    async def _whole_hashes(self, keys: Sequence[Key], names: Sequence[Name]) -> dict[Key, Any]:
        replies = await self._source.each(names, pack_each(("HGETALL",), names))
        found: dict[Key, Any] = {}
        for key, reply in zip(keys, replies, strict=True):
            if type(reply) is not list:
                found[key] = self._failure(reply, "HGETALL")
            elif reply:  # Redis keeps no empty hashes
                try:
                    found[key] = dict(zip(map(bytes.decode, reply[::2]), reply[1::2], strict=True))
                except UnicodeDecodeError:
                    found[key] = Failure(
                        PermanentError(
                            "The hash has a field whose name is not UTF-8; names become text. "
                            "Name the fields to read in RedisConfig.fields."
                        )
                    )
        return found

    async def write(self, names: Sequence[Name], values: Sequence[str | bytes], ttl: float | None) -> None:
        """Store *values* as strings under *names*, to live *ttl* seconds, or for ever."""
        life = () if ttl is None else ("PX", max(1, round(ttl * 1000)))
        frames = [pack(("SET", name, value, *life)) for name, value in zip(names, values, strict=True)]
        for reply in await self._source.each(names, frames):
            if isinstance(reply, ConnectorError):
                raise reply
            if isinstance(reply, ReplyError):
                if str(reply).startswith("READONLY"):
                    self._source.forget()  # the master moved; its name may lead elsewhere now
                raise translate(reply, "Redis")

    def close(self) -> None:
        """Close all connections."""
        self._source.close()

    def _failure(self, reply: Any, command: str) -> Failure:
        """The failure of one key; raises what concerns all keys."""
        error = translate(reply, "Redis") if isinstance(reply, ReplyError) else reply
        if isinstance(error, FatalError):
            raise error
        if isinstance(error, ConnectorError):
            return Failure(error)
        raise _odd(command)


def _odd(command: str) -> TransientError:
    return TransientError(f"Redis answered {command} in an unknown form; the answer was not used.")
