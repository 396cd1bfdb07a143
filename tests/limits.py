"""
A pytest plugin: what ended a test is said first, and a server or a Spark that cannot start ends the process.

pytest-timeout raises its exception from an alarm, wherever the code of the test is at that moment. The code may catch
it, and then it shows up as an error of the engine or of Hypothesis. And a session fixture that failed fails for each of
the hundreds of tests that use it, with the same error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import pytest_timeout

if TYPE_CHECKING:
    from collections.abc import Iterator

CANNOT_START = 3
"""The exit code of a process whose session fixture failed: none of pytest's for tests that failed."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Put `TIME-OUT:` before the error of a test that was ended by its time limit, or that failed after it."""
    report: Any = yield
    limit = pytest_timeout._get_item_settings(item).timeout or float("inf")
    if call.excinfo and call.when == "call" and (call.duration >= limit or _is_time_out(call.excinfo.value)):
        said = f"TIME-OUT: the test ran for {call.duration:.0f} s, and its limit is {limit:.0f} s. What follows may be "
        said += "the alarm in disguise: run the test alone before you look for a defect."
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            crash.message = f"{said}\n{crash.message}"
            report.longrepr.addsection("time limit", said)
        else:
            report.longrepr = f"{said}\n{report.longrepr}"
    return report


def _is_time_out(error: BaseException | None) -> bool:
    """Whether pytest-timeout's exception is in the chain of *error*."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if "from pytest-timeout" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """End the process when a session fixture cannot start: there is one message, and not one for each test."""
    try:
        return (yield)
    except Exception as error:
        if fixturedef.scope != "session" or _is_time_out(error):
            raise
        pytest.exit(f"The fixture {fixturedef.argname} cannot start: {type(error).__name__}: {error}", CANNOT_START)
