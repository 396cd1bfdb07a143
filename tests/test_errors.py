"""The tree of exceptions: what is caught by what, and what survives a pickle on its way to the driver."""

from __future__ import annotations

import pickle
import re

import pytest

import enrichkit
from enrichkit import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]
BUILTINS = {
    errors.ConfigError: ValueError,
    errors.UnknownOptionError: TypeError,
    errors.MissingDriverError: ImportError,
}


def drawn() -> dict[str, str]:
    """Child to parent, as the docstring of the module draws the tree."""
    parents, path = {}, ["EnrichkitError"]
    for branch, name in re.findall(r"^    ([│ ├└─]+) (\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = (len(branch) + 1) // 4
        parents[name] = path[depth - 1]
        path[depth:] = [name]
    return parents


def test_the_drawn_tree_is_the_tree() -> None:
    actual = {
        cls.__name__: next(base.__name__ for base in cls.__bases__ if issubclass(base, errors.EnrichkitError))
        for cls in CLASSES
        if cls is not errors.EnrichkitError
    }
    assert drawn() == actual


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_an_enrichkit_error(cls: type[Exception]) -> None:
    assert issubclass(cls, errors.EnrichkitError)
    assert cls.__name__.endswith("Error")
    assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_a_pickle(cls: type[Exception]) -> None:
    error = pickle.loads(pickle.dumps(cls("what was wrong")))
    assert type(error) is cls
    assert str(error) == "what was wrong"


def test_a_transient_error_keeps_what_the_source_asked_for() -> None:
    error = pickle.loads(pickle.dumps(errors.TransientError("busy", retry_after=2.5)))
    assert (str(error), error.retry_after) == ("busy", 2.5)
    assert errors.TransientError("busy").retry_after is None


def test_an_error_of_a_source_that_is_away_keeps_what_is_away_and_whether_the_keys_were_sent() -> None:
    error = pickle.loads(pickle.dumps(errors.UnavailableError("away", retry_after=2.5, node="db2", sent=False)))
    assert type(error) is errors.UnavailableError
    assert (str(error), error.retry_after, error.node, error.sent) == ("away", 2.5, "db2", False)
    plain = pickle.loads(pickle.dumps(errors.UnavailableError("away")))
    assert (plain.retry_after, plain.node, plain.sent) == (None, None, True)


@pytest.mark.parametrize("cls", [errors.ConfigError, errors.UnknownOptionError, errors.UnknownConnectorError])
def test_misuse_is_a_value_error(cls: type[Exception]) -> None:
    """So that callers need not know enrichkit's own classes."""
    assert issubclass(cls, ValueError)


def test_no_other_error_is_one_of_a_built_in_class() -> None:
    for cls in CLASSES:
        foreign = [base for base in cls.__bases__ if not issubclass(base, errors.EnrichkitError)]
        if cls is not errors.EnrichkitError:
            assert ([BUILTINS[cls]] if cls in BUILTINS else []) == foreign


def test_a_connectors_errors_are_no_task_errors() -> None:
    """A connector's error is a key's; what fails a task is the engine's decision, but for a FatalError."""
    assert not issubclass(errors.ConnectorError, errors.TaskFailedError)
    assert not issubclass(errors.TaskFailedError, errors.ConnectorError)


def test_the_errors_that_enrichkit_exports_are_those() -> None:
    for name in enrichkit.__all__:
        if name.endswith("Error"):
            assert getattr(errors, name) is getattr(enrichkit, name)
