"""
An ASGI application that serves the values in the environment variable HELD, a JSON object by key.

`GET /users/<key>` answers with the value, or 404. A `POST` of a list of keys answers with an object by key of those
values that exist. A value that is the name of a fault stands for it: "refused" is a 400 for the request, "cut" half a
document, and "bytes" no UTF-8.
"""

import json
import os
from typing import Any
from urllib.parse import unquote_to_bytes

HELD = json.loads(os.environ["HELD"])
FAULTS = {"refused": (400, b"{}"), "cut": (200, b'{"name": "x", '), "bytes": (200, b'{"name": "\xff", "tier": 1}')}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message.get("more_body"):
            break
    status, answer = 404, None
    if scope["method"] == "POST":
        keys = json.loads(body)
        status, answer = 200, {key: HELD[key] for key in keys if isinstance(key, str) and key in HELD}
        if any(value in FAULTS for value in answer.values() if isinstance(value, str)):
            status, answer = 400, None
    else:
        # The raw path, in which a slash inside a key is encoded.
        key = unquote_to_bytes(scope["raw_path"].removeprefix(b"/users/")).decode(errors="replace")
        if key in HELD:
            status, answer = 200, HELD[key]
    data = json.dumps(answer).encode()
    if isinstance(answer, str) and answer in FAULTS:
        status, data = FAULTS[answer]
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
