"""How functions travel to the workers: what becomes of cloudpickle's list of modules that travel by value."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle as _cloudpickle

from enrichkit.driver.pickling import pickle_value

cloudpickle: Any = _cloudpickle  # it has no types
HERE = sys.modules[__name__]  # workers do not have this module
WORD = "travelled"


def answer(key: Any) -> str:
    return WORD


class Then:
    """Calls something while it is pickled."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        self.call()
        return str, ("done",)


def travels_by_value(packed: bytes) -> bool:
    return packed.count(b"travelled") == 1


@pytest.fixture(autouse=True)
def clean_list() -> Iterator[None]:
    """No test leaves a module in the list, also not one that fails."""
    yield
    if __name__ in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.unregister_pickle_by_value(HERE)


def test_a_module_travels_by_value_only_while_it_is_pickled() -> None:
    packed = pickle_value(answer, answer)

    assert travels_by_value(packed)
    assert "travelled" == pickle.loads(packed)(1)
    assert set() == cloudpickle.list_registry_pickle_by_value()


def test_a_base_class_travels_with_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stand in modules beside the script, which no worker has."""
    (tmp_path / "bases_of_jobs.py").write_text("class Base:\n    def word(self):\n        return 'of the base'\n")
    (tmp_path / "users_of_jobs.py").write_text("import bases_of_jobs\nclass Users(bases_of_jobs.Base):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    users = importlib.import_module("users_of_jobs").Users
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())().word())"

    packed = pickle_value(users, users)
    done = subprocess.run([sys.executable, "-c", program], input=packed, capture_output=True, check=False, cwd="/")

    assert (done.stdout, done.stderr) == (b"of the base\n", b"")


def test_a_module_that_the_user_registered_stays_registered() -> None:
    cloudpickle.register_pickle_by_value(HERE)

    assert travels_by_value(pickle_value(answer, answer))
    assert {__name__} == cloudpickle.list_registry_pickle_by_value()


def test_a_module_is_taken_back_when_something_cannot_travel() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle_value([answer, threading.Lock()], answer)

    assert set() == cloudpickle.list_registry_pickle_by_value()


def test_pickling_may_come_back_here() -> None:
    inner: list[bytes] = []

    outer = pickle_value([Then(lambda: inner.append(pickle_value(answer, answer))), answer], answer)

    assert [True, True] == [travels_by_value(packed) for packed in (*inner, outer)]
    assert set() == cloudpickle.list_registry_pickle_by_value()


def test_two_threads_do_not_take_the_module_from_each_other() -> None:
    inside, over = threading.Event(), threading.Event()
    packed: list[bytes] = []

    def second_call() -> None:
        packed.append(pickle_value([Then(in_the_second), answer], answer))

    def in_the_second() -> None:
        inside.set()
        over.wait(20.0)

    second = threading.Thread(target=second_call, daemon=True)

    def in_the_first() -> None:
        second.start()
        inside.wait(0.2)  # in vain, because the second waits until the first is over

    packed.append(pickle_value([Then(in_the_first), answer], answer))
    over.set()
    second.join(20.0)

    assert [True, True] == [travels_by_value(part) for part in packed]
    assert set() == cloudpickle.list_registry_pickle_by_value()
