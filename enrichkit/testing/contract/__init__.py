"""
The contract between the engine and a connector, as tests that a plugin inherits.

Each module has the checks of one subject; `base` has the fixtures that they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .answers import AnswerChecks
from .calls import CallChecks
from .config import ConfigChecks
from .faults import FaultChecks
from .lifecycle import LifecycleChecks
from .spark import SparkChecks
from .values import ValueChecks

if TYPE_CHECKING:
    import pytest

__all__ = ["ConnectorContract"]


class ConnectorContract(ConfigChecks, AnswerChecks, CallChecks, LifecycleChecks, FaultChecks, ValueChecks, SparkChecks):
    """
    What the engine relies on, as tests; a connector that passes them gives each row its own value.

    A plugin inherits it and writes three fixtures, and a fourth when its source is a server; see their docstrings:

    ```python
    class TestAcmeContract(ConnectorContract):
        @pytest.fixture
        def connector(self, acme):
            return AcmeConnector(AcmeConfig(host="127.0.0.1", port=acme.port))

        @pytest.fixture
        def known(self, acme):
            values = {"a": "1", "o'clock": "2", "\\N{SNOWMAN}": "3"}
            acme.fill(values)
            return values

        @pytest.fixture
        def missing_key(self):
            return "nobody"

        @pytest.fixture
        def address(self, acme):
            return "127.0.0.1", acme.port
    ```

    Beside them `conftest.py` says `pytest_plugins = ["enrichkit.testing.fixtures"]`, for Spark. No async plugin is
    needed. The docstring of each check says what to look at when it fails. What a connector does not offer, as
    `store_many`, its checks find out by themselves.

    The only way to leave a check out is an override that says why, and that `pytest` reports:

    ```python
    @pytest.mark.xfail(reason="The server forgets what it was told to keep.")
    def test_what_is_stored_is_found(self, source):
        super().test_what_is_stored_is_found(source)
    ```
    """

    def test_contract_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Look at what your class overrides: a check may be marked `xfail(reason=...)`, and nothing else."""
        replaced = []
        for name in (name for name in dir(ConnectorContract) if name.startswith("test_")):
            mine = getattr(type(request.instance), name)
            if mine is getattr(ConnectorContract, name):
                continue
            marks = {mark.name: mark for mark in getattr(mine, "pytestmark", ())}
            if marks.keys() - {"spark"} != {"xfail"} or not marks["xfail"].kwargs.get("reason"):
                replaced.append(name)
        assert not replaced
