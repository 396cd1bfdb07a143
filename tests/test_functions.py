"""Where a user's function raised: what a message says of it, and what it leaves out."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from enrichkit.errors import FatalError
from enrichkit.functions import FRAMES_MAX, make_connector, raised


def error_of(function: Any, *arguments: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # whatever it raises
        function(*arguments)
    return caught.value


def read(data: dict[str, str]) -> str:
    return data["name"]


def test_the_place_has_file_line_function_and_source() -> None:
    caller = test_the_place_has_file_line_function_and_source.__code__.co_firstlineno + 3

    error = error_of(lambda: read({"nombre": "Ada"}))
    line = read.__code__.co_firstlineno + 1
    assert raised(error) == (
        f"KeyError at test_functions.py, line {PLACE}, in error_of: function(*arguments); "
        f'test_functions.py, line {caller}, in <lambda>: error = error_of(lambda: read({{"nombre": "Ada"}})); '
        f'test_functions.py, line {line}, in read: return data["name"]'
    )
    assert raised(error, show_text=True).startswith("KeyError: 'name' at test_functions.py, line ")


PLACE = error_of.__code__.co_firstlineno + 2


def test_libraries_are_left_out() -> None:
    """Python's json in this case, whose frames are the innermost."""
    error = error_of(json.loads, "{")
    assert raised(error) == f"JSONDecodeError at test_functions.py, line {PLACE}, in error_of: function(*arguments)"


@pytest.mark.parametrize(
    ("folder", "shown"),
    [
        ("etl-packages", True),
        ("python3.11/site-packages/shop", False),
        ("usr/lib/python3/dist-packages", False),
        ("job", True),
    ],
)
def test_only_the_folders_of_installed_packages_are_left_out(tmp_path: Path, folder: str, shown: bool) -> None:
    names: dict[str, Any] = {}
    exec(compile("def score(key):\n    return 1 / key\n", str(tmp_path / folder / "job.py"), "exec"), names)
    assert ("; job.py, line 2, in score" in raised(error_of(names["score"], 0))) is shown


def test_a_job_that_is_shipped_as_a_package_has_its_place(tmp_path: Path) -> None:
    source = "def score(key):\n    return 1 / key\n\ndef call(key):\n    try:\n        score(key)\n"
    source += "    except ZeroDivisionError as error:\n        return error\n"
    names: dict[str, Any] = {}
    exec(compile(source, str(tmp_path / "site-packages" / "shop" / "job.py"), "exec"), names)
    text = raised(names["call"](0))
    assert text == "ZeroDivisionError at job.py, line 6, in call; job.py, line 2, in score"


def test_an_error_without_a_place_of_the_user_is_told_by_its_class() -> None:
    assert raised(ValueError("of a key")) == "ValueError"


def test_a_source_line_that_is_not_on_this_machine_is_left_out(tmp_path: Path) -> None:
    code = compile("def absent(key):\n    return 1 / key\n", str(tmp_path / "job.py"), "exec")
    names: dict[str, Any] = {}
    exec(code, names)  # as a function that has travelled by value
    assert raised(error_of(names["absent"], 0)).endswith("; job.py, line 2, in absent")


def test_a_deep_recursion_is_told_by_its_innermost_places() -> None:
    def down(depth: int) -> int:
        return down(depth - 1) if depth else 1 // depth

    assert raised(error_of(down, 50)).count("in down") == FRAMES_MAX


def test_no_password_of_an_address_is_shown() -> None:
    def connect(address: str = "redis://me:hunter2@host") -> None:
        raise ValueError(f"cannot reach {address}, or redis://me:hunter3@host")

    text = raised(error_of(connect), show_text=True)
    assert "hunter" not in text
    assert text.startswith("ValueError: cannot reach redis://***@host, or redis://***@host at ")


class Unmakeable:
    def __init__(self, config: str) -> None:
        self.password = config.removeprefix("ok:") if config.startswith("ok:") else int(config)


def test_a_connector_that_cannot_be_made_is_told_without_the_text_of_its_exception() -> None:
    """`int` quotes what it was given, which may be a password."""
    secret = "".join(("S3", "cret"))  # a traceback shows the lines of this test
    assert make_connector(Unmakeable, f"ok:{secret}").password == secret
    with pytest.raises(FatalError) as caught:
        make_connector(Unmakeable, secret)
    assert secret not in "".join(traceback.format_exception(caught.value))
    assert str(caught.value).startswith(
        "Unmakeable: the connector could not be made: its __init__ raised ValueError at test_functions.py, line "
    )
    assert caught.value.__context__ is None
