"""Throw-away plugins, and a registry that forgets them after each test."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.sources import registry

from .engine.bench import end_thread
from .pages import ROOT
from .sparkless import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONNECTOR = """
    from dataclasses import dataclass

    from enrichkit import Connector, ConnectorConfig, hookimpl

    @dataclass(frozen=True, kw_only=True)
    class Config(ConnectorConfig):
        url: str
        size: int = 8
        ratio: float = 0.5
        safe: bool = True
        port: int | None = None
        tags: tuple[str, ...] = ()
        codes: tuple[int, ...] | None = None
        key: str | tuple[str, ...] = "id"
        secret: object = None

    class FakeConnector(Connector[Config]):
        name = "fake"
        config_class = Config

    @hookimpl
    def enrichkit_connector():
        return FakeConnector
"""
"""The module of a plugin that is as it should be."""


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No source is registered and no plugin loaded; what the test registers and loads is forgotten."""
    monkeypatch.setattr(registry, "_sources", {})
    monkeypatch.setattr(registry, "_loaded", {})


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_registry: None) -> Callable[..., None]:
    """
    A function that installs a package with an entry point, as pip would: a module and a dist-info folder.

    Its arguments: the entry point's name, the code of the module, and the package's name and version.
    """

    def install(name: str, code: str = CONNECTOR, *, package: str = "acme-fake", version: str = "1.0") -> None:
        site = tmp_path / "site" / package
        module = re.sub(r"\W", "_", f"{package}_{name}")
        info = site / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[enrichkit]\n{name} = {module}\n" if not file.tell() else f"{name} = {module}\n")
        (site / f"{module}.py").write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(site)
        # Set and deleted, so that it is gone after the test, however it came to be imported.
        monkeypatch.setitem(sys.modules, module, sys)
        monkeypatch.delitem(sys.modules, module)

    return install


@pytest.fixture
def fake(install: Callable[..., None]) -> Any:
    """The connector class of an installed plugin called `fake`."""
    install("fake")
    return registry.load("fake")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as CONTRIBUTING says how to build it, in another folder; it must give no warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", f"{folder}/cache", "-c", "docs"]
    done = subprocess.run([*command, ".", f"{folder}/html"], cwd=ROOT, capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr)
    return folder / "html"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no variable that the command reads."""
    for name in ("ENRICHKIT_CONFIG", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker process without Spark."""
    made = Worker(monkeypatch)
    yield made
    end_thread(made.thread)
