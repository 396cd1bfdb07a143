"""
The HTTP routes of a monitor's web server, which `server.py` runs. This module needs the extra `monitor`.

    /<view token>/              the page, and page.css and page.js beside it
    /<view token>/view          the view as JSON
    /<view token>/events        a stream of server-sent events
    /<view token>/metrics       text for Prometheus
    /<view token>/report.html   the page as one file, as a download
    /push                       takes what a worker pushes; needs the push token

Whoever knows the view token sees the page. The token is in the path, and the page has only relative URLs, so that the
page works behind a proxy that puts a prefix before the path, as the proxies of notebooks do.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from .page import page_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

    from .view import View

__all__ = ["Routes", "changes"]

PUSH_MAX = 1 << 20  # most bytes of one push
PUSH_TIMEOUT = 10.0  # seconds in which the body of a push has to arrive
INTERVAL = 1.0  # seconds between two events of a stream
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Routes:
    """
    The routes of one monitor; the attribute `application` is the ASGI application that the server runs.

    Args:
        view_token: Token that permits reading.
        push_token: Token that permits pushing.
        view: Function that returns the current view.
        push: Function that takes the body of one push; it raises a ValueError if the body is not a valid push.
        metrics: Function that returns the text for Prometheus.
        report: Function that returns the report as HTML.
        stopping: Event that is set when the server stops; the streams of events end then.
    """

    def __init__(
        self,
        *,
        view_token: str,
        push_token: str,
        view: Callable[[], View],
        push: Callable[[bytes], None],
        metrics: Callable[[], str],
        report: Callable[[], str],
        stopping: asyncio.Event,
    ) -> None:
        self._view_token = view_token.encode()
        self._authorization = f"Bearer {push_token}".encode()
        self._view = view
        self._push = push
        self._stopping = stopping
        self._files = page_files()
        download = {"Content-Disposition": 'attachment; filename="enrichkit-report.html"'}
        unbuffered = {"X-Accel-Buffering": "no"}  # tells nginx to pass each event on at once
        self._answers: dict[str, Callable[[], Response]] = {
            "view": lambda: Response(msgspec.json.encode(view()), media_type="application/json"),
            "events": lambda: StreamingResponse(self._events(), media_type="text/event-stream", headers=unbuffered),
            "metrics": lambda: Response(metrics(), media_type=PROMETHEUS),
            "report.html": lambda: Response(report(), media_type="text/html", headers=download),
        }
        routes = [
            Route("/push", self._take, methods=["POST"]),
            Route("/{token}", self._add_slash),
            Route("/{token}/{name:path}", self._read),
        ]
        self.application = Starlette(routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=1000)])
        # `_add_slash` redirects instead, because Starlette's redirects lack the prefix that a proxy adds to the path.
        self.application.router.redirect_slashes = False

    def _check(self, request: Request) -> None:
        if not hmac.compare_digest(request.path_params["token"].encode(), self._view_token):
            raise HTTPException(404)

    async def _add_slash(self, request: Request) -> Response:
        self._check(request)
        return Response(status_code=307, headers={"Location": f"{self._view_token.decode()}/"})

    async def _read(self, request: Request) -> Response:
        self._check(request)
        name = request.path_params["name"] or "index.html"
        if name in self._answers:
            return self._answers[name]()
        if name not in self._files:
            raise HTTPException(404)
        kind, content = self._files[name]
        return Response(content, media_type=kind)

    async def _take(self, request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), self._authorization):
            raise HTTPException(401)
        try:
            async with asyncio.timeout(PUSH_TIMEOUT):
                body = await _body(request)
        except TimeoutError:
            raise HTTPException(408) from None
        if body is None:
            return PlainTextResponse(f"A push has at most {PUSH_MAX} bytes.", 413, {"Connection": "close"})
        try:
            self._push(body)
        except ValueError as error:
            return PlainTextResponse(str(error), 400)
        return Response(status_code=204)

    async def _events(self) -> AsyncIterator[bytes]:
        """
        Yield one event each second. When the server stops, yield a last `view` or `beat`, and then the event `end`.

        The event `view` carries the result of `changes`. The event `beat` says that nothing has changed. `beat` is an
        event and not a comment of the stream, because a page does not see comments. Without `beat`, the page could not
        tell whether nothing has changed or a proxy holds the stream back.
        """
        sent: View | None = None
        while True:
            ending = self._stopping.is_set()
            view = self._view()
            data = changes(sent, view)
            yield _event("beat", {"at": view["at"]}) if data is None else _event("view", data)
            sent = view
            if ending:
                yield _event("end", {})
                return
            try:
                await asyncio.wait_for(self._stopping.wait(), INTERVAL)
            except TimeoutError:
                continue


def changes(old: View | None, new: View) -> dict[str, Any] | None:
    """
    Return the update from *old*, which a page shows now, to *new*; None if only the time has changed.

    The history is by far the largest part of a view, and few of its points change. In the update, `view` is therefore
    *new* without the points that the page already has: the page drops its first `drop` points, keeps the next `keep`
    points, and appends the points of `view`.
    """
    if old is None:
        return {"drop": 0, "keep": 0, "view": new}
    if {**old, "at": 0} == {**new, "at": 0}:
        return None
    had, has = old["history"], new["history"]
    drop = next((index for index, point in enumerate(had) if has and point["at"] == has[0]["at"]), len(had))
    pairs = enumerate(zip(had[drop:], has, strict=False))
    keep = next((index for index, (before, after) in pairs if before != after), min(len(had) - drop, len(has)))
    return {"drop": drop, "keep": keep, "view": {**new, "history": has[keep:]}}


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


async def _body(request: Request) -> bytes | None:
    """Return the body; None if it is too large, or if its Content-Length is not a number."""
    if not (request.headers.get("content-length") or "0").isdecimal():
        return None
    if int(request.headers.get("content-length") or 0) > PUSH_MAX:
        return None
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > PUSH_MAX:
            return None
    return bytes(body)
