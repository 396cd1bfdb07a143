"""
The contract between enrichkit and a connector, as tests. The docstring of a failed test says what to look at.

If your store is a server, add a fixture `address` that returns its host and port. The tests then also check what the
connector does when the network fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from enrichkit.testing import ConnectorContract

from enrichkit_acme import AcmeConfig, AcmeConnector


class TestAcmeContract(ConnectorContract):
    @pytest.fixture
    def connector(self, tmp_path: Path) -> AcmeConnector:
        """An unopened connector for a test server."""
        (tmp_path / "acme.json").write_text("{}")
        return AcmeConnector(AcmeConfig(path=str(tmp_path / "acme.json"), returns="string"))

    @pytest.fixture
    def known(self, tmp_path: Path) -> dict[str, Any]:
        """The keys and values that the source holds: three keys or more, one with a quote and one that is not ASCII."""
        values = {"u1": "Ann", "o'clock": "Bob", "ü": "Eve"}
        (tmp_path / "acme.json").write_text(json.dumps(values))
        return values

    @pytest.fixture
    def missing_key(self) -> str:
        """A key of the right type that the source does not hold."""
        return "nobody"
