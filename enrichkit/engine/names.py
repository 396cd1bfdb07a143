"""
An event loop that looks each host name up on a separate thread, and tries all addresses of the name.

The event loop itself looks the names up and tries the addresses, so that every client package and every connector of a
user benefits. By default, uvloop and asyncio look up all names on a few shared threads, so one name server that hangs
would block every source and the exit of the process. Also, uvloop tries the addresses of a name one after the other, so
an address that does not respond would use up all the time allowed for connecting.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from asyncio.staggered import staggered_race
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeAlias

__all__ = ["new_loop"]

STAGGER = 0.25
"""
Seconds after which the next address of a host is tried, too, while the attempts at earlier addresses go on. This is the
connection attempt delay of "Happy Eyeballs", RFC 8305, section 8.
"""

Infos: TypeAlias = list[tuple[Any, Any, int, str, Any]]
"""What `socket.getaddrinfo` returns."""


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that reaches hosts as this module describes; it is uvloop's if uvloop is installed."""
    try:
        import uvloop
    except ImportError:
        return _with_names(asyncio.SelectorEventLoop)()
    return _with_names(uvloop.Loop)()


def _with_names(base: Any) -> Callable[[], asyncio.AbstractEventLoop]:
    class NamesLoop(base):  # type: ignore[misc]
        """A subclass of *base* that replaces the look-up of names and the way to connect."""

        def __init__(self) -> None:
            super().__init__()
            self._look_ups: dict[tuple[Any, ...], asyncio.Future[Infos]] = {}

        async def getaddrinfo(
            self,
            host: Any,
            port: Any,
            *,
            family: int = 0,
            type: int = 0,  # noqa: A002  # the argument's name in asyncio
            proto: int = 0,
            flags: int = 0,
        ) -> Infos:
            asked = (host, port, family, type, proto, flags)
            if asked not in self._look_ups:
                self._look_ups[asked] = _on_thread(self, partial(socket.getaddrinfo, *asked))
                self._look_ups[asked].add_done_callback(lambda _: self._look_ups.pop(asked))
            # Shielded, because other callers may wait for the same look-up when this caller is cancelled.
            return await asyncio.shield(self._look_ups[asked])

        async def create_connection(
            self, protocol_factory: Any, host: Any = None, port: Any = None, *, ssl: Any = None, **rest: Any
        ) -> Any:
            if not isinstance(host, str) or _is_address(host) or rest.keys() - {"server_hostname"}:
                return await super().create_connection(protocol_factory, host, port, ssl=ssl, **rest)
            if ssl:
                rest.setdefault("server_hostname", host)
            infos = await self.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            if len(infos) == 1:
                address = infos[0][4]
                return await super().create_connection(protocol_factory, address[0], address[1], ssl=ssl, **rest)
            connected = await _first(self, infos)
            try:
                return await super().create_connection(protocol_factory, sock=connected, ssl=ssl, **rest)
            except BaseException:
                connected.close()
                raise

    return NamesLoop


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _on_thread(loop: asyncio.AbstractEventLoop, look_up: Callable[[], Infos]) -> asyncio.Future[Infos]:
    """Run *look_up* on a daemon thread, which cannot block the process's exit; return a future for the result."""
    future = loop.create_future()

    def settle(result: Infos | BaseException) -> None:
        if isinstance(result, BaseException):
            future.set_exception(result)
            future.exception()  # marks the error as seen; otherwise asyncio logs it if the caller was cancelled
        else:
            future.set_result(result)

    def run() -> None:
        try:
            result: Infos | BaseException = look_up()
        except Exception as error:  # noqa: BLE001  # the caller that awaits the future gets the error
            result = error
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:
            return  # the loop has been closed meanwhile, so nobody waits for the result

    threading.Thread(target=run, name="enrichkit-name", daemon=True).start()
    return future


async def _first(loop: asyncio.AbstractEventLoop, infos: Infos) -> socket.socket:
    """Return a socket connected to the address in *infos* that accepts first; if no address does, raise an error."""
    connected: socket.socket | None
    connected, _, errors = await staggered_race([partial(_connected, loop, info) for info in infos], STAGGER)
    if connected is None:
        raise next(error for error in errors if error is not None)
    return connected


async def _connected(loop: asyncio.AbstractEventLoop, info: tuple[Any, Any, int, str, Any]) -> socket.socket:
    family, kind, proto, _, address = info
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
