"""
How Sphinx builds the site: `.venv/bin/python -m sphinx -W -c docs . site`.

The sources are those of the whole repository and not of this folder, so that the READMEs of the plugins are pages too
and each relative link works on the site as it does in the repository.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

import enrichkit

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
suppress_warnings = ["myst.header"]  # the benchmarks print theirs from the third level on

# Docstrings are written in Markdown: one backtick is code, as two are.
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
html_additional_pages = {"index": "start.html"}  # at the root of the site, where browsers begin


def setup(app: Sphinx) -> None:
    # Before napoleon, which goes on with what is there.
    app.connect("autodoc-process-docstring", fences, priority=400)


def fences(app: Sphinx, what: str, name: str, of: object, options: Any, lines: list[str]) -> None:
    """Write the fenced blocks of a docstring as reStructuredText has them."""
    lines[:] = re.sub(
        r"^```(\w+)\n(.*?)^```$",
        lambda match: f".. code-block:: {match[1]}\n\n{textwrap.indent(match[2], '    ')}",
        "\n".join(lines),
        flags=re.DOTALL | re.MULTILINE,
    ).split("\n")
