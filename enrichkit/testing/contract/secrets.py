"""Checks that no repr of a config or a connector, and no error message of a config, shows a secret."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from .base import Fixtures
from .config import own_fields

if TYPE_CHECKING:
    from ...interface import Connector, ConnectorConfig

__all__ = ["SecretChecks"]

CANARY = "S3cret-canary"
_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key", re.IGNORECASE)


class SecretChecks(Fixtures):
    """Plans, logs and tracebacks show configs, connectors and messages to people who must not see the secrets."""

    def test_the_repr_of_the_config_hides_its_secrets(self, connector: Connector[Any]) -> None:
        """Look at the fields that may hold a password, or a URL with one: they need `field(repr=False)`."""
        shown = [name for name, twin in _with_secrets(connector.config) if CANARY in repr(twin) + str(twin)]
        assert not shown, (
            f"The repr of the config must not show secrets; it shows those in the fields {shown}. Declare these fields "
            "with `field(repr=False)`."
        )

    def test_the_repr_of_the_connector_hides_the_secrets(self, connector: Connector[Any]) -> None:
        """Look at `__repr__` of the connector: it must leave out the config's secrets, because logs show the repr."""
        connectors = [(name, type(connector)(twin)) for name, twin in _with_secrets(connector.config)]
        shown = [name for name, each in connectors if CANARY in repr(each) + str(each)]
        assert not shown, (
            f"The repr of the connector must not show secrets; it shows those in the fields {shown} of the config. "
            f"Leave them out of `__repr__` of {type(connector).__name__}."
        )

    def test_no_message_shows_a_secret(self, connector: Connector[Any]) -> None:
        """Look at the messages of `__post_init__`: they must not quote a field that may hold a password."""
        revealing = []
        for field in _secret_fields(connector.config):
            value = getattr(connector.config, field.name)
            for bad in (f"{CANARY}\x00\n", f":/{CANARY}@:", f"{value}\x00{CANARY}"):
                try:
                    dataclasses.replace(connector.config, **{field.name: bad})
                except ConfigError as error:
                    if CANARY in str(error):
                        revealing.append(field.name)
        assert not revealing, (
            f"The message of a ConfigError must not quote a secret; those of the fields {[*dict.fromkeys(revealing)]} "
            f"do. Say in `__post_init__` of {type(connector.config).__name__} what is wrong without the value."
        )


def _secret_fields(config: ConnectorConfig) -> list[dataclasses.Field[Any]]:
    """Return the fields that may hold a secret: those with `repr=False`, a URL, or a name like `password`."""
    return [
        field
        for field in own_fields(config)
        if not field.repr or _SECRET_NAME.search(field.name) or "://" in str(getattr(config, field.name))
    ]


def _with_secrets(config: ConnectorConfig) -> list[tuple[str, ConnectorConfig]]:
    """
    Return pairs of a field's name and a copy of *config* with a secret in this field.

    If a field holds a URL, the secret replaces the password in the URL. If another field may hold a secret, the secret
    replaces its value.
    """
    copies = []
    for field in own_fields(config):
        value = getattr(config, field.name)
        candidates = [CANARY] if _SECRET_NAME.search(field.name) or not field.repr else []
        if isinstance(value, str) and "://" in value:
            scheme, _, rest = value.partition("://")
            user, at, host = rest.rpartition("@")
            candidates = [f"{scheme}://{user.partition(':')[0] if at else 'user'}:{CANARY}@{host}"]
        for candidate in candidates:
            try:
                copies.append((field.name, dataclasses.replace(config, **{field.name: candidate})))
            except ConfigError:  # the config accepts no secret in this field
                continue
    return copies
