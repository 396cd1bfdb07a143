"""A client of a Redis cluster: it finds the node of each key, and follows redirects while slots move."""

from __future__ import annotations

import asyncio
import binascii
import random
from typing import TYPE_CHECKING, Any, TypeAlias

from hiredis import ReplyError

from enrichkit.errors import ConnectorError, FatalError, TransientError, UnavailableError
from enrichkit.plugin import time_limit

from .commands import pack
from .pool import Dialler, Pool
from .replies import translate, without_traceback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import Address, RedisConfig
    from .template import Name

    Targets: TypeAlias = dict[tuple[Address | None, bool], list[int]]
    """
    Mapping from a pair (the node to ask, whether ASKING must precede each command) to the indices of the keys. The node
    is None for keys whose slot no node holds.
    """

__all__ = ["Cluster", "slot_of", "source_of"]

SLOTS = 16384
NOBODY = "A node of the Redis cluster"
# A key is sent to at most three nodes: that in the slot map, that in its redirect, and one more if the slot moves
# meanwhile.
MAX_HOPS = 3
# Most seconds to wait for the slot map from one node, so that a node that hangs does not delay other keys for long.
LOAD_TIMEOUT = 2.0
REFRESH = 1.0  # least seconds between two loads of the slot map
ASKING = pack(("ASKING",))


def slot_of(name: Name) -> int:
    """
    Return the hash slot of the key *name*, 0 to 16383; see
    https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/.

    >>> slot_of("123456789"), slot_of(b"foo{bar}baz") == slot_of(b"bar")
    (12739, True)
    """
    if isinstance(name, str):
        name = name.encode()
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:  # an empty '{}' is no hash tag
            name = name[start + 1 : end]
    return binascii.crc_hqx(name, 0) % SLOTS  # CRC-16/XMODEM, as in Redis


def source_of(config: RedisConfig, capacity: int) -> Pool | Cluster:
    """Return the pool or the cluster for *config*, with at most *capacity* connections to each server."""
    dialler = Dialler(config)
    if config.cluster:
        return Cluster(dialler, dialler.endpoint.address, capacity)
    return Pool(dialler, None if config.sentinel else dialler.endpoint.address, capacity)


class Cluster:
    """
    One pool per node that holds keys, and the map from slots to nodes.

    Each slot needs a command of its own, because a node refuses an `MGET` for keys of several slots. All commands for a
    node are sent as one pipeline, and all nodes are asked at the same time. After a redirect or the loss of a node, the
    map is loaded again, at most once a second; until then, each redirected key is sent to the node that the redirect
    names.
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

    async def ask_each(self, names: Sequence[Name], frames: Sequence[bytes], width: int = 1) -> list[Any]:
        """
        For each name, send its frame, the bytes of *width* commands, to the node that holds the slot of the name.

        Returns:
            A list with one element for each name: the last reply to its frame; or, if a command of the frame was
            refused, the first `ReplyError`; or, if the node could not be asked, a `TransientError`.
        """
        await self._refresh()
        answers: list[Any] = [None] * len(frames)
        targets: Targets = {}
        for index, name in enumerate(names):
            targets.setdefault((self._map[slot_of(name)], False), []).append(index)
        for _ in range(MAX_HOPS):
            batches = await self._ask_nodes(targets, frames, width)
            targets = self._collect(targets, batches, answers)
            if not targets:
                break
            self._stale = True
        return answers

    async def _ask_nodes(self, targets: Targets, frames: Sequence[bytes], width: int) -> list[Any]:
        """
        Send the frames of each target to its node, to all nodes at the same time. Return for each target the list of
        replies or an exception.
        """
        asks = (
            self._ask_node(node, asking, [frames[index] for index in indices], width)
            for (node, asking), indices in targets.items()
        )
        try:
            # Exceptions are returned, because otherwise gather would raise the first one and leave the other calls
            # running.
            batches: list[Any] = await asyncio.gather(*asks, return_exceptions=True)
            return batches
        except asyncio.CancelledError:
            # The map is loaded again, because the call may have been cancelled after a wait for a node that hangs, and
            # another node may have taken over the slots of this node.
            self._stale = True
            raise

    def _collect(self, targets: Targets, batches: Sequence[Any], answers: list[Any]) -> Targets:
        """
        Write the replies in *batches* into *answers*, and return the redirected keys, grouped by the node to ask next.
        """
        redirects: Targets = {}
        for ((node, _), indices), batch in zip(targets.items(), batches, strict=True):
            if isinstance(batch, TransientError):
                self._stale = True
                # Only one node is away. `batch.node` names it, so that the engine goes on asking the other nodes.
                if isinstance(batch, UnavailableError) and batch.node is None:
                    batch.node = f"Redis at {node[0]}:{node[1]}" if isinstance(node, tuple) else NOBODY
                batch = [without_traceback(batch)] * len(indices)
            elif isinstance(batch, BaseException):
                raise batch
            for index, answer in zip(indices, batch, strict=True):
                answers[index] = answer
                if isinstance(answer, ReplyError):
                    if target := _redirect(str(answer), node):
                        redirects.setdefault(target, []).append(index)
                    elif str(answer).startswith("CLUSTERDOWN"):
                        # The map is loaded again, because the slots of a node that was cut off may have moved to
                        # another node.
                        self._stale = True
        return redirects

    async def masters(self) -> list[Pool]:
        """Return the pools of all nodes that hold slots."""
        await self._refresh()
        return [self._pool(node) for node in dict.fromkeys(self._map) if node is not None]

    def forget(self) -> None:
        """Drop the idle connections to all nodes, and mark the slot map as stale, so that it is loaded again."""
        self._stale = True
        for pool in self._pools.values():
            pool.forget()

    def close(self) -> None:
        """Close the connections to all nodes, including those in use."""
        for pool in self._pools.values():
            pool.close()

    async def _ask_node(self, node: Address | None, asking: bool, frames: list[bytes], width: int) -> list[Any]:
        if node is None:
            raise UnavailableError("No node of the Redis cluster holds the key's slot.", node=NOBODY, sent=False)
        if asking:
            return await self._pool(node).ask_each((), [ASKING + frame for frame in frames], width + 1)
        return await self._pool(node).ask_each((), frames, width)

    def _pool(self, address: Address) -> Pool:
        if address not in self._pools:
            self._pools[address] = Pool(self._dialler, address, self._capacity, node=True)
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
        random.shuffle(nodes)  # shuffled, so that not all workers ask the same node
        failure: ConnectorError = UnavailableError("The Redis cluster has no nodes.")
        for address in (*nodes, self._seed):
            try:
                async with time_limit(LOAD_TIMEOUT):
                    (reply,) = await self._pool(address).ask(pack(("CLUSTER", "SLOTS")), 1)
                if isinstance(reply, ReplyError):
                    raise translate(reply, "The Redis cluster")
                slots = _slots(reply, address)
            except TransientError as error:
                failure = error
                continue
            except TimeoutError:
                failure = UnavailableError(f"The Redis cluster did not tell its slots within {LOAD_TIMEOUT:g} s.")
                continue
            self._map, self._stale = slots, False
            break
        else:
            if not self._map:
                if isinstance(failure, UnavailableError):  # no node answers; sent=False says that no key was sent
                    raise UnavailableError(str(failure), sent=False, busy=failure.busy)
                raise failure
        # The time of the load is recorded even if no node sent a map, so that the next attempt comes after `REFRESH`
        # seconds. The old map stays in use until then, because nodes that are alive can still answer.
        self._loaded = asyncio.get_running_loop().time()
        for address in self._pools.keys() - {*self._map, self._seed}:
            self._pools.pop(address).close()


def _slots(reply: Any, address: Address) -> list[Address | None]:
    """
    Return the node of each slot, in the order of the slots; None for a slot that no node holds.

    Args:
        reply: Reply to CLUSTER SLOTS, a list of [first, last, [host, port, ...], replicas ...].
        address: Address of the node that sent the reply.
    """
    slots: list[Address | None] = [None] * SLOTS
    try:
        for first, last, (host, port, *_), *_ in reply:
            # A node that does not know its own host name sends an empty host, which means the host of *address*.
            node = (host.decode() if host else address[0], port)
            slots[first : last + 1] = [node] * (last + 1 - first)
    except (TypeError, ValueError, AttributeError):
        raise FatalError(
            "The Redis cluster answered CLUSTER SLOTS in an unknown form; it must be Redis or Valkey."
        ) from None
    if not any(slots):
        raise UnavailableError("The Redis cluster has no slots assigned to its nodes.")
    return slots[:SLOTS]


def _redirect(text: str, node: Address | None) -> tuple[Address, bool] | None:
    """
    Return the node that a redirect names, and whether ASKING must precede the command; None if the error is no
    redirect.

    Args:
        text: Text of an error, for example 'MOVED 3999 host:port' or 'ASK 3999 host:port'.
        node: Node that sent the error; the host of this node replaces an empty host in *text*.
    """
    code, _, rest = text.partition(" ")
    host, colon, port = rest.rpartition(" ")[2].rpartition(":")
    if code not in ("MOVED", "ASK") or not colon or not port.isdecimal() or node is None:
        return None
    return (host or node[0], int(port)), code == "ASK"
