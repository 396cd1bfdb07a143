"""The benchmarks' own code, and that texts agree with results: statistics, hash of the code, pictures, README."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from benchmarks import against, agreement, mutate, passes, pictures, report, turns
from benchmarks.__main__ import ALL, run
from benchmarks.harness import Sample, Table, alternate, at_least, per_item, rates, spread

pytestmark = pytest.mark.slow

SOURCE = '''\
"""What it does."""


class Counter:
    """Counts."""

    step = 1  # at a time

    def count(self, number):
        """Return the next."""
        return number + "step"
'''
TABLE = Table("N0", "a table", ("", "seconds"), [("ours", "1.0")], [("fast enough", True), ("cheap enough", False)])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one source file, `counter.py`."""
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for module in (report, pictures):
        monkeypatch.setattr(module, "RESULTS", results)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    (tmp_path / "counter.py").write_text(SOURCE)
    return tmp_path


def test_runs_take_turns_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []

    def run(name: str) -> Sample:
        order.append(name)
        return Sample(float(len(order)))

    samples = alternate({name: lambda n=name: run(n) for name in "ab"}, rounds=2)
    assert order == list("ababab")
    assert [[sample.seconds for sample in found] for found in samples.values()] == [[3.0, 5.0], [4.0, 6.0]]


def test_the_rounds_are_divided_among_the_passes_and_the_last_pass_has_all_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = []
    for number in range(3):
        monkeypatch.setattr(passes, "current", passes.read(tmp_path / "n0", number, 3, "0123"))
        seconds = count(1)
        runs = {name: lambda n=number, s=seconds: Sample(10 * n + next(s)).counting(calls=n) for name in "ab"}
        many = alternate(runs, rounds=7, warmup=0)
        few = alternate({"c": lambda n=number: Sample(float(n))}, rounds=3, warmup=0)
        rounds.append((len(many["a"]), len(few["c"])))
        passes.write(tmp_path / "n0", "0123")
    assert rounds == [(3, 2), (5, 4), (7, 6)]
    assert [sample.seconds for sample in many["a"]] == [1, 3, 5, 11, 13, 21, 23]
    assert [sample.seconds for sample in many["b"]] == [2, 4, 6, 12, 14, 22, 24]
    assert [sample.counts["calls"] for sample in many["a"]] == [0, 0, 0, 1, 1, 2, 2]
    assert [sample.seconds for sample in few["c"]] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(RuntimeError, match="The sources changed between two passes; nothing is written"):
        passes.read(tmp_path / "n0", 2, 3, "4567")


def test_all_benchmarks_make_one_pass_before_the_first_one_makes_its_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def child(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        asked.append([part.rpartition("/")[2] for part in command[3:]])
        return subprocess.CompletedProcess(command, returncode=int(command[3] == "shapes"))

    monkeypatch.setattr(subprocess, "run", child)
    assert run(["engine", "shapes", "memory"], [Path("/r/one")], quick=False) == ["shapes"]
    assert asked == [
        ["engine", "--pass", "0", "3", "engine-0", "one"],
        ["shapes", "--pass", "0", "3", "shapes-0", "one"],
        ["engine", "--pass", "1", "3", "engine-0", "one"],
        ["engine", "--pass", "2", "3", "engine-0", "one"],
        ["memory", "--pass", "0", "1", "memory-0", "one"],
    ]
    asked.clear()
    assert run(["engine", "shapes"], [Path("/r/one"), Path("/r/other")], quick=False) == ["shapes"]
    assert asked == [
        ["engine", "--pass", "0", "3", "engine-0", "one"],
        ["engine", "--pass", "0", "3", "engine-1", "other"],
        ["shapes", "--pass", "0", "3", "shapes-0", "one"],
        ["shapes", "--pass", "0", "3", "shapes-1", "other"],
        ["engine", "--pass", "1", "3", "engine-1", "other"],
        ["engine", "--pass", "1", "3", "engine-0", "one"],
        ["engine", "--pass", "2", "3", "engine-0", "one"],
        ["engine", "--pass", "2", "3", "engine-1", "other"],
    ]


CHECKOUT = {
    "__init__.py": "",
    "harness.py": """\
from types import SimpleNamespace


def alternate(runs, rounds):
    for _ in range(rounds):
        for run in runs.values():
            run()
    return {name: [SimpleNamespace(seconds=rounds, cpu=2, jvm=3)] * rounds for name in runs}
""",
    "__main__.py": """\
import sys
from pathlib import Path

from benchmarks.harness import alternate

log, name, rounds = sys.argv[1:]


def note(text):
    with open(log, "a") as file:
        file.write(f"{name} {text}\\n")


note("is set up")
alternate({which: lambda which=which: note(which) for which in ("cached", "fresh")}, int(rounds))
sys.exit(name == "later" or Path.cwd().name != name)
""",
}


@pytest.mark.parametrize("rounds", [(3, 3), (1, 3), (3, 1)])
def test_two_checkouts_take_turns_run_by_run(tmp_path: Path, rounds: tuple[int, int]) -> None:
    commands = []
    for name, count_ in zip(("first", "later"), rounds, strict=True):
        (tmp_path / name / "benchmarks").mkdir(parents=True)
        for file, text in CHECKOUT.items():
            (tmp_path / name / "benchmarks" / file).write_text(text)
        (tmp_path / name / ".venv" / "bin").mkdir(parents=True)
        Path(turns.python_of(tmp_path / name)).symlink_to(Path(sys.executable).resolve())
        commands.append((tmp_path / name, [str(tmp_path / "log"), name, str(count_)]))
    files = [tmp_path / "first.json", tmp_path / "later.json"]
    assert turns.run(commands, files) == [True, False]
    for file, count_ in zip(files, rounds, strict=True):
        assert json.loads(file.read_text()) == {name: [[count_, 5]] * count_ for name in ("cached", "fresh")}
    noted = [line.split(" ", 1) for line in (tmp_path / "log").read_text().splitlines()]
    for name, count_ in zip(("first", "later"), rounds, strict=True):
        assert [text for who, text in noted if who == name] == ["is set up", *["cached", "fresh"] * count_]
    runs = [who for who, text in noted if text != "is set up"]
    both = 4 * min(rounds)
    assert runs[:both] == (["first", "later"] * 2 + ["later", "first"] * 2 + ["first", "later"] * 2)[:both]
    assert noted[1] == ["first", "cached"], "nobody sets up while the other one measures"
    assert noted[2] == ["later", "is set up"]


def test_a_goal_is_judged_by_the_median_of_the_pairs_and_not_by_the_pair_of_the_medians() -> None:
    ours, theirs = [10.0, 30.0, 20.0], [10.0, 10.0, 40.0]
    assert at_least(1.1, "them", ours, theirs) == ("at least 1.1 x them: 1.00 (0.50 .. 3.00)", False)
    assert at_least(1.0, "them", ours, theirs)[1]


def test_cpu_is_given_per_item_and_in_microseconds() -> None:
    samples = [Sample(2.0, cpu=1.0, jvm=0.5, server=0.0001)] * 2
    assert per_item(samples, 1000) == ("1,000", "500", "0.1")
    assert spread(rates(samples, 1000), digits=0) == "500 (500 .. 500)"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Counts."""', '"""Counts, one after another."""'),
        ('    """Counts."""\n\n', ""),
        ("  # at a time", ""),
        ("\n\nclass", "\n\n\n# Here it is.\nclass"),
    ],
)
def test_comments_and_docstrings_do_not_make_a_result_stale(repository: Path, old: str, new: str) -> None:
    before = report.fingerprint(["counter.py"])
    (repository / "counter.py").write_text(SOURCE.replace(old, new))
    assert report.fingerprint(["counter.py"]) == before


@pytest.mark.parametrize(("old", "new"), [("step = 1", "step = 2"), ('"step"', '"stop"'), ("return number", "number")])
def test_changed_code_makes_a_result_stale(repository: Path, old: str, new: str) -> None:
    report.save("n0", [TABLE], ["counter.py"], report.fingerprint(["counter.py"]), packages=["pytest"])
    assert report.stale() == {}
    (repository / "counter.py").write_text(SOURCE.replace(old, new))
    assert report.stale() == {"n0": "the code that it measured has changed"}
    (repository / "counter.py").unlink()
    assert report.stale() == {"n0": "counter.py is no more"}


def test_the_mutants_are_made_from_code_and_tests_that_exist() -> None:
    for module in mutate.LEFT_OUT:
        assert (report.ROOT / mutate.FOLDER / f"{module}.py").exists()
    found = re.fullmatch(r"(enrichkit\.engine\.\w+)\.xǁ(\w+)ǁ(\w+)__mutmut_1", mutate.CANARY)
    assert found is not None
    assert hasattr(getattr(importlib.import_module(found[1]), found[2]), found[3])
    for path, test in re.findall(r"--(?:ignore|deselect)=([\w/.]+)(?:::(\w+))?", mutate.TESTS):
        text = (report.ROOT / path).read_text()
        assert not test or f"def {test}(" in text


def test_each_tolerated_mutant_changes_a_line_that_exists() -> None:
    assert [] == mutate.matchless(), "the code has changed: drop these reasons, or say them of the new lines"


def test_nothing_is_written_when_the_code_changed_during_the_run(repository: Path) -> None:
    measured = report.fingerprint(["counter.py"])
    (repository / "counter.py").write_text(SOURCE + "Counter()\n")
    with pytest.raises(RuntimeError, match="The sources of n0 changed during the run; nothing is written"):
        report.save("n0", [TABLE], ["counter.py"], measured, packages=["pytest"])
    assert list(report.RESULTS.iterdir()) == []


def test_a_result_has_the_speed_of_the_machine_and_is_written_into_the_given_folder(repository: Path) -> None:
    other = repository / "other"
    other.mkdir()
    measured = report.fingerprint(["counter.py"])
    path = report.save("n0", [TABLE], ["counter.py"], measured, packages=["pytest"], folder=other)
    assert path == other / "n0.md"
    head = path.read_text().partition("###")[0]
    pace, touch = map(
        float, re.findall(r"^- (?:pace|memory) at the end: (\d+\.\d+) (?:s|us) for", head, flags=re.MULTILINE)
    )
    assert 0.01 < pace < 10
    assert 0.01 < touch < 1000
    assert [each.name for each in report.RESULTS.iterdir()] == [report.SUMMARY]


def test_the_summary_repeats_the_goals_of_each_result(repository: Path) -> None:
    report.save("n0", [TABLE], ["counter.py"], report.fingerprint(["counter.py"]), packages=["pytest"])
    measured = report.fingerprint(["counter.py"])
    report.save("n1", [Table("N1", "a table", ("",))], ["counter.py"], measured, packages=["pytest"])
    text = (report.RESULTS / report.SUMMARY).read_text()
    assert text.endswith("- reached: fast enough\n- MISSED: cheap enough\n\nResults without a goal: [n1](n1.md).\n")
    assert "## [n0](n0.md), 2" in text


@pytest.mark.parametrize("name", ALL)
def test_a_benchmark_names_sources_that_exist_and_itself(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    assert f"benchmarks/{name}.py" in module.SOURCES
    assert report.fingerprint(module.SOURCES)


def test_the_same_numbers_draw_the_same_picture(repository: Path) -> None:
    numbers = {
        "approaches": {
            "approaches, HTTP": {"enrichkit": [(0, [4.0, 2.0])], "row UDF": [(0, [1.0])]},
            "approaches, B": {},
        },
        "http_tail": {"N2": {"enrichkit": [(200, [1.0]), (1000, [1.0])], "gather": [(200, [9.0]), (1000, [5.0])]}},
    }
    assert numbers.keys() == pictures.DRAWN.keys()
    numbers["approaches"]["approaches, B"] = {"enrichkit": [(0, [7.0])]}
    for name, found in numbers.items():
        (report.RESULTS / f"{name}.json").write_text(json.dumps(found))
        first, second = repository / "first", repository / "second"
        for folder in (first, second):
            folder.mkdir(exist_ok=True)
            assert pictures.draw(name, folder) == [f"{name}.svg"]
        drawn = (first / f"{name}.svg").read_bytes()
        assert drawn == (second / f"{name}.svg").read_bytes()
        assert b"enrichkit" in drawn
        assert len(drawn) < 40_000


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_the_picture_in_the_readme_is_of_the_committed_numbers(name: str, tmp_path: Path) -> None:
    committed = report.RESULTS / f"{name}.svg"
    if pictures.draw(name, tmp_path):
        assert (tmp_path / f"{name}.svg").read_bytes() == committed.read_bytes()
    else:
        assert not committed.exists()


def saved(folder: Path, ratio: str, seconds: str, sources: str = "0123 of counter.py") -> Path:
    """Create *folder* with a result that has a ratio, a time and a figure without quartiles; return the folder."""
    table = Table("N0", "a table", ("way", "keys", "keys/s"), [("ours", "10", seconds), ("theirs", "5", "7")])
    table.goals.append((f"at least 2 x theirs: {ratio}", True))
    folder.mkdir()
    (folder / "n0.md").write_text(f"- date: 2026-01-01 00:00 UTC\n- sources: {sources}\n\n{table.text()}")
    return folder


@pytest.mark.parametrize(
    ("ratio", "seconds", "apart", "goals"),
    [
        ("2.19 (2.18 .. 2.21)", "1,099 (1,090 .. 1,110)", [], ["ratio agrees: 1 of 1", "in seconds agrees: 1 of 1"]),
        ("2.30 (1.90 .. 2.40)", "1,300 (999 .. 1,400)", [], ["ratio agrees: 1 of 1", "in seconds agrees: 1 of 1"]),
        (
            "2.21 (2.01 .. 2.30)",
            "800 (700 .. 980)",
            [
                "n0, ours, 10, keys/s: 1,000 (990 .. 1,010) and 800 (700 .. 980)",
                "n0, at least 2 x theirs: 2 (1.99 .. 2) and 2.21 (2.01 .. 2.3)",
            ],
            ["ratio agrees: 0 of 1", "in seconds agrees: 0 of 1"],
        ),
    ],
)
def test_two_runs_agree_within_a_tenth_or_inside_the_quartiles(
    tmp_path: Path, ratio: str, seconds: str, apart: list[str], goals: list[str]
) -> None:
    first = saved(tmp_path / "first", "2.00 (1.99 .. 2.00)", "1,000 (990 .. 1,010)")
    table = agreement.compare(first, saved(tmp_path / "second", ratio, seconds), ["n0"])
    assert table.notes == apart
    assert [goal.removeprefix("every ").removeprefix("figure ") for goal, _ in table.goals] == goals
    assert [reached for _, reached in table.goals] == [not apart] * 2


def test_runs_of_different_sources_are_not_compared(tmp_path: Path) -> None:
    first = saved(tmp_path / "first", "2.00 (1.99 .. 2.00)", "1,000 (990 .. 1,010)")
    second = saved(tmp_path / "second", "2.00 (1.99 .. 2.00)", "1,000 (990 .. 1,010)", "4567 of counter.py")
    message = r"^The two results of n0 are of different sources. Run ./run bench n0 for both.$"
    with pytest.raises(ValueError, match=message):
        agreement.compare(first, second, ["n0"])


def test_every_figure_with_quartiles_of_a_committed_result_is_compared() -> None:
    for name in ALL:
        page = (report.RESULTS / f"{name}.md").read_text(encoding="utf-8")
        assert len(list(agreement.figures(page))) == page.count(" .. "), name


def invented(section: str, printed: str) -> list[str]:
    """Return the figures in the prose of *section* that are not in *printed*."""
    prose = "\n".join(line for line in section.splitlines() if not line.startswith("    "))
    figures = re.findall(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?!\w)", prose)
    return [figure for figure in figures if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", printed)]


def test_a_figure_that_no_table_prints_is_found() -> None:
    printed = "| enrichkit | 1,234,567 (1,200,000 .. 1,300,000) | 0.95 |"
    assert invented("It does 1,234,567 rows/s, 0.95 of N1.\n\n    ./run bench 9", printed) == []
    assert invented("It does 234,567 rows/s, 0.9 or 5.", printed) == ["234,567", "0.9", "5"]


def section_of(page: str, section: str) -> str:
    _, heading, rest = (report.ROOT / page).read_text(encoding="utf-8").partition(f"\n## {section}\n")
    assert heading
    return rest.partition("\n## ")[0]


def test_the_page_quotes_only_what_a_committed_table_prints() -> None:
    printed = "\n".join(path.read_text(encoding="utf-8") for path in sorted(report.RESULTS.glob("*.md")))
    assert invented(section_of("docs/benchmarks.md", "Results"), printed) == []


ROUNDED = {
    "2.2 M rows/s": "2,189,264",
    "48 x": "48.17",
    "1.8 M rows/s": "1,849,426",
    "63 x": "62.72",
    "97 %": "96.6",
}
"""The figures of the README, and the figures of the results that they stand for."""


def test_the_readme_quotes_rounded_figures_of_committed_tables() -> None:
    section = section_of("README.md", "Performance")
    printed = "\n".join(path.read_text(encoding="utf-8") for path in sorted(report.RESULTS.glob("*.md")))
    for shown, figure in ROUNDED.items():
        assert shown in section
        assert invented(f"It is {figure}.", printed) == []
        exact = float(figure.replace(",", "")) / (1e6 if " M " in shown else 1)
        digits = len(shown.split()[0].partition(".")[2])
        assert float(shown.split()[0]) <= exact + 0.5 * 10**-digits
        assert float(shown.split()[0]) >= exact - 10**-digits
        section = section.replace(shown, "")
    assert re.findall(r"(?<!\S)\d[\d.,]*", section) == ["100", "50"], "the latencies of a line and of the picture"


def test_the_readme_is_at_most_two_screens_of_prose_and_code() -> None:
    text = (report.ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 95
    assert len(text.split()) <= 800


def test_two_checkouts_are_compared_run_by_run() -> None:
    phases = (1.0, 2.0, 8.0, 4.0)  # how slow the machine is
    before = {name: [(phase, 2 * phase) for phase in phases] for name in ("enrichkit", "again", "gather")}
    now = {
        "enrichkit": [(phase / 1.25, phase) for phase in phases],
        "again": [(phase / 0.96, 0.0) for phase in phases],
        "gather": [(2 * phase, 4 * phase) for phase in phases],
    }
    table = against.compare({"engine": (before, now)})
    assert table.rows == [
        ("engine", "enrichkit", "4", "1.250 (1.250 .. 1.250)", "2.000 (2.000 .. 2.000)"),
        ("engine", "again", "4", "0.960 (0.960 .. 0.960)", "-"),
        ("engine", "gather", "4", "0.500 (0.500 .. 0.500)", "0.500 (0.500 .. 0.500)"),
    ]
    assert table.goals == [
        ("engine, enrichkit: at most 3% slower (1.250)", True),
        ("engine, again: at most 3% slower (0.960)", False),
    ]


def test_checkouts_that_made_different_runs_are_not_compared() -> None:
    before, now = ({"enrichkit": [(1.0, 1.0)] * count_} for count_ in (2, 3))
    text = "^The two checkouts made different runs of engine. Run the same benchmark in both.$"
    with pytest.raises(ValueError, match=text):
        against.compare({"engine": (before, now)})
