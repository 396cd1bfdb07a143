"""Checks of the config, which the user creates on the driver, and of the connector before it is opened."""

from __future__ import annotations

import dataclasses
import importlib.util
import pickle
import re
import threading
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...interface import ConnectorConfig, connector_of
from .base import Fixtures, sockets
from .messages import raised, short
from .source import parts_of

if TYPE_CHECKING:
    from ...interface import Connector, Key

__all__ = ["ConfigChecks", "own_fields"]


class ConfigChecks(Fixtures):
    """A config is pickled, compared and hashed, so it must be a plain value; its error messages must help the user."""

    def test_known_and_missing_key_are_as_the_kit_needs_them(self, known: dict[Key, Any], missing_key: Key) -> None:
        """Look at your fixtures: with too few keys, or only simple ones, the other checks prove nothing."""
        assert len(known) >= 3, f"The fixture `known` must have three keys or more; it has {len(known)}. Add some."
        assert missing_key not in known, (
            f"`missing_key` must be a key that is not in `known`; it is {short(missing_key)}. Return another key."
        )
        values = list(known.values())
        twins = [value for value in values if values.count(value) > 1]
        assert not twins, (
            "Each key of `known` must have a value of its own, so that a swap of values shows; "
            f"{len(twins)} keys have one of {short(twins)}. Store other values."
        )
        shapes = {tuple(part.__class__.__name__ for part in parts_of(key)) for key in (*known, missing_key)}
        assert len({tuple(map(type, parts_of(key))) for key in (*known, missing_key)}) == 1, (
            "All keys of `known`, and `missing_key`, must have the same number of parts, of the same types; they are "
            f"{sorted(shapes)}. Correct the keys that differ."
        )
        texts = [part for key in known for part in parts_of(key) if isinstance(part, str)]
        if texts:
            assert any("'" in text or '"' in text for text in texts), (
                f'A key of `known` must have a quote; the keys are {short([*known])}. Add one, such as "o\'clock".'
            )
            assert not all(text.isascii() for text in texts), (
                f"A key of `known` must not be ASCII; the keys are {short([*known])}. Add one, such as '\N{SNOWMAN}'."
            )

    def test_the_config_is_a_frozen_dataclass(self, connector: Connector[Any]) -> None:
        """Look at the config's class: it must be a `ConnectorConfig` with `@dataclass(frozen=True, kw_only=True)`."""
        name = type(connector.config).__name__
        assert isinstance(connector.config, ConnectorConfig), (
            f"The config must be a ConnectorConfig; it is of the class {name}. Derive this class from ConnectorConfig."
        )
        parameters = type(connector.config).__dict__.get("__dataclass_params__")
        hint = "Put @dataclass(frozen=True, kw_only=True) before the class."
        assert parameters is not None, f"The config must be a dataclass; {name} has no decorator of its own. {hint}"
        assert parameters.frozen, f"The dataclass of the config must be frozen; {name} is not. {hint}"

    def test_the_connector_is_found_by_its_config(self, connector: Connector[Any]) -> None:
        """Look at `config_class` and `name`: with these, `enrich(config, ...)` finds the connector of a config."""
        config, kind = type(connector.config).__name__, type(connector).__name__
        assert isinstance(connector.config, connector.config_class), (
            f"The config must be a `config_class` of the connector; it is a {config}, and `config_class` is "
            f"{short(connector.config_class)}. Set `config_class = {config}` in {kind}."
        )
        found = connector_of(connector.config)
        assert found is type(connector), (
            f"The config must lead to the connector's own class, {kind}; {config} leads to {found.__name__}. Give each "
            "connector a config class of its own."
        )
        assert isinstance(connector.name, str), (
            f"The connector's `name` must be a str; it is {short(connector.name)}. Set `name = 'acme'` in {kind}."
        )
        assert connector.name, f"The connector's `name` must not be empty; it is ''. Set `name = 'acme'` in {kind}."

    def test_equal_configs_are_one_key(self, connector: Connector[Any]) -> None:
        """Look for lists and dicts in fields: use tuples. A config needs a hash: equal configs share an engine."""
        twin = dataclasses.replace(connector.config)
        name = type(twin).__name__
        assert twin == connector.config, (
            f"Two configs with equal fields must be equal; two of {name} are not. Look at its `__eq__`, and for "
            "fields whose values have none: equal configs share an engine."
        )
        try:
            same = hash(twin) == hash(connector.config)
        except TypeError as error:
            raise AssertionError(
                f"A config must have a hash; that of {name} fails with {error}. Use tuples instead of lists, and "
                "tuples of pairs instead of dicts."
            ) from error
        assert same, (
            f"Two configs with equal fields must have the same hash; two of {name} do not. Look at its `__hash__`, and "
            "at those of its fields."
        )

    def test_another_field_makes_another_config(self, connector: Connector[Any]) -> None:
        """Look at `__eq__` and `compare=False`: configs that differ must be unequal, or they share connections."""
        other = dataclasses.replace(connector.config, returns="struct<of: string, the: string, kit: string>")
        assert other != connector.config, (
            f"Two configs that differ in one field must not be equal; two of {type(other).__name__} that differ in "
            "`returns` are. Remove its `__eq__` and `compare=False`: equal configs share connections and answers."
        )

    def test_the_config_survives_pickling(self, connector: Connector[Any]) -> None:
        """Look for locks, clients and open files among the fields, which prevent Spark from pickling the config."""
        name = type(connector.config).__name__
        try:
            copy = pickle.loads(pickle.dumps(connector.config))  # noqa: S301  # pickled on this line
        except Exception as error:
            raise AssertionError(
                f"A config must survive pickling; that of {name} failed with {raised(error)}. Keep locks, clients and "
                "open files out of its fields: make them in `open` of the connector."
            ) from error
        assert copy == connector.config, (
            f"A config that was pickled and unpickled must be equal to the original; the copy of {name} is not. Look "
            "at its `__eq__`, `__getstate__` and `__reduce__`."
        )

    def test_a_field_of_a_wrong_type_is_a_config_error(self, connector: Connector[Any]) -> None:
        """Look at `__post_init__`: it must check each field and raise a `ConfigError`, before any job starts."""
        accepted, other = [], []
        for field in own_fields(connector.config):
            try:
                dataclasses.replace(connector.config, **{field.name: NotAValue()})
            except ConfigError:
                continue
            except Exception as error:  # noqa: BLE001  # the assertion below shows the class of the exception
                other.append(f"{field.name}: {raised(error)}")
            else:
                accepted.append(field.name)
        hint = f"Check their types in `__post_init__` of {type(connector.config).__name__}, and raise a ConfigError."
        assert not accepted, (
            f"The config must refuse a value of a wrong type; the fields {accepted} accept any value. {hint}"
        )
        assert not other, (
            "The config must refuse a value of a wrong type with a ConfigError; these fields raise something else: "
            f"{short(other)}. {hint}"
        )

    def test_the_message_of_a_wrong_field_names_it(self, connector: Connector[Any]) -> None:
        """Look at the messages of `__post_init__`: they must name class and field, as in `AcmeConfig.port is 'x'`."""
        silent = []
        for field in own_fields(connector.config):
            try:
                dataclasses.replace(connector.config, **{field.name: NotAValue()})
            except ConfigError as error:
                if type(connector.config).__name__ not in str(error) or not re.search(rf"\b{field.name}\b", str(error)):
                    silent.append(f"{field.name}: {error}")
            except Exception:  # noqa: BLE001, S112  # such an exception fails the check before this one
                continue
        name = type(connector.config).__name__
        assert not silent, (
            f"The message of a ConfigError must name the config's class, {name}, and the field; these do not: "
            f"{short(silent)}. Begin them with {name} and the field, as in `AcmeConfig.port is 'x'`."
        )

    def test_the_limits_make_sense(self, connector: Connector[Any]) -> None:
        """Look at `capacity` and the batch sizes: each must be 1 or more, and `batch_size` at most `max_batch_size`."""
        limits = connector.capacity, connector.batch_size, connector.max_batch_size
        assert all(type(limit) is int and limit >= 1 for limit in limits), (
            f"`capacity`, `batch_size` and `max_batch_size` must be whole numbers from 1 on; they are {short(limits)}. "
            f"Correct them in {type(connector).__name__}, or where it computes them from the config."
        )
        assert connector.batch_size <= connector.max_batch_size, (
            f"`batch_size` must not be above `max_batch_size`; they are {connector.batch_size} and "
            f"{connector.max_batch_size}. Reduce `batch_size`, the usual number of keys of a call, or raise "
            "`max_batch_size`, the most."
        )

    def test_the_encoding_is_known(self, connector: Connector[Any]) -> None:
        """Look at `encoding`: the engine also reads it from a connector that is not open, so set it before `open`."""
        assert connector.encoding in ("python", "json", "text"), (
            f"`encoding` must be 'python', 'json' or 'text'; it is {short(connector.encoding)}. Take the one that says "
            "in which form `fetch_many` returns a value; 'python' is the default."
        )

    def test_what_it_requires_can_be_installed(self, connector: Connector[Any]) -> None:
        """Look at `requires`, the names of modules, and at `pip`, the command that installs them."""
        absent = [module for module in connector.requires if importlib.util.find_spec(module) is None]
        assert not absent, (
            f"`requires` must hold names of modules that can be imported; {absent} cannot. Name modules, not packages, "
            "and install what the tests need."
        )
        assert not connector.requires or (connector.pip or "").startswith("pip install "), (
            f"A connector with `requires` must have a `pip` that starts with 'pip install '; it is "
            f"{short(connector.pip)}. Set it to the command that installs {', '.join(connector.requires)}."
        )

    def test_the_keys_are_of_the_declared_shape(self, connector: Connector[Any], known: dict[Key, Any]) -> None:
        """Look at the config's `key_parts` and the connector's `key_types`: the driver checks key columns with them."""
        parts = connector.config.key_parts or len(parts_of(next(iter(known))))
        other = [key for key in known if len(parts_of(key)) != parts]
        assert not other, (
            f"Each key of `known` must have as many parts as `key_parts` of the config says, {parts}; these have "
            f"others: {short(other)}. Correct `key_parts`, or the fixture `known`."
        )
        types = connector.key_types or (object,)
        odd = [part for key in known for part in parts_of(key) if not isinstance(part, types)]
        assert not odd, (
            f"Each part of a key of `known` must be of one of the `key_types`, "
            f"{', '.join(each.__name__ for each in types)}; these are not: {short(odd)}. Add their types to "
            f"`key_types` of {type(connector).__name__}, or correct the fixture `known`."
        )

    def test_making_a_connector_opens_nothing(self, connector: Connector[Any]) -> None:
        """Look at `__init__`: the driver creates connectors to read their limits, so `open` must do all costly work."""
        before = sockets(), set(threading.enumerate())
        again = type(connector)(connector.config)
        opened, started = sockets() - before[0], set(threading.enumerate()) - before[1]
        hint = f"Do that in `open` of {type(connector).__name__}: the driver only reads the limits of a connector."
        assert not opened, f"`__init__` of the connector must open no sockets; it opened {len(opened)}. {hint}"
        assert not started, f"`__init__` of the connector must start no threads; it started {len(started)}. {hint}"
        kept = getattr(again, "config", None)
        assert kept is connector.config, (
            "`__init__` must keep the config that it is given as `config`; `config` is of the class "
            f"{type(kept).__name__}, and another object. Call `super().__init__(config)`."
        )


class NotAValue:
    """The type of a value that each field of a config must refuse."""

    def __repr__(self) -> str:
        return "<not a value>"


def own_fields(config: ConnectorConfig) -> list[dataclasses.Field[Any]]:
    """Return the plugin's own fields of *config*; the field `returns` belongs to the engine."""
    return [field for field in dataclasses.fields(config) if field.init and field.name != "returns"]
