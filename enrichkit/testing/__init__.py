"""
Tools with which the author of a connector tests it.

`ConnectorContract` is a class of tests that the connector's own test class inherits, and `fault_proxy` is a network
that fails on demand. `enrichkit.testing.fixtures` has pytest fixtures for real servers, `enrichkit.testing.clock` an
event loop with virtual time, and `enrichkit.testing.scripted` a source whose answers a test prescribes.
"""

import pytest

# Registered before the import, so that pytest shows the values of a failed assertion of the contract.
pytest.register_assert_rewrite("enrichkit.testing.contract")

from .bench import open_connector  # noqa: E402
from .contract import ConnectorContract  # noqa: E402
from .proxy import FaultProxy, fault_proxy  # noqa: E402

__all__ = ["ConnectorContract", "FaultProxy", "fault_proxy", "open_connector"]
