"""
Make the pictures of the monitor's page for the documentation: `.venv/bin/python -m tests.browser.pictures`.

With a folder as the argument, the whole page goes there as well, in parts that can be looked at.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ..observe.fake_view import fake_view
from .chromium import launch, serving

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MODES = {
    "light": (1280, 900, "light"),
    "dark": (1280, 900, "dark"),
    "phone": (390, 844, "light"),
}


def picture(page: Page, path: Path, **options: object) -> None:
    page.screenshot(path=path, animations="disabled", **options)  # type: ignore[arg-type]
    print(f"{path} {path.stat().st_size / 1000:.0f} kB")  # noqa: T201  a script for people


def main(folder: Path | None) -> None:
    with sync_playwright() as playwright, serving(fake_view) as server:
        browser = launch(playwright)
        for name, (width, height, scheme) in MODES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=scheme,  # type: ignore[arg-type]
                timezone_id="UTC",
                reduced_motion="reduce",
            )
            page.goto(server.url)
            page.get_by_role("heading", name="users: Waiting for the source").wait_for()
            page.wait_for_timeout(300)  # until the charts know their width
            picture(page, PICTURES / f"monitor-{name}.png")
            if folder:
                picture(page, folder / f"{name}-whole.png", full_page=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
