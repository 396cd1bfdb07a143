"""
The web server of a monitor: it serves the page, and takes what workers push (`routes.py`).

The server runs in a thread of the driver program, which it must never disturb. The server changes neither signal
handlers nor logging, an open page does not keep the program alive, and an error in one request affects no other
request.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import socket
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn import Server

    from .view import View

__all__ = ["MonitorServer"]

STOP_TIMEOUT = 0.5  # seconds that unfinished answers get to end when the server stops
BACKLOG = 128  # connections that wait to be accepted
CONNECTIONS_MAX = 1000  # most open connections; each worker process keeps one open

HEADERS = [
    (
        "Content-Security-Policy",
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),  # the address holds the token, which other sites must not get
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
]


class MonitorServer:
    """
    The server of one monitor.

    The server calls the functions *view*, *push*, *metrics* and *report* on its own thread, one at a time, so they have
    to be quick.

    Args:
        host: Name or address under which browsers and workers reach the server.
        port: Port to listen on; 0: any free port.
        view_token: Token that permits reading.
        push_token: Token that permits pushing.
        listen: Address to listen on; None: `host`.
        view: Function that returns the current view. A returned view must not change afterwards, because the server
            compares it with the next view.
        push: Function that takes the body of one push. If the function raises a ValueError, the answer has the status
            400 and the text of the error.
        metrics: Function that returns the text for Prometheus.
        report: Function that returns the report as HTML.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        view_token: str,
        push_token: str,
        listen: str | None = None,
        view: Callable[[], View],
        push: Callable[[bytes], None],
        metrics: Callable[[], str],
        report: Callable[[], str],
    ) -> None:
        self.host = host
        self.port = port
        self._listens_on = listen or host
        self._view_token = view_token
        self._functions: dict[str, Any] = {
            "view_token": view_token,
            "push_token": push_token,
            "view": view,
            "push": push,
            "metrics": metrics,
            "report": report,
        }
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._ready = threading.Event()

    def __repr__(self) -> str:
        return f"<MonitorServer {self.host}:{self.port}>"  # no tokens, because a log may show this

    @property
    def address(self) -> str:
        """The address without a token, so that it may be shown to anybody."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address of the page; it holds the view token."""
        return f"{self.address}/{self._view_token}/"

    @property
    def push_address(self) -> str:
        """The address to which workers push; it holds no token."""
        return f"{self.address}/push"

    def start(self) -> None:
        """
        Start to listen, and return when the thread of the server runs.

        Raises:
            ConfigError: The packages of the extra `monitor` are not installed, or the address cannot be bound.
        """
        for package in ("starlette", "uvicorn"):
            if find_spec(package) is None:
                raise ConfigError(
                    f"The monitor needs the package {package}, which is not installed. "
                    "Run: pip install 'enrichkit[monitor]'"
                )
        # The import is here, because `import enrichkit` must need neither these packages nor the quarter of a second
        # that their import takes.
        from uvicorn import Config, Server

        from .routes import Routes

        listener = self._listen()
        self.port = listener.getsockname()[1]
        config = Config(
            Routes(**self._functions, stopping=self._stopping).application,
            # These settings do not keep uvicorn's defaults, because some of the defaults depend on installed packages
            # and on the environment.
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=HEADERS,
            limit_concurrency=CONNECTIONS_MAX,
            backlog=BACKLOG,
        )
        serve = self._serve(Server(config), listener)
        self._thread = threading.Thread(target=asyncio.run, args=[serve], name="enrichkit-monitor-server", daemon=True)
        self._thread.start()
        self._ready.wait()
        atexit.register(self.stop)  # at exit, open pages are told that the server stops

    def stop(self) -> None:
        """Tell open pages that the server stops, and close all connections; return within a second."""
        atexit.unregister(self.stop)
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join(2 * STOP_TIMEOUT)

    def _listen(self) -> socket.socket:
        listener = None
        try:
            family, kind, number, _, address = socket.getaddrinfo(
                self._listens_on, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, number)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address[0], self.port, *address[2:]))
            listener.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            if listener is not None:
                listener.close()
            raise ConfigError(
                f"The monitor cannot listen on {self._listens_on!r}, port {self.port}: {str(error).rstrip('.')}. "
                "Choose another port, or 0 for any that is free, and an address of this machine."
            ) from error
        return listener

    async def _serve(self, server: Server, listener: socket.socket) -> None:
        """Serve until `_stopping` is set; then give unfinished answers a moment to end, and cancel the rest."""
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        quiet = _Quiet(self._stopping)
        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(quiet)
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="enrichkit-monitor-server")
        stopping = asyncio.create_task(self._stopping.wait(), name="enrichkit-monitor-stop")
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            await asyncio.wait({serving}, timeout=STOP_TIMEOUT)
            serving.cancel()
            await asyncio.wait({serving})
            for connection in list(server.server_state.connections):
                connection.transport.abort()  # a client that does not read would keep the connection open
        finally:
            listener.close()
            logger.removeFilter(quiet)


class _Quiet(logging.Filter):
    """
    A log filter that keeps the server from filling the log of the program.

    Of the records that the server's thread logs, only the first error passes; once the server stops, none does.
    """

    def __init__(self, stopping: asyncio.Event) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._stopping = stopping
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        if record.levelno < logging.ERROR or self._said or self._stopping.is_set():
            return False
        self._said = True
        return True
