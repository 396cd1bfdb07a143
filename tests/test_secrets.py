"""References to secrets, and the redaction of texts."""

from __future__ import annotations

import os
import pickle
import platform
from typing import TYPE_CHECKING

import pytest

from enrichkit import Secret
from enrichkit.errors import ConfigError
from enrichkit.secrets import RefusedLogin, redact, reveal

if TYPE_CHECKING:
    from pathlib import Path


def test_a_secret_is_what_the_environment_holds_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret.env("ENRICHKIT_TEST_SECRET")
    monkeypatch.setenv("ENRICHKIT_TEST_SECRET", " s3cret ")
    assert secret.resolve() == " s3cret "


def test_a_secret_is_the_content_of_a_file_without_its_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" s3crét \n", encoding="utf-8")
    assert Secret.file(str(file)).resolve() == " s3crét "


def test_a_secret_that_is_not_set_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRICHKIT_TEST_SECRET", raising=False)
    with pytest.raises(ConfigError) as caught:
        Secret.env("ENRICHKIT_TEST_SECRET").resolve()
    assert str(caught.value) == (
        f"The environment variable ENRICHKIT_TEST_SECRET is not set on this machine ({platform.node()}); a Secret "
        "names it."
    )


def test_a_secret_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "absent", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            Secret.file(str(path)).resolve()
        assert str(caught.value) == (
            f"The secret file {path} cannot be read on this machine ({platform.node()}): {reason}."
        )


def test_a_secret_file_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"hunter2\xff")
    with pytest.raises(ConfigError) as caught:
        Secret.file(str(file)).resolve()
    assert str(caught.value) == (
        f"The secret file {file} cannot be read on this machine ({platform.node()}): it is not UTF-8."
    )
    assert caught.value.__cause__ is None, "the cause would show the content"


@pytest.mark.parametrize("kind", ["environment", "", None])
def test_a_secret_of_another_kind_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Secret(kind, "X")
    assert (
        str(caught.value)
        == f"Secret kind is {kind!r}; it must be one of 'env', 'file', 'call', 'command'. Use Secret.env(...)."
    )


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_secret_needs_a_name(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Secret.env(name)
    assert str(caught.value) == (
        f"Secret name is {name!r}; it must name an environment variable or a file, as in Secret.env('PGPASS')."
    )


def test_a_secret_shows_its_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_TEST_SECRET", "s3cret")
    secret = Secret.env("ENRICHKIT_TEST_SECRET")
    assert repr(secret) == "Secret.env('ENRICHKIT_TEST_SECRET')"
    assert b"s3cret" not in pickle.dumps(secret)
    assert secret == pickle.loads(pickle.dumps(secret))
    assert hash(secret) == hash(Secret.env("ENRICHKIT_TEST_SECRET"))


def test_reveal_takes_literals_and_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "ENRICHKIT_TEST_SECRET", "s3cret")
    assert [reveal(value) for value in (Secret.env("ENRICHKIT_TEST_SECRET"), "literal", None)] == [
        "s3cret",
        "literal",
        None,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "redis://user:hunter2@host:6379/0",
        "redis://:hunter2@host",
        "redis://hunter2@host",
        "postgresql://user:hunter2@host/db?sslmode=require",
        "redis://user:p@hunter2@host",
        "redis://user:p/hunter2@host",
        "redis://user:hunter2?x@host",
        "cannot connect to 'redis://user:hunter2@host': refused",
        "password=hunter2",
        "PASSWORD = hunter2",
        "password='hunter2'",
        'password="hunter2 and more"',
        '{"password": "hunter2"}',
        "{'password': 'hunter2'}",
        "dbname=x password=hunter2 host=y",
        "https://host/path?token=hunter2&x=1",
        "Authorization: Bearer hunter2",
        "Authorization: hunter2",
        '"authorization": "Bearer hunter2"',
        "api_key: hunter2",
        "x-api-key=hunter2",
        "client_secret=hunter2",
        "access_token=hunter2",
        "pwd:hunter2",
    ],
)
def test_redaction_finds_what_looks_like_a_secret(text: str) -> None:
    assert "hunter2" not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 6379)",
        "redis://localhost:6379/0",
        "https://api.example/users/7?page=2",
        "ask bob@example.com",
        'relation "users" does not exist',
        "",
    ],
)
def test_redaction_leaves_other_texts_alone(text: str) -> None:
    assert text == redact(text)


def test_redaction_keeps_what_is_around_a_secret() -> None:
    assert redact("redis://user:hunter2@host:6379/0 refused, password='x', then") == (
        "redis://***@host:6379/0 refused, password=***, then"
    )


def test_a_known_secret_is_found_wherever_it_is() -> None:
    assert redact("the server said: abc!", "abc", None, "") == "the server said: ***!"


def test_a_known_secret_that_begins_like_another_does_not_uncover_its_rest() -> None:
    assert redact("abcdef", "abc", "abcdef") == "***"


def test_a_refused_login_waits_ten_seconds_unless_something_has_changed() -> None:
    last, login, files = RefusedLogin(), ("app", None), ("ca.pem", 1)
    assert last.wait(login, files, 100.0) == 0.0
    last.refused(login, files, 100.0)
    assert last.wait(login, files, 100.0) == 10.0
    assert last.wait(login, files, 110.0) == 0.0
    assert last.wait(login, ("ca.pem", 2), 100.25) == 0.75, "the certificate may have been the reason, or may not"
    assert last.wait(login, ("ca.pem", 2), 101.0) == 0.0
    assert last.wait(("app", "new"), files, 100.0) == 0.0
    last.accepted()
    assert last.wait(login, files, 100.0) == 0.0
