"""`Journal`: its checks, its messages, and the scope of a run."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enrichkit import errors
from enrichkit.journal import Journal, Scope


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"path": ""},
            (
                "Journal.path is no path; it must be the name of a folder or a URI, for example "
                "'/data/answers' or 's3://bucket/answers'."
            ),
        ),
        (
            {"path": 7},
            (
                "Journal.path is no path; it must be the name of a folder or a URI, for example "
                "'/data/answers' or 's3://bucket/answers'."
            ),
        ),
        (
            {"run_id": ""},
            "Journal.run_id is ''; it must be a text of 1 to 200 characters, for example '2026-07-30'.",
        ),
        (
            {"run_id": 7},
            "Journal.run_id is 7; it must be a text of 1 to 200 characters, for example '2026-07-30'.",
        ),
        ({"shared": "yes"}, "Journal.shared is 'yes'; it must be True or False."),
        ({"sync": 1}, "Journal.sync is 1; it must be True or False."),
        (
            {"max_age": 0},
            (
                "Journal.max_age is 0; it must be a number of seconds above 0, or None for no limit, "
                "for example 86400.0 for a day."
            ),
        ),
        (
            {"max_age": "1d"},
            (
                "Journal.max_age is '1d'; it must be a number of seconds above 0, or None for no limit, "
                "for example 86400.0 for a day."
            ),
        ),
        (
            {"max_age": float("nan")},
            (
                "Journal.max_age is nan; it must be a number of seconds above 0, or None for no limit, "
                "for example 86400.0 for a day."
            ),
        ),
        (
            {"on_error": "ignore"},
            (
                "Journal.on_error is 'ignore'; it must be 'warn', to go on without the journal, or 'fail', to fail the "
                "task."
            ),
        ),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        Journal(**{"path": "/data", **options})
    assert message == str(raised.value)


def test_a_batch_job_needs_a_run_id() -> None:
    with pytest.raises(errors.ConfigError) as raised:
        Journal("/data").scope()
    assert (
        "Journal.run_id is None; a batch job needs a name under which a second start finds the answers of the first. "
        "Give one, for example run_id='2026-07-30', or share the answers between all runs: shared=True."
    ) == str(raised.value)


def test_scopes_have_the_names_of_their_runs() -> None:
    assert Scope("run=a") == Journal("/data", run_id="a").scope()
    assert Scope("query=q,batch=3") == Journal("/data", run_id="a").scope("q", 3)
    assert Scope("query=q,batch=3", shared=True) == Journal("/data", shared=True).scope("q", 3)
    assert Scope("any", shared=True) == Journal("/data", shared=True).scope()


@pytest.mark.parametrize("run_id", ["..", "../../x", "a/b", "shared", "a\0b", "é" * 200, " ", "x" * 200, "A%2F"])
def test_no_run_id_leaves_the_folder_of_its_table(run_id: str) -> None:
    folder = Journal("/data", run_id=run_id).scope().folder
    assert not {"/", "\0"} & set(folder)
    assert folder not in ("", ".", "..", "shared")
    assert len(folder.encode()) <= 200


def test_different_run_ids_have_different_folders() -> None:
    names = ["a", "A", "a b", "a+b", "a%20b", "é" * 100, "é" * 99, "batch=1", "a,b"]
    assert len(names) == len({Scope(f"run={name}").folder for name in names})


def test_paths_are_absolute_and_uris_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "x") == Journal("x").path == Journal(Path("x")).path  # type: ignore[arg-type]
    assert "s3://bucket/x" == Journal("s3://bucket/x").path


def test_a_password_in_a_uri_is_refused_and_not_shown() -> None:
    with pytest.raises(errors.ConfigError) as raised:
        Journal("s3://user:hunter2@bucket/x")
    assert (
        "Journal.path holds a password, which messages and plans would show; pyarrow finds credentials in the "
        "environment of the workers, for example AWS_SECRET_ACCESS_KEY or an instance role."
    ) == str(raised.value)
    assert Journal("abfss://container@account.dfs.core.windows.net/x").path.startswith("abfss://container@")


def test_a_journal_pickles_and_hashes() -> None:
    journal = Journal("/data", run_id="a", max_age=5)
    assert journal == pickle.loads(pickle.dumps(journal))
    assert hash(journal) == hash(Journal("/data", run_id="a", max_age=5))


def test_the_driver_loads_no_arrow() -> None:
    program = "import sys, enrichkit.journal; print([n for n in ('pyarrow', 'numpy') if n in sys.modules])"
    assert "[]\n" == subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
