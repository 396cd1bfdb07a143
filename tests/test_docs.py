"""The documentation says what is there, and its code does what it says."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

import enrichkit
from enrichkit import errors, hookspecs, plugin, sql, testing
from enrichkit.sources import registry

from .pages import PAGES, ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCUMENTED = "".join(page.read_text() for page in PAGES if page.name == "README.md" or "docs" in page.parts)

# The most columns of a line of code. A window beside the sidebar of the site shows about so many.
COLUMNS = 90
PUBLIC = [*enrichkit.__all__, *errors.__all__, *plugin.__all__, *sql.__all__, *testing.__all__]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_name_is_documented(name: str) -> None:
    assert re.search(rf"\b{name}\b", DOCUMENTED)


def test_every_hook_is_documented() -> None:
    hooks = [name for name, value in vars(hookspecs).items() if hasattr(value, "enrichkit_spec")]
    assert ["enrichkit_connector", "enrichkit_task_finished"] == sorted(hooks)
    for hook in hooks:
        assert hook in DOCUMENTED


def test_the_tables_of_options_and_statistics_are_those_that_the_code_makes() -> None:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    texts = [page.read_text() for page in tables.PAGES]
    assert [["Options", "connectors", "Retry", "Cache", "Preload", "Rate", "Limit", "Budget"], ["Stats"]] == [
        re.findall(r"<!-- from the code: (\w+) -->", text) for text in texts
    ]
    assert [tables.page(text) for text in texts] == texts, "run .venv/bin/python docs/tables.py"


@pytest.mark.parametrize("plugin", registry.connectors())
def test_the_readme_of_the_plugin_has_each_field_of_its_config(plugin: str) -> None:
    text = (ROOT / "plugins" / f"enrichkit-{plugin}" / "README.md").read_text()
    config = registry.load(plugin).config_class
    assert [] == [field.name for field in fields(config) if not re.search(rf"\b{field.name}\b", text)]


@pytest.mark.parametrize("plugin", registry.connectors())
def test_the_connector_is_in_the_table_of_the_options_and_in_the_reference(plugin: str) -> None:
    config = registry.load(plugin).config_class
    assert f"| `{plugin}` |" in (ROOT / "docs" / "options.md").read_text()
    assert f".. autoclass:: enrichkit_{plugin}.{config.__name__}\n" in (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        destination = (page.parent / path).resolve() if path else page
        assert destination.exists(), target
        if anchor:
            assert anchor in anchors(destination.read_text()), target


def anchors(text: str) -> list[str]:
    """The anchors that GitHub makes of the headings in *text*."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_line_of_code_fits_its_columns(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    longer = [f"{name}:{number}: {len(line)}" for number, line in lines_of_code(page) if len(line) > COLUMNS]
    assert [] == longer


def lines_of_code(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of the blocks of code on *page*, fenced and indented ones, with their numbers."""
    fence = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            fence = line if fence is None else None
        elif line.startswith("    ") if fence is None else not fence.startswith("```{"):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tests_that_the_page_names_exist(page: Path) -> None:
    for path, name in re.findall(r"`([\w./-]+\.py)(?:::(\w+))?`", page.read_text()):
        if path.partition("/")[0] in ("tests", "plugins", "examples", "benchmarks"):
            assert (ROOT / path).is_file(), path
            assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_the_first_page_begins_with_the_example_of_the_readme() -> None:
    shown, first = (
        next((block.code, block.output) for block in blocks(ROOT / page) if block.language == "python")
        for page in ("docs/index.md", "README.md")
    )
    assert first == shown


def test_the_first_page_has_a_sentence_for_each_page() -> None:
    first = ROOT / "docs" / "index.md"
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\) .*\.$", first.read_text(), re.MULTILINE)
    single_decisions = set((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert set(PAGES) - single_decisions - {first} == {(first.parent / link).resolve() for link in links}
    assert len(links) == len(set(links))


def test_the_names_in_the_sidebar_are_those_of_the_first_page() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    sentences = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\.md\) ", text, re.MULTILINE)
    assert sentences == re.findall(r"^(\S.*) <(.+)>$", text, re.MULTILINE)


def test_every_error_is_in_the_table_of_the_troubleshooting_page() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    for name in errors.__all__:
        assert f"`{name}`" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_names_no_package_index(page: Path) -> None:
    assert not re.search(r"pypi|pythonhosted", page.read_text(), re.IGNORECASE)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")), ids=lambda page: page.stem)
def test_the_decision_has_its_four_parts(page: Path) -> None:
    text = page.read_text()
    number = int(page.name[:4])
    assert re.match(rf"# {number}\. \S", text)
    assert re.search(r"^Status: \w+", text, re.MULTILINE)
    assert ["Context", "Decision", "Consequences"] == re.findall(r"^## (.*)$", text, re.MULTILINE)
