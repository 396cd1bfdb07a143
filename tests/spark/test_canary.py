"""
A password that is easy to find is nowhere: in no plan, page of Spark, event log, checkpoint, log or message.

A driver of its own uses it in every way, `canary_driver.py`, and keeps all that anybody could read. A literal password
is looked for everywhere but in the pickled expression, which has to hold it; a `Secret` also there.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import redis

from enrichkit import local
from enrichkit.local.process import start, start_on_free_port, stop, tail
from enrichkit.local.redis import _binaries

from ..pages import ROOT

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from enrichkit.local import HttpService

ROWS = 20
SOURCES = ("redis", "postgres", "http")
FORMS = ("column", *(f"{form} {source}" for source in SOURCES for form in ("frame", "sql")))

TABLE = f"""
    CREATE ROLE with_password;
    CREATE TABLE users (id text PRIMARY KEY, name text);
    INSERT INTO users SELECT 'u' || n, 'name of u' || n FROM generate_series(0, {ROWS - 1}) n;
    GRANT SELECT ON users TO with_password;
    CREATE ROLE "canary-other" LOGIN PASSWORD 'another' IN ROLE with_password
"""
USER = """
    CREATE ROLE "canary-user-{0}" LOGIN PASSWORD '{1}' IN ROLE with_password;
    CREATE FUNCTION quote_{0}() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION USING MESSAGE = 'no entry with the password {1}', ERRCODE = '28P01';
    END $$
"""

# What must be there, so that a place that holds nothing does not pass for one that holds no password.
SHOWN = {
    "plans": ["redis(", "postgres(", "http("],
    "reprs": ["canary-user-0", "redis(", "FrameTask("],
    "reports": ["canary-user-0", "The source 'postgres'"],
    "functions": ["redis_of", "postgres_of", "http_of"],
    "errors": ["WRONGPASS", "28P01", "The service answered 401", "The service answered 400", "sorted set", "away"],
    "outcomes": ["The service answered 400", "PermanentError"],
    "tracebacks": ["canary_driver.py", "ConfigError", "FatalError"],
    "tracebacks-with-locals": ["canary-user-0", "RedisConfig("],
    "statistics": ["'calls': ", "<Engine redis: ", "<Run postgres: "],
    "streams": ["numInputRows"],
    "driver.log": ["asyncio"],
    "jvm.log": ["redis(", "DEBUG"],
    "events": ["redis(", "SparkListenerSQLExecutionStart", "WRONGPASS"],
    "web": ["redis(", "WRONGPASS", "stream-good-0", "spark.eventLog.dir"],
    "executors": ["WRONGPASS", "DEBUG:root:all is logged", "redis: "],
    "stream-good-0": ["batchWatermarkMs", "name of u1"],
    "stream-bad-0": ["batchWatermarkMs"],
}

# Not `spark`: the session is in a process of its own.
pytestmark = pytest.mark.service


def new_canaries() -> list[str]:
    """Two passwords that are nowhere by chance; the second one has to be encoded in most places."""
    return [uuid.uuid4().hex, f'{uuid.uuid4().hex[:12]}@:/%#"{uuid.uuid4().hex[:12]}']


def forms_of(canary: str) -> dict[str, bytes]:
    """Return *canary*, and the 12 characters in its middle, in each form in which it could be written."""
    middle = len(canary) // 2 - 6
    forms: dict[str, bytes] = {}
    for part, text in (("whole", canary), ("part", canary[middle : middle + 12])):
        data = text.encode()
        found = {
            "text": data,
            "repr": repr(text)[1:-1].encode(),
            "json": json.dumps(text)[1:-1].encode(),
            "html": html.escape(text).encode(),
            "url": quote(text, safe="").encode(),
            "url, in lower case": quote(text, safe="").lower().encode(),
            "utf-16-le": text.encode("utf-16-le"),
            "utf-16-be": text.encode("utf-16-be"),
            "hex": data.hex().encode(),
            "hex, in capitals": data.hex().upper().encode(),
            "numbers": ", ".join(map(str, data)).encode(),
            "numbers, packed": ",".join(map(str, data)).encode(),
        }
        for shift in range(3):  # the text may begin at any of the three bytes of a group
            encoded = base64.b64encode(b"\0" * shift + data)
            inner = encoded[(0, 2, 3)[shift] : len(encoded) - 4]
            found[f"base64, {shift}"] = inner
            found[f"base64 for URLs, {shift}"] = inner.replace(b"+", b"-").replace(b"/", b"_")
        forms |= {f"{part}: {form}": encoded for form, encoded in found.items()}
    return forms


def hits(folder: Path, canaries: list[str]) -> list[str]:
    """Return where the canaries are: the file and the form."""
    forms = {f"{number}, {form}": text for number, one in enumerate(canaries) for form, text in forms_of(one).items()}
    return [
        f"{file.relative_to(folder)}: canary {form}"
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        for content in [str(file.relative_to(folder)).encode() + b"\n" + file.read_bytes()]
        for form, text in forms.items()
        if text in content
    ]


@pytest.mark.parametrize("canary", new_canaries(), ids=["plain", "special"])
def test_a_planted_password_is_found(canary: str, tmp_path: Path) -> None:
    planted = forms_of(canary)
    for number, text in enumerate(planted.values()):
        (tmp_path / f"{number:02}").write_bytes(b"before " + text + b" behind")
    found = hits(tmp_path, [canary])
    for number, form in enumerate(planted):
        assert f"{number:02}: canary 0, {form}" in found
    assert not hits(tmp_path, new_canaries())


@contextlib.contextmanager
def redis_without_auth(folder: Path) -> Iterator[int]:
    """Run a real server that does not know the command AUTH, and quotes its arguments when it says so."""
    log = folder / "redis.log"

    def launch(port: int) -> subprocess.Popen[bytes]:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--rename-command", "AUTH", ""]
        return start([next(iter(_binaries().values())), *options], log=log, cwd=folder)

    def ready(_: subprocess.Popen[bytes], port: int) -> bool:
        with redis.Redis(port=port, protocol=2) as client:
            try:
                return client.ping()
            except redis.ConnectionError as error:
                raise OSError from error

    process, port, _ = start_on_free_port("Redis without AUTH", launch, ready, log)
    try:
        with redis.Redis(port=port, protocol=2) as client, pytest.raises(redis.ResponseError, match="quoted"):
            client.execute_command("AUTH", "user", "quoted")
        yield port
    finally:
        stop(process, signal.SIGKILL)


@contextlib.contextmanager
def servers(canaries: list[str], service: HttpService, folder: Path) -> Iterator[dict[str, Any]]:
    """Run servers on which user n has the nth password, and another user another one."""
    with local.redis() as store, local.postgres() as database, redis_without_auth(folder) as deaf:
        with redis.Redis(port=store.port, protocol=2) as client:
            client.mset({f"u{n}": f"name of u{n}" for n in range(ROWS)})
            for number, canary in enumerate(canaries):
                client.execute_command("ACL", "SETUSER", f"canary-user-{number}", "on", f">{canary}", "~*", "+@all")
            client.execute_command("ACL", "SETUSER", "canary-other", "on", ">another", "~*", "+@all")
        database.execute(TABLE)
        faults = []
        for number, canary in enumerate(canaries):
            database.execute(USER.format(number, canary))
            quoting = json.dumps({"error": f"the key {canary} is not valid"}).encode()
            faults += [
                local.Fault(match=f"refused-{number}", status=401, body=quoting),
                local.Fault(match=f"quoting-{number}", status=400, body=quoting, headers={"X-Sent": canary}),
                local.Fault(match=f"moved-{number}", status=302, headers={"Location": f"/?token={quote(canary)}"}),
                local.Fault(match=f"broken-{number}", body=json.dumps(canary).encode()),
            ]
        service.script(*faults)
        yield {"redis": store.port, "deaf_redis": deaf, "postgres": database.port, "http": service.url}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    [
        "literal",
        # A reference is in fewer places than the text itself. Spark takes four minutes for it.
        pytest.param("secret", marks=pytest.mark.more),
    ],
)
def test_no_password_is_anywhere(kind: str, http_service: HttpService, tmp_path: Path) -> None:
    canaries = new_canaries()
    (tmp_path / "site").mkdir()
    # Each worker logs all that it can, on stderr, which is in the log of its executor.
    site = "import logging\nlogging.basicConfig(level=logging.DEBUG)\nlogging.debug('all is logged')\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(site)
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), str(ROOT), os.environ.get("PYTHONPATH")]))
    secrets = {f"CANARY_{number}": canary for number, canary in enumerate(canaries)}
    with servers(canaries, http_service, tmp_path) as addresses:
        asked = json.dumps({**addresses, "folder": str(tmp_path), "kind": kind, "users": len(canaries)})
        program = Path(__file__).with_name("canary_driver.py")
        log = tmp_path / "driver.out"
        driver = start([sys.executable, program, asked], log=log, env={**os.environ, **secrets, "PYTHONPATH": path})
        try:
            assert 0 == driver.wait(500), tail(log)
        finally:
            stop(driver, signal.SIGKILL)
        sent = {(entry["headers"]["x-user"], entry["headers"]["x-api-key"]) for entry in http_service.log()}

    # The passwords were used: each row has its value, and the service saw them.
    for found in json.loads((tmp_path / "found.json").read_text()):
        assert set(FORMS) == set(found)
        for form, rows in found.items():
            sources = SOURCES if form == "column" else (form.partition(" ")[2],)
            assert {f"u{n}" for n in range(ROWS)} == {row["key"] for row in rows}
            assert [(f"name of {row['key']}", "ok") for row in rows for _ in sources] == [
                (row[source]["value"], row[source]["status"]) for row in rows for source in sources
            ]
    assert {(f"canary-user-{number}", canary) for number, canary in enumerate(canaries)} == sent

    kept = tmp_path / "kept"
    log.rename(kept / "driver.out")
    shown = SHOWN if kind == "literal" else {**SHOWN, "driver.log": ["py4j"], "pickled-redis-0": ["canary-user-0"]}
    for place, texts in shown.items():
        files = [file for file in (kept / place, *(kept / place).rglob("*")) if file.is_file()]
        content = b"\n".join(file.read_bytes() for file in files)
        for text in texts:
            assert text.encode() in content, f"{place} does not hold {text!r}"
    assert [] == hits(kept, canaries)
