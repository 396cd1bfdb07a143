"""The site builds without a warning, needs nobody else's server, and its reference has every public name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from sphinx.util.inventory import InventoryFile

import enrichkit
from enrichkit import errors, hookspecs, sql, testing

from .pages import PAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # to build the site takes half a minute

PUBLIC = [f"{module.__name__}.{name}" for module in (enrichkit, errors, sql, testing) for name in module.__all__]
HOOKS = [f"{hookspecs.__name__}.{name}" for name, value in vars(hookspecs).items() if hasattr(value, "enrichkit_spec")]


def test_every_page_of_the_repository_is_a_page_of_the_site(site: Path) -> None:
    assert [] == [page for page in PAGES if not (site / page.relative_to(ROOT)).with_suffix(".html").exists()]


def test_the_root_of_the_site_leads_to_its_first_page(site: Path) -> None:
    target = re.search(r"url=([^\"]+)", (site / "index.html").read_text())
    assert target is not None
    assert (site / target[1]).read_text().startswith("<!doctype html>")


def test_every_public_name_and_hook_is_in_the_reference(site: Path) -> None:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    objects = {name for kind in inventory.data if kind.startswith("py:") for name in inventory.data[kind]}
    # What `enrichkit` has from `enrichkit.errors` is described there.
    moved = {f"enrichkit.{name}" for name in errors.__all__}
    assert [] == [name for name in [*PUBLIC, *HOOKS] if name not in objects | moved]


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*\"")
    assert [] == [(page.name, load) for page in site.rglob("*.html") for load in loads.findall(page.read_text())]
