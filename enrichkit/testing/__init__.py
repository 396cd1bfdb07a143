"""
What the author of a connector tests with: the contract that it must keep, real servers, and a network that fails.

`ConnectorContract` is a class of tests to inherit. Fixtures on real servers are in `enrichkit.testing.fixtures`,
virtual time in `enrichkit.testing.clock`, and a source that answers by script in `enrichkit.testing.scripted`.
"""

import pytest

pytest.register_assert_rewrite("enrichkit.testing.contract")  # before it is imported, so that a failure shows values

from .bench import open_connector  # noqa: E402
from .contract import ConnectorContract  # noqa: E402
from .proxy import FaultProxy, fault_proxy  # noqa: E402

__all__ = ["ConnectorContract", "FaultProxy", "fault_proxy", "open_connector"]
