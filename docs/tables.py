"""Write the tables of options.md anew, from the code: `.venv/bin/python docs/tables.py`. A test compares them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enrichkit_http import HttpConfig
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from enrichkit_sqlite import SqliteConfig

from enrichkit import Cache, Options, Retry
from enrichkit.config import find_source

if TYPE_CHECKING:
    from enrichkit import ConnectorConfig

PAGE = Path(__file__).parent / "options.md"
CONFIGS: dict[str, ConnectorConfig] = {
    "`http`": HttpConfig(url="https://api.example/{}"),
    "`http` with `bulk=True`": HttpConfig(url="https://api.example", bulk=True),
    "`mariadb`": MariadbConfig(table="shop.users"),
    "`postgres`": PostgresConfig(table="users"),
    "`redis`": RedisConfig(),
    "`sqlite`": SqliteConfig(path="/data/shop.db", table="users"),
}


def options(cls: type) -> list[tuple[str, ...]]:
    """A row for each field of *cls*: its name, its default as it is written, and its line of the docstring."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    written = {ast.unparse(line.target): line.value for line in body.body if isinstance(line, ast.AnnAssign)}
    described = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(cls) or "", re.MULTILINE))
    return [
        (f"`{field.name}`", _default(written[field.name]), re.sub(r"\s+", " ", described[field.name]))
        for field in fields(cls)
    ]


def _default(value: ast.expr | None) -> str:
    if value is None:
        return "required"
    if isinstance(value, ast.Call):  # field(default_factory=Retry)
        return f"`{ast.unparse(value.keywords[0].value)}()`"
    return f"`{ast.unparse(value)}`".replace("'", '"')


def connectors() -> list[tuple[str, ...]]:
    """A row for each connector: what `capacity` and `batch_size` are unless they are given."""
    rows = []
    for name, config in CONFIGS.items():
        connector: Any = find_source(config)[1](config)
        limits = (connector.capacity, connector.batch_size, connector.max_batch_size)
        rows.append((name, *(f"{limit:,}" for limit in limits)))
    return rows


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """The lines of a Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def page(text: str) -> str:
    """Return *text* with a new table behind each `<!-- from the code: NAME -->`."""
    tables = {
        "Options": table(("option", "default", "meaning"), options(Options)),
        "Retry": table(("field of `Retry`", "default", "meaning"), options(Retry)),
        "Cache": table(("field of `Cache`", "default", "meaning"), options(Cache)),
        "connectors": table(("connector", "`capacity`", "`batch_size`", "at most"), connectors()),
    }
    return re.sub(
        r"(<!-- from the code: (\w+) -->\n\n)(?:\|.*\n)*", lambda match: f"{match[1]}{tables[match[2]]}\n", text
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
