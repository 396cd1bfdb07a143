"""Checks of the config, which is made and checked on the driver, and of the connector before it is open."""

from __future__ import annotations

import dataclasses
import importlib.util
import pickle
import re
import threading
from typing import TYPE_CHECKING, Any

from ...connector import ConnectorConfig, connector_of
from ...errors import ConfigError
from .base import Fixtures, sockets
from .source import parts_of

if TYPE_CHECKING:
    from ...connector import Connector, Key

__all__ = ["ConfigChecks"]

CANARY = "S3cret-canary"
_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key", re.IGNORECASE)


class ConfigChecks(Fixtures):
    """The config travels and is a key, so it must be a value; and nobody may read a secret in it."""

    def test_known_and_missing_key_are_as_the_kit_needs_them(self, known: dict[Key, Any], missing_key: Key) -> None:
        """Look at your fixtures: too few or too tame keys make the other checks say nothing."""
        assert len(known) >= 3, "Put three keys or more into `known`."
        assert missing_key not in known, "`missing_key` is in `known`."
        values = list(known.values())
        assert all(values.count(value) == 1 for value in values), "Give each key of `known` a value of its own."
        assert len({tuple(map(type, parts_of(key))) for key in (*known, missing_key)}) == 1, (
            "All keys of `known`, and `missing_key`, must have the same number of parts, of the same types."
        )
        texts = [part for key in known for part in parts_of(key) if isinstance(part, str)]
        if texts:
            assert any("'" in text or '"' in text for text in texts), "Put a key with a quote into `known`."
            assert not all(text.isascii() for text in texts), "Put a key that is not ASCII into `known`."

    def test_the_config_is_a_frozen_dataclass(self, connector: Connector[Any]) -> None:
        """Look at the decorator of the config: `@dataclass(frozen=True, kw_only=True)`, on a `ConnectorConfig`."""
        assert isinstance(connector.config, ConnectorConfig)
        parameters = type(connector.config).__dict__.get("__dataclass_params__")
        assert parameters is not None, "The config's class is no dataclass of its own."
        assert parameters.frozen

    def test_the_connector_is_found_by_its_config(self, connector: Connector[Any]) -> None:
        """Look at `config_class` and `name`: `enrich(config, ...)` has nothing else to go by."""
        assert isinstance(connector.config, connector.config_class)
        assert connector_of(connector.config) is type(connector)
        assert isinstance(connector.name, str)
        assert connector.name

    def test_equal_configs_are_one_key(self, connector: Connector[Any]) -> None:
        """Look for lists and dicts among the fields: tuples hash. Two equal configs share connections."""
        twin = dataclasses.replace(connector.config)
        assert twin == connector.config
        assert hash(twin) == hash(connector.config)

    def test_another_field_makes_another_config(self, connector: Connector[Any]) -> None:
        """Look at `__eq__` and `compare=False`: configs that differ must not share connections."""
        other = dataclasses.replace(connector.config, returns="struct<of: string, the: string, kit: string>")
        assert other != connector.config

    def test_the_config_survives_pickling(self, connector: Connector[Any]) -> None:
        """Look for locks, clients and open files among the fields: the config is pickled into the expression."""
        assert pickle.loads(pickle.dumps(connector.config)) == connector.config  # noqa: S301  # we have made it

    def test_the_repr_of_the_config_hides_its_secrets(self, connector: Connector[Any]) -> None:
        """Look at the fields that may hold a password, addresses included: `field(repr=False)`. Plans show the repr."""
        assert not [name for name, twin in _with_secrets(connector.config) if CANARY in repr(twin) + str(twin)]

    def test_the_repr_of_the_connector_hides_the_secrets(self, connector: Connector[Any]) -> None:
        """Look at `__repr__` of the connector: it is in logs."""
        connectors = [(name, type(connector)(twin)) for name, twin in _with_secrets(connector.config)]
        assert not [name for name, each in connectors if CANARY in repr(each) + str(each)]

    def test_a_field_of_a_wrong_type_is_a_config_error(self, connector: Connector[Any]) -> None:
        """Look at `__post_init__`: each field is checked on the driver, before any row moves, with a `ConfigError`."""
        accepted, other = [], []
        for field in _fields(connector.config):
            try:
                dataclasses.replace(connector.config, **{field.name: NotAValue()})
            except ConfigError:
                continue
            except Exception as error:  # noqa: BLE001  # which one it is, is what is wrong
                other.append(f"{field.name}: {type(error).__name__}")
            else:
                accepted.append(field.name)
        assert not accepted, "These fields take anything."
        assert not other, "These fields raise something else than a ConfigError."

    def test_the_message_of_a_wrong_field_names_it(self, connector: Connector[Any]) -> None:
        """Look at the messages of `__post_init__`: they name class and field, as in `AcmeConfig.port is 'x'; it`."""
        silent = []
        for field in _fields(connector.config):
            try:
                dataclasses.replace(connector.config, **{field.name: NotAValue()})
            except ConfigError as error:
                if type(connector.config).__name__ not in str(error) or not re.search(rf"\b{field.name}\b", str(error)):
                    silent.append(f"{field.name}: {error}")
            except Exception:  # noqa: BLE001, S112  # the check before this one tells
                continue
        assert not silent

    def test_no_message_shows_a_secret(self, connector: Connector[Any]) -> None:
        """Look at the messages of `__post_init__`: a field that may hold a password is not quoted."""
        telling = []
        for field in _secret_fields(connector.config):
            value = getattr(connector.config, field.name)
            for bad in (f"{CANARY}\x00\n", f":/{CANARY}@:", f"{value}\x00{CANARY}"):
                try:
                    dataclasses.replace(connector.config, **{field.name: bad})
                except ConfigError as error:
                    if CANARY in str(error):
                        telling.append(field.name)
        assert not telling

    def test_the_limits_make_sense(self, connector: Connector[Any]) -> None:
        """Look at `capacity`, `batch_size` and `max_batch_size`: whole numbers, the second not above the third."""
        limits = connector.capacity, connector.batch_size, connector.max_batch_size
        assert all(type(limit) is int and limit >= 1 for limit in limits), limits
        assert connector.batch_size <= connector.max_batch_size

    def test_the_encoding_is_known(self, connector: Connector[Any]) -> None:
        """Look at `encoding`: it is asked of a connector that is not open."""
        assert connector.encoding in ("python", "json", "text")

    def test_what_it_requires_can_be_installed(self, connector: Connector[Any]) -> None:
        """Look at `requires`, names of modules, and at `pip`, the line that installs them."""
        absent = [module for module in connector.requires if importlib.util.find_spec(module) is None]
        assert not absent
        assert not connector.requires or (connector.pip or "").startswith("pip install ")

    def test_the_keys_are_of_the_declared_shape(self, connector: Connector[Any], known: dict[Key, Any]) -> None:
        """Look at `key_parts` of the config and `key_types` of the connector: the driver checks columns by them."""
        assert {len(parts_of(key)) for key in known} <= {connector.config.key_parts or len(parts_of(next(iter(known))))}
        types = connector.key_types or (object,)
        assert all(isinstance(part, types) for key in known for part in parts_of(key))

    def test_making_a_connector_opens_nothing(self, connector: Connector[Any]) -> None:
        """Look at `__init__`: the driver makes connectors to ask for their limits. What costs belongs into `open`."""
        before = sockets(), set(threading.enumerate())
        again = type(connector)(connector.config)
        assert not sockets() - before[0]
        assert not set(threading.enumerate()) - before[1]
        assert again.config is connector.config


class NotAValue:
    """Of a type that no field can take."""

    def __repr__(self) -> str:
        return "<not a value>"


def _fields(config: ConnectorConfig) -> list[dataclasses.Field[Any]]:
    """The fields of the plugin's own; `returns` is the engine's."""
    return [field for field in dataclasses.fields(config) if field.init and field.name != "returns"]


def _secret_fields(config: ConnectorConfig) -> list[dataclasses.Field[Any]]:
    """The fields that may hold a secret: hidden, called so, or an address, which may have a password in it."""
    return [
        field
        for field in _fields(config)
        if not field.repr or _SECRET_NAME.search(field.name) or "://" in str(getattr(config, field.name))
    ]


def _with_secrets(config: ConnectorConfig) -> list[tuple[str, ConnectorConfig]]:
    """Configs like *config* with a secret where one may be: in a field called so, or in front of the host of a URL."""
    found = []
    for field in _fields(config):
        value = getattr(config, field.name)
        candidates = [CANARY] if _SECRET_NAME.search(field.name) or not field.repr else []
        if isinstance(value, str) and "://" in value:
            scheme, _, rest = value.partition("://")
            user, at, host = rest.rpartition("@")
            candidates = [f"{scheme}://{user.partition(':')[0] if at else 'user'}:{CANARY}@{host}"]
        for candidate in candidates:
            try:
                found.append((field.name, dataclasses.replace(config, **{field.name: candidate})))
            except ConfigError:  # then it cannot be there
                continue
    return found
