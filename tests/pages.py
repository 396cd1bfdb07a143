"""The pages of the documentation, and the blocks of code on them."""

from __future__ import annotations

import enum
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    if page.is_file()
)


class Info(enum.StrEnum):
    """What may stand behind the language of a block of Python."""

    RAISES = "raises"
    NOT_RUN = "not-run"
    ASKS = "asks"


@dataclass(frozen=True)
class Block:
    """
    A fenced block on a page.

    Attributes:
        page: Path from the root of the repository.
        line: Line of its first line of code.
        language: The first word behind the fence.
        info: What stands behind the language: `raises`, `not-run`, or `asks=` and a number of keys.
        code: The text.
        heading: The last heading above it.
        output: The text of a block of the language `text` that follows; None when there is none.
    """

    page: str
    line: int
    language: str
    info: str
    code: str
    heading: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def name(self) -> tuple[str, str]:
        return self.page, self.code.partition("\n")[0]

    def compiled(self) -> Any:
        # Users want answers in time, and a busy machine is no failure: each row has as long as a test has.
        patient = re.sub(r"\btimeout=[\d.]+", "timeout=300.0", self.code)
        # Padded, so that a traceback names the line of the page.
        return compile("\n" * (self.line - 1) + patient, str(ROOT / self.page), "exec", dont_inherit=True)


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of *page*, but those that are for Sphinx."""
    text = page.read_text()
    found = list(re.finditer(r"^```([\w{}-]*)[ ]?([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    result = []
    for match, following in itertools.zip_longest(found, found[1:]):
        if match[1].startswith("{"):
            continue
        headings = re.findall(r"^#+ (.*)$", text[: match.start()], re.MULTILINE)
        adjoining = following is not None and not text[match.end() : following.start()].strip()
        output = following[3] if following is not None and adjoining and following[1] == "text" else None
        line = text.count("\n", 0, match.start(3)) + 1
        page_name = str(page.relative_to(ROOT))
        result.append(Block(page_name, line, match[1], match[2], match[3], headings[-1] if headings else "", output))
    return result
