"""The fingerprint by which a journal finds answers: the same in each program, another one where answers may differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_http import HttpConfig, HttpConnector
from enrichkit_postgres import PostgresConfig, PostgresConnector

from enrichkit import Connector, ConnectorConfig, Secret
from enrichkit.driver.content import content_of
from enrichkit.sources.function_connector import FunctionConfig, FunctionConnector

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCRIPT = """
    import asyncio, enum, functools, re, sys
    from dataclasses import dataclass, field
    import helper
    from enrichkit import Connector, ConnectorConfig, Secret, connector
    from enrichkit.driver.content import content_of
    from enrichkit.sources.config import find_source
    import pyarrow as pa

    PROMPT = "Who is {}?"
    WORDS = {"one", "two", "three", "four", "five"}
    LOCK = asyncio.Lock()

    class Mood(enum.Enum):
        GLAD, SAD = 1, 2

    class Model:
        __slots__ = ("name",)
        def __init__(self, name):
            self.name = name

    MODEL, PATTERN = Model("small"), re.compile("a+")

    def wrapped(function):
        @functools.wraps(function)
        async def inner(key):
            return await function(key)
        return inner

    def factorial(n):
        return n * factorial(n - 1) if n else 1

    @functools.cache
    def cached(key):
        return len(key)

    @dataclass(frozen=True, kw_only=True)
    class Config(ConnectorConfig):
        url: str = "x"
        tags: frozenset = frozenset({"one", "two", "three"})
        token: str | Secret = field(default=Secret.env("TOKEN"), repr=False)
        sizes: dict = field(default_factory=dict, hash=False)

        @property
        def where(self):
            return self.url

    class Own(Connector[Config]):
        name, config_class = "own", Config

        def __init__(self, config):
            super().__init__(config)
            self.seen = {}

        @functools.cached_property
        def client(self):
            return object()

        async def fetch_many(self, keys, call):
            return {key: PROMPT.format(key) for key in keys}

    @connector("ask", returns="string")
    @wrapped
    async def ask(key: str, mood=Mood.GLAD, scale=functools.partial(int, base=10)) -> str:
        async with LOCK:
            if key in WORDS or key in {"a", "b", "c", "d"}:
                return helper.shout(PROMPT.format(key)) + MODEL.name + PATTERN.pattern
            return str(factorial(cached(key))) + __file__

    _, kind, config = find_source("ask")
    print(content_of(kind, config, pa.string()))
    print(content_of(Own, Config(sizes={"a": 1, "b": 2}), pa.string()))
"""
HELPER = """
    MARK = "!"

    def shout(text):
        return text.upper() + MARK
"""


OF_A_FUNCTION = {
    "Who is {}?": "Who was {}?",
    "return n * factorial(n - 1) if n else 1": "return n + factorial(n - 1) if n else 1",
    "return len(key)": "return 2 * len(key)",
    "return await function(key)": "return (await function(key))[1:]",
    "mood=Mood.GLAD": "mood=Mood.SAD",
    "base=10": "base=8",
    '"four", "five"': '"four", "six"',
    '"c", "d"': '"c", "e"',
    'Model("small")': 'Model("large")',
    're.compile("a+")': 're.compile("a*")',
    'MARK = "!"': 'MARK = "?"',
    "text.upper()": "text.lower()",
}
OF_A_CLASS = {
    "Who is {}?": "Who was {}?",
    'url: str = "x"': 'url: str = "y"',
    '{"one", "two", "three"})': '{"one", "two", "four"})',
    "return self.url": "return self.url[1:]",
    "return object()": "return dict()",
    "self.seen = {}": "self.seen = set()",
    '"b": 2': '"b": 3',
    'Secret.env("TOKEN")': 'Secret.env("OTHER")',
}
RUN = """
    import json, runpy, sys
    for script, helper in json.load(sys.stdin):
        sys.modules.pop("helper", None)
        sys.dont_write_bytecode = True
        open("helper.py", "w").write(helper)
        open(sys.argv[1], "w").write(script)
        runpy.run_path(sys.argv[1], run_name="__main__")
"""


def fingerprints(folder: Path, *programs: tuple[str, str], seed: int = 0) -> list[list[str]]:
    """Return what each of *programs*, a script and its helper, prints in a process of its own in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(RUN), f"job{seed}.py"]
    given = json.dumps([[textwrap.dedent(part) for part in program] for program in programs])
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(folder)}
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    return [lines[start : start + 2] for start in range(0, len(lines), 2)]


@pytest.mark.slow
def test_it_is_the_same_in_each_process(tmp_path: Path) -> None:
    [first] = fingerprints(tmp_path / "here", (SCRIPT, HELPER))
    assert len({*first}) == 2
    moved = "# a comment\n\n\n" + textwrap.dedent(SCRIPT).replace("\n\nclass", "\n\n\n# and another one\nclass")
    for seed, folder in ((1, "here"), (2, "else where"), (3, "else/where/again")):
        assert [first] == fingerprints(tmp_path / folder, (moved, "\n" + HELPER), seed=seed)


@pytest.mark.slow
def test_it_is_the_same_for_a_script_that_is_run(tmp_path: Path) -> None:
    """And not by `runpy`, as the other tests do to save time."""
    [first] = fingerprints(tmp_path, (SCRIPT, HELPER))
    done = subprocess.run([sys.executable, "-W", "ignore", tmp_path / "job0.py"], capture_output=True, text=True)
    assert first == done.stdout.split(), done.stderr


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The fingerprints of the script, under "", and of the script after each change, under what was there before."""
    changes = {"": "", **OF_A_FUNCTION, **OF_A_CLASS}
    for before in changes:
        assert not before or (SCRIPT + HELPER).count(before) == 1
    programs = [(SCRIPT.replace(b, a), HELPER.replace(b, a)) if b else (SCRIPT, HELPER) for b, a in changes.items()]
    return dict(zip(changes, fingerprints(tmp_path_factory.mktemp("changed"), *programs), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("change", OF_A_FUNCTION)
def test_it_changes_with_what_a_function_does_and_uses(changed: dict[str, list[str]], change: str) -> None:
    assert changed[""][0] != changed[change][0]


@pytest.mark.slow
@pytest.mark.parametrize("change", OF_A_CLASS)
def test_it_changes_with_the_class_and_the_config_of_a_script(changed: dict[str, list[str]], change: str) -> None:
    assert changed[""][1] != changed[change][1]


@pytest.mark.slow
@pytest.mark.parametrize("change", sorted(OF_A_CLASS.keys() - OF_A_FUNCTION.keys()))
def test_it_does_not_change_with_what_a_function_does_not_use(changed: dict[str, list[str]], change: str) -> None:
    assert changed[""][0] == changed[change][0]


def of(function: Callable[..., Any], value_type: pa.DataType | None = None) -> str:
    return content_of(FunctionConnector, FunctionConfig(function=function), value_type or pa.string())


def scaled(factor: int, plus: int = 0) -> Callable[[int], int]:
    def scale(key: int, *, more: int = plus) -> int:
        return key * factor + more

    return scale


def test_closures_and_defaults_count() -> None:
    assert of(scaled(2)) == of(scaled(2))
    assert len({of(scaled(2)), of(scaled(3)), of(scaled(2, plus=1))}) == 3


def test_the_declared_type_counts() -> None:
    assert of(scaled(2)) != of(scaled(2), pa.int64())


def test_what_a_function_did_before_does_not_count() -> None:
    """Python specialises code that runs often."""
    function = scaled(2)
    before = of(function)
    for number in range(1_000):
        function(number)
    assert before == of(function)


def test_two_functions_that_change_places_count() -> None:
    def chain(first: Callable[[int], int], second: Callable[[int], int]) -> Callable[[int], int]:
        def both(key: int) -> int:
            return second(first(key))

        return both

    assert of(chain(scaled(2), scaled(3))) != of(chain(scaled(3), scaled(2)))


class Scorer:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def score(self, key: int) -> int:
        return self.factor * key

    def __call__(self, key: int) -> int:
        return self.factor + key


def test_objects_and_bound_methods_count_with_their_state() -> None:
    assert of(Scorer(2)) == of(Scorer(2))
    assert len({of(Scorer(2)), of(Scorer(3)), of(Scorer(2).score), of(Scorer(3).score)}) == 4


def test_what_refers_to_itself_has_an_end() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    ring: list[Any] = [1]
    ring.append(ring)

    def looped(key: int) -> int:
        return len(ring) + key + later()  # type: ignore[has-type]  # it has no value yet

    assert len({of(even), of(odd), of(looped)}) == 3

    def later() -> int:
        return 1


def test_a_query_a_template_and_a_setting_count() -> None:
    http = HttpConfig(url="http://host/{}", value="name")
    assert content_of(HttpConnector, http, pa.string()) == content_of(HttpConnector, replace(http), pa.string())
    others = [replace(http, url="http://host/v2/{}"), replace(http, value="score"), replace(http, missing=(410,))]
    sql = PostgresConfig(dsn="postgresql://h/d", query="SELECT id, a FROM t WHERE id = ANY($1)", returns="a string")
    changed = replace(sql, query="SELECT id, a FROM t WHERE b AND id = ANY($1)")
    found = {content_of(HttpConnector, each, pa.string()) for each in (http, *others)}
    found |= {content_of(PostgresConnector, each, pa.string()) for each in (sql, changed)}
    assert len(found) == 6


def test_the_value_of_a_secret_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    config = HttpConfig(url="https://host/{}", headers={"Authorization": Secret.env("TOKEN")})
    found = set()
    for value in ("old", "new", None):
        if value is None:
            monkeypatch.delenv("TOKEN")
        else:
            monkeypatch.setenv("TOKEN", value)
        found.add(content_of(HttpConnector, config, pa.string()))
    other = HttpConfig(url="https://host/{}", headers={"Authorization": Secret.env("OTHER")})
    assert len(found) == 1
    assert content_of(HttpConnector, other, pa.string()) not in found


def test_installed_classes_count_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code may change with each version of a package, and answers should be found after an upgrade."""
    config = HttpConfig(url="http://host/{}")
    before = content_of(HttpConnector, config, pa.string())
    monkeypatch.setattr(HttpConnector, "fetch_many", lambda self, keys, call: {})
    assert before == content_of(HttpConnector, config, pa.string())


@dataclass(frozen=True, kw_only=True)
class Local(ConnectorConfig):
    url: str = "x"
    password: str = field(default="hunter2", repr=False)


class LocalConnector(Connector[Local]):
    name, config_class = "local", Local


def test_it_is_a_hash_that_shows_nothing() -> None:
    found = content_of(LocalConnector, Local(), pa.string())
    assert len(found) == 64
    assert found != content_of(LocalConnector, Local(password="hunter3"), pa.string())
