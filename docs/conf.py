"""
Configure Sphinx, which builds the site: `.venv/bin/python -m sphinx -W -c docs . site`.

The source folder is the whole repository and not this folder, so that the READMEs of the plugins are pages too, and
each relative link works on the site as it does in the repository.
"""

from __future__ import annotations

import gc
import re
import textwrap
from typing import TYPE_CHECKING, Any

import enrichkit

gc.disable()  # of millions of nodes nearly all live until the end, and to look through them takes two fifths of a build

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "enrichkit"
author = "The enrichkit authors"
version = release = enrichkit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "plugins/*/README.md", "benchmarks/results/*.md"]
exclude_patterns = [".*", "site"]

myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # the headings in the results of benchmarks begin at the third level

# Docstrings are written in Markdown, where single backticks are code, as double backticks are.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_rtype = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"enrichkit {release}"
html_copy_source = html_show_sphinx = False
templates_path = ["templates"]
pygments_dark_style = "a11y-dark"  # the one of Furo underlines names, as if they were links
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_additional_pages = {"index": "start.html"}  # at the root of the site, where browsers begin


def setup(app: Sphinx) -> None:
    # Before napoleon (priority 500), which then converts the rest of the docstring.
    app.connect("autodoc-process-docstring", convert_fences, priority=400)
    # After Furo (priority 500), which makes the list of the sidebar.
    app.connect("html-page-context", level_captions, priority=900)


def level_captions(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Say to a screen reader of which level the captions are of a list of pages: a heading without one is none."""
    for part in ("furo_navigation_tree", "body"):
        if part in context:
            context[part] = context[part].replace('role="heading"', 'role="heading" aria-level="2"')


def convert_fences(app: Sphinx, what: str, name: str, member: object, options: Any, lines: list[str]) -> None:
    """Turn the fenced blocks in the *lines* of a docstring into blocks of reStructuredText."""
    lines[:] = re.sub(
        r"^```(\w+)\n(.*?)^```$",
        lambda match: f".. code-block:: {match[1]}\n\n{textwrap.indent(match[2], '    ')}",
        "\n".join(lines),
        flags=re.DOTALL | re.MULTILINE,
    ).split("\n")
