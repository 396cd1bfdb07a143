"""
Write the tables of options.md and monitor.md from the code: `.venv/bin/python docs/tables.py`.

A test compares the tables on the pages with those of this script.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enrichkit_http import HttpConfig
from enrichkit_llm import ChatConfig, EmbeddingConfig
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from enrichkit_sqlite import SqliteConfig

from enrichkit import Budget, Cache, Limit, Options, Preload, Rate, Retry, Stats
from enrichkit.sources.config import find_source

if TYPE_CHECKING:
    from enrichkit import ConnectorConfig

PAGES = [Path(__file__).parent / name for name in ("options.md", "monitor.md")]
CONFIGS: dict[str, ConnectorConfig] = {
    "`http`": HttpConfig(url="https://api.example/{}"),
    "`http` with `bulk=True`": HttpConfig(url="https://api.example", bulk=True),
    "`llm`": ChatConfig(base_url="https://api.example/v1", model="m"),
    "`EmbeddingConfig`": EmbeddingConfig(base_url="https://api.example/v1", model="m"),
    "`mariadb`": MariadbConfig(table="shop.users"),
    "`postgres`": PostgresConfig(table="users"),
    "`redis`": RedisConfig(),
    "`sqlite`": SqliteConfig(path="/data/shop.db", table="users"),
}


def options(cls: type) -> list[tuple[str, ...]]:
    """Return a row for each field of *cls*: its name, its default as the code has it, and its text in the docstring."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    defaults = {ast.unparse(line.target): line.value for line in definition.body if isinstance(line, ast.AnnAssign)}
    texts = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(cls) or "", re.MULTILINE))
    return [
        (f"`{field.name}`", _default(defaults[field.name]), re.sub(r"\s+", " ", texts[field.name]))
        for field in fields(cls)
    ]


def _default(value: ast.expr | None) -> str:
    if value is None:
        return "required"
    if isinstance(value, ast.Call):  # field(default_factory=Retry)
        return f"`{ast.unparse(value.keywords[0].value)}()`"
    return f"`{ast.unparse(value)}`".replace("'", '"')


def connectors() -> list[tuple[str, ...]]:
    """Return a row for each connector: its default `capacity` and `batch_size`, and its largest `batch_size`."""
    rows = []
    for name, config in CONFIGS.items():
        connector: Any = find_source(config)[1](config)
        limits = (connector.capacity, connector.batch_size, connector.max_batch_size)
        rows.append((name, *(f"{limit:,}" for limit in limits)))
    return rows


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table with the line *head* and the *rows*."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def page(text: str) -> str:
    """Return *text* with a new table after each `<!-- from the code: NAME -->`."""
    tables = {
        "Options": table(("option", "default", "meaning"), options(Options)),
        "Retry": table(("field of `Retry`", "default", "meaning"), options(Retry)),
        "Rate": table(("field of `Rate`", "default", "meaning"), options(Rate)),
        "Limit": table(("field of `Limit`", "default", "meaning"), options(Limit)),
        "Budget": table(("field of `Budget`", "default", "meaning"), options(Budget)),
        "Preload": table(("field of `Preload`", "default", "meaning"), options(Preload)),
        "Cache": table(("field of `Cache`", "default", "meaning"), options(Cache)),
        "Stats": table(("field", "what it is"), [(name, text) for name, _, text in options(Stats)]),
        "connectors": table(("connector", "`capacity`", "`batch_size`", "at most"), connectors()),
    }
    return re.sub(
        r"(<!-- from the code: (\w+) -->\n\n)(?:\|.*\n)*", lambda match: f"{match[1]}{tables[match[2]]}\n", text
    )


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text()))
