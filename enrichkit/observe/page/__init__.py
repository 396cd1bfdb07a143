"""
The page of a monitor: hand-written HTML, CSS and JavaScript without a build step. A report is this page as one file.

The page shows a `View` (`../view.py`). The page gets the view from the server; in a report, the file itself contains
the view. Names, error messages and everything else that the page shows may be untrusted data, so the page inserts them
as text, never as HTML.
"""

from __future__ import annotations

import html
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ..view import View

__all__ = ["page_files", "self_contained"]

KINDS = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}

STYLE = '<link rel="stylesheet" href="page.css">'
SCRIPT = '<script type="module" src="page.js"></script>'
TITLE = "<title>enrichkit monitor</title>"

POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">"
)
"""The content security policy of a report, i.e. the page as one file: it permits inline code, but no requests."""


def page_files() -> dict[str, tuple[str, bytes]]:
    """Return the media type and the content of each file of the page, by the name that the URLs in the page use."""
    folder = resources.files(__name__)
    return {name: (kind, folder.joinpath(name).read_bytes()) for name, kind in KINDS.items()}


def self_contained(view: View, title: str) -> str:
    """
    Return the page that shows *view* as one HTML file, which needs neither a server nor a network.

    Args:
        view: What the page shows.
        title: Title of the page, as text.
    """
    page, style, script = (content.decode() for _, content in page_files().values())
    # In a script element of any type, "<" could begin an end tag or a comment, so each "<" is written as an escape.
    data = msgspec.json.encode(view).decode().replace("<", "\\u003c")
    parts = {
        TITLE: f"{POLICY}\n<title>{html.escape(title)}</title>",
        STYLE: f"<style>\n{style}</style>",
        SCRIPT: f'<script type="application/json" id="view">{data}</script>\n<script type="module">\n{script}</script>',
    }
    done = ""
    # The marks are placeholders in the page, and `parts` has them in the order of the page. Inserted text, which may by
    # chance contain a mark, is not searched for the later marks.
    for mark, text in parts.items():
        before, found, page = page.partition(mark)
        assert found, mark
        done += before + text
    return done + page
