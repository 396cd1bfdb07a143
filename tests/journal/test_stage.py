"""The journal of a task in front of a service: on an object store, and on a storage that fails while the task runs."""

from __future__ import annotations

import pickle
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from enrichkit_http import HttpConfig

from enrichkit import Journal
from enrichkit.driver.planner import make_plan
from enrichkit.errors import TaskFailedError
from enrichkit.journal import opening
from enrichkit.journal.stores import LocalStore, ObjectStore
from enrichkit.worker import journaled
from enrichkit.worker.entry import arrow_batches

if TYPE_CHECKING:
    from pathlib import Path

    from enrichkit.local import HttpService

pytestmark = pytest.mark.service


def run(service: HttpService, journal: Journal, keys: list[str], host: str = "") -> list[Any]:
    config = HttpConfig(url=f"{service.url}/{host}/{{}}", value="score", missing=(404,))
    plan, _ = make_plan(config, 1, pa.int32(), {"journal": journal})
    parts = list(arrow_batches(pickle.dumps(plan), iter([pa.array(keys)])))
    return [value for part in parts for value in part.to_pylist()]


def test_an_object_store_is_written_by_a_thread_of_its_own(
    http_service: HttpService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "bucket")
    monkeypatch.setattr(opening, "open_store", lambda path: store)
    journal, keys, host = Journal("s3://bucket/answers", run_id="r"), [f"u{n}" for n in range(200)], uuid.uuid4().hex
    first = run(http_service, journal, keys, host)
    assert wait_for_files(tmp_path)
    assert http_service.stats().calls == 200
    opening._indexes.clear()
    assert run(http_service, journal, keys, host) == first
    assert http_service.stats().calls == 200
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("enrichkit-journal")]


def wait_for_files(folder: Path) -> bool:
    from enrichkit.testing.bench import wait_until

    return wait_until(lambda: any(path.is_file() for path in folder.rglob("*")))


@pytest.mark.parametrize("on_error", ["warn", "fail"])
def test_a_storage_that_fails_while_the_task_runs(
    http_service: HttpService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    on_error: str,
) -> None:
    class Full(LocalStore):
        def path_for_writing(self, path: str) -> tuple[str, int]:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(opening, "open_store", lambda path: Full(path))
    journaled._told.clear()
    journal = Journal(str(tmp_path), run_id="r", on_error=on_error)
    keys = [f"u{n}" for n in range(50)]
    if on_error == "warn":
        assert len(run(http_service, journal, keys, uuid.uuid4().hex)) == 50
        [text] = [message for message in caplog.messages if "journal" in message]
        assert text.startswith("http: the job goes on without its journal: ")
        return
    with pytest.raises(TaskFailedError) as caught:
        run(http_service, journal, keys, uuid.uuid4().hex)
    assert str(caught.value).endswith(
        " The task fails because Journal.on_error is 'fail'; 'warn' goes on without the journal."
    )
