"""What `./run test` and the gate say of tests that fail, hang, kill their process, or fail and then pass."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from . import summary
from .suite import FAILED, GATE, NONE_SELECTED, OK, ROOT, Suite, suite_of
from .summary import LINES_OF_ALL, Case, Part, Summary

CONFTEST = """\
import pytest

@pytest.fixture(scope="session")
def server():
    raise OSError("no such program")
"""

BY_PLACE = ("plugins", "drivers", "engine", "rest")
"""The parts of tests that have no Spark session and do not wait."""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A run of the tests in `tmp_path`, in one part."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p tests.limits -p no:valkey\ntimeout_func_only = true\n")
    return Suite([], {"toys": ()}, root=tmp_path, results=tmp_path / "results")


def told(suite: Suite, tests: str, expected: int) -> str:
    """Run *tests*, and return what is told at the end."""
    (suite.root / "test_toy.py").write_text(textwrap.dedent(tests))
    assert expected == suite.run()
    return Summary.of(suite.results).text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], ["plain"]), (["test_toy.py"], ["plain", "slow", "waits"]), (["--gate"], ["apt", "plain", "slow", "waits"])],
    ids=["alone", "with a name", "in the gate"],
)
def test_what_takes_long_runs_in_the_gate_and_by_its_name(
    suite: Suite, arguments: list[str], expected: list[str]
) -> None:
    wanted = suite_of(arguments)
    assert {"spark", "connect", *BY_PLACE} == wanted.parts.keys() - {"waits"}
    assert ("waits" in expected) == ("waits" in wanted.parts)
    suite.arguments = wanted.arguments
    kinds = ["plain", "slow", "waits", "apt", "more", "cluster"]
    with (suite.root / "pytest.ini").open("a") as ini:
        ini.writelines(["markers =\n", *(f"    {kind}\n" for kind in kinds)])
    tests = f"""
        import pytest

        @pytest.mark.parametrize("kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in {kinds}])
        def test_it(kind):
            pass
    """
    told(suite, tests, OK)
    ran = re.findall(r'name="test_it\[(\w+)\]"', (suite.results / "toys.xml").read_text())
    assert expected == sorted(ran)


def test_every_module_is_collected_in_each_part_that_may_hold_tests_of_it(pytestconfig: pytest.Config) -> None:
    """A part does not even read modules that cannot hold a test of it; one too many would be left out unseen."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))

    def collected(path: Path, *, part: str | None = None, connect: bool = False, marks: str = GATE) -> bool:
        options = {"markexpr": marks, "--part": part, "--connect": connect}
        return conftest.pytest_ignore_collect(path, SimpleNamespace(getoption=options.get)) is None

    modules = [path for folder in ("tests", "plugins") for path in (ROOT / folder).rglob("test_*.py")]
    assert len(modules) > 200
    for path in modules:
        assert collected(path)
        assert [conftest._place(path)] == [part for part in BY_PLACE if collected(path, part=part)]
        for_spark = conftest._may_hold(path, "spark")
        assert for_spark == collected(path, part="spark") == collected(path, connect=True)
        assert for_spark == collected(path, connect=True, marks="more") == collected(path, connect=True, marks="slow")
        assert conftest._may_hold(path, "waits") == collected(path, part="waits")


@pytest.mark.slow
def test_what_fails_twice_failed_and_what_passes_then_is_unstable(suite: Suite) -> None:
    tests = """
        import pathlib
        import pytest

        def test_good():
            pass

        @pytest.mark.parametrize("mark", ["x"])
        def test_every_other_time(mark):
            seen = pathlib.Path(__file__).with_name("seen")
            if not seen.exists():
                seen.touch()
                raise OSError("too busy")
    """
    text = told(suite, tests, OK)
    assert "UNSTABLE toys: test_toy.py::test_every_other_time[x], which passed when run again\n" in text
    assert re.search(r"^    E +OSError: too busy$", text, re.MULTILINE)
    assert re.search(r"^ +\d+ s  toys         1 unstable$", text, re.MULTILINE)
    assert text.endswith("\n2 passed, 0 failed")

    more = """
        class TestIt:
            @pytest.mark.parametrize("number", range(6))
            def test_bad(self, number):
                assert not "a value that is wrong"
    """
    text = told(suite, tests + more, FAILED)
    assert "UNSTABLE" not in text
    one, *others = (f"test_toy.py::TestIt::test_bad[{number}]" for number in range(6))
    assert f"FAILED 6 tests: toys: {one}, {', '.join(others[:4])} and 1 more\n" in text
    assert 1 == len(re.findall('^ +> +assert not "a value that is wrong"$', text, re.MULTILINE))
    assert re.search(r"^ +\d+ s  toys         6 failed$", text, re.MULTILINE)
    assert text.endswith("\n2 passed, 6 failed")


@pytest.mark.slow
def test_more_unstable_tests_than_three_are_a_defect(suite: Suite) -> None:
    tests = """
        import pathlib
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_every_other_time(number):
            seen = pathlib.Path(__file__).with_name(f"seen-{number}")
            if not seen.exists():
                seen.touch()
                raise OSError("too busy")
    """
    text = told(suite, tests, FAILED)
    assert text.endswith("\n4 tests are unstable, and at most 3 may be.\n4 passed, 4 failed")


@pytest.mark.slow
def test_a_time_limit_is_named_before_the_error_that_it_leads_to(suite: Suite) -> None:
    tests = """
        import time
        import pytest

        @pytest.mark.timeout(0.2)
        def test_hangs():
            time.sleep(100)

        @pytest.mark.timeout(0.2)
        def test_hangs_in_disguise():
            try:
                time.sleep(100)
            except BaseException:
                pass
            raise RuntimeError("nothing can run")
    """
    text = told(suite, tests, FAILED)
    assert 2 == text.count("TIME-OUT: the test ran for ")
    assert text.index("TIME-OUT:", text.index("test_hangs_in_disguise")) < text.index("0 passed, 2 failed")
    assert "RuntimeError: nothing can run" in text


def test_a_session_fixture_that_cannot_start_is_told_once(suite: Suite) -> None:
    tests = """
        import pytest

        def test_good():
            pass

        @pytest.mark.parametrize("number", range(100))
        def test_with_server(server, number):
            pass
    """
    text = told(suite, tests, FAILED)
    assert "FAILED toys (exit code 3)\n" in text
    assert "The fixture server cannot start: OSError: no such program" in text
    assert len(text.splitlines()) < 60
    assert text.endswith("\n1 passed, 1 failed")


@pytest.mark.slow
def test_a_module_that_cannot_be_imported_is_named(suite: Suite) -> None:
    text = told(suite, "import no_such_plugin", FAILED)
    assert "FAILED toys: test_toy" in text
    assert "ModuleNotFoundError: No module named 'no_such_plugin'" in text


def test_a_process_that_is_killed_is_a_failure(suite: Suite) -> None:
    text = told(suite, "import os\ndef test_dies():\n    os.kill(os.getpid(), 9)\n", FAILED)
    assert "FAILED toys (exit code -9)\n" in text
    assert text.endswith("\n0 passed, 1 failed")


@pytest.mark.slow
def test_a_process_that_falls_silent_is_ended_and_shows_where_it_stands(suite: Suite) -> None:
    suite.silence = 3.0
    text = told(suite, "import time\ndef test_hangs():\n    time.sleep(1000)\n", FAILED)
    assert "): TIME-OUT: it printed nothing for 3 s\n" in text


@pytest.mark.slow
def test_no_test_is_a_failure_but_where_tests_are_selected(suite: Suite) -> None:
    assert NONE_SELECTED == suite.run()
    suite.parts["others"] = ()
    suite.parts["toys"] = ("-k", "good")
    assert "FAILED toys (exit code 5)\n" in told(suite, "def test_bad(): pass", FAILED)
    suite.may_be_empty = True
    assert told(suite, "def test_bad(): pass", OK).endswith("\n1 passed, 0 failed")


def test_the_end_has_as_many_lines_as_can_be_read(tmp_path: Path) -> None:
    found = Summary([Part("rest", 1.0, 0)])
    for number in range(60):
        found.failed["rest", f"test_{number}"] = Case(f"test_{number}", 1.0, f"error {number}", "a line\n" * 50)
    lines = found.text().splitlines()
    assert len(lines) < LINES_OF_ALL + 10
    assert [f"FAILED rest: test_{number}" for number in range(60)] == [line for line in lines if line[:6] == "FAILED"]
    assert "60 failed" in lines[-1]


def test_a_part_that_is_no_pytest_shows_the_end_of_its_log(tmp_path: Path) -> None:
    summary.write_part(tmp_path, "check", 3.0, 2)
    (tmp_path / "check.log").write_text("\n".join(f"line {number}" for number in range(100)))
    text = Summary.of(tmp_path).text()
    assert text.startswith("FAILED check (exit code 2)\n    line 60\n")
    assert "      3 s  check        FAILED 2\n" in text
    assert text.endswith("\n0 passed, 1 failed")
