"""A Redis cluster: which node holds a key, and what to do while slots move."""

from __future__ import annotations

import asyncio
import binascii
import random
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from enrichkit.errors import ConnectorError, FatalError, TransientError

from .commands import pack
from .pool import Dialler, Pool
from .replies import translate, without_frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import Address
    from .template import Name

__all__ = ["Cluster", "slot_of"]

SLOTS = 16384
MAX_HOPS = 3  # the node of the map, where it sends us, and once more for a slot that moves meanwhile
LOAD_TIMEOUT = 2.0  # for one node to tell the map; a node that hangs must not hold up the others' keys for long
REFRESH = 1.0  # seconds between two loads of the map at least
ASKING = pack(("ASKING",))


def slot_of(name: Name) -> int:
    """
    Return the hash slot of the key *name*, 0 to 16383; see https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/.

    >>> slot_of("123456789"), slot_of(b"foo{bar}baz") == slot_of(b"bar")
    (12739, True)
    """
    if isinstance(name, str):
        name = name.encode()
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:  # '{}' is no tag
            name = name[start + 1 : end]
    return binascii.crc_hqx(name, 0) % SLOTS  # CRC-16/XMODEM, which is what Redis uses


class Cluster:
    """
    One pool per node that holds keys, and the map from slot to node.

    Each slot has commands of its own, since `MGET` over slots is refused; a key that shares its slot with no other of
    the call is one. All commands for a node are one pipeline, and the nodes are asked at the same time. The map is
    loaded again after a redirect or a lost node, at most once a second; until then redirects are followed one by one.
    """

    def __init__(self, dialler: Dialler, seed: Address, capacity: int) -> None:
        self._dialler = dialler
        self._seed = seed
        self._capacity = capacity
        self._pools: dict[Address, Pool] = {}
        self._map: list[Address | None] = []
        self._stale = False
        self._loaded = 0.0
        self._loading = asyncio.Lock()

    async def each(self, names: Sequence[Name], frames: Sequence[bytes], width: int = 1) -> list[Any]:
        """
        Send one frame of *width* commands per name to the node of the name's slot.

        Returns:
            For each name the last reply to its frame, or the first that is a `ReplyError`; a `TransientError` where the
            node could not be asked.
        """
        await self._refresh()
        answers: list[Any] = [None] * len(frames)
        plan: dict[tuple[Address | None, bool], list[int]] = {}
        for n, name in enumerate(names):
            plan.setdefault((self._map[slot_of(name)], False), []).append(n)
        for _ in range(MAX_HOPS):
            asks = (
                self._ask(node, asking, [frames[n] for n in which], width) for (node, asking), which in plan.items()
            )
            try:
                replies = await asyncio.gather(*asks, return_exceptions=True)  # so that none runs on behind our back
            except asyncio.CancelledError:
                self._stale = True  # a node may hang, and another have taken its place
                raise
            redirected: dict[tuple[Address | None, bool], list[int]] = {}
            for ((node, _), which), batch in zip(plan.items(), replies, strict=True):
                if isinstance(batch, TransientError):
                    self._stale = True
                    batch = [without_frames(batch)] * len(which)
                elif isinstance(batch, BaseException):
                    raise batch
                for n, answer in zip(which, batch, strict=True):
                    answers[n] = answer
                    if isinstance(answer, ReplyError) and (target := _target(str(answer), node)):
                        redirected.setdefault(target, []).append(n)
                    elif isinstance(answer, ReplyError) and str(answer).startswith("CLUSTERDOWN"):
                        self._stale = True  # a node that was cut off or reset; its slots may be another's
            if not redirected:
                break
            self._stale = True
            plan = redirected
        return answers

    def forget(self) -> None:
        """Drop the idle connections of all nodes and load the map again."""
        self._stale = True
        for pool in self._pools.values():
            pool.forget()

    def close(self) -> None:
        """Close the connections to all nodes, those in use too."""
        for pool in self._pools.values():
            pool.close()

    async def _ask(self, node: Address | None, asking: bool, frames: list[bytes], width: int) -> list[Any]:
        if node is None:
            raise TransientError("No node of the Redis cluster holds the key's slot.")
        if asking:
            return await self._pool(node).each((), [ASKING + frame for frame in frames], width + 1)
        return await self._pool(node).each((), frames, width)

    def _pool(self, address: Address) -> Pool:
        if address not in self._pools:
            self._pools[address] = Pool(self._dialler, address, self._capacity)
        return self._pools[address]

    def _fresh(self) -> bool:
        return bool(self._map) and not (self._stale and asyncio.get_running_loop().time() - self._loaded >= REFRESH)

    async def _refresh(self) -> None:
        if self._fresh():
            return
        async with self._loading:
            if not self._fresh():
                await self._load()

    async def _load(self) -> None:
        nodes = list({node for node in self._map if node is not None} - {self._seed})
        random.shuffle(nodes)  # not every worker asks the same node
        failure: ConnectorError = TransientError("The Redis cluster has no nodes.")
        for address in (*nodes, self._seed):
            try:
                async with asyncio.timeout(LOAD_TIMEOUT):
                    (reply,) = await self._pool(address).ask(pack(("CLUSTER", "SLOTS")), 1)
                if isinstance(reply, ReplyError):
                    raise translate(reply, "The Redis cluster")
                slots = _slots(reply, address)
            except TransientError as error:
                failure = error
                continue
            except TimeoutError:
                failure = TransientError(f"The Redis cluster did not tell its slots within {LOAD_TIMEOUT:g} s.")
                continue
            self._map, self._stale = slots, False
            break
        else:
            if not self._map:
                raise failure
        # Also after a failure, with the old map in place: the nodes that still live can go on answering.
        self._loaded = asyncio.get_running_loop().time()
        for address in self._pools.keys() - {*self._map, self._seed}:
            self._pools.pop(address).close()


def _slots(reply: Any, asked: Address) -> list[Address | None]:
    """Turn the reply to CLUSTER SLOTS, a list of [first, last, [host, port, ...], replicas ...], into the map."""
    slots: list[Address | None] = [None] * SLOTS
    try:
        for first, last, (host, port, *_), *_ in reply:
            # No name: the node does not know its own; it is the one that we asked.
            node = (host.decode() if host else asked[0], port)
            slots[first : last + 1] = [node] * (last + 1 - first)
    except (TypeError, ValueError, AttributeError):
        raise FatalError(
            "The Redis cluster answered CLUSTER SLOTS in an unknown form; it must be Redis or Valkey."
        ) from None
    if not any(slots):
        raise TransientError("The Redis cluster has no slots assigned to its nodes.")
    return slots[:SLOTS]


def _target(text: str, node: Address | None) -> tuple[Address, bool] | None:
    """Return where 'MOVED 3999 host:port' or 'ASK 3999 host:port' sends us, and whether ASKING must go first."""
    code, _, rest = text.partition(" ")
    host, colon, port = rest.rpartition(" ")[2].rpartition(":")
    if code not in ("MOVED", "ASK") or not colon or not port.isdecimal() or node is None:
        return None
    return (host or node[0], int(port)), code == "ASK"
