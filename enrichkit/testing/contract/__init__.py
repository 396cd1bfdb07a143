"""
The contract between the engine and a connector, as a class of tests that a plugin's test class inherits.

Each base class of `ConnectorContract` has the checks of one subject, in a module of its own. The module `base` has the
fixtures that all checks use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .answers import AnswerChecks
from .bad_keys import BadKeyChecks
from .calls import CallChecks
from .config import ConfigChecks
from .faults import FaultChecks
from .hostile import HostileKeyChecks
from .lifecycle import LifecycleChecks
from .secrets import SecretChecks
from .spark import SparkChecks
from .values import ValueChecks

if TYPE_CHECKING:
    import pytest

__all__ = ["ConnectorContract"]


class ConnectorContract(
    ConfigChecks,
    SecretChecks,
    AnswerChecks,
    HostileKeyChecks,
    BadKeyChecks,
    CallChecks,
    LifecycleChecks,
    FaultChecks,
    ValueChecks,
    SparkChecks,
):
    """
    Tests of everything that the engine expects of a connector. A connector that passes them gives each row the value of
    the row's own key.

    A plugin's test class inherits this class and defines the fixtures `connector`, `known` and `missing_key`. If the
    source is a server, the test class also defines `address`. If the source can hold a value that cannot be read, such
    as bytes that are not valid UTF-8, the test class also defines `unreadable`. The docstring of each fixture says what
    the fixture must return:

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

        @pytest.fixture
        def unreadable(self, acme):
            acme.fill_bytes("bytes", b"\\xff")  # not valid UTF-8
            return ["bytes"]
    ```

    `pyproject.toml` needs `addopts = "-p enrichkit.testing.fixtures"` under `[tool.pytest.ini_options]`; these fixtures
    include a Spark session. No pytest plugin for asyncio is needed. The docstring of each check says what to look at in
    the connector when the check fails. If the connector's class lacks an optional method, such as `store_many`, the
    checks of this method only assert that a call of the method raises `NotImplementedError`.

    The only way to leave a check out is to override it and to mark the override as `xfail` with a reason. `pytest`
    reports the reason:

    ```python
    @pytest.mark.xfail(reason="The server forgets some of the stored values.")
    def test_what_is_stored_is_found(self, source):
        super().test_what_is_stored_is_found(source)
    ```
    """

    def test_contract_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Look at the checks that your class overrides: each override must be marked `xfail(reason=...)`."""
        replaced = []
        for name in (name for name in dir(ConnectorContract) if name.startswith("test_")):
            override = getattr(type(request.instance), name)
            if override is getattr(ConnectorContract, name):
                continue
            marks = {mark.name: mark for mark in getattr(override, "pytestmark", ())}
            if marks.keys() - {"spark"} != {"xfail"} or not marks["xfail"].kwargs.get("reason"):
                replaced.append(name)
        assert not replaced, (
            "A test class must give a reason for each check that it overrides; "
            f"{type(request.instance).__name__} gives none for {', '.join(replaced)}. Mark the override with "
            "@pytest.mark.xfail(reason=...), or remove it."
        )
