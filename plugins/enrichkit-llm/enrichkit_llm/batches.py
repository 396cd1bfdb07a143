"""The batch form of a model: the API takes a file of requests (`/files`, `/batches`), and answers within a day."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from enrichkit.errors import ConnectorError, PermanentError
from enrichkit.plugin import BatchStatus, Call, Failure, Key, Value

from .price import Spent
from .service import Service, object_of

if TYPE_CHECKING:
    from .model import ModelConnector

__all__ = ["ModelBatches"]

_ENDED = ("completed", "failed", "expired", "cancelled")
CALL = Call(timeout=600.0)
"""
The `Call` that is passed on with each request to the service. Its timeout is long, because a file of requests has up to
200 MB, and a file of answers may have more.
"""
FREE = Spent(CALL, None)
"""The counter for requests that cost nothing, such as those for a file or for the state of a batch."""


class ModelBatches:
    """
    The batches of a model: the `BatchForm` of its connector.

    Args:
        model: The connector, which need not be open.
    """

    max_requests = 50_000
    max_bytes = 200_000_000

    def __init__(self, model: ModelConnector[Any]) -> None:
        self._model = model
        # A request in a batch names this path, even if base_url has another path than /v1.
        self._address = f"/v1{model.path}"
        self._service = Service(model.config, "")
        self.close = self._service.close

    async def open(self) -> None:
        """Make the client without connecting it. Raises `FatalError` for a secret or file that cannot be read."""
        await self._service.open(1)

    def request(self, name: str, key: Key) -> bytes:
        """Return the line for *key* in a file of requests; raises `PermanentError` for a key that cannot be sent."""
        body = msgspec.Raw(self._service.encoded(self._model.request_of(key)))
        line = {"custom_id": name, "method": "POST", "url": self._address, "body": body}
        return msgspec.json.encode(line) + b"\n"

    async def submit(self, name: str, requests: Sequence[bytes], *, again: bool) -> str:
        """
        Upload the file of a batch and create the batch, unless the service has them already; see `BatchForm.submit`.
        """
        file = None
        if again:
            batch = await self._find("/batches?", lambda each: (each.get("metadata") or {}).get("enrichkit") == name)
            if batch is not None:
                return batch
            file = await self._find("/files?purpose=batch&", lambda each: each.get("filename") == f"{name}.jsonl")
        if file is None:
            kind = (("content-type", f"multipart/form-data; boundary={name}"),)
            file = await self._make("/files", _form(name, requests), headers=kind)
        made = {"input_file_id": file, "endpoint": self._address, "completion_window": "24h"}
        return await self._make("/batches", msgspec.json.encode(made | {"metadata": {"enrichkit": name}}))

    async def status(self, batch: str) -> BatchStatus:
        """Return the state and the progress of *batch*."""
        found = object_of(await self._read(f"/batches/{batch}"))
        word, counts = str(found.get("status")), found.get("request_counts") or {}
        reason = _code(*(found.get("errors") or {}).get("data") or [None]) if word == "failed" else ""
        return BatchStatus(word, word in _ENDED, counts.get("completed") or 0, reason)

    async def answers(self, batch: str, call: Call) -> Iterable[tuple[str, Value | Failure | None]]:
        """Return the answers in both files of *batch*: the file of answers and the file of errors."""
        # No price is passed, because the config has the price of single calls, and batches have another price.
        found, spent = object_of(await self._read(f"/batches/{batch}")), Spent(call, None)
        files = [found[name] for name in ("error_file_id", "output_file_id") if found.get(name)]
        lines = [line for file in files for line in (await self._read(f"/files/{file}/content")).splitlines()]
        return [self._answer(line, spent) for line in lines]

    def _answer(self, text: bytes, spent: Spent) -> tuple[str, Value | Failure | None]:
        name = ""  # stays empty if the line cannot be read; its request is then reported as not answered
        try:
            line = object_of(text)
            response = line.get("response") or {}
            status, name = response.get("status_code"), str(line.get("custom_id"))
            if status == 200:
                return name, self._model.answer_of(msgspec.json.encode(response.get("body")), spent)
            why = f"The service answered {status}." if status else f"The service did not: {_code(line.get('error'))}."
            return name, Failure(PermanentError(why))
        except ConnectorError as error:
            return name, Failure(error)

    async def _find(self, path: str, fits: Callable[[dict[str, Any]], bool]) -> str | None:
        """Return the id of the first item that *fits* in a paged list of the service, or None if no item fits."""
        after = ""
        while True:
            page = object_of(await self._read(f"{path}limit=100{after}"))
            for each in page["data"]:
                if fits(each):
                    return str(each["id"])
                after = f"&after={each['id']}"
            if not page.get("has_more"):
                return None

    async def _read(self, path: str) -> bytes:
        return await self._service.send(path, None, CALL, CALL.timeout, FREE, limit=2**30)

    async def _make(self, path: str, body: bytes, **more: Any) -> str:
        """Make a file or a batch, and return its id."""
        made = object_of(await self._service.send(path, body, CALL, CALL.timeout, FREE, **more)).get("id")
        if not isinstance(made, str):
            raise PermanentError("The answer names no id, so the service has no batch form there. Check base_url.")
        return made


def _form(name: str, requests: Sequence[bytes]) -> bytes:
    """Return the multipart form that uploads a file. Its boundary is the batch's *name*, which occurs in no request."""
    start = f'--{name}\r\nContent-Disposition: form-data; name="'
    head = f'{start}purpose"\r\n\r\nbatch\r\n{start}file"; filename="{name}.jsonl"\r\n\r\n'
    return b"".join([head.encode(), *requests, f"\r\n--{name}--\r\n".encode()])


def _code(error: Any = None, *_: Any) -> str:
    """
    Return the code of an error of the service, or a text that says that there is none. The error's message is not used,
    because it may repeat text of a request.
    """
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) and code.isidentifier() else "it does not say why"
