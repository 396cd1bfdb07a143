"""
Connectors with one bug each, and the contract tests of each connector; `test_contract_kit.py` runs them.

Each bug is so narrow that only the check meant for it fails, which proves that this check detects the bug. The file is
long because it is a list of bugs.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

from enrichkit import Call, ConfigError, Failure, FatalError, Keys, PermanentError, TransientError

from .sample import DAMAGED, Line, SampleConfig, SampleConnector, SampleContract, server

if TYPE_CHECKING:
    from enrichkit.testing.contract.source import Source

__all__ = ["BUGS", "server"]

BUGS: dict[str, str] = {}
"""The name of the check that must fail, by the name of the test class that is generated for the bug."""


def caught_by(check: str) -> Callable[[type[SampleConnector]], type[SampleConnector]]:
    """Create the contract tests of the decorated connector, of which only *check* must fail, and a config class."""

    def plant(connector: type[SampleConnector]) -> type[SampleConnector]:
        if "config_class" not in connector.__dict__:
            config = type(f"{connector.__name__}Config", (SampleConfig,), {"__module__": __name__})
            globals()[config.__name__] = dataclass(frozen=True, kw_only=True)(config)  # pickle finds it by its name
            connector = type(connector)(
                connector.__name__, (connector,), {"config_class": config, "__module__": __name__}
            )
        name = f"Test{connector.__name__}"
        globals()[name] = type(name, (SampleContract,), {"kind": connector, "patience": 3.0, "__module__": __name__})
        BUGS[name] = f"test_{check}"
        return connector

    return plant


def connector_with(config: type[SampleConfig]) -> type[SampleConnector]:
    """Return a correct connector class with the faulty config class *config*."""
    name = config.__name__.removesuffix("Config")
    connector = type(name, (SampleConnector,), {"config_class": config, "__module__": __name__})
    globals()[name] = connector  # pickle finds it by its name
    return connector


# The config -------------------------------------------------------------------------------------------------------


class PlainClassConfig(SampleConfig):
    """A config class without a dataclass decorator of its own."""


caught_by("the_config_is_a_frozen_dataclass")(connector_with(PlainClassConfig))


@dataclass(frozen=True, kw_only=True)
class ListInConfig(SampleConfig):
    """A config without a hash."""

    regions: list[str] = field(default_factory=lambda: ["eu"])

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.regions, list):
            raise ConfigError("ListInConfig.regions must be a list.")


caught_by("equal_configs_are_one_key")(connector_with(ListInConfig))


@dataclass(frozen=True, kw_only=True, eq=False)
class AllAlikeConfig(SampleConfig):
    """A config that equals all configs with the same port."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AllAlikeConfig) and other.port == self.port

    def __hash__(self) -> int:
        return hash(self.port)


caught_by("another_field_makes_another_config")(connector_with(AllAlikeConfig))


@dataclass(frozen=True, kw_only=True)
class LockInConfig(SampleConfig):
    """A config that cannot be pickled."""

    lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)


caught_by("the_config_survives_pickling")(connector_with(LockInConfig))


@dataclass(frozen=True, kw_only=True)
class ShownTokenConfig(SampleConfig):
    """A config whose repr shows its token."""

    token: str = ""


caught_by("the_repr_of_the_config_hides_its_secrets")(connector_with(ShownTokenConfig))


@caught_by("the_repr_of_the_connector_hides_the_secrets")
class ShownInConnector(SampleConnector):
    def __repr__(self) -> str:
        return f"<ShownInConnector {self.config.token}>"


@dataclass(frozen=True, kw_only=True)
class UncheckedConfig(SampleConfig):
    """A config that accepts any value as a port."""

    def __post_init__(self) -> None:
        if not isinstance(self.token, str):
            raise ConfigError("UncheckedConfig.token must be a text.")


caught_by("a_field_of_a_wrong_type_is_a_config_error")(connector_with(UncheckedConfig))


@dataclass(frozen=True, kw_only=True)
class TersePortConfig(SampleConfig):
    """A config whose message does not name the wrong field."""

    def __post_init__(self) -> None:
        if type(self.port) is not int:
            raise ConfigError("The configuration is invalid.")
        super().__post_init__()


caught_by("the_message_of_a_wrong_field_names_it")(connector_with(TersePortConfig))


@dataclass(frozen=True, kw_only=True)
class QuotedTokenConfig(SampleConfig):
    """A config whose message quotes the refused token."""

    def __post_init__(self) -> None:
        if isinstance(self.token, str) and self.token and not self.token.isprintable():
            raise ConfigError(f"QuotedTokenConfig.token is {self.token!r}; it must be printable.")
        super().__post_init__()


caught_by("no_message_shows_a_secret")(connector_with(QuotedTokenConfig))


@caught_by("the_limits_make_sense")
class MoreThanMost(SampleConnector):
    batch_size = 200


@caught_by("the_encoding_is_known")
class UnknownEncoding(SampleConnector):
    encoding = "utf-8"


@caught_by("what_it_requires_can_be_installed")
class AbsentDriver(SampleConnector):
    requires = ("a_driver_that_nobody_has",)
    pip = "pip install a-driver"


@caught_by("the_keys_are_of_the_declared_shape")
class OtherKeyTypes(SampleConnector):
    key_types = (int, bytes)


@caught_by("making_a_connector_opens_nothing")
class EagerThread(SampleConnector):
    def __init__(self, config: SampleConfig) -> None:
        super().__init__(config)
        self.ended = threading.Event()
        threading.Thread(target=self.ended.wait, args=(1.0,), daemon=True).start()

    async def close(self) -> None:
        self.ended.set()
        await super().close()


# Answers ----------------------------------------------------------------------------------------------------------


class Misread(SampleConnector):
    """A connector that fetches like the sample and then changes the answers; each subclass has its own change."""

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        return self.misread(keys, dict(await super().fetch_many(keys, call)), call)

    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        return found


@caught_by("the_order_of_the_keys_means_nothing")
class InOrder(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        good = len(found) == len(keys) and not any(isinstance(answer, Failure) for answer in found.values())
        return dict(zip(keys, found.values(), strict=True)) if good else found


@caught_by("a_missing_key_is_absent")
class NullForAMiss(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        return found or dict.fromkeys(keys)


@caught_by("a_missing_key_among_known_ones_is_absent")
class ShiftedByAMiss(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        distinct = list(dict.fromkeys(keys))
        return dict(zip(distinct, found.values(), strict=False)) if len(found) == len(distinct) - 1 else found


class Name(str):
    """A str subclass: its instances equal the keys but have another type."""

    __slots__ = ()


@caught_by("the_answers_are_a_mapping_of_the_keys_that_were_asked")
class KeysOfItsOwn(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        return {Name(key) if isinstance(key, str) else key: value for key, value in found.items()}


@caught_by("the_keys_are_left_as_they_were")
class TakesTheKeys(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        if isinstance(keys, list):
            keys.sort(key=str)
        return found


@caught_by("keys_in_columns_get_the_same_answers")
class ForgetsTheOffset(SampleConnector):
    """A connector that reads the buffers of a column without the column's offset, as if no column were a slice."""

    key_columns = True

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        if isinstance(keys, Keys):
            (column,) = keys.columns
            texts = pa.Array.from_buffers(pa.binary(), len(column), column.buffers()).to_pylist()
            keys = [text.decode("utf-8", "surrogateescape") for text in texts]
        return await super().fetch_many(keys, call)


@caught_by("asking_again_gives_the_same")
class UsedUp(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        self.cursors: dict[Any, Any] = getattr(self, "cursors", {})
        if not isinstance(keys, tuple) or len(found) == len(keys):
            return found
        return dict(self.cursors.setdefault(keys, iter(found.items())))


@caught_by("the_answers_belong_to_the_caller")
class KeptAnswers(Misread):
    kept: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}

    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        if self.kept[0] != found:
            self.kept = dict(found), found
        return self.kept[1]


@caught_by("a_group_may_be_as_large_as_it_says")
class ClaimsTooMuch(SampleConnector):
    max_batch_size = 200


@caught_by("a_group_that_is_too_large_is_answered_or_refused")
class CutsOff(SampleConnector):
    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return await super().fetch_many(keys[: self.max_batch_size], call)


@caught_by("a_key_that_comes_twice_is_answered_or_refused")
class CountsTwins(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        return dict(zip(keys, found.values(), strict=False)) if len(set(keys)) < len(keys) else found


@caught_by("an_empty_group_is_empty_or_refused")
class NeedsAKey(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        return found if keys[0] is not None else {}


@caught_by("several_matches_come_as_a_list")
class OneOfMany(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        return {key: value[0] for key, value in found.items()} if call.many else found


@caught_by("a_value_that_cannot_be_read_is_an_error")
class ReplacesWhatItCannotRead(SampleConnector):
    def readable(self, value: Any) -> Any:
        return "\N{REPLACEMENT CHARACTER}" if value == DAMAGED else value


@caught_by("bad_keys_in_any_number_harm_no_other")
class StopsAtTheThirdBadKey(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        bad = [key for key, answer in found.items() if isinstance(answer, Failure)]
        return {key: found[key] for key in bad} if len(bad) >= 3 else found


@caught_by("a_hostile_key_is_data")
class KnowsPatterns(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        return {"%": "what is held for plain"} if list(keys) == ["%"] else found


@caught_by("a_hostile_key_harms_no_other")
class StumblesOverNul(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        if len(keys) > 1 and any("\x00" in str(key) for key in keys):
            raise FatalError("The statement cannot be sent.")
        return found


@caught_by("a_key_of_another_type_harms_no_other")
class TextOnly(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        for key in keys:
            key.encode("utf-8", "surrogatepass")
        return found


@caught_by("no_message_holds_a_key")
class QuotesKeys(Misread):
    def misread(self, keys: Sequence[Any], found: dict[Any, Any], call: Call) -> Any:
        odd = [key for key in keys if not (isinstance(key, str) and key.isprintable())]
        return found | {key: Failure(PermanentError(f"The key {key} is odd.")) for key in odd}


# Calls ------------------------------------------------------------------------------------------------------------


@caught_by("calls_at_the_same_time_get_their_own_answers")
class SharedKeys(SampleConnector):
    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        if self.count < 16 or len(keys) > 1:
            return await super().fetch_many(keys, call)
        self.keys = keys
        await super().fetch_many(keys, call)  # meanwhile another call puts its keys there, or reads these
        answers = await super().fetch_many(self.keys, call)
        return dict(zip(keys, answers.values(), strict=False))


@caught_by("one_call_at_a_time_is_enough")
class SecondConnection(SampleConnector):
    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        if self.capacity > 1:
            return await super().fetch_many(keys, call)
        async with self.slots:  # a second slot, as for a question about the server's version
            return await super().fetch_many(keys, call)


@caught_by("calls_overlap")
class OneAfterAnother(SampleConnector):
    async def open(self) -> None:
        self.turn = asyncio.Lock()
        await super().open()

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        async with self.turn:
            return await super().fetch_many(keys, call)


class BlockingLine(Line):
    """A connection that blocks the event loop during requests of several keys, as a blocking driver does."""

    limit = 0.0

    async def ask(self, data: bytes) -> bytes:
        if len(json.loads(data).get("keys", ())) > 1 and not self.writer.is_closing():
            self.writer.write(data)
            select.select([self.writer.get_extra_info("socket")], [], [], self.limit)
            data = b""
        return await super().ask(data)


@caught_by("the_loop_goes_on_while_a_call_waits")
class Blocks(SampleConnector):
    async def request(self, request: dict[str, Any], timeout: float) -> Any:
        self.limit = timeout
        return await super().request(request, timeout)

    async def connect(self) -> Line:
        line = await super().connect()
        line.__class__ = BlockingLine
        return line

    async def exchange(self, line: Line, request: dict[str, Any]) -> Any:
        line.limit = self.limit  # type: ignore[attr-defined]
        return await super().exchange(line, request)


@caught_by("a_cancelled_call_ends_as_cancelled")
class SwallowsCancels(SampleConnector):
    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        try:
            return await super().fetch_many(keys, call)
        except asyncio.CancelledError:
            return {}


@caught_by("after_a_cancelled_call_the_next_one_gets_its_own_answers")
class BelievesItUnsent(SampleConnector):
    async def exchange(self, line: Line, request: dict[str, Any]) -> Any:
        if not line.writer.is_closing():
            line.writer.write(json.dumps({**request, "id": 0}).encode() + b"\n")
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.give_back(line)
                raise
        try:
            return self.read(await line.reader.readline(), 0)
        except BaseException:
            self.drop(line)
            raise


@caught_by("the_answer_to_a_cancelled_call_goes_to_nobody")
class ReusesTheLine(SampleConnector):
    async def request(self, request: dict[str, Any], timeout: float) -> Any:
        self.patient = timeout >= 1.0
        return await super().request(request, timeout)

    async def exchange(self, line: Line, request: dict[str, Any]) -> Any:
        try:
            return await super().exchange(line, request)
        except asyncio.CancelledError:
            if self.patient:
                self.give_back(line)
            raise

    def drop(self, line: Line) -> None:
        if not self.patient or line.writer.is_closing() or line.reader.at_eof():
            super().drop(line)


@caught_by("the_answer_to_a_cancelled_call_goes_to_nobody")
class ReusesTheLineLater(ReusesTheLine):
    """A pool that opens all its connections at once, and lends each in its turn, as that of aiomcache."""

    async def open(self) -> None:
        await super().open()
        self.opening = asyncio.Lock()

    async def connect(self) -> Line:
        async with self.opening:
            while not self.idle and len(self.lines or ()) < self.capacity - 1:
                self.give_back(await super().connect())
            return self.idle.pop() if self.idle else await super().connect()

    def give_back(self, line: Line) -> None:
        self.idle.insert(0, line)


@caught_by("cancelled_calls_give_their_places_back")
class LosesPlaces(SampleConnector):
    in_flight = 0
    crowded = False

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        self.in_flight += 1
        self.crowded = self.in_flight > 1 or (self.crowded and self.in_flight > 0)
        try:
            return await super().fetch_many(keys, call)
        except asyncio.CancelledError:
            if self.crowded:
                await self.slots.acquire()
            raise
        finally:
            self.in_flight -= 1


@caught_by("a_call_out_of_time_is_transient")
class LetsTimeoutsThrough(SampleConnector):
    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        async with asyncio.timeout(call.timeout * 0.9):
            return await super().fetch_many(keys, call)


# Lifecycle --------------------------------------------------------------------------------------------------------


@caught_by("closing_twice_is_closing_once")
class ClosesOnce(SampleConnector):
    async def close(self) -> None:
        if self.lines is None and getattr(self, "idle", None):
            raise RuntimeError("closed already")
        await super().close()


@caught_by("it_can_be_closed_before_it_is_opened")
class NeedsOpen(SampleConnector):
    async def close(self) -> None:
        self.idle.clear()
        await super().close()


@caught_by("it_can_be_opened_again")
class OncePerLoop(SampleConnector):
    seen: Any = None

    async def open(self) -> None:
        await super().open()
        if self.seen is asyncio.get_running_loop():
            await self.close()

    async def close(self) -> None:
        if getattr(self, "idle", None):
            self.seen = asyncio.get_running_loop()
        await super().close()


@caught_by("it_can_be_opened_on_another_loop")
class LockOfTheConstructor(SampleConnector):
    def __init__(self, config: SampleConfig) -> None:
        super().__init__(config)
        self.gate = asyncio.Semaphore(1)

    async def connect(self) -> Line:
        async with self.gate:
            return await super().connect()


@caught_by("two_of_them_do_not_touch_each_other")
class OneForAll(SampleConnector):
    generation: ClassVar[int] = 0

    async def open(self) -> None:
        self.mine = type(self).generation
        await super().open()

    async def close(self) -> None:
        type(self).generation += 1
        await super().close()

    async def request(self, request: dict[str, Any], timeout: float) -> Any:
        if self.mine != self.generation:
            raise TransientError("closed")
        return await super().request(request, timeout)


@caught_by("a_forked_process_makes_its_own")
class DeadInAFork(SampleConnector):
    owner: ClassVar[int | None] = None

    async def connect(self) -> Line:
        if type(self).owner not in (None, os.getpid()):
            await asyncio.Event().wait()  # as for a thread that exists only in the parent process
        type(self).owner = os.getpid()
        return await super().connect()


@caught_by("a_closed_connector_leaves_no_task")
class ForgetsATask(SampleConnector):
    async def open(self) -> None:
        await super().open()
        self.beat = asyncio.create_task(asyncio.sleep(3600))


@caught_by("a_closed_connector_leaves_nothing_open")
class ForgetsFiles(SampleConnector):
    """
    A connector that leaves files open.

    The files are many, because the server runs in the same process and may still have some sockets to close when the
    check counts files and sockets.
    """

    async def open(self) -> None:
        await super().open()
        self.logs = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]


@caught_by("a_failed_open_can_be_closed_and_repeated")
class HalfOpen(SampleConnector):
    opening = False

    async def open(self) -> None:
        if self.opening:
            return
        self.opening = True
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await super().open()
        self.opening = False


@caught_by("close_ends_its_connections")
class KeepsCancelledLines(SampleConnector):
    lost: tuple[Line, ...] = ()

    def drop(self, line: Line) -> None:
        self.lost = (*self.lost, line)
        if self.lines is not None:
            self.lines.discard(line)


@caught_by("close_waits_for_no_server")
class SaysGoodbye(SampleConnector):
    async def close(self) -> None:
        if self.lines is not None:
            for line in list(self.lines):
                if not line.writer.is_closing():
                    line.writer.write(b'{"do": "bye", "id": 0}\n')
                    while await line.reader.read(100) not in (b"", b"[0, null]\n"):
                        pass
        await super().close()


@caught_by("an_open_that_finds_no_server_is_transient")
class ConnectsAtOnce(SampleConnector):
    async def open(self) -> None:
        await super().open()
        self.idle.append(await self.connect())


# Faults -----------------------------------------------------------------------------------------------------------


@caught_by("it_opens_no_more_connections_than_calls")
class NoBound(SampleConnector):
    async def open(self) -> None:
        await super().open()
        self.slots = asyncio.Semaphore(1000)


@caught_by("calls_share_their_connections")
class LinePerCall(SampleConnector):
    def give_back(self, line: Line) -> None:
        self.drop(line)


@caught_by("a_server_that_is_away_is_transient")
class GivesUpOnKeys(SampleConnector):
    refused = 0

    async def connect(self) -> Line:
        try:
            return await super().connect()
        except OSError:
            self.refused += 1
            if self.refused == 2:
                raise PermanentError("The server is away.") from None
            raise


@caught_by("it_comes_back_with_its_server")
class GivesUpForEver(SampleConnector):
    dead = False

    async def connect(self) -> Line:
        if self.dead:
            raise ConnectionRefusedError
        try:
            return await super().connect()
        except OSError:
            self.dead = self.lines is not None
            raise


@caught_by("half_an_answer_is_no_answer")
class ReadsHalves(SampleConnector):
    def read(self, data: bytes, number: int) -> Any:
        pair = data.partition(b'[["')[2]
        if data.endswith(b"\n") or not pair:
            return super().read(data, number)
        key, _, value = pair.partition(b'", "')
        return [[key.decode(), value.partition(b'"')[0].decode()]] if value else []


@caught_by("a_lost_connection_is_no_miss")
class LostIsAMiss(SampleConnector):
    def read(self, data: bytes, number: int) -> Any:
        return [] if 0 < len(data) < 5 and not data.endswith(b"\n") else super().read(data, number)


@caught_by("it_does_not_try_again_by_itself")
class TriesAgain(SampleConnector):
    async def exchange(self, line: Line, request: dict[str, Any]) -> Any:
        for _ in range(5):
            try:
                return await super().exchange(line, request)
            except OSError:
                line = await self.connect()
        raise ConnectionResetError


@caught_by("the_message_of_a_lost_connection_holds_no_key")
class QuotesTheQuestion(SampleConnector):
    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        try:
            return await super().fetch_many(keys, call)
        except TransientError:
            raise TransientError(f"The connection was lost when it was asked for {list(keys)}.") from None


# Values -----------------------------------------------------------------------------------------------------------


@caught_by("the_type_of_a_value_is_known")
class SaysNoType(SampleConnector):
    async def describe(self) -> str | None:
        return self.config.returns


@caught_by("a_declared_type_comes_first")
class KnowsBetter(SampleConnector):
    async def describe(self) -> str | None:
        return "string"


@caught_by("the_values_are_in_the_declared_encoding")
class TextAsJson(SampleConnector):
    encoding = "json"

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        answers = await super().fetch_many(keys, call)
        return {
            key: [json.dumps(each) for each in answer]
            if call.many
            else answer
            if isinstance(answer, Failure)
            else json.dumps(answer)
            for key, answer in answers.items()
        }

    async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        await super().store_many({key: json.loads(value) for key, value in values.items()}, ttl)


@caught_by("what_is_stored_is_found")
class KeepsTheOld(SampleConnector):
    async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        there = await self.fetch_many(list(values), Call(timeout=5.0)) if ttl == 60.0 else {}
        await super().store_many({key: value for key, value in values.items() if key not in there}, ttl)


@caught_by("what_is_stored_ends_with_its_time")
class HoursForSeconds(SampleConnector):
    async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        await super().store_many(values, None if ttl is None else ttl * 3600)


@caught_by("storing_nothing_is_nothing")
class StoresSomething(SampleConnector):
    async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        next(iter(values.items()))
        await super().store_many(values, ttl)


@caught_by("nothing_is_listed_twice")
class ListsTwice(SampleConnector):
    async def scan(self, kinds: Sequence[type], size: int) -> Any:
        async for page in super().scan(kinds, size):
            yield [*page, *page[-1:]]


@caught_by("everything_is_listed")
class ListsTheFirstPage(SampleConnector):
    async def scan(self, kinds: Sequence[type], size: int) -> Any:
        async for page in super().scan(kinds, size):
            yield page
            return


@caught_by("nothing_else_is_listed")
class ListsAKeyTooMany(SampleConnector):
    async def scan(self, kinds: Sequence[type], size: int) -> Any:
        async for page in super().scan(kinds, size):
            yield page
        yield ["nobody"]


# The class of tests -----------------------------------------------------------------------------------------------


class TestLeavesOut(SampleContract):
    """A test class that leaves a check out without a reason."""

    def test_a_known_key_has_its_value(self) -> None:  # type: ignore[override]
        pass


BUGS["TestLeavesOut"] = "test_contract_is_whole"


class TestSaysWhy(SampleContract):
    """A test class that leaves a check out with a reason; its connector has the bug that this check detects."""

    kind = NullForAMiss

    @pytest.mark.xfail(reason="The server answers null for a missing key.")
    def test_a_missing_key_is_absent(self, source: Source) -> None:
        super().test_a_missing_key_is_absent(source)


class TestNamesNoAddress(SampleContract):
    """A test class without an address, although its connector opens connections."""

    @pytest.fixture
    def address(self) -> None:
        return None
