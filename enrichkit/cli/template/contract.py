"""
The contract between enrichkit and a connector; the docstring of a check that fails says what to look at.

A store that is a server needs a fixture `address` as well, its host and port: the kit puts a network that fails between.
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
        """An unopened connector that points at a test server."""
        (tmp_path / "acme.json").write_text("{}")
        return AcmeConnector(AcmeConfig(path=str(tmp_path / "acme.json"), returns="string"))

    @pytest.fixture
    def known(self, tmp_path: Path) -> dict[str, Any]:
        """Fill the source and return what it holds: three keys or more, one with a quote and one not ASCII."""
        values = {"u1": "Ann", "o'clock": "Bob", "ü": "Eve"}
        (tmp_path / "acme.json").write_text(json.dumps(values))
        return values

    @pytest.fixture
    def missing_key(self) -> str:
        """A key of the right type that the source does not hold."""
        return "nobody"
