"""Names to connectors: each way in which a plugin can be absent or broken has a message of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

import enrichkit
from enrichkit import ConnectorConfig, connectors, register
from enrichkit.errors import (
    ConfigError,
    DuplicateConnectorError,
    MissingDriverError,
    PluginError,
    UnknownConnectorError,
)
from enrichkit.interface import Connector
from enrichkit.sources.registry import FIRST_PARTY, Plugin, load, registered, require_driver

from .installed import listed

if TYPE_CHECKING:
    from collections.abc import Callable

    Install = Callable[..., None]

pytestmark = pytest.mark.usefixtures("fresh_registry")


def refusal(kind: type[Exception], name: str) -> str:
    """The message of exactly the class *kind* with which *name* is not loaded."""
    with pytest.raises(kind) as caught:
        load(name)
    assert type(caught.value) is kind
    return str(caught.value)


# --- what is there


def test_the_installed_connectors_are_listed() -> None:
    for name in FIRST_PARTY:
        assert Plugin(name, f"enrichkit-{name}", enrichkit.__version__) == connectors()[name]


def test_listing_the_connectors_loads_none(install: Install) -> None:
    install("fake", "raise SystemExit('loaded')", version="2.1")
    assert Plugin("fake", "acme-fake", "2.1") == connectors()["fake"]


def test_a_plugin_is_loaded_by_its_name(install: Install) -> None:
    install("fake")
    connector = load("fake")
    assert connector.__name__ == "FakeConnector"
    assert load("fake") is connector


def test_loading_one_plugin_imports_no_other(install: Install) -> None:
    install("fake")
    install("other", "raise SystemExit('loaded')")
    assert load("fake").name == "fake"
    assert "acme_fake_other" not in sys.modules


def test_importing_enrichkit_and_loading_redis_imports_no_other_plugin() -> None:
    program = """
        import sys
        import enrichkit
        from enrichkit.sources.registry import load
        def plugins():
            return sorted({m.partition(".")[0] for m in sys.modules if m.startswith("enrichkit_")})
        before = plugins()
        load("redis")
        drivers = [m for m in ("redis", "hiredis", "asyncmy", "asyncpg", "pyreqwest", "pyspark") if m in sys.modules]
        print(before, plugins(), drivers)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "[] ['enrichkit_redis'] []\n"


def test_a_plugin_may_register_a_source_while_it_is_imported(install: Install) -> None:
    """It would wait for itself, if the lock of the registry were not re-entrant."""
    install(
        "fake",
        """
        import enrichkit
        from enrichkit import Connector, ConnectorConfig
        enrichkit.register("preset", ConnectorConfig(returns="int"))

        class Own(Connector):
            name = "own"
            config_class = type("OwnConfig", (ConnectorConfig,), {})

        @enrichkit.hookimpl
        def enrichkit_connector():
            return Own
        """,
    )
    thread = threading.Thread(target=load, args=("fake",), daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert ConnectorConfig(returns="int") == registered()["preset"]


# --- what is not there, or twice, or broken


def test_an_unknown_name_is_told_the_closest_one(install: Install) -> None:
    install("fake")
    assert refusal(UnknownConnectorError, "fakke") == (
        f"No connector is named 'fakke'. Did you mean 'fake'? Installed or registered: {listed('fake')}. Install a "
        "plugin, or call enrichkit.register('fakke', config)."
    )


def test_an_address_belongs_in_a_config_and_is_not_shown() -> None:
    assert refusal(UnknownConnectorError, "redis://:S3cret@cache:6379") == (
        "The source is an address, which is not shown because it may hold a password. Pass a config with the address: "
        "HttpConfig(url=...), RedisConfig(url=...) or PostgresConfig(dsn=...)."
    )


def test_an_unknown_name_that_is_like_nothing_gets_no_hint() -> None:
    register("users", ConnectorConfig(returns="int"))
    assert refusal(UnknownConnectorError, "xyz") == (
        f"No connector is named 'xyz'. Installed or registered: {listed('users')}. Install a plugin, or call "
        "enrichkit.register('xyz', config)."
    )


@pytest.mark.parametrize("name", ["", "../x", "enrichkit_http/../x", "a\0b"])
def test_a_name_that_no_python_module_could_have_is_unknown_too(name: str) -> None:
    assert refusal(UnknownConnectorError, name).startswith(f"No connector is named {name!r}. Installed")


def test_a_first_party_connector_that_is_not_installed_tells_the_line_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enrichkit.sources.registry.entry_points", lambda **_: [])
    assert refusal(UnknownConnectorError, "postgres") == (
        "The connector 'postgres' is not installed. Run: pip install 'enrichkit[postgres]'"
    )


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    install("fake", package="acme-fake", version="1.0")
    install("fake", package="other-fake", version="0.3")
    message = refusal(DuplicateConnectorError, "fake")
    assert message in (
        "Two packages offer a connector named 'fake': acme-fake 1.0 and other-fake 0.3. Uninstall one of them.",
        "Two packages offer a connector named 'fake': other-fake 0.3 and acme-fake 1.0. Uninstall one of them.",
    )


def test_one_package_that_is_found_twice_is_no_duplicate(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an editable install is, whose folder is on the path as well."""
    install("fake")
    monkeypatch.setattr(sys, "path", [sys.path[0], *sys.path])
    assert load("fake").name == "fake"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (
            "import enrichkit\nfrom enrichkit import nonsense",
            f"ImportError: cannot import name 'nonsense' from 'enrichkit' ({enrichkit.__file__})",
        ),
        ("import acme_fake_fake.inner", "ModuleNotFoundError: No module named 'acme_fake_fake.inner'; "),
        ("import json.nonsense", "ModuleNotFoundError: No module named 'json.nonsense'"),
        ("def broken(:", "SyntaxError: invalid syntax (acme_fake_fake.py, line 1)"),
        (
            "import enrichkit\n@enrichkit.hookimpl\ndef enrichkit_connector():\n    raise KeyError('x')",
            "KeyError: 'x'",
        ),
    ],
)
def test_a_broken_plugin_says_what_broke_it(install: Install, code: str, what: str) -> None:
    install("fake", code, version="1.1")
    message = refusal(PluginError, "fake")
    assert message.startswith(f"The plugin 'fake' of acme-fake 1.1 cannot be loaded: {what}")
    assert message.endswith(". Reinstall it, or report this to its author.")


def test_a_plugin_that_broke_is_tried_again_when_it_is_asked_for_again(install: Install) -> None:
    install("fake", "1 / 0")
    refusal(PluginError, "fake")
    install("fake", package="acme-fake")
    assert load("fake").name == "fake"


def test_a_plugin_whose_driver_is_absent_says_what_to_install(install: Install) -> None:
    install("fake", "import acme_driver.client")
    assert refusal(MissingDriverError, "fake") == (
        "The connector 'fake' needs the package acme_driver, which is not installed. Run: pip install acme-fake"
    )


def test_an_absent_driver_is_an_import_error_too(install: Install) -> None:
    install("fake", "import acme_driver")
    with pytest.raises(ImportError):
        load("fake")


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ("42", "[42]"),
        ("None", "[]"),
        ("'FakeConnector'", "['FakeConnector']"),
        ("int", "[<class 'int'>]"),
        ("enrichkit.Connector", "[<class 'enrichkit.interface.connector.Connector'>]"),
    ],
)
def test_a_hook_that_returns_nonsense_is_the_fault_of_its_plugin(install: Install, returned: str, shown: str) -> None:
    install("fake", f"import enrichkit\n@enrichkit.hookimpl\ndef enrichkit_connector():\n    return {returned}")
    assert refusal(PluginError, "fake") == (
        f"The plugin 'fake' of acme-fake 1.0 offers {shown}; its hook enrichkit_connector must return one Connector "
        "class with a name and a config_class. Report this to the plugin's author."
    )


def test_a_plugin_without_the_hook_is_its_own_fault(install: Install) -> None:
    install("fake", "def enrichkit_connector():\n    return 'without hookimpl'")
    assert refusal(PluginError, "fake") == (
        "The plugin 'fake' of acme-fake 1.0 offers []; its hook enrichkit_connector must return one Connector class "
        "with a name and a config_class. Report this to the plugin's author."
    )


# --- drivers


@pytest.mark.parametrize(
    ("requires", "pip", "run"),
    [
        (("acme_driver",), "pip install 'acme[fast]'", "pip install 'acme[fast]'"),
        (("json", "acme_driver"), None, "pip install acme_driver"),
        (("acme_driver.client",), None, "pip install acme_driver.client"),
    ],
)
def test_a_driver_that_is_not_installed_is_named(requires: tuple[str, ...], pip: str | None, run: str) -> None:
    connector: Any = type("C", (Connector,), {"name": "acme", "requires": requires, "pip": pip})
    with pytest.raises(MissingDriverError) as caught:
        require_driver(connector)
    assert str(caught.value) == (
        f"The connector 'acme' needs the package {requires[-1]}, which is not installed. Run: {run}"
    )


def test_a_driver_that_is_installed_is_not_imported_to_find_that_out() -> None:
    program = """
        import sys
        from enrichkit.sources.registry import load, require_driver
        require_driver(load("postgres"))
        print("asyncpg" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- register


def test_a_second_registration_replaces_the_first() -> None:
    for returns in ("int", "string"):
        register("a.b-c_d", ConnectorConfig(returns=returns))
    assert {"a.b-c_d": ConnectorConfig(returns="string")} == registered()


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", None, 7])
def test_a_source_has_a_plain_name(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        register(name, ConnectorConfig())
    assert str(caught.value) == (
        f"The source name is {name!r}; it must consist of letters, digits, '_', '-' and '.'. For example "
        "register('users', config)."
    )


@pytest.mark.parametrize("config", [{"url": "redis://"}, "redis://u:p@h", ConnectorConfig, None])
def test_a_source_is_registered_with_a_config(config: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        register("users", config)
    assert str(caught.value) == (
        f"The config of source 'users' is a {type(config).__name__}; it must be a ConnectorConfig, for example "
        "register('users', RedisConfig(url='redis://localhost:6379/0'))."
    )
