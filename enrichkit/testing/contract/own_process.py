"""Decorators of the checks that run in a process of their own, because they cancel calls or break connections."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .fork_server import ForkServer
from .source import Network, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...interface import ConnectorConfig, Key

__all__ = ["cancels", "needs_network"]

Check = TypeVar("Check", bound=Callable[..., None])


def needs_network(check: Check) -> Check:
    """
    Decorate a check that needs the fixture `network`; without a network the check passes.

    A source that is not a server has no network. For such a source, the fixture `network` asserts that the connector
    opens no connection that could fail.
    """

    @functools.wraps(check)
    def run(self: Any, network: Network | None) -> None:
        __tracebackhide__ = True
        if network is not None and not _run_alone(run, self, network, network.proxy):
            check(self, network)

    return run  # type: ignore[return-value]  # `run` has the parameters of *check*, with the same names


def cancels(check: Check) -> Check:
    """
    Decorate a check that needs the fixture `source` and cancels calls.

    If the source is a server, the check runs in a process of its own. A source that is no server may be a part of the
    process of pytest, such as a test double of a client package, so its check runs in that process.
    """

    @functools.wraps(check)
    def run(self: Any, source: Source) -> None:
        __tracebackhide__ = True
        if not (source.is_server and _run_alone(run, self, source, None)):
            check(self, source)

    return run  # type: ignore[return-value]  # `run` has the parameters of *check*, with the same names


def _run_alone(check: Any, test: Any, source: Source, proxy: Any) -> bool:
    """
    Run *check* in a process of its own, with a new connector, and return true.

    If the test class says `own_process = False`, warn and return false without running *check*. Do the same if the
    connector's class or config, the known values or the test class cannot be pickled, because what cannot be pickled
    cannot be sent to the process. A config that cannot be pickled also fails the check
    `test_the_config_survives_pickling`.
    """
    __tracebackhide__ = True
    if not test.own_process:
        reason = f"{type(test).__name__} says own_process = False"
        _warn(check, reason, "Remove that line when the debugger has done its work.")
        return False
    kind, config = type(source.connector), source.connector.config
    try:
        job = pickle.dumps(
            functools.partial(
                _play,
                check,
                type(test),
                kind,
                config,
                source.known,
                source.missing,
                source.patience,
                has_network=proxy is not None,
            )
        )
    except Exception as error:  # noqa: BLE001  # pickling may raise anything
        reason = f"what it needs cannot be pickled ({type(error).__name__}: {error})"
        advice = "Define the test class and the classes of connector, config and values at the top of a module."
        _warn(check, reason, advice)
        return False
    if source.is_open:
        source.close()
    try:
        ForkServer.start().run(check.__name__, job, proxy, kind.requires)
    except Exception:
        # pytest shows the code of a failed check, and so its docstring, only if the check ran in the process of pytest.
        # The docstring is therefore written to stderr, which pytest always shows.
        sys.stderr.write(f"{check.__name__}: {inspect.cleandoc(check.__doc__ or '')}\n")
        raise
    return True


def _warn(check: Any, reason: str, advice: str) -> None:
    """Warn that *check* runs in pytest's own process, and say what that costs."""
    warnings.warn(
        f"{check.__name__} runs in the process of pytest and not in one of its own, because {reason}. If the connector "
        "or its client package ends the process here, the whole run ends: no check fails by its name, and the tests "
        f"after it do not run. {advice}",
        stacklevel=2,
    )


def _play(
    check: Any,
    tests: type,
    kind: Any,
    config: ConnectorConfig,
    known: Mapping[Key, Any],
    missing: Key,
    patience: float,
    proxy: Any,
    *,
    has_network: bool,
) -> None:
    """Run *check* in this process. If *has_network* is true, it gets *proxy*, the stand-in for the fault proxy."""
    if has_network:
        with Network(kind(config), proxy, known, missing, patience=patience) as network:
            check.__wrapped__(tests(), network)
    else:
        with Source(kind(config), known, missing, patience=patience) as source:
            source.open()
            check.__wrapped__(tests(), source)
