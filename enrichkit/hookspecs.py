"""The whole plugin API: the hooks that a package may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from .connector import Connector

__all__ = ["hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("enrichkit")
hookimpl = pluggy.HookimplMarker("enrichkit")


@hookspec
def enrichkit_connector() -> type[Connector[Any]]:  # type: ignore[empty-body]  # pluggy calls the implementations
    """
    Return the connector class that this entry point offers; its `config_class` names the config.

    Called on the driver, once per process, when a user first names the source.
    """


@hookspec
def enrichkit_task_finished(stats: dict[str, Any]) -> None:
    """
    Observe the statistics of a run that ended.

    Not called yet in 0.1; it will be on the worker, once per Spark task and enrichment.
    """
