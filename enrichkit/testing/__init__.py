"""
Tools with which the author of a connector tests it.

`ConnectorContract` is a class of tests that the connector's own test class inherits. `fault_proxy` starts a TCP proxy
between the connector and its server, with which a test causes network faults. `enrichkit.testing.fixtures` has pytest
fixtures for real servers, `enrichkit.testing.clock` has an event loop with virtual time, and
`enrichkit.testing.scripted` has a source whose answers a test prescribes.
"""

import pytest

# pytest rewrites the assertions of the package `contract`, so that a failed assertion shows its values. pytest must be
# told before the package is imported, so this call comes before the imports below.
pytest.register_assert_rewrite("enrichkit.testing.contract")

from .bench import open_connector  # noqa: E402
from .contract import ConnectorContract  # noqa: E402
from .proxy import FaultProxy, fault_proxy  # noqa: E402

__all__ = ["ConnectorContract", "FaultProxy", "fault_proxy", "open_connector"]
