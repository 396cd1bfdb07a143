"""What `doctor` checks on an executor, as one process does it: each finding, and what the source has seen meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_redis import RedisConfig

from enrichkit import Connector, ConnectorConfig, PermanentError, Secret, __version__
from enrichkit.reports.doctor import _asked
from enrichkit.reports.examination import examine
from enrichkit.sources.config import find_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from enrichkit import Call
    from enrichkit.local import RedisServer

PASSWORD = "c0rrect-horse"


def said(*sources: Any, driver: str = __version__, timeout: float = 10.0, **changed: Any) -> list[list[str]]:
    """Return what is found; *driver* has that version, and *changed* replaces what it says about each source."""
    given = [_asked(*find_source(each)) | changed for each in sources]
    asked = {"version": driver, "sources": given, "timeout": timeout, "hold": 0.0}
    return json.loads(examine(asked))["findings"]  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class OddConfig(ConnectorConfig):
    """A source that does what a test wants."""

    does: str = ""
    password: str = field(default="", repr=False)


class Odd(Connector[OddConfig]):
    """Does so."""

    name = "odd"
    config_class = OddConfig

    async def open(self) -> None:
        if self.config.does == "hangs":
            await asyncio.sleep(3600.0)

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        if self.config.does == "has a bug":
            raise ValueError(f"no such user: root/{self.config.password}")
        if self.config.does == "refuses the key":
            raise PermanentError(f"There is no key like {keys[0]}.")
        raise AssertionError(self.config.does)


@dataclass(frozen=True, kw_only=True)
class CostlyConfig(OddConfig):
    """A source whose calls cost something."""


class Costly(Odd):
    """Is not to be asked for a key."""

    name = "costly"
    config_class = CostlyConfig

    def cost(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"requests": 1.0, "tokens": 100.0}


@pytest.mark.service
def test_a_healthy_source_is_asked_for_one_key(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_resetstat()
        assert said(RedisConfig(url=redis_server.url)) == []
        assert client.info("commandstats")["cmdstat_mget"]["calls"] == 1


@pytest.mark.parametrize(("module", "install"), [("pyarrow", "pyarrow"), ("enrichkit", f"enrichkit=={__version__}")])
def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, module: str, install: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert said() == [
        [
            "package",
            f"{module} cannot be imported: import of {module} halted; None in sys.modules",
            f"Ship it: enrichkit pack prints the lines that do. Or install it on the executors: pip install {install}",
        ]
    ]


def test_another_version_asks_no_source() -> None:
    (kind, what, remedy), *more = said(OddConfig(does="is not to be asked"), driver="0.0.9")
    assert (kind, what, more) == ("version", f"enrichkit is {__version__}, and the driver has 0.0.9", [])
    assert remedy.endswith("install it on the executors: pip install enrichkit==0.0.9")


def test_a_client_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyreqwest", None)
    (kind, what, remedy), *more = said(HttpConfig(url="http://127.0.0.1:1/{}"))
    assert (kind, more) == ("client", [])
    assert what.startswith("the client package pyreqwest of the source 'http' cannot be imported: import of pyreqwest")
    assert remedy.endswith("Or install it on the executors: pip install 'enrichkit[http]'")


@pytest.mark.parametrize(
    ("changed", "expected", "package"),
    [
        (
            {"version": "0.0.8"},
            ["version", f"the plugin enrichkit-redis is {__version__}, and the driver has 0.0.8"],
            "enrichkit-redis==0.0.8",
        ),
        (
            {"package": "enrichkit-absent", "module": "enrichkit_absent"},
            ["package", "the plugin enrichkit-absent of the source 'redis' is not installed"],
            f"enrichkit-absent=={__version__}",
        ),
    ],
)
def test_a_plugin_that_is_not_that_of_the_driver(changed: dict[str, Any], expected: list[str], package: str) -> None:
    (*found, remedy), *more = said(RedisConfig(url="redis://127.0.0.1:1/0"), **changed)
    assert (found, more) == (expected, [])  # and the source, which is away, is not asked
    assert remedy.endswith(f"Or install it on the executors: pip install {package}")


def test_a_plugin_that_travels_without_its_metadata_is_not_missed() -> None:
    (kind, *_), *more = said(RedisConfig(url="redis://127.0.0.1:1/0"), package="enrichkit-absent")
    assert (kind, more) == ("route", [])


def test_a_source_that_cannot_be_unpickled() -> None:
    assert said(OddConfig(), payload=b"cnowhere\nNothing\n.") == [
        [
            "package",
            "the source 'odd' cannot be read: ModuleNotFoundError: No module named 'nowhere'",
            "Ship the module that defines it: enrichkit pack --with PATH",
        ]
    ]


def test_secrets_and_certificates_that_are_absent_are_all_named_and_the_source_is_not_asked(tmp_path: Path) -> None:
    config = RedisConfig(
        url="rediss://127.0.0.1:1/0", password=Secret.env("EXAMINED_ABSENT"), tls_ca=str(tmp_path / "ca.pem")
    )
    (kind, what, remedy), certificate = said(config)
    lacks = (
        "the source 'redis' lacks Secret.env('EXAMINED_ABSENT'): The environment variable EXAMINED_ABSENT is not set"
    )
    assert (kind, what.startswith(lacks)) == ("secret", True), what
    assert remedy.startswith("Give the executors what it names: spark.executorEnv.NAME=...")
    assert certificate == [
        "certificate",
        f"tls_ca of the source 'redis' is {tmp_path / 'ca.pem'}, which cannot be read",
        "Bring the file to the executors: spark.addFile, the image, or enrichkit pack --with",
    ]


ROUTE = "Open the way from the executors to its address: firewall, security group, DNS"


def test_a_source_that_cannot_be_reached() -> None:
    (kind, what, remedy), *more = said(RedisConfig(url="redis://127.0.0.1:1/0"))
    assert (kind, remedy, more) == ("route", ROUTE, [])
    assert what.startswith("the source 'redis' cannot be reached: Redis at 127.0.0.1:1 cannot be reached")


def test_a_source_that_does_not_answer() -> None:
    assert said(OddConfig(does="hangs"), timeout=0.1) == [
        ["route", "the source 'odd' has not answered within 0.1 s", ROUTE]
    ]


@pytest.mark.service
def test_a_source_that_refuses_the_password_is_quoted_without_it(redis_server: RedisServer) -> None:
    url = redis_server.url.replace("redis://", f"redis://nobody:{PASSWORD}@")
    (kind, what, remedy), *more = said(RedisConfig(url=url))
    assert (kind, more) == ("refused", [])
    assert what.startswith("the source 'redis' refuses: ")
    assert "WRONGPASS" in what
    assert PASSWORD not in what
    assert remedy == "Correct what it names, such as the password that the executors have"


def test_an_error_of_the_client_itself_is_quoted_without_secrets() -> None:
    assert said(OddConfig(does="has a bug", password=PASSWORD)) == [
        [
            "refused",
            "the source 'odd' fails: ValueError: no such user: root/***",
            "Run enrichkit check odd on that host",
        ]
    ]


@pytest.mark.parametrize("config", [OddConfig(does="refuses the key"), CostlyConfig(does="is not to be asked")])
def test_a_source_that_refuses_only_the_key_or_is_paid_by_the_call_is_well(config: OddConfig) -> None:
    assert said(config) == []


@pytest.mark.parametrize(
    ("folder", "executor", "place"),
    [
        ("elsewhere/0", None, "local"),
        ("app-20260101-0001/3", None, "3"),
        ("application_1_0001/container_1_0001_01_000002", None, "container_1_0001_01_000002"),
        ("elsewhere/0", "7", "7"),
    ],
)
def test_an_executor_is_told_from_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str, executor: str | None, place: str
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.delenv("SPARK_EXECUTOR_ID", raising=False)
    if executor is not None:
        monkeypatch.setenv("SPARK_EXECUTOR_ID", executor)
    assert place == json.loads(examine({"version": __version__, "sources": [], "timeout": 1.0, "hold": 0.0}))["place"]
