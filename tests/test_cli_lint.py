"""`enrichkit lint`: lists all mistakes in a file in one run, each with its line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from enrichkit.cli.commands import enrichkit as commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("fresh_registry", "folder")

CHECKED = """
    from dataclasses import dataclass
    from enrichkit import ConfigError, Connector, ConnectorConfig, hookimpl

    @dataclass(frozen=True, kw_only=True)
    class CheckedConfig(ConnectorConfig):
        url: str
        size: int = 8
        tags: tuple[str, ...] = ()
        mode: str = "a"

        def __post_init__(self):
            if not self.url.startswith("x:"):
                raise ConfigError(f"CheckedConfig.url is {self.url!r}; it must start with 'x:'. Write url='x:1'.")
            if self.mode not in ("a", "b"):
                raise ConfigError(f"CheckedConfig.mode is {self.mode!r}; it must be 'a' or 'b'. Write mode='a'.")
            if self.mode == "b" and not self.tags:
                raise ConfigError("CheckedConfig has no tags, which the mode 'b' needs. Add tags=('t',).")

    class CheckedConnector(Connector[CheckedConfig]):
        name, config_class = "checked", CheckedConfig

    @hookimpl
    def enrichkit_connector():
        return CheckedConnector
"""


@pytest.fixture
def lint(folder: Path) -> Callable[..., list[tuple[int | None, str]]]:
    """A function that lints a text and returns the line and the message of each mistake."""

    def lint(text: str, *arguments: str) -> list[tuple[int | None, str]]:
        (folder / "enrichkit.toml").write_text(text)
        result = CliRunner().invoke(commands, ["lint", "--json", *arguments])
        found: dict[str, Any] = json.loads(result.stdout)
        assert result.exit_code == bool(found["findings"]), result.output
        return [(finding["line"], finding["message"]) for finding in found["findings"]]

    return lint


def test_a_file_without_a_fault_has_no_findings(fake: Any, lint: Any, folder: Path) -> None:
    text = "[sources.users]\ntype = 'fake'\nurl = 'x'\nratio = 1\ntags = ['a']\nkey = ['a', 'b']\nport = 5\n"
    assert lint(text) == []
    printed = CliRunner().invoke(commands, ["lint"])
    assert (0, "enrichkit.toml: 1 source, 0 findings\n", "") == (printed.exit_code, printed.stdout, printed.stderr)


def test_all_mistakes_are_listed_in_one_run_with_their_lines(install: Any, lint: Any) -> None:
    install("checked", CHECKED)
    text = """\
# sources
[sources.users]
type = "checked"
url = "http://u:hunter2@x"
mdoe = "a"
mode = "c"
size = "many"

[sources.orders]
type = "cheked"

[sources."my.items"]
url = "x:1"

[sources.places]
type = "checked"
tags = [1]

[sources.things]
type = "checked"
url = "x:1"
mode = "b"
password = "p"
"""
    assert lint(text) == [
        (4, "[sources.users]: CheckedConfig.url is 'http://***@x'; it must start with 'x:'. Write url='x:1'."),
        (
            5,
            (
                "[sources.users]: There is no setting 'mdoe'. Did you mean 'mode'? The connector 'checked' takes: "
                "returns, url, size, tags, mode."
            ),
        ),
        (
            7,
            (
                "[sources.users]: CheckedConfig.size has a value of the wrong type: Expected `int`, got `str`. Write "
                "a value of the expected type."
            ),
        ),
        (10, lint(text)[3][1]),
        (12, "[sources.my.items]: There is no type; it must name a connector, for example type = 'checked'."),
        (15, "[sources.places]: There is no 'url', which the connector 'checked' requires. Add it."),
        (
            17,
            (
                "[sources.places]: CheckedConfig.tags has a value of the wrong type: Expected `str`, got `int` - at "
                "`$[0]`. Write a value of the expected type."
            ),
        ),
        (19, "[sources.things]: CheckedConfig has no tags, which the mode 'b' needs. Add tags=('t',)."),
        (23, lint(text)[8][1]),
    ]
    assert "No connector is named 'cheked'. Did you mean 'checked'?" in lint(text)[3][1]
    assert "There is no setting 'password'." in lint(text)[8][1]


def test_settings_after_a_wrong_one_are_checked_too(install: Any, lint: Any) -> None:
    """A config alone would name only its first wrong setting."""
    install("checked", CHECKED)
    text = "[sources.a]\ntype = 'checked'\nurl = 'x:1'\nmode = 'c'\n[sources.b]\ntype = 'fail'\n"
    assert [4, 6] == [line for line, _ in lint(text)]
    assert [3, 4] == [line for line, _ in lint("[sources.redis]\ntype='redis'\nkind = 'hsh'\ncluster = 'yes'\n")]


def test_the_plain_output_has_file_and_line_above_each_finding(lint: Any) -> None:
    lint("[sources.users]\ntype = 'redis'\nkind = 'hsh'\n")
    printed = CliRunner().invoke(commands, ["lint"])
    assert printed.exit_code == 1
    assert printed.stdout == (
        "enrichkit.toml:3\n"
        "  [sources.users]: RedisConfig.kind is 'hsh'; it must be 'string', 'hash' or\n"
        "  'json', for example kind='hash'.\n"
        "enrichkit.toml: 1 source, 1 finding\n"
    )


def test_a_config_whose_check_fails_on_a_wrong_type_is_reported_as_a_wrong_type(install: Any, lint: Any) -> None:
    install("checked", CHECKED)  # its check calls a method of str on the value
    assert lint("[sources.a]\ntype = 'checked'\nurl = 5\nmode = 'c'\n") == [
        (
            3,
            (
                "[sources.a]: CheckedConfig.url has a value of the wrong type: Expected `str`, got `int`. Write a "
                "value of the expected type."
            ),
        )
    ]


def test_a_config_that_raises_another_exception_is_reported_as_the_authors_bug(install: Any, lint: Any) -> None:
    install("checked", CHECKED.replace('if not self.url.startswith("x:"):', "if 1 / 0:"))
    assert lint("[sources.a]\ntype = 'checked'\nurl = 'x:1'\n") == [
        (
            1,
            (
                "[sources.a]: CheckedConfig raised ZeroDivisionError: division by zero. Report this to the connector's "
                "author."
            ),
        )
    ]


def test_a_secret_that_does_not_exist_is_a_finding_unless_secrets_are_not_checked(
    fake: Any, lint: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[sources.users]\ntype = 'fake'\nurl = 'x'\nsecret = {env = 'USERS_PASSWORD'}\n"
    assert lint(text) == [
        (
            4,
            (
                "[sources.users]: The secret Secret.env('USERS_PASSWORD') does not exist on this machine, and workers "
                "need it. Provide it, or skip the check of secrets with --no-secrets."
            ),
        )
    ]
    assert lint(text, "--no-secrets") == []
    monkeypatch.setenv("USERS_PASSWORD", "s")
    assert lint(text) == []
    (line, said), *_ = lint(text.replace("env = 'USERS_PASSWORD'", "file = 'absent'"))
    assert (4, True) == (line, "The secret Secret.file('absent') does not exist on this machine" in said)


def test_a_secret_without_a_name_is_a_finding_beside_the_others(fake: Any, lint: Any) -> None:
    text = "[sources.a]\ntype = 'fake'\nurl = 'x'\nsecret = {env = ''}\n[sources.b]\ntype = 'fail'\n"
    (line, said), (other, _) = lint(text)
    assert (line, other) == (4, 6)
    assert said == (
        "[sources.a]: Secret name is ''; it must name an environment variable or a file, as in Secret.env('PGPASS')."
    )


def test_a_driver_that_is_not_installed_is_a_finding(install: Any, lint: Any) -> None:
    install(
        "checked",
        CHECKED.replace('name, config_class = "checked"', 'requires, name, config_class = ("nowhere",), "checked"'),
    )
    ((line, said),) = lint("[sources.a]\ntype = 'checked'\nurl = 'x:1'\n")
    assert (2, True) == (line, "needs the package nowhere, which is not installed. Run: pip install nowhere" in said)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[sources.users\n", 1, "This is not TOML: "),
        ("a = 1\n\n[sources.users]\nurl = \n", 4, "This is not TOML: "),
        (
            "[source.users]\ntype = 'redis'\n",
            1,
            "Nothing reads [source]. Did you mean 'sources'? Sources are [sources.NAME].",
        ),
        ("sources = 5\n", None, "'sources' must hold tables only, such as [sources.users] with type = 'redis'."),
        ("[sources]\nusers = 'redis'\n", 2, "'sources' must hold tables only"),
    ],
)
def test_a_file_that_is_not_a_file_of_sources_is_a_finding(lint: Any, text: str, line: int | None, said: str) -> None:
    ((found, message),) = lint(text)
    assert (line, True) == (found, message.startswith(said)), message


def test_a_table_of_another_program_is_left_alone(lint: Any) -> None:
    assert lint("[project]\nname = 'x'\n") == []


def test_the_file_can_be_named_and_must_be_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other.toml").write_text("[sources.users]\ntype = 'redis'\n")
    runner = CliRunner()
    assert runner.invoke(commands, ["lint", "other.toml"]).stdout == "other.toml: 1 source, 0 findings\n"
    monkeypatch.setenv("ENRICHKIT_CONFIG", "other.toml")
    assert runner.invoke(commands, ["lint"]).stdout == "other.toml: 1 source, 0 findings\n"
    absent = runner.invoke(commands, ["lint", "absent.toml"])
    assert (1, ["absent.toml", "  The file cannot be read: No such file or directory. Name another."]) == (
        absent.exit_code,
        absent.stdout.splitlines()[:2],
    )
    (folder / "latin.toml").write_bytes(b"# \xe9")
    assert "latin.toml\n  This is not TOML: " in runner.invoke(commands, ["lint", "latin.toml"]).stdout


def test_a_file_without_findings_can_be_read_by_enrich(fake: Any, lint: Any) -> None:
    """The two read a file with different code."""
    from enrichkit.sources.config import find_source

    text = "[sources.users]\ntype = 'fake'\nurl = 'x'\nsize = 3\n"
    assert lint(text) == []
    assert find_source("users")[2] == fake.config_class(url="x", size=3)
