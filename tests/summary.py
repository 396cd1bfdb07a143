"""
The end of a run of tests or of the gate: what failed and why, how long each part took, and how many tests passed.

`python3 tests/summary.py FOLDER` prints it. A part is a file `NAME.part` in the folder, with its log `NAME.log` beside
it; a pytest process has a JUnit file `NAME.xml`, and `NAME.again.xml` where failed tests were run once more. The exit
code is 0 when nothing failed, else 1. It needs only the standard library: it also tells that `./run setup` failed.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LINES_OF_ALL, LINES_OF_ERROR, LINES_OF_PART, SLOWEST = 250, 15, 40, 10
UNSTABLE_AT_MOST = 3
"""More tests that fail and then pass are a defect of their own."""


@dataclass(frozen=True)
class Case:
    """
    One run of one test.

    Attributes:
        test: Its name, as pytest takes it, but for the parameters of a fixture.
        seconds: How long it took, fixtures included.
        message: The first line of its error; empty when there was none.
        error: The whole error.
        skipped: Whether it did not run to its end, or failed as it was expected to.
    """

    test: str
    seconds: float
    message: str = ""
    error: str = ""
    skipped: bool = False


@dataclass(frozen=True)
class Part:
    """What became of one part: *code* is not 0 when it failed as a whole, and *said* is why, if that is known."""

    name: str
    seconds: float
    code: int
    said: str = ""
    log: str = ""


@dataclass
class Summary:
    """
    What came out of all parts.

    Attributes:
        parts: In the order in which they ended.
        passed: How many tests passed, those that did so only when run again included.
        failed: Tests that failed, twice where they were run again, by part and name.
        unstable: Tests that failed and passed when run again, with their first error.
        slowest: The tests that took longest, with the name of their part.
    """

    parts: list[Part]
    passed: int = 0
    failed: dict[tuple[str, str], Case] = field(default_factory=dict)
    unstable: dict[tuple[str, str], Case] = field(default_factory=dict)
    slowest: list[tuple[str, Case]] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> Summary:
        """Read what the parts left in *folder*."""
        found = cls([read_part(path) for path in sorted(folder.glob("*.part"), key=lambda path: path.stat().st_mtime)])
        ran: list[tuple[str, Case]] = []
        for part in found.parts:
            cases = cases_in(folder / f"{part.name}.xml")
            again = cases_in(folder / f"{part.name}.again.xml")
            failed = {case.test: case for case in cases if case.message}
            stable = {case.test for case in again} - {case.test for case in again if case.message}
            for test, case in failed.items():
                (found.unstable if test in stable else found.failed)[part.name, test] = case
            found.passed += len({case.test for case in cases if not case.skipped} - (failed.keys() - stable))
            ran += [(part.name, case) for case in cases]
        found.slowest = sorted(ran, key=lambda each: -each[1].seconds)[:SLOWEST]
        return found

    @property
    def failed_parts(self) -> list[Part]:
        """Parts that failed as a whole, and not by one of their tests."""
        return [part for part in self.parts if part.code]

    @property
    def green(self) -> bool:
        """Whether nothing failed, and no more tests are unstable than may be."""
        return not self.failed and not self.failed_parts and len(self.unstable) <= UNSTABLE_AT_MOST

    def text(self) -> str:
        """Return what to print; the last line has the counts."""
        lines = [*self._errors(), "", *self._table(), ""]
        lines += [f"{case.seconds:7.1f} s  {part}: {case.test}" for part, case in self.slowest]
        number = len(self.failed) + len(self.failed_parts)
        if len(self.unstable) > UNSTABLE_AT_MOST:
            number += len(self.unstable)
            lines.append(f"{len(self.unstable)} tests are unstable, and at most {UNSTABLE_AT_MOST} may be.")
        return "\n".join([*lines, f"{self.passed} passed, {number} failed"])

    def _errors(self) -> Iterator[str]:
        """The errors of tests, equal ones together, then the ends of the logs of parts, in at most `LINES_OF_ALL`."""
        left = LINES_OF_ALL
        blocks = [(f"FAILED {names}", error) for names, error in grouped(self.failed)]
        blocks += [(f"UNSTABLE {names}, which passed when run again", error) for names, error in grouped(self.unstable)]
        for part in self.failed_parts:
            heading = f"FAILED {part.name} (exit code {part.code}){part.said and ': '}{part.said}"
            blocks.append((heading, last(part.log, LINES_OF_PART)))
        for heading, error in blocks:
            left -= 1 + len(error)
            yield heading
            if left >= len(blocks):  # there is a line for each that follows
                yield from (f"    {line}" for line in error)

    def _table(self) -> Iterator[str]:
        unstable = Counter(part for part, _ in self.unstable)
        failed = Counter(part for part, _ in self.failed)
        for part in self.parts:
            said = [f"FAILED {part.code}"] if part.code else []
            said += [f"{failed[part.name]} failed"] if failed[part.name] else []
            said += [f"{unstable[part.name]} unstable"] if unstable[part.name] else []
            yield f"{part.seconds:7.0f} s  {part.name:<12} {', '.join(said) or 'ok'}"


def grouped(cases: dict[tuple[str, str], Case]) -> Iterator[tuple[str, list[str]]]:
    """Return the names of tests with equal messages, and the end of the error of the first, for each message."""
    groups: dict[str, list[tuple[str, Case]]] = defaultdict(list)
    for (part, _), case in cases.items():
        groups[case.message].append((part, case))
    for same in groups.values():
        [(part, first), *others] = same
        names = f"{part}: {first.test}"
        if others:
            names = f"{len(same)} tests: {names}, {', '.join(case.test for _, case in others[:4])}"
            names += f" and {len(others) - 4} more" if len(others) > 4 else ""
        yield names, last(first.error, LINES_OF_ERROR)


def last(text: str, number: int) -> list[str]:
    """Return the last *number* lines of *text* that are not blank."""
    return [line for line in text.splitlines() if line.strip()][-number:]


def cases_in(junit: Path) -> list[Case]:
    """Return the tests of a JUnit file of pytest; none when its process did not live to write it."""
    try:
        found = ET.parse(junit).getroot().iter("testcase")  # our own process wrote it
    except (FileNotFoundError, ET.ParseError):
        return []
    return [_case(case) for case in found]


def _case(case: ET.Element) -> Case:
    file, scope, name = case.get("file", ""), case.get("classname", ""), case.get("name", "")
    module = file.removesuffix(".py").replace("/", ".")
    inner = scope.removeprefix(module).removeprefix(".")
    test = "::".join(part for part in (file, *inner.split("."), name) if part)
    bad = [child for child in case if child.tag in ("failure", "error")]
    message = bad[0].get("message", "").strip() or bad[0].tag if bad else ""
    error = "\n".join(child.text or "" for child in bad)
    return Case(test, float(case.get("time", 0)), message, error, skipped=case.find("skipped") is not None)


def failed_in(junit: Path) -> list[str]:
    """Return the tests of *junit* that failed."""
    return [case.test for case in cases_in(junit) if case.message]


def read_part(path: Path) -> Part:
    """Return the part that *path* holds."""
    log = path.with_suffix(".log")
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Part(**json.loads(path.read_text(encoding="utf-8")), log=text)


def write_part(folder: Path, name: str, seconds: float, code: int, said: str = "") -> None:
    """Keep what became of a part."""
    part = {"name": name, "seconds": seconds, "code": code, "said": said}
    (folder / f"{name}.part").write_text(json.dumps(part), encoding="utf-8")


if __name__ == "__main__":
    summary = Summary.of(Path(sys.argv[1]))
    print(summary.text())  # noqa: T201
    sys.exit(0 if summary.green else 1)
