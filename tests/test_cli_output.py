"""The layout of the command's output: on a terminal, in a pipe, and with values that try to control the terminal."""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from enrichkit import Connector, ConnectorConfig, Failure, PermanentError, register
from enrichkit.cli.commands import enrichkit as commands
from enrichkit.cli.output import text

if TYPE_CHECKING:
    from pathlib import Path

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "[bold]x[/] [/nothing] :smile: \x1b]0;owned\x07\x1b[2J\r\b\x9b31m \u202eright \ud800 \t|"
SHOWN = r"[bold]x[/] [/nothing] :smile: \x1b]0;owned\x07\x1b[2J\r\x08\x9b31m \u202eright \ud800 \t|"

OBJECTS = {
    "name": "名",
    "photo": b"\x00\xff",
    "share": [math.nan, -math.inf, 0.5],
    7: dt.date(2000, 2, 29),
    None: 1 + 2j,
}


class Harm(ConnectorConfig):
    """The config of a source whose values other people wrote."""


class HarmConnector(Connector[Harm]):
    name, config_class = "harm", Harm

    async def fetch_many(self, keys: Any, call: Any) -> Any:
        answers = {"value": HOSTILE, "long": "0123456789" * 50, "lines": "one\ntwo", "objects": OBJECTS}
        return {key: answers.get(key) or Failure(PermanentError(HOSTILE)) for key in keys}


@pytest.fixture(autouse=True)
def harm(fresh_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the source `harm`, change to an empty folder, and remove the environment variables that set colours."""
    for name in ("ENRICHKIT_CONFIG", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    register("harm", Harm(returns="string"))


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn colours on, although the output is not a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")


def run(*arguments: str) -> str:
    return CliRunner().invoke(commands, arguments, prog_name="enrichkit", color=True).output


def unfolded(printed: str) -> str:
    return re.sub(r"\s", "", ESCAPE.sub("", printed))


def on_a_terminal(*arguments: str, width: int, **variables: str) -> str:
    """Return the output of `enrichkit` with *arguments* on a terminal of *width* columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    with subprocess.Popen(
        [sys.executable, "-m", "enrichkit", *arguments], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError as error:
                if error.errno != errno.EIO:  # Linux raises EIO when the other end of a terminal is closed
                    raise
                break
            written += part
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


@pytest.fixture
def wrong_file(tmp_path: Path) -> None:
    (tmp_path / "enrichkit.toml").write_text("[sources.users]\ntype = 'redis'\nkind = 'hsh'\n")


@pytest.mark.usefixtures("wrong_file")
def test_a_terminal_gets_colours_and_its_own_width() -> None:
    printed = on_a_terminal("lint", width=50)
    assert "\x1b[1menrichkit.toml:3\x1b[0m\n" in printed
    assert "\x1b[31m1 finding\x1b[0m\n" in printed
    lines = ESCAPE.sub("", printed).splitlines()
    assert 40 < max(map(len, lines)) <= 50
    assert "\x1b[1;31mError: \x1b[0m" in on_a_terminal("chekc", width=50)


@pytest.mark.usefixtures("wrong_file")
@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colours_gets_no_escape_at_all(variables: dict[str, str]) -> None:
    printed = on_a_terminal("lint", width=80, **variables)
    assert "\x1b" not in printed
    assert printed.startswith("enrichkit.toml:3\n  [sources.users]: RedisConfig.kind is 'hsh'; ")


@pytest.mark.usefixtures("wrong_file")
def test_a_pipe_gets_plain_text_in_eighty_columns_whatever_terminal_is_behind_it() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    command = [sys.executable, "-m", "enrichkit", "lint"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    done = subprocess.run(command, env=environment, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True)
    os.close(ours)
    os.close(theirs)
    assert "\x1b" not in done.stdout
    assert 60 < max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["connectors"], ["connectors", "--json"]])
def test_a_pipe_whose_reader_is_gone_ends_the_command_without_a_message(arguments: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "enrichkit", *arguments]
    # With a buffer, the write fails late: only when the buffer is flushed. Without one, it would fail at once.
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, env=buffered, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (1, b"") == (done.returncode, done.stderr)


@pytest.mark.usefixtures("coloured")
def test_an_answer_is_green_a_failure_red_and_a_heading_bold() -> None:
    printed = run("check", "harm", "lines", "other")
    assert "\x1b[1mThe source 'harm'\x1b[0m\n" in printed
    assert "\x1b[32mok" in printed
    assert "\x1b[31merror" in printed
    assert re.search(r"\x1b\[31m[\d,]+ error", run("bench", "harm", "other", "--seconds", "0.1", "--capacity", "1"))


@pytest.mark.parametrize("colours", [True, False])
def test_data_is_not_read_as_markup_and_does_not_control_the_terminal(colours: bool, request: Any) -> None:
    if colours:
        request.getfixturevalue("coloured")
    bench = ("bench", "harm", "--seconds", "0.1", "--capacity", "1")
    for arguments in [("check", "harm", "value"), ("check", "harm", "other"), (*bench, "other"), ("check", HOSTILE)]:
        printed = run(*arguments)
        assert unfolded(SHOWN) in unfolded(printed), arguments
        plain = ESCAPE.sub("", printed)
        assert plain.replace("\n", "").isprintable()
        assert max(map(len, plain.splitlines())) <= 80
        assert colours == (plain != printed)


def test_a_long_value_is_folded_and_whole() -> None:
    printed = run("check", "harm", "long")
    folded = re.findall(r"[0-9]+$", printed, re.MULTILINE)
    assert "0123456789" * 50 == "".join(folded)
    assert max(map(len, printed.splitlines())) <= 80
    assert not [line for line in printed.splitlines() if line.endswith(" ")]


def test_the_lines_of_a_value_stay_below_each_other() -> None:
    first, second = run("check", "harm", "lines").splitlines()[-2:]
    assert first.index("one") == second.index("two")


def test_a_character_that_the_output_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text("Zoë").plain == "Zoë"
    done = subprocess.run(
        [sys.executable, "-m", "enrichkit", "check", "Zoë"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert r"No connector is named 'Zo\xeb'." in done.stderr


@pytest.mark.usefixtures("coloured")
def test_json_has_no_colours_and_its_values_are_whole() -> None:
    printed = run("check", "harm", "long", "--json")
    assert "\x1b" not in printed
    assert f'"value": "{"0123456789" * 50}"' in printed


@pytest.mark.parametrize("charset", ["utf-8", "ascii"])
def test_json_is_the_same_whatever_the_output_can_show(charset: str) -> None:
    result = CliRunner(charset=charset).invoke(commands, ["check", "harm", "objects", "--json"])
    assert (0, "") == (result.exit_code, result.stderr)
    [answer] = json.loads(result.stdout)["answers"]
    assert answer["value"] == {
        "name": "名",
        "photo": "AP8=",
        "share": [None, None, 0.5],
        "7": "2000-02-29",
        "None": "(1+2j)",
    }


def test_json_can_hold_a_lone_surrogate() -> None:
    value, other = json.loads(run("check", "harm", "value", "other", "--json"))["answers"]
    assert (HOSTILE, f"PermanentError: {HOSTILE}") == (value["value"], other["error"])
