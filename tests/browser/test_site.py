"""The documentation in Chromium: no page scrolls sideways, code is in sight, and people with bad eyes can read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .chromium import found_by_axe

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,  # the site has 120 pages, and some are long
]

WIDTHS = (390, 1280)

# What leaves the window, with the box that scrolls it taken off: the page itself, tables, and code.
OUT_OF_SIGHT = """
    () => {
        const { scrollWidth, clientWidth } = document.documentElement;
        const found = scrollWidth > clientWidth ? [`the page is ${scrollWidth} px wide`] : [];
        const scrolls = (node) => ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
        for (const box of document.querySelectorAll("pre, table.docutils")) {
            let node = box;
            while (node !== document.body && !scrolls(node)) node = node.parentElement;
            if (node.getBoundingClientRect().right > clientWidth + 1)
                found.push(`${box.tagName} ${box.textContent.trim().slice(0, 40)}`);
        }
        return found;
    }
"""
# On a wide window no code needs to scroll at all.
CUT_CODE = """
    () => [...document.querySelectorAll("pre")]
        .filter((box) => box.scrollWidth > box.clientWidth)
        .map((box) => box.textContent.trim().slice(0, 40))
"""

# One page of each kind: prose and code, tables, pictures, a package, results of a benchmark. Not the reference, which
# takes axe a minute each time.
LOOKED_AT = (
    "README.html",
    "docs/index.html",
    "docs/quickstart.html",
    "docs/options.html",
    "docs/monitor.html",
    "plugins/enrichkit-redis/README.html",
    "benchmarks/results/peers.html",
    "search.html",
)


def test_no_page_scrolls_sideways_and_tables_and_code_scroll_in_their_box(browser: Browser, site: Path) -> None:
    page = browser.new_page()
    files = sorted({*site.rglob("*.html")} - {site / "index.html"})  # which leads on to another page
    assert len(files) > 100
    found: dict[str, Any] = {}
    for number, file in enumerate(files):
        page.goto(file.as_uri())
        # To lay a long page out takes most of the time, so each page begins with the width at which the last one ended.
        for width in WIDTHS if number % 2 else reversed(WIDTHS):
            page.set_viewport_size({"width": width, "height": 900})
            seen = page.evaluate(OUT_OF_SIGHT)
            if width == max(WIDTHS):
                seen += page.evaluate(CUT_CODE)
            if seen:
                found[f"{file.relative_to(site)} at {width}"] = seen
    page.close()
    assert {} == found


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_axe_finds_nothing_serious(browser: Browser, site: Path, name: str, width: int, scheme: Any) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(120_000)  # a machine may be busy
    page.goto((site / name).as_uri())
    assert ("dark" == scheme) == page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    found = found_by_axe(page)
    page.close()
    assert [] == [each for each in found if each[1] in ("serious", "critical")]
